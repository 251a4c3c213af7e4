"""Submitting: the steps that make a spec an experiment, each safe to be the last one a client lives to do.

This module never overwrites an experiment that exists.

The keys of one experiment, its name, the list and the queue lie in different slots, so no single script can write
them. The order is: the experiment's own keys with a TTL, the name (compare-and-set), the list, the queue, and
then the TTL is taken off. A client that dies on the way leaves an experiment that either was queued and is admitted
(reading the queue takes the TTL off, too) or dissolves when the TTL is over; until then a repeated submit completes it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heddle.broker import keys
from heddle.broker.connection import Connection
from heddle.broker.counts import count
from heddle.broker.faults import Damaged
from heddle.broker.records import ENDED, Submitted, integer, text
from heddle.broker.streams import add
from heddle.errors import BrokerUnreachable, Conflict, UsageError

DISSOLVE_MS = 600_000
"""How long an unfinished submit stays, ms: longer than any client takes, short enough to forget it."""

TRIES = 8
"""Rounds of compare-and-set on a name before giving up; each lost round means another client won one."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What a client submits.

    Attributes:
        name: experiment name, a slug.
        toml: source text, kept for people; json: resolved spec; sha256: digest of the resolved spec.
        owner: who submits, for showing.
        spaces: JSON of the spaces, "" when unknown; code: version of Heddle; commit: of their own code, "" for none.
        resume_from: id of the experiment whose newest checkpoint to start from, or None.
    """

    name: str
    toml: str
    json: str
    sha256: str
    owner: str = ""
    spaces: str = ""
    code: str = ""
    commit: str = ""
    resume_from: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)


def new_suffix(generator: np.random.Generator) -> str:
    """Six hex characters, the part of an id that makes it unique."""
    return f"{int(generator.integers(0, 1 << 24)):06x}"


def submit(conn: Connection, submission: Submission, suffix: str) -> Submitted:
    """Make an experiment of `submission` unless the same one is active under its name.

    Raises:
        Conflict: another spec is active under that name, or the id exists already.
    """
    new = f"{submission.name}-{suffix}"
    for _ in range(TRIES):
        holder, digest = _holder(conn, submission.name)
        if holder and _is_active(conn, holder):
            if digest != submission.sha256:
                raise _taken(submission.name, holder)
            _announce(conn, holder)
            return Submitted(holder, created=False)
        created_ms = _create(conn, submission, new)
        reply = conn.script("name_take", [keys.name(submission.name)], [holder, new, submission.sha256])
        if text(reply[0]) == "OK":
            _announce(conn, new, created_ms)
            return Submitted(new, created=True)
        conn.main.unlink(keys.ctl(new), keys.spec(new), keys.status(new), keys.experience(new, 0))
    raise Conflict(f"{submission.name}: other clients keep taking this name; try again, or pass --name")


def check_name(conn: Connection, name: str, sha256: str) -> None:
    """Raise Conflict where `submit` would: another spec is active under `name`."""
    holder, digest = _holder(conn, name)
    if holder and digest != sha256 and _is_active(conn, holder):
        raise _taken(name, holder)


def _holder(conn: Connection, name: str) -> tuple[str, str]:
    """Id and spec digest that the name points to; ("", "") when it is free."""
    held = conn.main.hmget(keys.name(name), "id", "sha256")
    return text(held[0]), text(held[1])


def _is_active(conn: Connection, experiment: str) -> bool:
    """True while an experiment holds its name: not removed, not over, and not told to stop (stop cannot be undone)."""
    pipe = conn.pipeline()
    pipe.hmget(keys.ctl(experiment), "command", "outcome")
    pipe.hget(keys.status(experiment), "state")
    pipe.exists(keys.spec(experiment))
    (command, outcome), state, spec_exists = pipe.execute()
    if command is None or not spec_exists:
        return False
    return text(command) != "stop" and not text(outcome) and text(state) not in ENDED


def _taken(name: str, holder: str) -> Conflict:
    return Conflict(
        f"the name {name!r} is taken by {holder}, which is active with a different spec; "
        f"pass --name for another one, or end it first: heddle stop {holder} (or heddle rm --force {holder})"
    )


def _create(conn: Connection, submission: Submission, new: str) -> int:
    """Write the experiment's own keys, to dissolve later; server ms of its creation."""
    # The present leader's epoch: one that lost its lease and has not noticed yet cannot admit this experiment.
    leader_epoch = str(count(conn.main.hget(keys.COORDINATOR, "epoch")))
    spec, ctl = _spec_fields(submission), {**_ctl_fields(submission), "leader_epoch": leader_epoch}
    args: list[str | int] = [DISSOLVE_MS, keys.TRAINER_GROUP, len(spec)]
    for name, value in [*spec.items(), *ctl.items()]:
        args += [name, value]
    own = [keys.spec(new), keys.ctl(new), keys.status(new), keys.experience(new, 0)]
    reply = conn.script("submit", own, args)
    status = text(reply[0])
    if status == "EXISTS" or (status == "HALF" and text(reply[2]) != submission.sha256):
        raise Conflict(f"the id {new} exists already; submit again for a new one")
    return integer(reply[1])


