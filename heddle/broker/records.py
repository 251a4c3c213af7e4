"""What the broker tells about experiments, pools and workers: plain values.

This module never talks to a server; it only reads the fields that a server answered.
Times are server milliseconds since 1970.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from heddle import markup
from heddle.broker.counts import count
from heddle.broker.faults import NoNumber
from heddle.broker.types import Ctl

State = Literal["queued", "running", "paused", "stopping", "completed", "stopped", "failed"]
Command = Literal["run", "pause", "stop"]
Outcome = Literal["completed", "stopped", "failed"]
COMMANDS: tuple[Command, ...] = ("run", "pause", "stop")
SHARD_STATES = ("queued", "leased", "quarantined", "stopped")

LATEST_MS = 250_000_000_000_000
"""No time is later: in the year 9892."""

ENDED: frozenset[str] = frozenset({"completed", "stopped", "failed"})
"""States that never change again."""


def text(value: Any) -> str:
    """What the server answered, as text, whatever somebody wrote there; "" for nothing."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return "" if value is None else str(value)


def integer(value: Any) -> int:
    """What the server answered, as an int; 0 for nothing. Raises NoNumber where somebody wrote something else."""
    try:
        return int(value) if value not in (None, b"", "") else 0
    except ValueError as error:
        raise NoNumber(f"the broker holds {text(value)[:40]!r} where Heddle keeps a number") from error


def commanded(fields: Mapping[str, str]) -> Command:
    """What ctl tells everybody to do. Raises NoNumber where somebody wrote something else."""
    found = fields.get("command", "run")
    for known in COMMANDS:
        if known == found:
            return known
    raise NoNumber(f"the broker holds {found[:40]!r} where Heddle keeps a command: run, pause or stop")


def moment(value: Any) -> int:
    """A score, or another number that should be server ms, as one that calendars have, whatever somebody wrote."""
    told = float(value)
    return int(min(max(told, 0.0), LATEST_MS)) if told == told else 0


def time_of(entry_id: str) -> int:
    """The server's ms at which a stream entry was added."""
    return moment(int(entry_id.partition("-")[0]))


def texts(reply: Mapping[Any, Any] | None) -> dict[str, str]:
    """A hash as the server answered it, as text."""
    return {text(field): text(value) for field, value in (reply or {}).items()}


def entries(page: Any) -> list[tuple[str, dict[str, str]]]:
    """Stream entries as the server answered them, as text; entries that were deleted meanwhile are left out."""
    return [(text(entry_id), texts(fields)) for entry_id, fields in page or [] if fields]


