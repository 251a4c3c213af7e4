"""What producers, consumers and coordinators exchange with the broker about shards: plain values.

It never talks to a server. Epochs and versions are ints, times are server milliseconds unless said otherwise.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["train", "eval"]
Command = Literal["run", "pause", "stop"]
AppendStatus = Literal["OK", "DUP", "GAP", "FENCED", "GIVEN", "FULL", "NOBLOB", "GONE"]
RenewStatus = Literal["OK", "FENCED", "GONE"]


@dataclass(frozen=True, slots=True)
class Ticket:
    """A hint in a pool's stream that a shard wants a worker.

    Attributes:
        experiment, partition, shard: which one.
        pool, entry_id: whose stream it came from, and its id there.
        age_ms: since it was issued. waiting: entries there, read or not, when it was looked at.
        urgent: its last owner died: it may be taken above quota at once.
    """

    experiment: str
    partition: int
    shard: int
    pool: str
    entry_id: str
    age_ms: int
    urgent: bool = False
    waiting: int = 1


@dataclass(frozen=True, slots=True)
class QueuedTicket:
    """A shard that waits for a worker, and where its ticket is.

    Attributes:
        shard: its index.
        entry_id: id of its ticket in the pool's stream; "" when none was issued yet.
        in_stream: the ticket is still there.
        read_ms_ago: since a worker read the ticket without finishing with it; None while nobody has.
        since_ms: since when the shard is queued, server ms.
    """

    shard: int
    entry_id: str
    in_stream: bool
    read_ms_ago: int | None
    since_ms: int


@dataclass(frozen=True, slots=True)
class Lease:
    """One worker's right to play one shard.

    Attributes:
        experiment, partition, shard: what it is for.
        worker: who holds it.
        epoch: fencing number, higher at every claim of the shard.
        nonce: random text of this claim; (shard, epoch, nonce, seq) names a batch.
    """

    experiment: str
    partition: int
    shard: int
    worker: str
    epoch: int
    nonce: str

    @property
    def named(self) -> str:
        """For log lines, behind "shard=": "cartpole-7f3a/3 epoch=17"."""
        return f"{self.experiment}/{self.shard} epoch={self.epoch}"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a worker gets with a shard.

    Attributes:
        lease: its right.
        seq: number of the last batch that was ever accepted from this shard; the next one is seq + 1. 0 at first.
        given: highest policy version that the shard has given in full (sync and eval); 0 at first.
        command, policy, min_policy, eval_policy: of the experiment, at this moment.
        snapshot: key of the environments' state after batch seq; None when there is none.
        kind: train or eval.
        attempts: how often the shard was claimed, this time included.
        sync: each policy version is given once.
        deaths: owners in a row that ended without a batch, before this one.
        no_snapshot: why the last owner could not take a snapshot; "" when it could, or did not say.
        plane: token of the shared memory that every reader can map; "" for none.
        suspect: a worker that held it among others crashed a little while ago; each turn of it is told beforehand.
        company: owners in a row that died with it before a batch of it, while other shards' environments lived there.
    """

    lease: Lease
    seq: int
    given: int
    command: Command
    policy: int
    min_policy: int
    eval_policy: int
    snapshot: str | None
    kind: Kind
    attempts: int
    sync: bool
    deaths: int = 0
    no_snapshot: str = ""
    plane: str = ""
    suspect: bool = False
    company: int = 0


@dataclass(frozen=True, slots=True)
class AppendMeta:
    """What a pointer tells of its batch.

    Attributes:
        kind: train or eval.
        version_min, version_max: policy versions that played it.
        segments, steps: how many it holds.
        bytes: length of the encoded batch.
        crc32: of the encoded batch.
        given: the policy version that this batch completes (sync, and the last batch of an evaluation); 0 for none.
        waited_ms: how long its worker could play nothing since its batch before, whichever shard that was of.
        played_ms: how long playing it took, from its policy to its last byte.
        held_ms: how long it has been ready, and waits to be accepted.
    """

    kind: Kind
    version_min: int
    version_max: int
    segments: int
    steps: int
    bytes: int
    crc32: int
    given: int = 0
    waited_ms: int = 0
    played_ms: int = 0
    held_ms: int = 0


