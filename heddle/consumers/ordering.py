"""Ordering: in which order the batches of each shard are consumed, what is a repeat, and what is missing.

Pure: it never reads a stream. The reader offers what it was given, takes what is in order, and says what became of it.
A change of epoch counts as a hole until it was looked for what may be missing there: a new owner may have begun lower.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from heddle.consumers.marks import FIRST_SEQ, Identity, Key, Mark, entry_order, follows, key_of, mark_of

P = TypeVar("P", bound=Identity)


@dataclass(frozen=True, slots=True)
class Hole:
    """A gap in one shard.

    Attributes:
        before: the batch consumed last, None when nothing was.
        after: the next one that is there.
        missing: how many batches are missing at least; 0 where another owner goes on, maybe at a lower seq.
        resumed: since the marks were loaded nothing of this shard was consumed but what an earlier trainer had been
            given, so what is missing may well have been dealt with by that one.
    """

    shard: int
    before: Mark | None
    after: Mark
    missing: int
    resumed: bool


@dataclass(slots=True)
class _Line(Generic[P]):
    """One shard: where reading stands, what waits behind a hole, what was given out and is not settled, and which
    repeats are in hand."""

    cursor: Mark | None = None
    mark: Mark | None = None
    waiting: dict[Mark, P] = field(default_factory=dict)
    open: dict[Key, P] = field(default_factory=dict)  # in the order in which they were given out
    settled: set[Key] = field(default_factory=set)
    repeats: dict[Key, P] = field(default_factory=dict)
    forgiven: Mark | None = None
    moved: bool = False

    def next(self) -> Mark | None:
        """The batch whose turn it is, or that a hole keeps from it; None when nothing waits."""
        return min(self.waiting, key=lambda mark: (mark.place, mark.nonce)) if self.waiting else None

    def is_repeat(self, pointer: P) -> bool:
        """True when this batch was consumed, or waits already, maybe under another id."""
        return (self.cursor is not None and self.cursor.covers(pointer)) or mark_of(pointer) in self.waiting

    def is_open_to(self, mark: Mark) -> bool:
        """True when nothing is missing before `mark`, or what is was declared lost."""
        return follows(self.cursor, mark) or self.forgiven == mark


class Ordering(Generic[P]):
    """Every shard of a partition.

    Four steps for each entry: `offer` it when it was read, `ready` gives it out when its turn has come, `settle` it
    when it is trained or set aside for good, `forget` it when the broker has acked it. `marks` stand at the last entry
    of each shard up to which all are settled.
    """

    def __init__(self, marks: Mapping[int, Mark] | None = None) -> None:
        self._lines: dict[int, _Line[P]] = {
            shard: _Line(cursor=mark, mark=mark) for shard, mark in (marks or {}).items()
        }
        self._in_hand: set[Key] = set()
        self._inherited: set[Key] = set()

    def inherit(self, pointers: Iterable[P]) -> None:
        """These were given to an earlier trainer: it may have dealt with others before, between and behind them."""
        self._inherited.update(map(key_of, pointers))

    def offer(self, pointers: Iterable[P]) -> list[P]:
        """Take note of entries that were read, in any order and as often as may be.

        Returns:
            The repeats, now in hand too: entries that a mark covers, or whose batch is here already under another id.
        """
        repeats = []
        for pointer in pointers:
            key = key_of(pointer)
            if key in self._in_hand:
                continue  # a take-over finds again what was not acked yet
            self._in_hand.add(key)
            line = self._lines.setdefault(pointer.shard, _Line())
            if line.is_repeat(pointer):
                repeats.append(pointer)
                line.repeats[key] = pointer
            else:
                line.waiting[mark_of(pointer)] = pointer
        return repeats

    def ready(self) -> list[P]:
        """Give out what is in order now, oldest entry first; each shard stops before its first hole."""
        given: list[P] = []
        for line in self._lines.values():
            while (mark := line.next()) is not None and line.is_open_to(mark):
                pointer = line.waiting.pop(mark)
                key = key_of(pointer)
                line.cursor, line.moved = mark.after(line.cursor), line.moved or key not in self._inherited
                self._inherited.discard(key)
                line.open[key] = pointer
                given.append(pointer)
        return sorted(given, key=lambda pointer: entry_order(pointer.entry_id))

    def holes(self) -> list[Hole]:
        """Where shards stand before a gap, after `ready` gave out all it could."""
        found = []
        for shard, line in self._lines.items():
            mark = line.next()
            if mark is None or line.is_open_to(mark):
                continue
            missing = max(0, mark.seq - (line.cursor.seq if line.cursor else FIRST_SEQ - 1) - 1)
            found.append(Hole(shard, line.cursor, mark, missing, resumed=not line.moved))
        return found

    def declare_lost(self, holes: Iterable[Hole]) -> None:
        """Go on behind these gaps: what was missing is not coming any more."""
        for hole in holes:
            self._lines[hole.shard].forgiven = hole.after

    def settle(self, pointer: P) -> None:
        """This entry, given out before, is trained or finally set aside."""
        line, key = self._lines[pointer.shard], key_of(pointer)
        if key not in line.open:
            return
        line.settled.add(key)
        while line.open and (first := next(iter(line.open))) in line.settled:
            line.settled.discard(first)
            line.mark = mark_of(line.open.pop(first)).after(line.mark)

    def rewind(self, pointer: P) -> list[P]:
        """Take back that this entry, and what was given out behind it, was given out: the broker has forgotten it.

        It may come again under another id, and is new then. What is behind it and still there is to be offered again.

        Returns:
            Those that were repeats of what is taken back, and are none any more: they are to be offered again, too.
        """
        line, key = self._lines[pointer.shard], key_of(pointer)
        if key not in line.open:
            return []
        given = list(line.open)
        for one in given[given.index(key) :]:
            del line.open[one]
            line.settled.discard(one)
            self._in_hand.discard(one)
        line.cursor, line.forgiven = line.mark, None
        for still in line.open.values():
            line.cursor = mark_of(still).after(line.cursor)
        return self._let_go(line)

    def withdraw(self, pending: Iterable[P]) -> list[P]:
        """Forget those that wait behind a hole and are not among `pending`, all that the broker has handed out: it has
        forgotten them, and maybe that it handed out what the hole lacks, which is not lost then.

        Returns:
            As `rewind`.
        """
        known, new = {key_of(pointer) for pointer in pending}, []
        for line in self._lines.values():
            gone = [mark for mark, pointer in line.waiting.items() if key_of(pointer) not in known]
            for mark in gone:
                self._in_hand.discard(key_of(line.waiting.pop(mark)))
            new += self._let_go(line) if gone else []
        return new

    def is_open(self, pointer: P) -> bool:
        """True when this entry was given out and neither settled with all before it nor taken back."""
        line = self._lines.get(pointer.shard)
        return line is not None and key_of(pointer) in line.open

    def forget(self, pointer: P) -> None:
        """The broker acked this entry: should it ever be seen again, it is a repeat."""
        key = key_of(pointer)
        self._in_hand.discard(key)
        if (line := self._lines.get(pointer.shard)) is not None:
            line.repeats.pop(key, None)

    def covered(self, pointer: P) -> bool:
        """True when the shard's mark stands at or after this entry."""
        line = self._lines.get(pointer.shard)
        return line is not None and line.mark is not None and line.mark.covers(pointer)

    def marks(self) -> dict[int, Mark]:
        """By shard, for the manifest; never a batch that is only read or waiting."""
        return {shard: line.mark for shard, line in self._lines.items() if line.mark is not None}

    def _let_go(self, line: _Line[P]) -> list[P]:
        """The repeats of a shard that are none any more."""
        new = [one for one in line.repeats.values() if not line.is_repeat(one)]
        for pointer in new:
            self.forget(pointer)
        return new

    @property
    def num_waiting(self) -> int:
        """Entries that were read and stand behind a hole."""
        return sum(len(line.waiting) for line in self._lines.values())
