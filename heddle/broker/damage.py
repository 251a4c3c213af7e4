"""Damage: keys of an experiment in whose place somebody put something of another kind than ours.

It never touches another experiment's keys, and never removes one whose contents cannot be done without.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from heddle.broker import keys, losses, numbers
from heddle.broker.connection import Connection
from heddle.broker.counts import count
from heddle.broker.faults import Damaged
from heddle.broker.numbers import OddNumber
from heddle.broker.records import integer, text
from heddle.broker.refusals import check_leader
from heddle.errors import BrokerError, Denied
from heddle.shard import ShardPlan

log = logging.getLogger("heddle.broker")

Kind = Literal["hash", "zset", "stream"]

_SAYS: dict[Kind, str] = {"hash": "hash", "zset": "sorted set", "stream": "stream"}
BATCH = 500
"""Keys per round trip."""
MOST_CHARS = 300


@dataclass(frozen=True, slots=True)
class Key:
    """One key of an experiment.

    Attributes:
        name: its whole name.
        kind: what it should be.
        is_needed: nothing goes on without what it held; the others are made anew, or are for people.
    """

    name: str
    kind: Kind
    is_needed: bool = False


class Damages:
    """Every call about damaged keys, on one connection."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def note(self, experiment: str, error: Damaged) -> None:
        """Have the leader look for what a verb met; again is no mistake, and what cannot be noted is met again."""
        told = " ".join(str(error).split())[-MOST_CHARS:]
        try:
            self._conn.script("damage_note", [keys.ctl(experiment)], [told])
        except (BrokerError, Denied, Damaged) as more:  # where ctl itself is damaged, the leader sees that
            log.info("could not note the damage of experiment=%s error=%s", experiment, more)

    def find(self, experiment: str) -> list[Key]:
        """The keys of an experiment that are of another kind than they should be."""
        found = self._of_another_kind(_whole(experiment))
        if any(key.name == keys.ctl(experiment) for key in found):
            return found
        shards = count(self._conn.main.hget(keys.ctl(experiment), "shards"))
        return found + self._of_another_kind(_of_shards(experiment, range(shards)))

    def mend(self, experiment: str, found: Sequence[Key], *, leader_epoch: int, ttl_ms: int) -> int:
        """Remove what was found, as the leader; the scripts and the trainer make it anew. How many keys that were.

        Args:
            ttl_ms: of the leases: who holds one renews within it.

        Raises:
            ValueError: one of them is needed.
            LeaderLost, Gone: nothing was removed.
        """
        if needed := [key.name for key in found if key.is_needed]:
            raise ValueError(f"cannot be made anew: {', '.join(needed)}")
        own = [keys.ctl(experiment), keys.due(experiment, 0), keys.queued(experiment, 0)]
        args: list[str | int] = [leader_epoch, ttl_ms, *(key.kind for key in found)]
        reply = self._conn.script("damage_mend", [*own, *(key.name for key in found)], args)
        check_leader(experiment, text(reply[0]))
        return integer(reply[1])

    def numbers(self, experiment: str, plans: Sequence[ShardPlan] = ()) -> list[OddNumber]:
        """The fields of its hashes that should hold numbers and do not; `plans` of its shards, from the first on."""
        return numbers.find(self._conn, experiment, plans)

    def write_anew(self, experiment: str, odd: OddNumber, *, leader_epoch: int) -> bool:
        """Write such a number, as the leader; False where somebody did meanwhile.

        Raises:
            ValueError: nobody can tell what it was.
            LeaderLost, Gone: nothing was written.
        """
        if odd.instead is None:
            raise ValueError(f"cannot be told from elsewhere: {odd.field} of {odd.key}")
        args: list[Any] = [leader_epoch, odd.field, odd.value, odd.instead]
        reply = self._conn.script("damage_number", [keys.ctl(experiment), odd.key], args)
        check_leader(experiment, text(reply[0]))
        return text(reply[1]) == "1"

    def mend_dues(
        self, experiment: str, shards: Sequence[int], *, leader_epoch: int, ttl_ms: int
    ) -> list[tuple[int, str]]:
        """Have leases be found over within a TTL unless they are renewed, as the leader, where nothing says so before.

        Args:
            ttl_ms: of the leases.

        Returns:
            The shards of which that was so, each with what somebody had changed: "due", when its lease is due, or
            "lease", which had no end.

        Raises:
            LeaderLost, Gone: another coordinator leads; the experiment was removed.
        """
        mended: list[tuple[int, str]] = []
        for start in range(0, len(shards), BATCH):
            some = shards[start : start + BATCH]
            own = [keys.ctl(experiment, 0), keys.due(experiment, 0)]
            for shard in some:
                own += [keys.shard(experiment, 0, shard), keys.lease(experiment, 0, shard)]
            reply = self._conn.script("due_mend", own, [leader_epoch, ttl_ms, *some])
            check_leader(experiment, text(reply[0]))
            mended += [(integer(shard), text(what)) for shard, what in zip(reply[1::2], reply[2::2], strict=True)]
        return mended

    def _of_another_kind(self, asked: Sequence[Key]) -> list[Key]:
        found = []
        for start in range(0, len(asked), BATCH):
            some = asked[start : start + BATCH]
            pipe = self._conn.pipeline()
            for key in some:
                _ask(pipe, key)
            replies = pipe.execute(raise_on_error=False)
            found += [key for key, reply in zip(some, replies, strict=True) if isinstance(reply, Damaged)]
        return found


