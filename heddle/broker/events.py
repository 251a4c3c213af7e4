"""Events: the log that all roles write, the metrics of each update, and news that wakes who waits.

This module never decides by what it carries: log and metrics are for people, news are hints.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import ResponseError

from heddle.broker import keys
from heddle.broker.connection import MAX_BLOCK_MS, Connection
from heddle.broker.news import NewsListener
from heddle.broker.records import dump_json, entries, integer, text
from heddle.broker.streams import add
from heddle.errors import BrokerAmiss, BrokerError, Denied, Gone, SeatLost

log = logging.getLogger("heddle.broker")

LOG_ENTRIES = 10_000
"""The log keeps about this many lines."""

METRICS_ENTRIES = 100_000
"""An experiment keeps the metrics of about this many updates."""

LINE_CHARS = 2_000
"""Longest message in the log; a traceback's end says more than its start, so the start is cut."""

LOG_STEP = 500
"""Lines looked at in one step when only one experiment's are wanted."""

PRINTED = "user"
"""Role of lines that user code printed; its worker is the one where it did."""

LAST_ENTRIES = 200
"""How far back the last value of a metric is looked for, in updates."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log.

    Attributes:
        entry_id, time_ms: its place in the stream; server ms at which it happened.
        experiment: which it is about, None for none.
        role, worker: who says it, e.g. "worker", and its id, "" for none.
        level: debug, info, warning or error; message: the line.
    """

    entry_id: str
    time_ms: int
    experiment: str | None
    role: str
    worker: str
    level: str
    message: str


@dataclass(frozen=True, slots=True)
class Metric:
    """What was measured in one update; one stream entry holds all of its names, so that they arrive together.

    Attributes:
        entry_id, time_ms: its place in the stream; server ms.
        update: of the trainer.
        values: by name; NaN where it could not be measured.
    """

    entry_id: str
    time_ms: int
    update: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Line:
    """One line for the log.

    Attributes:
        experiment: which it is about, None for none.
        role, worker: who says it, e.g. "worker", and its id, "" for none.
        level: debug, info, warning or error; message: the line.
        ago_ms: how long before it is sent it happened.
    """

    experiment: str | None
    role: str
    worker: str
    level: str
    message: str
    ago_ms: int = 0