@dataclass(frozen=True, slots=True)
class AppendReply:
    """The broker's answer to an append.

    Attributes:
        status: OK accepted; DUP accepted before; GAP the broker forgot accepted batches; FENCED the shard has another
            owner or none; GIVEN that policy version was given, or the experiment's trainer has left for good; FULL no
            room now; NOBLOB send the bytes again; GONE the experiment was removed.
        command, policy, eval_policy: of the experiment, at this moment.
        seq: number of the last batch that the broker has accepted from this shard.
        room_entries, room_bytes: what is left below the caps; negative when one batch went above.
        accepted_before: FENCED only: this very batch had been accepted before the shard was lost.
        plane: token of the shared memory that every reader can map, at this moment; "" for none.
    """

    status: AppendStatus
    command: Command
    policy: int
    eval_policy: int
    seq: int
    room_entries: int
    room_bytes: int
    accepted_before: bool
    plane: str = ""


@dataclass(frozen=True, slots=True)
class Renewal:
    """The broker's answer to the renewal of one lease.

    Attributes:
        shard: its index.
        status: OK kept; FENCED lost; GONE the experiment was removed.
        seq: number of the last accepted batch; lower than the worker's own means the broker forgot some (GAP).
        command, policy, eval_policy: of the experiment, at this moment.
    """

    shard: int
    status: RenewStatus
    seq: int
    command: Command
    policy: int
    eval_policy: int


@dataclass(frozen=True, slots=True)
class Reaped:
    """A shard that was taken from an owner that died.

    Attributes:
        shard: its index.
        worker, epoch: the owner it was taken from.
        state: queued (again), quarantined, or stopped.
        error: why, for people.
        experiment, partition: where.
        stepping: it was being stepped when its owner was last heard of.
        in_children: its environments run in processes of their own.
    """

    shard: int
    worker: str
    epoch: int
    state: str
    error: str
    experiment: str = ""
    partition: int = 0
    stepping: bool = False
    in_children: bool = False


@dataclass(frozen=True, slots=True)
class ShardState:
    """One shard as the broker has it.

    Attributes:
        shard, kind, first_env, num_envs: as planned.
        state: queued, leased, quarantined or stopped.
        worker: who holds it; "" when nobody does.
        epoch, attempts: fencing number, and how often it was claimed.
        seq, steps: batches and environment steps accepted so far.
        given: highest policy version given in full.
        deaths: owners in a row that died while stepping it without one accepted batch.
        stepping: it is being stepped now.
        parked_bytes: of a batch that waits for room.
        lease_ms: until its lease is over, unless it is renewed; 0 when it is not leased or overdue.
        last_error: why its last owner lost it; "" when there is nothing to say.
        since_ms, accepted_ms: server ms at which it came into its state, and of its last accepted batch; 0 for none.
        last_worker: who held it last, or holds it.
        snapshot_seq: the batch after which its snapshot was taken; 0 without one.
        no_snapshot: why its environments cannot be snapshotted; "" when they can, or nobody tried.
        failures, failed_seq: of its environments or policy, in a row, batches between or not; `seq` at the last one.
    """

    shard: int
    kind: Kind
    first_env: int
    num_envs: int
    state: str
    worker: str
    epoch: int
    attempts: int
    seq: int
    steps: int
    given: int
    deaths: int
    stepping: bool
    parked_bytes: int
    lease_ms: int
    last_error: str
    since_ms: int = 0
    accepted_ms: int = 0
    last_worker: str = ""
    snapshot_seq: int = 0
    no_snapshot: str = ""
    failures: int = 0
    failed_seq: int = 0


@dataclass(frozen=True, slots=True)
class Ctl:
    """What every role reads first of an experiment.

    Attributes:
        command: what it shall do; stop is absorbing.
        policy, min_policy, eval_policy: latest, oldest wanted, and eval-pinned versions; 0 for none.
        seat_epoch, leader_epoch: fences of trainer and coordinator.
        active, active_eval: train and eval shards that count.
        rev: +1 with every command.
        sync: each policy version is given once by every active shard.
        max_entries, max_bytes: caps of what is in flight.
        outcome, reason: what the trainer said of its end; "" until then.
        protocol: version that its keys speak.
        lifts: how often a quarantine was lifted.
        plane: token of the shared memory of the trainer's host; "" for none.
        damaged: what a verb met that found a key of another kind than ours; "" for nothing.
    """

    command: Command
    policy: int
    min_policy: int
    eval_policy: int
    seat_epoch: int
    leader_epoch: int
    active: int
    active_eval: int
    rev: int
    sync: bool
    max_entries: int
    max_bytes: int
    outcome: str
    reason: str
    protocol: int
    lifts: int = 0
    plane: str = ""
    damaged: str = ""