def told(experiment: str, found: Iterable[Key]) -> str:
    """What is wrong with an experiment that cannot go on, and what to do, for people; "" when nothing is."""
    lost = [f"{key.name} is no {_SAYS[key.kind]}" for key in found if key.is_needed]
    said = losses.told(experiment, lost, held="keys, and what they held")
    return f"{said}, then clear up: heddle rm {experiment}" if said else ""


def told_of_field(experiment: str, error: Damaged) -> str:
    """The same where every key is what it should be, and something in one of them is not."""
    return f"{error}; {losses.onward(experiment)}"


def _ask(pipe: Any, key: Key) -> None:
    """The cheapest question that only a key of that kind answers, and that every role may ask."""
    if key.kind == "hash":
        pipe.hget(key.name, "-")
    elif key.kind == "zset":
        pipe.zcard(key.name)
    else:
        pipe.xlen(key.name)


def _whole(experiment: str) -> list[Key]:
    """The keys that an experiment has once."""
    return [
        Key(keys.ctl(experiment), "hash", is_needed=True),
        Key(keys.spec(experiment), "hash", is_needed=True),
        Key(keys.flow(experiment, 0), "hash", is_needed=True),
        Key(keys.accepted(experiment, 0), "hash", is_needed=True),
        Key(keys.experience(experiment, 0), "stream", is_needed=True),
        Key(keys.status(experiment), "hash"),
        Key(keys.seat(experiment), "hash"),
        Key(keys.trainer(experiment), "hash"),
        Key(keys.trackers(experiment), "hash"),
        Key(keys.queued(experiment, 0), "hash"),
        Key(keys.loading(experiment, 0), "hash"),
        Key(keys.due(experiment, 0), "zset"),
        Key(keys.waiting(experiment, 0), "zset"),
        Key(keys.metrics(experiment), "stream"),
        Key(keys.dead(experiment, 0), "stream"),
    ]


def _of_shards(experiment: str, shards: Iterable[int]) -> list[Key]:
    """The keys that an experiment has for each of its shards."""
    return [
        key
        for shard in shards
        for key in (
            Key(keys.shard(experiment, 0, shard), "hash", is_needed=True),
            Key(keys.lease(experiment, 0, shard), "hash"),
            Key(keys.failure(experiment, 0, shard), "hash"),
        )
    ]
