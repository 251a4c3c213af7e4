"""Metrics: what an update measured, as one entry of a stream and back: a field for each number.

Pure but for telling once what cannot be read. It never decides by a number.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle.broker import foreign
from heddle.broker.records import dump_json, time_of

MOST_ENTRIES = 100_000
"""An experiment keeps the metrics of about this many updates at most..."""
MOST_BYTES = 16 << 20
"""...and of so few that they take about this much of the server's memory."""
MOST_UPDATES = 1 << 53
"""No trainer makes more: floats hold every whole number up to here."""
DIGITS = 7
"""Significant ones that are kept: a float32, which is what learners measure in, has no more."""
MOST_FIELDS = 500
"""Numbers beyond that are JSON in one field: Lua hands no more than some thousand values on."""

_UPDATE, _VALUES = "update", "values"
_NOT_MEASURED, _NAN = "", "nan"
_WHOLE = 10**DIGITS
"""From here on what is not whole is rounded to what is."""
_ROWS, _ALIKE = 4, 0.75
_NODE_BYTES, _OF_NODE, _OF_ENTRY, _OF_FIELD = 4096, 130, 16, 2
_LOOK_EVERY, _LASTING = 16, 64
"""Entries from one whose size is reckoned to the next, behind the first so many; a mean is made of so many."""
_TOO_FEW = 16
"""Sizes that tell nothing yet: a trainer that begins may say more, or less, than it will."""


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


class Columns:
    """Writes entries so that they cost little: in the order of names of those before, and in few digits.

    A server keeps the names of a stream's fields once for several entries, as long as they are the same in the same
    order; so what is not measured in an update is an empty field in the row that it is in else.
    """

    def __init__(self) -> None:
        self._rows: list[dict[str, None]] = []
        self._written, self._looked_at, self._mean = 0, 0, 0.0

    def fields(self, update: int, values: Mapping[str, float]) -> list[str]:
        """Field, value, field, value ... of an entry."""
        names, rest = self._row([name for name in values if _is_plain(name)][:MOST_FIELDS]), dict[str, str]()
        if beside := {name: shortened(value) for name, value in values.items() if name not in names}:
            rest = {_VALUES: dump_json(beside)}
        row = {_UPDATE: str(update), **{name: _text(values.get(name)) for name in names}, **rest}
        if len(row) == 1:
            row[_VALUES] = "{}"
        if self._written < _LASTING or self._written % _LOOK_EVERY == 0:
            self._looked_at += 1
            self._mean += (entry_bytes(row) - self._mean) / min(self._looked_at, _LASTING)
        self._written += 1
        return [text for pair in row.items() for text in pair]

    @property
    def most(self) -> int:
        """How many entries may be kept, by what those of late took; all, or nearly, until that is known."""
        return (
            MOST_ENTRIES
            if self._looked_at < _TOO_FEW
            else max(1, min(MOST_ENTRIES, int(MOST_BYTES / max(1.0, self._mean))))
        )

    def _row(self, own: Sequence[str]) -> Mapping[str, None]:
        """The names to write, in order: an earlier row, with what is new behind it, where most of it is the same."""
        for place, known in enumerate(self._rows):
            row = known | dict.fromkeys(own)
            if min(len(known), len(own)) >= _ALIKE * len(row) and len(row) <= MOST_FIELDS:
                self._rows[place] = row
                return row
        fresh = dict.fromkeys(own)
        self._rows = [fresh, *self._rows][:_ROWS]
        return fresh


def entry_bytes(row: Mapping[str, str]) -> float:
    """About what an entry takes in a server's memory when those around it have the same names.

    Source: t_stream.c and listpack.c of Redis 7 and Valkey 8: a node begins with the names, and another begins where
    names and values would lead beyond `stream-node-max-bytes`.
    """
    names = sum(_stored(name) for name in row)
    own = _OF_ENTRY + sum(_stored(text) for text in row.values())
    added = sum(len(name) + len(text) for name, text in row.items())
    in_node = max(1.0, (_NODE_BYTES - names - added) / own)
    return own + (names + _OF_NODE) / in_node


def shortened(value: float) -> float:
    """As it is kept: to seven significant digits, and never to less than the whole number."""
    if not math.isfinite(value):
        return math.nan
    return float(f"{value:.{DIGITS}g}") if abs(value) < _WHOLE else float(round(value))


def metrics_of(stream: str, page: Any) -> list[Metric]:
    """What can be read of a page of a metrics stream, as the server answered it.

    A number that makes no sense is left out of its entry, and an entry that no trainer of ours wrote altogether; a
    stream's first of each is named in this process's log.
    """
    found = foreign.ours(stream, page, read_metric)
    for metric, trouble in found:
        if trouble:
            foreign.name(stream, metric.entry_id, trouble, what="a measurement")
    return [metric for metric, _ in found]


def read_metric(entry_id: str, fields: Mapping[str, str]) -> tuple[Metric, str]:
    """An entry, and what in it cannot be read, "" for nothing.

    Raises:
        One of `foreign.NO_SENSE`: no trainer of ours wrote it.
    """
    update = int(fields[_UPDATE])
    if not 0 <= update <= MOST_UPDATES:
        raise ValueError(f"update {update}")
    own = ((name, text) for name, text in fields.items() if name not in (_UPDATE, _VALUES) and text != _NOT_MEASURED)
    values, trouble = readable(own)
    try:
        beside, trouble_beside = readable(json.loads(fields.get(_VALUES, "{}")).items())
    except foreign.NO_SENSE as error:
        beside, trouble_beside = {}, f"{_VALUES}: {type(error).__name__}: {error}"
    trouble = trouble or trouble_beside
    if not values and not beside and (trouble or _VALUES not in fields):
        raise ValueError(trouble or "nothing was measured")
    return Metric(entry_id, time_of(entry_id), update, beside | values), trouble


def readable(told: Iterable[tuple[str, Any]]) -> tuple[dict[str, float], str]:
    """Numbers by name, and the first that is none, in words; NaN where one could not be measured."""
    values, trouble = dict[str, float](), ""
    for name, value in told:
        try:
            number = math.nan if value is None else float(value)
        except (ValueError, TypeError, OverflowError) as error:
            trouble = trouble or f"{name}: {error}"
            continue
        values[str(name)] = number if math.isfinite(number) else math.nan
    return values, trouble


def _is_plain(name: str) -> bool:
    """Whether it can be a field's name; all others are JSON."""
    return bool(name) and name.isprintable() and name not in (_UPDATE, _VALUES)


def _text(value: float | None) -> str:
    if value is None:
        return _NOT_MEASURED
    if not math.isfinite(value):
        return _NAN
    if abs(value) < _WHOLE:
        return f"{value:.{DIGITS}g}"
    return str(round(value)) if abs(value) < MOST_UPDATES else repr(float(value))


def _stored(text: str) -> int:
    """Bytes in a listpack, which keeps whole numbers in binary."""
    digits = len(text) - text.startswith("-")
    size = (digits + 1) // 2 if text.lstrip("-").isdigit() and digits < 19 else len(text.encode("utf-8", "replace"))
    return size + _OF_FIELD