class Events:
    """Every call about log, metrics and news, on one connection."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._is_amiss = False

    # ---- log

    def log(self, experiment: str | None, role: str, worker: str | None, level: str, message: str) -> None:
        """Add a line to the log, if the broker takes it now; never raises for a broker that does not."""
        self.log_all([Line(experiment, role, worker or "", level, message)])

    def log_all(self, lines: Sequence[Line]) -> bool:
        """Add lines to the log in one round trip; False when the broker does not take them now, which is no error."""
        try:
            add(self._conn, keys.LOG, [_line_fields(line) for line in lines], most=LOG_ENTRIES)
        except (BrokerError, Denied, ResponseError) as error:
            is_news = isinstance(error, BrokerAmiss) and not self._is_amiss
            self._is_amiss = isinstance(error, BrokerAmiss)
            level = logging.WARNING if is_news else logging.DEBUG  # others pass by themselves
            log.log(level, "dropped lines=%d first=%r error=%s", len(lines), lines[0].message, error)
            return False
        self._is_amiss = False
        return True

    def read(self, experiment: str | None = None, *, count: int = 20, after_id: str | None = None) -> list[Event]:
        """Lines of the log, oldest first.

        Args:
            experiment: only what is about this one; None for all.
            count: how many at most: the newest ones, or with `after_id` the next ones.
            after_id: entry id after which to read; None for the newest.
        """
        found: list[Event] = []
        step = count if experiment is None else LOG_STEP
        place = after_id
        while len(found) < count:
            if after_id is None:
                page = self._conn.main.xrevrange(keys.LOG, max=f"({place}" if place else "+", count=step)
            else:
                page = self._conn.main.xrange(keys.LOG, min=f"({place}", count=step)
            events = [read_event(entry_id, fields) for entry_id, fields in entries(page)]
            if not events:
                break
            place = events[-1].entry_id
            found += [event for event in events if experiment in (None, event.experiment)]
        found = found[:count]
        return found[::-1] if after_id is None else found

    def find(self, matches: Callable[[Event], bool], *, count: int = 20) -> list[Event]:
        """The newest lines of the log that match, oldest first; looks at all of them if it must."""
        found: list[Event] = []
        place = "+"
        while len(found) < count:
            page = entries(self._conn.main.xrevrange(keys.LOG, max=place, count=LOG_STEP))
            if not page:
                break
            events = [read_event(entry_id, fields) for entry_id, fields in page]
            found += [event for event in events if matches(event)]
            place = f"({page[-1][0]}"
        return sorted(reversed(found[:count]), key=lambda event: event.time_ms)  # of one ms: as they were added

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
        args = [epoch, METRICS_ENTRIES, "update", update, "values", dump_json(values)]
        reply = self._conn.script("metrics_add", own, args)
        _check_seat(experiment, text(reply[0]), seat_epoch)
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
        _check_seat(experiment, text(reply[0]), seat_epoch)
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
        reply: Any
        if block_ms > 0:
            reply = self._conn.blocking().xread({key: after_id}, count=count, block=min(block_ms, MAX_BLOCK_MS))
        else:
            reply = self._conn.main.xread({key: after_id}, count=count)
        return [read_metric(*entry) for entry in entries(reply[0][1])] if reply else []

    def metrics_last(self, experiment: str) -> dict[str, float]:
        """The last value of every metric, of those measured in the last `LAST_ENTRIES` updates."""
        page = self._conn.main.xrevrange(keys.metrics(experiment), count=LAST_ENTRIES)
        last: dict[str, float] = {}
        for entry in reversed(entries(page)):
            last.update(read_metric(*entry).values)
        return last

    def metrics_recent(self, experiment: str, *, count: int) -> list[Metric]:
        """The metrics of the last updates, oldest first."""
        page = entries(self._conn.main.xrevrange(keys.metrics(experiment), count=count))
        return [read_metric(*entry) for entry in reversed(page)]

    def metrics_newest(self, experiment: str) -> Metric | None:
        """The newest of the metrics, with what those shortly before it measured beside; None when there is none."""
        page = entries(self._conn.main.xrevrange(keys.metrics(experiment), count=8))
        found = [read_metric(*entry) for entry in page]
        if not found:
            return None
        values = {name: value for metric in reversed(found) for name, value in metric.values.items()}
        return replace(found[0], values=values)

    # ---- news

    def listen(self) -> NewsListener:
        """A thread that hears of new policies and commands; the caller starts nothing, but closes it."""
        return NewsListener(self._conn)


def _check_seat(experiment: str, answer: str, seat_epoch: int | None) -> None:
    if answer == "GONE":
        raise Gone(f"no experiment {experiment!r}: it was removed")
    if answer == "FENCED":
        raise SeatLost(f"{experiment}: another trainer took the seat after epoch {seat_epoch}")


def _line_fields(line: Line) -> dict[str, str]:
    said = line.message
    fields = {"experiment": line.experiment or "", "role": line.role, "worker": line.worker, "level": line.level}
    fields["message"] = said if len(said) <= LINE_CHARS else f"...{said[-LINE_CHARS:]}"
    return fields | ({"ago": str(line.ago_ms)} if line.ago_ms else {})


def read_event(entry_id: str, fields: Mapping[str, str]) -> Event:
    """An entry of the log as a value."""
    return Event(
        entry_id=entry_id,
        time_ms=_time_ms(entry_id) - integer(fields.get("ago")),
        experiment=fields.get("experiment") or None,
        role=fields.get("role", ""),
        worker=fields.get("worker", ""),
        level=fields.get("level", "info"),
        message=fields.get("message", ""),
    )


def read_metric(entry_id: str, fields: Mapping[str, str]) -> Metric:
    """An entry of a metrics stream as a value."""
    measured = json.loads(fields.get("values") or "{}")
    values = {name: float("nan") if value is None else float(value) for name, value in measured.items()}
    return Metric(entry_id, _time_ms(entry_id), integer(fields.get("update")), values)


def _time_ms(entry_id: str) -> int:
    """The server's ms at which a stream entry was added."""
    return int(entry_id.partition("-")[0])