def dump_json(value: Any) -> str:
    """Strict JSON on one line; NaN and infinities, which JSON does not have, become null."""
    return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def mapping(told: str | None) -> dict[str, Any]:
    """A JSON object for people; {} where there is none, or somebody wrote something else."""
    try:
        found = json.loads(told or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Submitted:
    """The answer to a submit.

    Attributes:
        id: the experiment's id.
        created: False when the same spec was active under that name already.
    """

    id: str
    created: bool


@dataclass(frozen=True, slots=True)
class StoredSpec:
    """The spec of an experiment, as submitted.

    Attributes:
        experiment: its id.
        name, pool, owner: as in the spec; who submitted it.
        toml, json, sha256: source text, resolved spec, digest of the resolved spec.
        spaces: JSON of the observation and action spaces, "" when the submitter did not look.
        code: version of Heddle that submitted it; commit: of the submitter's own code (`heddle.origin`), "" for none.
        protocol: protocol version its keys speak.
        created_ms: when it was submitted.
        resume_from: id of the experiment whose newest checkpoint it starts from, or None.
    """

    experiment: str
    name: str
    pool: str
    owner: str
    toml: str
    json: str
    sha256: str
    spaces: str
    code: str
    protocol: int
    created_ms: int
    resume_from: str | None
    commit: str = ""

    @property
    def origin(self) -> dict[str, str]:
        """What it was made of, as a checkpoint and a run's folder hold it."""
        return {"code": self.code, "commit": self.commit}

    def number(self, section: str, name: str, instead: float) -> float:
        """A number of the resolved spec; `instead` where it holds none, or is none of ours any more."""
        found = mapping(self.json).get(section)
        value = found.get(name) if isinstance(found, dict) else None
        return float(value) if isinstance(value, int | float) and 0 <= value <= LATEST_MS else instead


@dataclass(frozen=True, slots=True)
class Status:
    """How an experiment is.

    Attributes:
        experiment, name, pool: which one, and whose workers play it.
        state: queued, running, paused, stopping, completed, stopped or failed; the last three are final.
        reason: why it is so; "" when there is nothing to say.
        command: what it shall do: run, pause or stop.
        outcome: what the trainer says of its end; "" until then.
        result: what the trainer left: best return, checkpoint, counters; {} until then.
        created_ms, started_ms, since_ms, ended_ms: submitted, first running, in this state, over; 0 when not yet.
        policy, eval_policy: latest and eval-pinned versions.
        active, active_eval: train and eval shards that count.
        rev: of the command, for compare-and-set.
        resume_from: id of the experiment it continues, or None.
        group: of experiments that it belongs to; "" for none.
        damaged: what is wrong with a key that a leader makes anew; "" for nothing.
        leaves_snapshots: over, and snapshots of its shards may be left, for the leader to drop.
    """

    experiment: str
    name: str
    pool: str
    state: State
    reason: str
    command: Command
    outcome: str
    result: dict[str, Any]
    created_ms: int
    started_ms: int
    since_ms: int
    ended_ms: int
    policy: int
    eval_policy: int
    active: int
    active_eval: int
    rev: int
    resume_from: str | None
    group: str = ""
    damaged: str = ""
    leaves_snapshots: bool = False

    def _repr_html_(self) -> str:
        """For notebooks."""
        pairs = [("why", self.reason), ("group", self.group), ("policy version", self.policy)]
        pairs += [(name, value) for name, value in self.result.items() if isinstance(value, int | float | str)]
        return markup.facts(self.experiment, self.state, pairs)

    @property
    def ended(self) -> bool:
        """True once the state is final."""
        return self.state in ENDED

    def written(self) -> dict[str, Any]:
        """For programs, what was written down; damage is told as the why of how it really is."""
        return {name: value for name, value in asdict(self).items() if name not in ("damaged", "leaves_snapshots")}


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A submitted experiment that waits for a coordinator."""

    entry_id: str
    experiment: str


SPEC_FIELDS = ("name", "pool", "group", "created", "resume_from")
"""Fields of the spec hash that a status needs."""


def read_spec(experiment: str, fields: Mapping[str, str]) -> StoredSpec:
    """The spec hash of `experiment` as a value."""
    return StoredSpec(
        experiment=experiment,
        name=fields.get("name", ""),
        pool=fields.get("pool", ""),
        owner=fields.get("owner", ""),
        toml=fields.get("toml", ""),
        json=fields.get("json", ""),
        sha256=fields.get("sha256", ""),
        spaces=fields.get("spaces", ""),
        code=fields.get("code", ""),
        commit=fields.get("commit", ""),
        protocol=count(fields.get("protocol")),
        created_ms=count(fields.get("created")),
        resume_from=fields.get("resume_from") or None,
    )


def read_status(experiment: str, status: Mapping[str, str], ctl: Mapping[str, str], spec: Mapping[str, str]) -> Status:
    """The hashes of `experiment` as one value."""
    command = ctl.get("command", "run")
    return Status(
        experiment=experiment,
        name=spec.get("name", ""),
        pool=spec.get("pool", ""),
        state=status.get("state", "queued"),  # type: ignore[arg-type]
        reason=status.get("reason") or ctl.get("reason", ""),
        command=command if command in COMMANDS else "run",
        outcome=ctl.get("outcome", ""),
        result=mapping(status.get("result")),
        created_ms=count(spec.get("created")),
        started_ms=count(status.get("started")),
        since_ms=count(status.get("since")),
        ended_ms=count(status.get("ended")),
        policy=integer(ctl.get("policy")),
        eval_policy=integer(ctl.get("eval_policy")),
        active=count(ctl.get("active")),
        active_eval=count(ctl.get("active_eval")),
        rev=count(ctl.get("rev")),
        resume_from=spec.get("resume_from") or None,
        group=spec.get("group", ""),
        leaves_snapshots="snapshots_from" in ctl,
    )


def hurt_status(experiment: str, reason: str, *, command: str, spec: Mapping[str, str]) -> Status:
    """Of an experiment whose keys somebody damaged so that it cannot go on, and cannot be read whole: failed.

    Args:
        command: what it is told still, where that can be read; else stop.
        spec: fields of its spec, as far as they can be read.
    """
    named = {"name": experiment.rpartition("-")[0], **{name: value for name, value in spec.items() if value}}
    return read_status(experiment, {"state": "failed", "reason": reason}, {"command": command}, named)


def read_ctl(fields: Mapping[str, str]) -> Ctl:
    """The ctl hash as a value."""
    return Ctl(
        command=commanded(fields),
        policy=integer(fields.get("policy")),
        min_policy=integer(fields.get("min_policy")),
        eval_policy=integer(fields.get("eval_policy")),
        seat_epoch=integer(fields.get("seat_epoch")),
        leader_epoch=count(fields.get("leader_epoch")),
        active=integer(fields.get("active")),
        active_eval=integer(fields.get("active_eval")),
        rev=integer(fields.get("rev")),
        sync=fields.get("sync") == "1",
        max_entries=integer(fields.get("max_entries")),
        max_bytes=integer(fields.get("max_bytes")),
        outcome=fields.get("outcome", ""),
        reason=fields.get("reason", ""),
        protocol=integer(fields.get("protocol")),
        lifts=integer(fields.get("lifts")),
        plane=fields.get("plane", ""),
        damaged=fields.get("damaged", ""),
    )
