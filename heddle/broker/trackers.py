"""Trackers: consumer groups of an experiment's metrics, one for each place outside that they are handed on to.

Nothing here is ever waited for by a role, and nothing is deleted: the stream is capped whoever reads it. One process at
a time feeds a tracker; it says so again and again, and another may take over once it has been silent.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from heddle.broker import keys
from heddle.broker.connection import MAX_BLOCK_MS, Connection
from heddle.broker.metrics import Metric, metrics_of
from heddle.broker.records import dump_json, entries, integer, mapping, text, texts
from heddle.broker.refusals import gone
from heddle.broker.tickets import is_groupless
from heddle.errors import Denied

log = logging.getLogger("heddle.broker")

PREFIX = "track-"
CONSUMER = "tracker"
TTL_MS = 10_000
"""For so long a silent process is still the one; then another may be."""
BEFORE = 50
"""How far back the last entry with a certain value is looked for."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """One tracker of an experiment, as the process that feeds it said last.

    Attributes:
        name: of the group.
        by: who feeds it now; "" for nobody.
        until_ms: server ms until nobody else may.
        told: what it says of itself: points, missed, done ...
        behind: entries that it has not dealt with; None when the server cannot tell.
    """

    name: str
    by: str
    until_ms: int
    told: Mapping[str, Any]
    behind: int | None

    @property
    def lag(self) -> str:
        """How far it is behind, in words; "" when it is not, or nobody can tell."""
        return f"{self.behind:,} {'entry' if self.behind == 1 else 'entries'} behind" if self.behind else ""


class Trackers:
    """Every call about trackers, on one connection."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def claim(
        self, experiment: str, name: str, process: str, *, told: Mapping[str, Any], ttl_ms: int = TTL_MS
    ) -> str | None:
        """Be, or go on being, the one that feeds a tracker.

        Returns:
            None when it is; else who is.

        Raises:
            Gone: the experiment was removed.
        """
        return self._claim(experiment, [name, process, ttl_ms, dump_json(told), process])

    def fed_by(self, experiment: str, name: str) -> str:
        """Who feeds a tracker, or did when it was killed; "" for nobody, or where the last one left."""
        return text(self._conn.main.hget(keys.trackers(experiment), f"{name}:by") or "")

    def leave(self, experiment: str, name: str, process: str, *, told: Mapping[str, Any]) -> None:
        """Feed it no more; another may at once. Raises Gone."""
        self._claim(experiment, [name, "", 0, dump_json(told), process])

    def ensure_group(self, experiment: str, name: str) -> None:
        """Make the group, at the first metrics there are, unless it is there. Raises Gone."""
        own = [keys.ctl(experiment), keys.metrics(experiment)]
        if text(self._conn.script("group_make", own, [PREFIX + name, "0"])) == "GONE":
            raise gone(experiment)

    def take_over(self, experiment: str, name: str) -> list[Metric]:
        """Every entry that was given out and not dealt with, oldest first. Raises Gone."""
        self.ensure_group(experiment, name)
        own = [keys.ctl(experiment), keys.metrics(experiment)]
        reply: Any = self._conn.script("take_over", own, [PREFIX + name, CONSUMER])
        if text(reply[0]) == "GONE":
            raise gone(experiment)
        pairs = [(entry[0], dict(zip(entry[1][::2], entry[1][1::2], strict=True))) for entry in reply[1:]]
        return self._ours(experiment, name, pairs)

    def read(self, experiment: str, name: str, *, count: int, block_ms: int) -> list[Metric]:
        """The next entries; waits for the first for `block_ms`. A group that the server lost is made anew.

        Raises:
            Gone: the experiment was removed.
        """
        block_ms = min(block_ms, MAX_BLOCK_MS)
        client, block = (self._conn.blocking(), block_ms) if block_ms > 0 else (self._conn.main, None)
        stream: dict[Any, Any] = {keys.metrics(experiment): ">"}
        try:
            reply: Any = client.xreadgroup(PREFIX + name, CONSUMER, stream, count=count, block=block)
        except ResponseError as error:
            if not is_groupless(error):
                raise
            self.ensure_group(experiment, name)
            return self.read(experiment, name, count=count, block_ms=0)
        return self._ours(experiment, name, reply[0][1]) if reply else []

    def done(self, experiment: str, name: str, ids: Sequence[str]) -> None:
        """These are dealt with."""
        if ids:
            self._conn.main.xack(keys.metrics(experiment), PREFIX + name, *ids)

    def rewind(self, experiment: str, name: str) -> None:
        """Give out everything again: the tracker has lost what it was given."""
        self.done(experiment, name, [metric.entry_id for metric in self.take_over(experiment, name)])
        self._conn.main.xgroup_setid(keys.metrics(experiment), PREFIX + name, "0")

    def before(self, experiment: str, entry_id: str) -> list[Metric]:
        """The entries just before one, newest first."""
        page = self._conn.main.xrevrange(keys.metrics(experiment), max=f"({entry_id}", count=BEFORE)
        return metrics_of(keys.metrics(experiment), page)

    def all(self, experiment: str) -> list[Tracked]:
        """Every tracker of an experiment, by name."""
        known = texts(self._conn.main.hgetall(keys.trackers(experiment)))
        behind = self._behind(experiment) if known else {}
        names = sorted({field.rpartition(":")[0] for field in known})
        return [
            Tracked(
                name,
                known.get(f"{name}:by", ""),
                integer(known.get(f"{name}:until")),
                mapping(known.get(f"{name}:told")),
                behind.get(PREFIX + name),
            )
            for name in names
        ]

    # ---- inside

    def _ours(self, experiment: str, name: str, page: Any) -> list[Metric]:
        """What can be read of a page that was given out; the rest is dealt with by being left out."""
        given = [entry_id for entry_id, _ in entries(page)]
        found = metrics_of(keys.metrics(experiment), page)
        if len(found) < len(given):
            self.done(experiment, name, sorted(set(given) - {metric.entry_id for metric in found}))
        return found

    def _behind(self, experiment: str) -> dict[str, int | None]:
        try:
            groups: Any = self._conn.main.xinfo_groups(keys.metrics(experiment))
        except (ResponseError, Denied) as error:  # a user with rules from before had no right to this one
            log.debug("no stream of metrics experiment=%s error=%s", experiment, error)
            return {}
        return {
            text(group["name"]): None if group.get("lag") is None else int(group["lag"]) + int(group["pending"])
            for group in groups
        }

    def _claim(self, experiment: str, args: list[str | int]) -> str | None:
        own = [keys.ctl(experiment), keys.trackers(experiment)]
        answer = text(self._conn.script("track_claim", own, args))
        if answer == "GONE":
            raise gone(experiment)
        return None if answer == "OK" else answer