def _announce(conn: Connection, experiment: str, created_ms: int | None = None) -> None:
    """List, queue and confirm an experiment, until all of that stands together.

    A broker that lost its tail after the first half, and heard the second one when it was back, would keep an
    experiment that nobody sees and nobody admits.
    """
    for _ in range(TRIES):
        _announce_once(conn, experiment, created_ms)
        if _is_announced(conn, experiment):
            return
    raise BrokerUnreachable(f"{conn.url_redacted} loses what is submitted, again and again; {experiment} does not run")


def list_again(conn: Connection, experiment: str) -> bool:
    """Put an experiment that was submitted whole back into the list of all; False when it is not, or was removed."""
    pipe = conn.pipeline()
    pipe.hget(keys.spec(experiment), "created")
    pipe.pttl(keys.spec(experiment))
    pipe.exists(keys.ctl(experiment))
    created_ms, left_ms, is_there = pipe.execute(raise_on_error=False)
    if isinstance(left_ms, Exception) or isinstance(is_there, Exception):
        raise left_ms if isinstance(left_ms, Exception) else is_there
    if not is_there or left_ms != -1:  # a removal took its ctl first; a submission takes the TTL off last
        return False
    score = 0 if isinstance(created_ms, Damaged) else count(created_ms)
    conn.main.zadd(keys.EXPERIMENTS, {experiment: score}, nx=True)
    if conn.main.exists(keys.ctl(experiment)):
        return True
    conn.main.zrem(keys.EXPERIMENTS, experiment)  # removed meanwhile; its removal may have been here before
    return False


def _is_announced(conn: Connection, experiment: str) -> bool:
    """True when it is listed, and admitted or in the queue."""
    pipe = conn.pipeline()
    pipe.zscore(keys.EXPERIMENTS, experiment)
    pipe.hmget(keys.status(experiment), "state", "queue_entry")
    listed, (state, entry) = pipe.execute()
    if listed is None:
        return False
    if text(state) != "queued":
        return True
    if entry is not None and conn.main.xrange(keys.QUEUE, text(entry), text(entry)):
        return True
    return text(conn.main.hget(keys.status(experiment), "state")) != "queued"  # admitted between the two looks


def _announce_once(conn: Connection, experiment: str, created_ms: int | None) -> None:
    """List, queue and confirm an experiment; what has been done already is not done again."""
    queued_as = conn.main.hmget(keys.status(experiment), "state", "queue_entry")
    if text(queued_as[0]) not in ("queued", ""):
        return
    if created_ms is None:
        created_ms = count(conn.main.hget(keys.spec(experiment), "created"))
    conn.main.zadd(keys.EXPERIMENTS, {experiment: created_ms}, nx=True)
    entry = text(queued_as[1])
    if not entry or not conn.main.xrange(keys.QUEUE, entry, entry):
        (entry,) = add(conn, keys.QUEUE, [{"experiment": experiment}])
    own = [keys.ctl(experiment), keys.spec(experiment), keys.status(experiment), keys.experience(experiment, 0)]
    if text(conn.script("submit_confirm", own, [entry])) != "OK":
        raise Conflict(f"{experiment} was removed while it was submitted; submit it again")


def _spec_fields(submission: Submission) -> dict[str, str]:
    experiment = _section(_resolved(submission.json), "experiment")
    fields = {
        "name": submission.name,
        "pool": str(experiment.get("pool", "default")),
        "group": str(experiment.get("group") or ""),
        "owner": submission.owner,
        "toml": submission.toml,
        "json": submission.json,
        "sha256": submission.sha256,
        "spaces": submission.spaces,
        "code": submission.code,
        "commit": submission.commit,
        "protocol": str(keys.PROTOCOL),
        "resume_from": submission.resume_from or "",
    }
    return {**submission.extra, **fields}


def _ctl_fields(submission: Submission) -> dict[str, str]:
    resolved = _resolved(submission.json)
    limits, faults, env = (_section(resolved, name) for name in ("limits", "faults", "env"))
    in_children = env.get("isolation") == "process" or env.get("stepping") == "processes"
    return {
        "command": "run",
        "policy": "0",
        "min_policy": "0",
        "eval_policy": "0",
        "seat_epoch": "0",
        "active": "0",
        "active_eval": "0",
        "rev": "1",
        "sync": "1" if _section(resolved, "rollout").get("sync", False) else "0",
        "max_entries": _whole(limits, "max_entries", 1024),
        "max_bytes": _whole(limits, "max_bytes", 512 << 20),
        "barren_deaths": _whole(faults, "barren_deaths", 5),
        "env_failures": _whole(faults, "env_failures", 10),
        **({"in_children": "1"} if in_children else {}),
        "outcome": "",
        "reason": "",
        "versions": "",
        "protocol": str(keys.PROTOCOL),
    }


def _resolved(spec_json: str) -> Mapping[str, Any]:
    resolved = json.loads(spec_json)
    if not isinstance(resolved, dict):
        raise UsageError("a resolved spec is a JSON object of sections")
    return resolved


def _section(resolved: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return resolved.get(name) or {}


def _whole(section: Mapping[str, Any], name: str, default: int) -> str:
    value = section.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"a resolved spec gives {name} as a whole number, not {value!r}")
    return str(value)
