"""Rights: what each role needs of a Redis user, as the rules of ACL SETUSER.

It never talks to a server, and names no key itself: `keys` makes the patterns, and commands are read from the scripts.

Redis checks what a script does against its caller, so whoever may append can also write around the script: rights keep
roles and tenants apart, and stop mistakes; the fences stop races. Nobody gets CONFIG, KEYS, FLUSHALL or ACL.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from heddle.broker import keys
from heddle.broker.scripts import script

_CALL = re.compile(r"redis\.p?call\(\s*'([A-Z]+)'(?:,\s*'([A-Z]+)')?")
_BASE = ("auth", "hello", "select", "ping", "info", "time", "client|setname")
_SUBCOMMANDS = ("XGROUP", "XINFO")
_HASHES = ("hget", "hmget", "hgetall")
_SETS = ("zrange", "zrevrange", "zrangebyscore", "zcard", "zscore")
_STREAMS = ("xrange", "xrevrange", "xread", "xlen", "xpending")
_LOOK = (*_HASHES, *_SETS, *_STREAMS, "get", "getrange", "exists", "pttl", "type")


@dataclass(frozen=True, slots=True)
class Rights:
    """What one role may do.

    Attributes:
        about: who that is, for people.
        scripts: names of those it runs; their commands are added.
        commands: beside those.
        writes, reads: patterns of keys.
    """

    about: str
    scripts: tuple[str, ...]
    commands: tuple[str, ...]
    writes: tuple[str, ...]
    reads: tuple[str, ...] = ()

    def rules(self) -> list[str]:
        """For ACL SETUSER: nothing but this, on top of whatever password the user has."""
        scripts = (*self.scripts, "restart_stream") if self.scripts else ()
        called = {command for name in scripts for command in commands_of(script(name).source)}
        run = {"evalsha", "script|load"} if self.scripts else set()
        granted = sorted({*_BASE, *self.commands, *called, *run})
        patterns = [f"~{pattern}" for pattern in sorted(set(self.writes))]
        patterns += [f"%R~{pattern}" for pattern in sorted(set(self.reads) - set(self.writes))]
        return ["resetkeys", "resetchannels", "-@all", *(f"+{command}" for command in granted), *patterns, _NEWS]


def commands_of(source: str) -> set[str]:
    """The commands that a script calls, as ACL rules name them."""
    found = set()
    for command, second in _CALL.findall(source):
        found.add(f"{command}|{second}".lower() if command in _SUBCOMMANDS and second else command.lower())
    return found


def _each(*names: Callable[..., str]) -> tuple[str, ...]:
    """The pattern of all keys of a kind."""
    return tuple(re.sub(r"\*(:\*)+$", "*", name(*["*"] * _arity(name))) for name in names)


def _arity(name: Callable[..., Any]) -> int:
    return name.__code__.co_argcount


_NEWS = f"&{keys.news('*', '*')}"  # type: ignore[arg-type]
_POOL = _each(keys.pool, keys.pool_workers, keys.pool_supervisors, keys.pool_tickets, keys.worker)
_SHARDS = _each(keys.ctl, keys.shard, keys.lease, keys.due, keys.queued, keys.waiting, keys.failure)
_FLOW = _each(keys.experience, keys.accepted, keys.flow)
_BYTES = _each(keys.blob, keys.snapshot)
_ABOUT = _each(keys.spec, keys.status, keys.seat, keys.trainer, keys.metrics, keys.trackers)
_POLICY = _each(keys.policy)  # its chunks begin with the same
_LOG = (keys.LOG, keys.PRINTS)
_DEAD = (*_each(keys.dead, keys.loading), *_each(keys.dead_blob))

ROLES: Mapping[str, Rights] = {
    "worker": Rights(
        about="`heddle workers start` and `heddle worker`",
        scripts=(
            *(
                "append",
                "claim",
                "damage_note",
                "forgotten",
                "mend",
                "policy_lost",
                "release",
                "renew",
                "reap",
                "ticket_note",
                "ticket_peek",
            ),
            *(
                "presence_beat",
                "supervisor_wants",
                "worker_beat",
                "worker_bury",
                "worker_drain",
                "group_tidy",
                "pool_death",
            ),
        ),
        commands=(*_LOOK, "set", "unlink", "xadd", "xdel", "xack", "xreadgroup", "xgroup|create", "hdel", "zrem")
        + ("zremrangebyscore", "subscribe", "unsubscribe"),
        writes=(*_POOL, *_SHARDS, *_FLOW, *_BYTES, *_LOG, keys.IDENTITY),
        reads=(*_ABOUT, *_POLICY, keys.EXPERIMENTS),
    ),
    "trainer": Rights(
        about="`heddle trainer`",
        scripts=(
            *(
                "ack",
                "dead",
                "group_make",
                "group_tidy",
                "loading",
                "roll_back",
                "take_over",
                "eval_set",
                "finish",
            ),
            *("policy_forget", "policy_publish", "seat_claim", "seat_release", "seat_renew", "metrics_add"),
            *("metrics_forget", "plane_offer", "plane_far", "damage_note"),
        ),
        commands=(*_LOOK, "set", "unlink", "xadd", "xack", "xreadgroup", "subscribe", "unsubscribe"),
        writes=(*_each(keys.ctl, keys.waiting), *_FLOW, *_BYTES, *_ABOUT, *_POLICY, *_DEAD, *_LOG, keys.IDENTITY),
        reads=(*_SHARDS, *_POOL, keys.EXPERIMENTS, *_each(keys.name)),
    ),
    "coordinator": Rights(
        about="`heddle coordinator`",
        scripts=(
            *(
                "create_shards",
                "reap",
                "ticket_note",
                "ticket_peek",
                "leader_claim",
                "leader_release",
                "leader_renew",
            ),
            *("set_active", "set_command", "set_status", "submit_confirm", "pool_quota", "group_make", "group_tidy"),
            *(
                "name_release",
                "worker_bury",
                "damage_mend",
                "damage_number",
                "due_mend",
                "fence_mend",
                "snapshots_drop",
                "recount",
            ),
        ),
        commands=(*_LOOK, "xadd", "xdel", "xack", "xautoclaim", "xreadgroup", "xgroup|create", "unlink", "hdel")
        + ("zadd", "scan", "zrem", "zremrangebyscore", "subscribe", "unsubscribe"),
        writes=(*_POOL, *_SHARDS, *_FLOW, *_ABOUT, keys.LOG, keys.QUEUE, keys.EXPERIMENTS, keys.COORDINATOR)
        + (*_each(keys.name), *_DEAD, *_BYTES),
        reads=(*_POLICY, keys.IDENTITY),
    ),
    "user": Rights(
        about="who submits, commands, looks and removes: `enqueue`, `stop`, `rm`, `workers scale`, `batches` ...",
        scripts=(
            *(
                "submit",
                "submit_confirm",
                "name_take",
                "name_release",
                "set_command",
                "pool_scale",
                "worker_drain",
            ),
            *("remove_ctl", "dead_drop", "replay", "quarantine_lift", "group_make", "ticket_note", "ticket_peek"),
            "plane_far",
        ),
        commands=(*_LOOK, "scan", "unlink", "xadd", "xdel", "xack", "zadd", "zrem", "hdel", "xgroup|create")
        + ("xinfo|groups",),
        writes=(*_POOL, *_SHARDS, *_FLOW, *_ABOUT, *_POLICY, *_DEAD, *_BYTES, keys.LOG, keys.QUEUE)
        + (keys.EXPERIMENTS, *_each(keys.name)),
        reads=(keys.COORDINATOR, keys.IDENTITY, keys.PRINTS),
    ),
    "tracker": Rights(
        about="`heddle track`: hands metrics on to TensorBoard, W&B or MLflow",
        scripts=("group_make", "take_over", "track_claim"),
        commands=(*_LOOK, "xreadgroup", "xack", "xgroup|setid", "xinfo|groups", "xadd"),
        writes=(*_each(keys.metrics, keys.trackers), keys.LOG),
        reads=(*_ABOUT, *_each(keys.ctl), keys.EXPERIMENTS, *_each(keys.name)),
    ),
    "reader": Rights(
        about="who only looks: `ls`, `status`, `shards`, `batches ls`, `workers ls`, `policy pull`, dashboards",
        scripts=(),
        commands=(*_LOOK, "xinfo|groups"),
        writes=(),
        reads=(*_POOL, *_SHARDS, *_FLOW, *_ABOUT, *_POLICY, *_DEAD, *_BYTES, *_LOG, keys.QUEUE, keys.EXPERIMENTS)
        + (keys.COORDINATOR, *_each(keys.name)),
    ),
}
