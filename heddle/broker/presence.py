"""What workers say of themselves, and what a pool tells them: plain values.

This module never talks to a server; it only reads the fields that a server answered.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from dataclasses import fields as fields_of
from typing import Any

from heddle.broker import keys
from heddle.broker.counts import amount, count
from heddle.broker.records import texts
from heddle.errors import BrokerAmiss

BEAT_TTL_MS = 15_000
"""A worker that was silent for longer does not count as alive, whatever its leases say: fifteen beats, six
where a pool is so large that they are rarer."""


@dataclass(frozen=True, slots=True)
class WorkerBeat:
    """What a worker says of itself, every few seconds.

    Attributes:
        worker, pool, host, pid: who and where; `supervisor` is the id of the one that started it, "" for none.
        state: starting, idle, playing, waiting or draining.
        shards: how many it holds; experiments: of which.
        envs: how many of its environments are healthy.
        steps: environment steps since it started; ms_per_step: of its last batches, wall milliseconds per step.
        play_s, wait_s: seconds since it started in which it played, and in which it held shards and could play none.
        outcomes: what became of its batches and shards since it started, by name, e.g. accepted, fenced, lost.
        profile: how often its playing thread was seen at what since it started: env, policy, encode, wait, ...
        reason: why it does not play, "" when there is nothing to say.
        ttl_ms: of the shortest of its leases: silent for longer, it holds nothing any more.
        doing, subject, doing_ms: the one call into user code that runs, e.g. step, of which shard ("exp/3"), and how
            long it has lasted; "" for none.
        limit_ms: how long that call may last before the worker ends itself. own_limit_ms: before it is given up with
            its shard and the worker lives, as one in a child is; 0 where only the end of the worker ends it.
        still_ms: how long its loop has not moved.
        protocol: protocol version it speaks; code: version of Heddle.
        pace: how environments are stepped where that was left to the worker, and why: a line an experiment, id first.
        cpu_s, rss_bytes: processor time it has used, memory it has; 0 when the system does not tell.
        late_s, late_speed, late_waits: seconds of late, 0 of an older version; in them steps a second, and `waits`.
    """

    worker: str
    pool: str = "default"
    host: str = ""
    pid: int = 0
    state: str = "idle"
    shards: int = 0
    experiments: tuple[str, ...] = ()
    envs: int = 0
    steps: int = 0
    ms_per_step: float = 0.0
    play_s: float = 0.0
    wait_s: float = 0.0
    outcomes: Mapping[str, int] = field(default_factory=dict)
    profile: Mapping[str, int] = field(default_factory=dict)
    supervisor: str = ""
    reason: str = ""
    ttl_ms: int = 10_000
    doing: str = ""
    subject: str = ""
    doing_ms: int = 0
    limit_ms: int = 0
    own_limit_ms: int = 0
    still_ms: int = 0
    protocol: int = keys.PROTOCOL
    code: str = ""
    pace: str = ""
    cpu_s: float = 0.0
    rss_bytes: int = 0
    late_s: float = 0.0
    late_speed: float = 0.0
    late_waits: float = 0.0

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second of late; of an older version that plays, since it started."""
        busy_s = 0.0 if self.late_s or self.state == "idle" else self.play_s + self.wait_s
        return self.steps / busy_s if busy_s > 0 else self.late_speed

    @property
    def waits(self) -> float | None:
        """Share of its time of late in which it could play none of its shards; None where it holds none."""
        busy_s = self.play_s + self.wait_s
        if self.state in ("idle", "starting") or not (self.late_s or busy_s > 0):
            return None
        return self.late_waits if self.late_s else self.wait_s / busy_s


_WORDS = ("host", "state", "supervisor", "reason", "doing", "subject", "code", "pace")
_WHOLE = (
    *("pid", "shards", "envs", "steps", "ttl_ms", "doing_ms", "limit_ms", "own_limit_ms", "still_ms"),
    *("protocol", "rss_bytes"),
)
_REAL = ("ms_per_step", "play_s", "wait_s", "cpu_s", "late_s", "late_speed", "late_waits")
BEAT_FIELDS = tuple(each.name for each in fields_of(WorkerBeat))
POOL_FIELDS = ("desired", "rev", "live", "floor", "ceil", "below", "leader_epoch")
"""Of a pool's hash, which holds some for every supervisor beside them."""


