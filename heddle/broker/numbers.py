"""Numbers: the fields of an experiment's hashes that somebody's hand has made no number, and what each is instead;
and the two fields that hold a word of a few, which rule what is done.

It never writes. What cannot be told from elsewhere is not guessed: that would lose or repeat steps without a word.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from heddle.broker import keys, losses
from heddle.broker.connection import Connection
from heddle.broker.counts import count, whole
from heddle.broker.faults import Damaged, NoNumber
from heddle.broker.records import COMMANDS, ENDED, SHARD_STATES, StoredSpec, integer, read_spec, text, texts
from heddle.broker.seats import ENDED_SO, HOW
from heddle.shard import ShardPlan

BATCH = 500
"""Shards per round trip."""
MOST_SHOWN = 40


@dataclass(frozen=True, slots=True)
class OddNumber:
    """A field that should hold a number, or a word, and does not.

    Attributes:
        key, field: where it is.
        value: what it holds, as the server has it.
        instead: what to write there; None where nobody can tell.
    """

    key: str
    field: str
    value: bytes
    instead: str | None

    @property
    def shown(self) -> str:
        """What it holds, for people."""
        return text(self.value)[:MOST_SHOWN]


@dataclass(frozen=True, slots=True)
class _Known:
    """What numbers follow from.

    Attributes:
        now_ms: of the server.
        shards: their hashes by index, without those that are missing.
        spec: as it was submitted; None where that cannot be read.
        seat_epoch: of who holds the seat; 0 for nobody.
        state: of the experiment.
        worker: who holds the shard whose number it is, or held it last; "" for others.
        plan: of the shard whose number it is; None for other numbers, and for more shards than were planned.
    """

    now_ms: int
    shards: Mapping[int, Mapping[str, bytes]]
    spec: StoredSpec | None
    seat_epoch: int
    state: str
    worker: str = ""
    plan: ShardPlan | None = None


_Instead = Callable[[_Known], str] | None


def _nothing(_: _Known) -> str:
    return "0"


def _now(known: _Known) -> str:
    """Above every epoch and rev that there was, and since when nobody remembers."""
    return str(known.now_ms)


def _of_spec(known: _Known, *, section: str, name: str, default: int) -> str:
    return str(round(known.spec.number(section, name, default)) if known.spec is not None else default)


def _active(known: _Known, *, kind: str) -> str:
    """As the planner counts them; it looks again right after."""
    counted = [one for one in known.shards.values() if one.get("kind") == kind.encode()]
    return str(sum(one.get("state") != b"quarantined" for one in counted))


def _parked(known: _Known) -> str:
    return str(sum(count(one.get("parked")) for one in known.shards.values()))


def _planned(known: _Known, *, name: str) -> str:
    return str(getattr(known.plan, name)) if known.plan is not None else "0"


def _commanded(known: _Known) -> str:
    """What led to the state that it is in."""
    return {"paused": "pause", "stopping": "stop"}.get(known.state, "stop" if known.state in ENDED else "run")


def _held(known: _Known) -> str:
    """Where nobody holds it in truth, its deadline is over or missing: the leader sees that next."""
    return "leased" if known.worker else "queued"


CTL: dict[str, _Instead] = {
    "command": _commanded,
    "rev": _now,
    "active": partial(_active, kind="train"),
    "active_eval": partial(_active, kind="eval"),
    "seat_epoch": lambda known: str(known.seat_epoch or known.now_ms),
    "shards": lambda known: str(max(known.shards, default=-1) + 1),
    "max_entries": partial(_of_spec, section="limits", name="max_entries", default=1024),
    "max_bytes": partial(_of_spec, section="limits", name="max_bytes", default=512 << 20),
    "barren_deaths": partial(_of_spec, section="faults", name="barren_deaths", default=5),
    "env_failures": partial(_of_spec, section="faults", name="env_failures", default=10),
    "protocol": lambda _: str(keys.PROTOCOL),
    "lifts": _nothing,
    "far": _nothing,
    "policy": None,
    "min_policy": None,
    "eval_policy": None,
}
BOOKS = ("appended", "trained", "evaluated", "stale", "dead", "dropped", "rolled_back", "forgotten")
FLOW: dict[str, _Instead] = {
    **dict.fromkeys((*BOOKS, *(f"{name}_steps" for name in BOOKS), "entries", "bytes", "steps", "rolled_back_by")),
    **dict.fromkeys(
        ("reaped", "vouched", "quarantined", "foreign", "mapped", "discarded", "discarded_steps", "appended_bytes"),
        _nothing,
    ),
    "parked": _parked,
}
STATUS: dict[str, _Instead] = dict.fromkeys(("since", "started", "ended"), _now)
TRAINER: dict[str, _Instead] = dict.fromkeys(("seats", *(f"{ENDED_SO}{how}" for how in HOW)), _nothing)
MADE_ANEW: dict[str, Callable[[_Known], str]] = {
    **dict.fromkeys(("attempts", "deaths", "company", "accepted", "mark", "parked", "claim_seq", "steps"), _nothing),
    **dict.fromkeys(("since", "epoch"), _now),
    "state": _held,
    **{name: partial(_planned, name=name) for name in ("first_env", "num_envs")},
}
"""Of a shard: whoever meets them reads them as nothing until then. A `claim_seq` of 0 covers all that its owner sent;
an epoch that is none has no owner any more, and the next one is higher."""
SHARD: dict[str, _Instead] = {**MADE_ANEW, "seq": None, "given": None}
WORDS = {"command": COMMANDS, "state": SHARD_STATES}
"""What these hold, of ctl and of a shard; all others hold numbers."""


def is_odd(fields: Mapping[str, str]) -> bool:
    """Whether a shard's hash holds something else where one of `MADE_ANEW` should be."""
    return any(is_none(name, fields[name], is_counted=True) for name in MADE_ANEW if name in fields)


