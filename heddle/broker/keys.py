"""The name of every key in Redis, in one table.

It never talks to a server. `experiment` is an experiment id, `p` a partition, `shard` a shard index.
The braces are a hash tag: all that one script touches lies in one slot.
"""

PROTOCOL = 2
"""Version of the protocol this code speaks; roles refuse experiments of another one."""

QUEUE = "heddle:queue"
QUEUE_GROUP = "coordinators"
EXPERIMENTS = "heddle:experiments"
COORDINATOR = "heddle:coordinator"
LOG = "heddle:log"
"""Stream, capped: what roles write down."""
PRINTS = "heddle:prints"
"""Stream, capped: what user code prints."""
IDENTITY = "heddle:broker"
"""String: chance, by which folders of shared memory know their broker; made by the first who asks."""
PROBE = "heddle:doctor"
"""String that lives for a second: whether the broker takes writes."""
TICKET_GROUP = "workers"
TRAINER_GROUP = "trainer"


def name(experiment_name: str) -> str:
    """Hash: id and spec digest of the active experiment of that name."""
    return f"heddle:name:{experiment_name}"


def pool(pool_name: str) -> str:
    """Hash: desired, rev, live, quota, leader epoch."""
    return f"heddle:pool:{pool_name}"


def pool_workers(pool_name: str) -> str:
    """Sorted set: worker by last seen, server milliseconds."""
    return f"heddle:pool:{pool_name}:workers"


def pool_supervisors(pool_name: str) -> str:
    """Sorted set: supervisor by last seen, server milliseconds."""
    return f"heddle:pool:{pool_name}:supervisors"


def pool_tickets(pool_name: str) -> str:
    """Stream with group `workers`: shards that want a worker."""
    return f"heddle:pool:{pool_name}:tickets"


def worker(worker_id: str) -> str:
    """Hash with TTL: the heartbeat of one worker."""
    return f"heddle:worker:{worker_id}"


def tag(experiment: str, p: int) -> str:
    """The common start of an experiment partition's keys, e.g. "heddle:{cartpole-7f3a.0}"."""
    return f"heddle:{{{experiment}.{p}}}"


def spec(experiment: str) -> str:
    """Hash: toml, resolved json, sha256, owner, spaces, code version, protocol, created."""
    return f"{tag(experiment, 0)}:spec"


def status(experiment: str) -> str:
    """Hash: state, reason, ended, result."""
    return f"{tag(experiment, 0)}:status"


def seat(experiment: str) -> str:
    """Hash with TTL: trainer, epoch."""
    return f"{tag(experiment, 0)}:seat"


def trainer(experiment: str) -> str:
    """Hash: who sat in the seat last, when it was heard of, what it did; for people, decides nothing."""
    return f"{tag(experiment, 0)}:trainer"


def policy(experiment: str, version: int) -> str:
    """Hash: sha256, bytes, chunks, update, weights when small."""
    return f"{tag(experiment, 0)}:policy:{version}"


def policy_chunk(experiment: str, version: int, digest: str, chunk: int) -> str:
    """String: one chunk of large weights, named by their digest; TTL until published."""
    return f"{tag(experiment, 0)}:policy:{version}:{digest}:{chunk}"


def metrics(experiment: str) -> str:
    """Stream, capped: update, time, name, value."""
    return f"{tag(experiment, 0)}:metrics"


def trackers(experiment: str) -> str:
    """Hash: by tracker, who feeds it, until when that holds, and how far it is; decides nothing about training."""
    return f"{tag(experiment, 0)}:trackers"


def ctl(experiment: str, p: int = 0) -> str:
    """Hash: command, policy, min_policy, seat epoch, leader epoch, active shards, rev, caps."""
    return f"{tag(experiment, p)}:ctl"


def shard(experiment: str, p: int, shard_index: int) -> str:
    """Hash: who owns the shard and how far it is; the truth about ownership."""
    return f"{tag(experiment, p)}:shard:{shard_index}"


def lease(experiment: str, p: int, shard_index: int) -> str:
    """Hash with TTL: worker, epoch; says only when reap may act."""
    return f"{tag(experiment, p)}:lease:{shard_index}"


def due(experiment: str, p: int) -> str:
    """Sorted set: leased shards by deadline, server milliseconds."""
    return f"{tag(experiment, p)}:due"


def queued(experiment: str, p: int) -> str:
    """Hash: queued shards with their ticket id and since when."""
    return f"{tag(experiment, p)}:queued"


def experience(experiment: str, p: int) -> str:
    """Stream with group `trainer` and taps: pointers."""
    return f"{tag(experiment, p)}:experience"


def blob(experiment: str, p: int, shard_index: int, epoch: int, nonce: str, seq: int) -> str:
    """String: Arrow bytes of one batch; TTL until accepted."""
    return f"{blobs(experiment, p)}{shard_index}:{epoch}:{nonce}:{seq}"


def blobs(experiment: str, p: int) -> str:
    """What the name of every blob begins with; itself no key."""
    return f"{tag(experiment, p)}:blob:"


def snapshot(experiment: str, p: int, shard_index: int, epoch: int, nonce: str, seq: int) -> str:
    """String: the environments' state after seq; TTL until accepted."""
    return f"{tag(experiment, p)}:snapshot:{shard_index}:{epoch}:{nonce}:{seq}"


def failure(experiment: str, p: int, shard_index: int) -> str:
    """Hash: the last failures of the shard's environments, for people and for `heddle repro`; bounded."""
    return f"{tag(experiment, p)}:failure:{shard_index}"


def snapshot_seq(key: str, experiment: str, p: int, shard_index: int) -> int | None:
    """The batch after which a snapshot was taken; None when `key` is none of this shard's snapshots."""
    start = f"{tag(experiment, p)}:snapshot:{shard_index}:"
    last = key.removeprefix(start).rpartition(":")[2]
    return int(last) if key.startswith(start) and last.isdecimal() and last.isascii() else None


def flow(experiment: str, p: int) -> str:
    """Hash: entries and bytes in flight, and every counter of promise P2."""
    return f"{tag(experiment, p)}:flow"


def accepted(experiment: str, p: int) -> str:
    """Hash: "shard:epoch:nonce:seq" of every entry that an append wrote and nobody settled, with the entry's id."""
    return f"{tag(experiment, p)}:accepted"


def waiting(experiment: str, p: int) -> str:
    """Sorted set: shards waiting for room, by first FULL."""
    return f"{tag(experiment, p)}:waiting"


def loading(experiment: str, p: int) -> str:
    """Hash: seat epoch and entry ids that the trainer is loading or updating."""
    return f"{tag(experiment, p)}:loading"


def dead(experiment: str, p: int) -> str:
    """Stream, capped: pointers set aside with their reason."""
    return f"{tag(experiment, p)}:dead"


def dead_blob(experiment: str, p: int, entry: str) -> str:
    """String: the bytes of an entry set aside that no append wrote."""
    return f"{tag(experiment, p)}:dead:{entry}"


def news(experiment: str, p: int = 0) -> str:
    """Pub/sub channel, not a key: hints that a policy or command changed."""
    return f"{tag(experiment, p)}:news"