@dataclass(frozen=True, slots=True)
class BeatReply:
    """What a worker is told in return.

    Attributes:
        drain: it shall finish its batches, release and end.
        desired: size the pool shall have, None when nobody said; live: workers that are not draining.
        floor, ceil: how many shards a worker should hold; 0 before a coordinator wrote them.
        someone_below: a worker holds fewer than floor, so those above it release one at a batch boundary.
    """

    drain: bool
    desired: int | None
    live: int
    floor: int
    ceil: int
    someone_below: bool


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as its pool knows it.

    Attributes:
        beat: its last heartbeat, however long ago; only id and pool where the broker has forgotten it.
        alive: that was not too long ago, and nobody saw it die.
        draining: it was asked to drain.
        seen_ms: server ms of its last heartbeat; silent_ms: how long ago that was.
        died: how it ended, as whoever started it saw; "" while nobody saw that.
    """

    beat: WorkerBeat
    alive: bool
    draining: bool
    seen_ms: int
    silent_ms: int
    died: str = ""


@dataclass(frozen=True, slots=True)
class Pulse:
    """The little that tells whether a worker's heart beats.

    Attributes:
        seen_ms: server ms of its last heartbeat.
        ttl_ms: of the shortest of its leases; limit_ms: how long the call that it was in may last; 0 when unknown.
        experiments: of which it held shards.
    """

    seen_ms: int
    ttl_ms: int = 0
    limit_ms: int = 0
    experiments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """A pool's numbers.

    Attributes:
        name, rev: which; rev is for compare-and-set of `desired`.
        desired: None when nobody said: each supervisor keeps as many as it was started with.
        live, floor, ceil, below: as the leader wrote them; below counts workers that hold fewer than floor.
        leader_epoch: of the leader that wrote them.
    """

    name: str
    desired: int | None
    rev: int
    live: int
    floor: int
    ceil: int
    below: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class SupervisorShare:
    """What a supervisor needs to find its part of a pool.

    Attributes:
        desired: size the pool shall have; None: each keeps as many as it was started with.
        rev: of `desired`.
        supervisors: ids of those that are here, sorted, the asker included.
        wants: how many workers each was started with.
    """

    desired: int | None
    rev: int
    supervisors: tuple[str, ...]
    wants: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class HostReport:
    """What a supervisor says of its host; 0 for what it cannot tell.

    Attributes:
        host: its name; cores: that workers may use there.
        free_bytes: memory that more workers could take; worker_bytes: what one takes now, without what all share.
        running: workers of this supervisor; most: never more of them, None for no bound.
    """

    host: str
    cores: int
    free_bytes: int = 0
    worker_bytes: int = 0
    running: int = 0
    most: int | None = None

    def as_field(self) -> str:
        """As one field of a hash."""
        return " ".join(f"{name}={value}" for name, value in asdict(self).items() if value is not None)


def read_host(field: str) -> HostReport | None:
    """Such a field as a value; None for one that is not there or that somebody else wrote."""
    said = dict(word.split("=", 1) for word in field.split() if "=" in word)
    numbers = {name: int(value) for name, value in said.items() if value.isdigit()}
    if not said.get("host") or "cores" not in numbers:
        return None
    free, each, running = (numbers.get(name, 0) for name in ("free_bytes", "worker_bytes", "running"))
    return HostReport(said["host"], numbers["cores"], free, each, running, numbers.get("most"))


def beat_fields(beat: WorkerBeat, ttl_ms: int) -> list[str | int | float]:
    """A heartbeat that counts for `ttl_ms` as field, value, ... for the worker's hash."""
    fields: list[str | int | float] = ["beat_ttl_ms", ttl_ms]
    for name in BEAT_FIELDS:
        value = getattr(beat, name)
        if isinstance(value, Mapping):
            value = " ".join(f"{what}={count}" for what, count in value.items())
        fields += [name, " ".join(value) if isinstance(value, tuple) else value]
    return fields


def _counts(text: str) -> dict[str, int]:
    """ "accepted=12 fenced=1" as numbers by name."""
    return {what: count(number) for what, _, number in (word.partition("=") for word in text.split())}


def said_by(reply: Any) -> dict[str, str]:
    """What a worker's hash says; nothing where somebody put something else there: its worker tells of that.

    Raises:
        HeddleError: the answer was another one.
    """
    if isinstance(reply, BrokerAmiss):
        return {}
    if isinstance(reply, Exception):
        raise reply
    return texts(reply)


def read_worker(pool: str, worker: str, fields: Mapping[str, str], seen_ms: int, now_ms: int) -> WorkerInfo:
    """The worker hash, empty when the broker has forgotten it, as a value.

    A field that somebody made no number counts as if it were not there until the next heartbeat.
    """
    beat = WorkerBeat(worker=worker, pool=pool)
    died, silent_ms = fields.get("died", ""), max(0, now_ms - seen_ms)
    # A drain flag alone is no heartbeat.
    if has_beaten := "state" in fields:
        said: dict[str, Any] = {name: fields.get(name, "") for name in _WORDS}
        said |= {name: count(fields.get(name)) for name in _WHOLE}
        said |= {name: amount(fields.get(name)) for name in _REAL}
        said |= {name: _counts(fields.get(name, "")) for name in ("outcomes", "profile")}
        said |= {"ttl_ms": said["ttl_ms"] or 10_000, "experiments": tuple(fields.get("experiments", "").split())}
        beat = WorkerBeat(worker=worker, pool=pool, **said)
    draining = fields.get("drain") == "1" or beat.state == "draining"
    alive = has_beaten and not died and silent_ms < (count(fields.get("beat_ttl_ms")) or BEAT_TTL_MS)
    return WorkerInfo(beat, alive, draining, seen_ms, silent_ms, died)


def read_pool(name: str, fields: Mapping[str, str]) -> PoolInfo:
    """The pool hash as a value.

    Raises:
        BrokerAmiss: somebody wrote something else where people say how many workers there shall be.
    """
    desired = fields.get("desired", "")
    if desired and not (desired.isascii() and desired.isdigit() and len(desired) < 10):
        key = keys.pool(name)
        told = f"{key} holds {desired[:40]!r} as its field desired, which is no number of workers"
        raise BrokerAmiss(f"{told}; say how many there shall be: heddle workers scale N --pool {name}", key=key)
    return PoolInfo(
        name=name,
        desired=int(desired) if desired else None,
        rev=count(fields.get("rev")),
        live=count(fields.get("live")),
        floor=count(fields.get("floor")),
        ceil=count(fields.get("ceil")),
        below=count(fields.get("below")),
        leader_epoch=count(fields.get("leader_epoch")),
    )
