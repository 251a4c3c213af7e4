"""The fleet, looked at again and again at a bounded price: what is cheap is read anew, the rest a part at a time.

It never writes. A look at a thousand workers asks for some of their heartbeats and takes the others from before; who is
silent, new or watched comes first.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from heddle.broker import Broker
from heddle.broker.lines import Event, Place
from heddle.broker.overview import ExperimentGlance, PoolGlance, ServerGlance
from heddle.broker.presence import BEAT_TTL_MS, WorkerInfo
from heddle.broker.records import Status
from heddle.broker.streams import LAST_ID

BEATS = 100
"""Heartbeats asked for in one look, besides those that are watched."""
FIRST_BEATS = 500
"""And of workers that have not been looked at yet."""
FIRST = 500
"""And experiments."""
QUIET_MS = 3_000
"""A worker whose heart was not heard for so long may have died: what is known of it is asked anew."""
ENDED_KEPT = 200
"""So many of the experiments that are over are looked at."""
ENDED_AGAIN = 10
"""And so many of them in one look: a broker that forgot its tail may take one back from its end."""
LATELY_KEPT = 100
"""So many of those that ended lately are looked at as those that go on are."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything at one moment.

    Attributes:
        server: the broker.
        experiments: those that are not over, by id, newest first; `metrics` and events are those since the last look.
        ended: those that are over, newest first, at most `ENDED_KEPT`.
        pools: by name.
        workers: by pool and id, as far as they have been looked at.
        reads: hashes that this look asked for.
        lately: those that ended within the reader's `lately_ms`, but for metrics, at most `LATELY_KEPT`.
    """

    server: ServerGlance
    experiments: Mapping[str, ExperimentGlance]
    ended: Mapping[str, Status]
    pools: Mapping[str, PoolGlance]
    workers: Mapping[str, Mapping[str, WorkerInfo]] = field(default_factory=dict)
    reads: int = 0
    lately: Mapping[str, ExperimentGlance] = field(default_factory=dict)

    @property
    def events(self) -> tuple[Event, ...]:
        """New lines of the log."""
        return self.server.events


class FleetReader:
    """Looks again and again; for one thread.

    Args:
        pools: looked at even where no experiment names them.
        beats: heartbeats in one look.
        lines: read the log, too.
        numbers: of all workers at every look, and of their heartbeats only what is added up (`beats.NUMBERS`).
        lately_ms: for so long after its end an experiment's totals are read, too.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        pools: Collection[str] = ("default",),
        beats: int = BEATS,
        lines: bool = True,
        numbers: bool = False,
        lately_ms: int = 0,
    ) -> None:
        self._overview = broker.overview
        self._own_pools = tuple(pools)
        self._beats = beats
        self._lines = lines
        self._numbers = numbers
        self._lately_ms = lately_ms
        self._place: Place | None = None
        self._metric_ids: dict[str, str] = {}
        self._ended: dict[str, Status] = {}
        self._known: dict[str, dict[str, WorkerInfo]] = {}
        self._turn: dict[str, int] = {}
        self._ended_turn = 0

    def read(self, *, watched: Collection[str] = (), everything: bool = False) -> Fleet:
        """One look: four round trips, and one more where an experiment is new.

        Args:
            watched: workers whose heartbeats are wanted as they are now.
            everything: ask for all heartbeats, whatever that costs.

        Raises:
            BrokerError, Denied: the broker cannot be asked.
        """
        server = self._overview.server(after=self._place, lines=self._lines)
        self._place = server.place
        ended = self._look_at_ended(server)
        active = {one: self._metric_ids.get(one) for one in self._active(server)}
        over = self._ended_lately(server)
        seen = self._overview.experiments({**over, **active})
        lately = {one: seen[one] for one in over if one in seen}
        found = {one: seen[one] for one in active if one in seen}
        for experiment, glance in found.items():
            self._metric_ids[experiment] = glance.read_to
            if glance.status.ended:
                self._ended[experiment] = glance.status
                del self._metric_ids[experiment]
        names = sorted({*self._own_pools, *(glance.status.pool for glance in found.values() if glance.status.pool)})
        pools = self._overview.pools(names, server.now_ms)
        reads = len(active) + len(over) + ended
        workers = {}
        for name, pool in pools.items():
            asked = self._asked(pool, server.now_ms, watched, everything=everything or self._numbers)
            said = self._overview.workers(name, asked, server.now_ms, numbers=self._numbers)
            self._known.setdefault(name, {}).update(said)
            reads += len(asked)
            workers[name] = self._now(name, pool, server.now_ms)
        return Fleet(server, found, self._newest_ended(server), pools, workers, reads, lately)

    def _active(self, server: ServerGlance) -> list[str]:
        """Those that are not over, newest first; of many that nobody has looked at, some now and the others later."""
        new = [one for one in server.experiments if one not in self._ended and one not in self._metric_ids][:FIRST]
        found = self._overview.statuses(new)
        self._ended |= {one: status for one, status in found.items() if status.ended}
        begun = {one for one, status in found.items() if not status.ended}
        return [one for one in server.experiments if one in self._metric_ids or one in begun]

    def _look_at_ended(self, server: ServerGlance) -> int:
        """Look at some of those that are over again; forget those that were removed."""
        here = set(server.experiments)
        self._ended = {one: status for one, status in self._ended.items() if one in here}
        self._metric_ids = {one: last for one, last in self._metric_ids.items() if one in here}
        ids = list(self._ended)
        some = ids[self._ended_turn : self._ended_turn + ENDED_AGAIN]
        self._ended_turn = self._ended_turn + ENDED_AGAIN if self._ended_turn + ENDED_AGAIN < len(ids) else 0
        again = self._overview.statuses(some) if some else {}
        for experiment in some:
            if experiment in again and again[experiment].ended:
                self._ended[experiment] = again[experiment]
            else:
                del self._ended[experiment]
        return len(some)

    def _ended_lately(self, server: ServerGlance) -> dict[str, str]:
        """Those that ended within `lately_ms`, the last first, each with an entry behind all of its metrics."""
        since_ms = server.now_ms - self._lately_ms
        ended = [(one.ended_ms, name) for name, one in self._ended.items() if since_ms < one.ended_ms <= server.now_ms]
        return {name: LAST_ID for _, name in sorted(ended, reverse=True)[:LATELY_KEPT]}

    def _newest_ended(self, server: ServerGlance) -> dict[str, Status]:
        order = [one for one in server.experiments if one in self._ended][:ENDED_KEPT]
        return {one: self._ended[one] for one in order}

    def _asked(self, pool: PoolGlance, now_ms: int, watched: Collection[str], *, everything: bool) -> dict[str, int]:
        """Whose heartbeats to ask for now, with when each was heard of."""
        seen, known = pool.seen, self._known.get(pool.info.name, {})
        if everything or len(seen) <= self._beats:
            return dict(seen)
        fresh = [worker for worker in seen if worker not in known][:FIRST_BEATS]
        silent = [one for one, at in seen.items() if now_ms - at >= QUIET_MS and one in known and not known[one].died]
        order = sorted(seen)
        start = self._turn.get(pool.info.name, 0) % len(order)
        left = max(0, self._beats - len(fresh))
        turn = (order[start:] + order[:start])[:left]
        self._turn[pool.info.name] = start + left
        chosen = [*(one for one in watched if one in seen), *fresh, *silent[: self._beats], *turn]
        return {worker: seen[worker] for worker in chosen}

    def _now(self, name: str, pool: PoolGlance, now_ms: int) -> dict[str, WorkerInfo]:
        """Everybody who was looked at, with the silence of now."""
        known = {worker: info for worker, info in self._known[name].items() if worker in pool.seen}
        for worker, info in known.items():
            seen_ms = pool.seen[worker]
            silent_ms = max(0, now_ms - seen_ms)
            if info.seen_ms != seen_ms or info.silent_ms != silent_ms:
                has_beaten = info.alive or bool(info.beat.pid)
                alive = has_beaten and not info.died and silent_ms < BEAT_TTL_MS
                known[worker] = replace(info, seen_ms=seen_ms, silent_ms=silent_ms, alive=alive)
        self._known[name] = known
        return dict(known)
