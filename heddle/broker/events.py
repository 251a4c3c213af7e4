"""Events: the log that all roles write, the metrics of each update, and news that wakes who waits.

This module never decides by what it carries: log and metrics are for people, news are hints.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from redis.exceptions import ResponseError

from heddle.broker import keys
from heddle.broker.connection import MAX_BLOCK_MS, Connection
from heddle.broker.counts import whole
from heddle.broker.lines import (
    LOG_ENTRIES,
    LOG_STEP,
    STREAMS,
    Event,
    Line,
    Place,
    ask_after,
    ask_newest,
    in_time,
    line_fields,
    newest_first,
    read_after,
    read_newest,
    stream_of,
)
from heddle.broker.metrics import Columns, Metric, metrics_of
from heddle.broker.news import NewsListener
from heddle.broker.records import text
from heddle.broker.refusals import check_seat
from heddle.broker.streams import LAST_ID, NO_MORE_IDS, add, restart
from heddle.errors import BrokerAmiss, BrokerError, Denied

log = logging.getLogger("heddle.broker")

BESIDE = 8
"""How many of the newest updates are looked at for the values of the newest."""

MOST_PASSED = 1_000
"""Readers for whom foreign entries are remembered."""

LAST_ENTRIES = 200
"""How far back the last value of a metric is looked for, in updates."""


class Events:
    """Every call about log, metrics and news, on one connection."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._refused: frozenset[str] = frozenset()
        self._passed: dict[tuple[str, str], str] = {}
        self._columns = Columns()

    # ---- log

    def log(self, experiment: str | None, role: str, worker: str | None, level: str, message: str) -> None:
        """Add a line to the log, if the broker takes it now; never raises for a broker that does not."""
        self.log_all([Line(experiment, role, worker or "", level, message)])

    def log_all(self, lines: Sequence[Line]) -> bool:
        """Add lines to the log in one round trip, two where there are events and prints; False when the broker does
        not take some of them now, which is no error. What this user may not add is dropped, and told once."""
        taken = [self._add([line for line in lines if stream_of(line) == stream], stream) for stream in STREAMS]
        return all(taken)

    def _add(self, lines: Sequence[Line], stream: str) -> bool:
        if not lines:
            return True
        try:
            add(self._conn, stream, [line_fields(line) for line in lines], most=LOG_ENTRIES)
        except (BrokerError, Denied, ResponseError) as error:
            lasts = isinstance(error, BrokerAmiss | Denied)  # others pass by themselves
            is_news = lasts and stream not in self._refused
            self._refused = self._refused | {stream} if lasts else self._refused - {stream}
            level = logging.WARNING if is_news else logging.DEBUG
            log.log(level, "dropped lines=%d first=%r error=%s", len(lines), lines[0].message, error)
            return isinstance(error, Denied)
        self._refused -= {stream}
        return True

    def read(self, experiment: str | None = None, *, count: int = 20) -> list[Event]:
        """The newest lines of the log, as they were added.

        Args:
            experiment: only what is about this one; None for all.
            count: how many at most.
        """
        found = newest_first(self._conn, step=min(count, LOG_STEP) if experiment is None else LOG_STEP)
        return [*islice((one for one in found if experiment in (None, one.experiment)), count)][::-1]

    def end(self) -> Place:
        """After all that is in the log now."""
        pipe = self._conn.pipeline()
        ask_newest(pipe, 1)
        return read_newest(pipe.execute())[1]

    def after(self, place: Place, experiment: str | None = None, *, count: int) -> tuple[list[Event], Place]:
        """The next lines of the log, oldest first, and where to go on.

        Args:
            experiment: only what is about this one; None for all.
            count: so many, fewer where there are no more; of one experiment up to `LOG_STEP` more.
        """
        found: list[Event] = []
        step = count if experiment is None else LOG_STEP
        while True:
            pipe = self._conn.pipeline()
            ask_after(pipe, place, step)
            page, place = read_after(pipe.execute(), place, step)
            found += [event for event in page if experiment in (None, event.experiment)]
            if len(page) < step or len(found) >= count:
                return found, place

    def find(self, matches: Callable[[Event], bool], *, count: int = 20, prints: bool = True) -> list[Event]:
        """The newest lines of the log that match, oldest first; looks at all of them if it must.

        Args:
            prints: look at what user code printed, too.
        """
        found = newest_first(self._conn, step=LOG_STEP, prints=prints)
        return in_time([*islice(filter(matches, found), count)][::-1])

    # ---- metrics

    def metrics_add(
        self, experiment: str, update: int, values: Mapping[str, float], *, seat_epoch: int | None = None
    ) -> str:
        """Add what was measured in an update; also when the broker is out of memory, for the stream is capped.

        Args:
            seat_epoch: of the trainer; None for others.

        Returns:
            The entry's id.

        Raises:
            SeatLost: another trainer holds the seat.
            Gone: the experiment was removed.
        """
        own = [keys.ctl(experiment), keys.metrics(experiment)]
        epoch = "" if seat_epoch is None else seat_epoch
        fields = self._columns.fields(update, values)
        args = [epoch, self._columns.most, *fields]
        try:
            reply = self._conn.script("metrics_add", own, args)
        except ResponseError as error:
            if NO_MORE_IDS not in str(error):
                raise
            restart(self._conn, keys.metrics(experiment))
            reply = self._conn.script("metrics_add", own, args)
        check_seat(experiment, seat_epoch, text(reply[0]))
        return text(reply[1])

    def metrics_forget(self, experiment: str, *, above: int, seat_epoch: int) -> int:
        """Delete the metrics of updates above `above`, which were rolled back; how many entries that were.

        Raises:
            SeatLost: another trainer holds the seat.
            Gone: the experiment was removed.
        """
        reply = self._conn.script(
            "metrics_forget", [keys.ctl(experiment), keys.metrics(experiment)], [seat_epoch, above]
        )
        check_seat(experiment, seat_epoch, text(reply[0]))
        return int(reply[1])

    def metrics_read(
        self, experiment: str, after_id: str = "0", *, block_ms: int = 0, count: int = 1000
    ) -> list[Metric]:
        """Metrics after an entry id, oldest first.

        Args:
            after_id: "0" for all.
            block_ms: how long to wait for one, at most 2 s; 0 for not at all.
            count: how many updates at most.
        """
        key = keys.metrics(experiment)
        asked = (key, after_id)
        after_id = self._passed.get(asked, after_id)
        while True:
            reply: Any
            if block_ms > 0:
                reply = self._conn.blocking().xread({key: after_id}, count=count, block=min(block_ms, MAX_BLOCK_MS))
            else:
                reply = self._conn.main.xread({key: after_id}, count=count)
            if not reply:
                return []
            page = reply[0][1]
            if found := metrics_of(key, page):
                return found
            after_id = text(page[-1][0])  # foreign entries are not the end: what comes behind them is waited for
            if after_id != LAST_ID:
                self._pass(asked, after_id)

    def _pass(self, asked: tuple[str, str], after_id: str) -> None:
        """Whoever asks the same again need not read the foreign entries once more."""
        if len(self._passed) >= MOST_PASSED:
            self._passed.clear()
        self._passed[asked] = after_id

    def metrics_cut(self, experiment: str) -> int:
        """About how many of the oldest entries the cap has let go of; 0 while all are there."""
        return whole(self._conn.main.hget(keys.ctl(experiment), "metrics_cut")) or 0

    def metrics_last(self, experiment: str) -> dict[str, float]:
        """The last value of every metric, of those measured in the last `LAST_ENTRIES` updates."""
        last: dict[str, float] = {}
        for metric in self.metrics_recent(experiment, count=LAST_ENTRIES):
            last.update(metric.values)
        return last

    def metrics_recent(self, experiment: str, *, count: int) -> list[Metric]:
        """The metrics of the last updates, oldest first."""
        key = keys.metrics(experiment)
        return metrics_of(key, self._conn.main.xrevrange(key, count=count))[::-1]

    def metrics_newest(self, experiment: str) -> Metric | None:
        """The newest of the metrics, with what those shortly before it measured beside; None when there is none."""
        key = keys.metrics(experiment)
        page: Any = self._conn.main.xrevrange(key, count=BESIDE)
        found = metrics_of(key, page)[::-1]
        if not found and len(page) == BESIDE:  # all of them by hand
            found = self.metrics_recent(experiment, count=LAST_ENTRIES)
        if not found:
            return None
        values = {name: value for metric in found[-BESIDE:] for name, value in metric.values.items()}
        return replace(found[-1], values=values)

    # ---- news

    def listen(self) -> NewsListener:
        """A thread that hears of new policies and commands; the caller starts nothing, but closes it."""
        return NewsListener(self._conn)