def find(conn: Connection, experiment: str, plans: Sequence[ShardPlan] = ()) -> list[OddNumber]:
    """The fields of an experiment that should hold numbers and do not; keys of another kind are passed over.

    Args:
        plans: of its shards, from the first on.
    """
    single = {
        keys.ctl(experiment): CTL,
        keys.flow(experiment, 0): FLOW,
        keys.status(experiment): STATUS,
        keys.trainer(experiment): TRAINER,
    }
    hashes = dict(zip(single, _hashes(conn, single), strict=True))
    shards = _shards(conn, experiment)
    spec, seat = _hashes(conn, [keys.spec(experiment), keys.seat(experiment)])
    known = _Known(
        now_ms=conn.now_ms(),
        shards=shards,
        spec=read_spec(experiment, texts(spec)) if spec else None,
        seat_epoch=count(seat.get("epoch")),
        state=text(hashes[keys.status(experiment)].get("state")),
    )
    named = [(key, single[key], fields, known) for key, fields in hashes.items()]
    for shard, fields in shards.items():
        plan = plans[shard] if shard < len(plans) else None
        of_shard = replace(known, plan=plan, worker=text(fields.get("worker")))
        named.append((keys.shard(experiment, 0, shard), SHARD, fields, of_shard))
    return [
        OddNumber(key, field, fields[field], None if make is None else make(about))
        for key, numbers, fields, about in named
        for field, make in numbers.items()
        if field in fields and is_none(field, fields[field], is_counted=field in MADE_ANEW and numbers is SHARD)
    ]


def lost_of_ctl(experiment: str, reply: Mapping[bytes, bytes]) -> list[OddNumber]:
    """Those of ctl, as the server answered it, that nobody can tell from elsewhere; asks nothing."""
    fields = {text(name): value for name, value in reply.items()}
    return [
        OddNumber(keys.ctl(experiment), field, fields[field], None)
        for field, make in CTL.items()
        if make is None and field in fields and is_none(field, fields[field], is_counted=False)
    ]


def told(experiment: str, found: Iterable[OddNumber]) -> str:
    """What is wrong with an experiment that cannot go on, and what to do, for people; "" when nothing is."""
    lost = [f"field {one.field} of {one.key} is {one.shown!r}" for one in found if one.instead is None]
    return losses.told(experiment, lost, held="numbers, and what they were")


def is_none(field: str, value: bytes | str, *, is_counted: bool) -> bool:
    """Whether a field holds something else than it should.

    Args:
        is_counted: a whole number from 0 on is asked for, and not any integer.
    """
    if field in WORDS:
        return text(value) not in WORDS[field]
    if is_counted:
        return whole(value) is None
    try:
        integer(value)
    except NoNumber:
        return True
    return False


def _shards(conn: Connection, experiment: str) -> dict[int, dict[str, bytes]]:
    """By index, as far as there are any: how many there should be may be one of the numbers that are none.

    Some may be missing, too; so many at once are the end.
    """
    found: dict[int, dict[str, bytes]] = {}
    for start in itertools.count(0, BATCH):
        page = _hashes(conn, [keys.shard(experiment, 0, shard) for shard in range(start, start + BATCH)])
        some = {start + place: fields for place, fields in enumerate(page) if fields}
        if not some:
            break
        found |= some
    return found


def _hashes(conn: Connection, names: Iterable[str]) -> list[dict[str, bytes]]:
    """Whole hashes; {} for what is none. Raises BrokerError."""
    pipe: Any = conn.pipeline()
    for name in names:
        pipe.hgetall(name)
    found = []
    for reply in pipe.execute(raise_on_error=False):
        if isinstance(reply, Exception) and not isinstance(reply, Damaged):
            raise reply
        fields = {} if isinstance(reply, Damaged) else reply
        found.append({text(name): value for name, value in fields.items()})
    return found
