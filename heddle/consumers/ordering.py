"""Ordering: in which order the batches of each shard are consumed, what is a repeat, and what is missing.

Pure: it never reads a stream. The reader offers what it was given, takes what is in order, and says what became of it.

A batch is known by (shard, epoch, nonce, seq). Within a shard `seq` goes up by one, also from one epoch to the next,
except that a new epoch starts lower when the broker lost the tail: then the same seq under a higher epoch is new data.
So a change of epoch counts as a hole until it was looked for what may be missing there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

Place = tuple[int, int]
"""(epoch, seq): what orders the batches of one shard."""
Key = tuple[str, int, int, str, int]

FIRST_SEQ = 1
"""seq of the first batch that a shard ever gives."""
OWNERS_KEPT = 8
"""Of so many earlier owners of a shard a mark says where they stand, as the broker itself does."""


class Identity(Protocol):
    """What ordering looks at; `broker.types.Pointer` has it."""

    @property
    def entry_id(self) -> str: ...
    @property
    def shard(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def nonce(self) -> str: ...
    @property
    def seq(self) -> int: ...


P = TypeVar("P", bound=Identity)


@dataclass(frozen=True, slots=True)
class Mark:
    """The last batch of a shard that is finally dealt with; everything at or before it is, too.

    Attributes:
        epoch, nonce, seq: which batch.
        entry: its id in the stream; "" where an older manifest did not say.
        above: the highest epoch of the shard that was ever dealt with, where that is not this one's.
        earlier: the last batch of other owners that was dealt with, (epoch, nonce, seq) of each, the newest last.
    """

    epoch: int
    nonce: str
    seq: int
    entry: str = field(default="", compare=False)
    above: int = field(default=0, compare=False)
    earlier: tuple[tuple[int, str, int], ...] = field(default=(), compare=False)

    @property
    def place(self) -> Place:
        return (self.epoch, self.seq)

    def covers(self, pointer: Identity) -> bool:
        """True when `pointer` is at or before this mark: seen again, it is a repeat.

        Of an owner that is known its seq alone counts. Where the broker lost its tail and with it the next owner's
        claim, the owner before goes on, and what it gives first may have been consumed: it gives it again under an id
        above the mark's, and what it gives after that is new.
        The same epoch under another nonce is another owner's: the broker lost a claim and its clock stepped back.
        An epoch above all that were ever seen is a later owner's, and what it gives is new, whatever its id: where the
        broker lost its tail and its clock stepped back, ids begin again below the mark's. Between other epochs the
        stream's order counts, for that is the order of acceptance: when the broker lost a claim, an earlier owner goes
        on under its lower epoch, and what it gives then is new.
        """
        known = self.earlier_seq(pointer)
        if known is not None:
            return pointer.seq <= known
        if pointer.epoch == self.epoch:
            return pointer.nonce == self.nonce and pointer.seq <= self.seq
        if pointer.epoch > max(self.epoch, self.above):
            return False
        if self.entry and pointer.entry_id:
            return entry_order(pointer.entry_id) <= entry_order(self.entry)
        return pointer.epoch < self.epoch

    def earlier_seq(self, pointer: Identity) -> int | None:
        """seq of the last batch dealt with of `pointer`'s owner, where that is an earlier one that is known."""
        for epoch, nonce, seq in self.earlier:
            if (epoch, nonce) == (pointer.epoch, pointer.nonce):
                return seq
        return None

    def to_json(self) -> list[Any]:
        """As a manifest holds it."""
        found = [self.epoch, self.nonce, self.seq, self.entry]
        if self.earlier:
            return [*found, self.above, [list(one) for one in self.earlier]]
        return [*found, self.above] if self.above else found

    def after(self, before: "Mark | None") -> "Mark":
        """This one, with what `before`, which it takes the place of, knew of the shard's owners."""
        if before is None:
            return self
        highest, mine = max(before.epoch, before.above), (self.epoch, self.nonce)
        owners = (*before.earlier, (before.epoch, before.nonce, before.seq))
        earlier = tuple(one for one in owners if one[:2] != mine)[-OWNERS_KEPT:]
        return replace(self, above=highest if highest > self.epoch else 0, earlier=earlier)

    @classmethod
    def from_json(cls, value: Any) -> "Mark":
        """The opposite of `to_json`. Raises ValueError or TypeError."""
        epoch, nonce, seq, *rest = value
        entry, above, earlier = [*rest, *["", 0, []][len(rest) :]][:3]  # an older manifest says less
        owners = tuple((int(one), str(who), int(last)) for one, who, last in earlier)
        return cls(int(epoch), str(nonce), int(seq), str(entry), int(above), owners)


def follows(before: Mark | None, after: Mark) -> bool:
    """True when nothing can be missing between two batches of a shard.

    Args:
        before: what was consumed last; None when nothing was.
        after: what would be consumed next; not covered by `before`.
    """
    if before is None:
        return after.seq <= FIRST_SEQ
    # Another owner may have begun lower, where the broker lost the tail: whether this is its first one cannot be told.
    return (after.epoch, after.nonce, after.seq) == (before.epoch, before.nonce, before.seq + 1)


@dataclass(frozen=True, slots=True)
class Hole:
    """A gap in one shard.

    Attributes:
        before: the batch consumed last, None when nothing was.
        after: the next one that is there.
        missing: how many batches are missing at least; 0 where another owner goes on, maybe at a lower seq.
        resumed: nothing of this shard was consumed since the marks were loaded, so what is missing may well have been
            dealt with by an earlier trainer.
    """

    shard: int
    before: Mark | None
    after: Mark
    missing: int
    resumed: bool


@dataclass(slots=True)
class _Line(Generic[P]):
    """One shard: where reading stands, what waits behind a hole, and what was given out and is not settled."""

    cursor: Mark | None = None
    mark: Mark | None = None
    waiting: dict[Mark, P] = field(default_factory=dict)
    open: dict[Key, P] = field(default_factory=dict)  # in the order in which they were given out
    settled: set[Key] = field(default_factory=set)
    forgiven: Mark | None = None
    moved: bool = False

    def next(self) -> Mark | None:
        """The batch whose turn it is, or that a hole keeps from it; None when nothing waits."""
        return min(self.waiting, key=lambda mark: (mark.place, mark.nonce)) if self.waiting else None

    def is_open_to(self, mark: Mark) -> bool:
        """True when nothing is missing before `mark`, or what is was declared lost."""
        return follows(self.cursor, mark) or self.forgiven == mark


def mark_of(pointer: Identity) -> Mark:
    """The mark that stands at `pointer`."""
    return Mark(pointer.epoch, pointer.nonce, pointer.seq, pointer.entry_id)


def key_of(pointer: Identity) -> Key:
    """What tells an entry from every other one, even from one of the same id after the broker lost its tail."""
    return (pointer.entry_id, pointer.shard, pointer.epoch, pointer.nonce, pointer.seq)


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
            mark = mark_of(pointer)
            if (line.cursor is not None and line.cursor.covers(pointer)) or mark in line.waiting:
                repeats.append(pointer)
            else:
                line.waiting[mark] = pointer
        return repeats

    def ready(self) -> list[P]:
        """Give out what is in order now, oldest entry first; each shard stops before its first hole."""
        given: list[P] = []
        for line in self._lines.values():
            while (mark := line.next()) is not None and line.is_open_to(mark):
                pointer = line.waiting.pop(mark)
                line.cursor, line.moved = mark.after(line.cursor), True
                line.open[key_of(pointer)] = pointer
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

    def rewind(self, pointer: P) -> None:
        """Take back that this entry, and what was given out behind it, was given out: the broker has forgotten it.

        It may come again under another id, and is new then. What is behind it and still there is to be offered again.
        """
        line, key = self._lines[pointer.shard], key_of(pointer)
        if key not in line.open:
            return
        given = list(line.open)
        for one in given[given.index(key) :]:
            del line.open[one]
            line.settled.discard(one)
            self._in_hand.discard(one)
        line.cursor = line.mark
        for still in line.open.values():
            line.cursor = mark_of(still).after(line.cursor)

    def is_open(self, pointer: P) -> bool:
        """True when this entry was given out and neither settled with all before it nor taken back."""
        line = self._lines.get(pointer.shard)
        return line is not None and key_of(pointer) in line.open

    def forget(self, pointer: P) -> None:
        """The broker acked this entry: should it ever be seen again, it is a repeat."""
        self._in_hand.discard(key_of(pointer))

    def covered(self, pointer: P) -> bool:
        """True when the shard's mark stands at or after this entry."""
        line = self._lines.get(pointer.shard)
        return line is not None and line.mark is not None and line.mark.covers(pointer)

    def marks(self) -> dict[int, Mark]:
        """By shard, for the manifest; never a batch that is only read or waiting."""
        return {shard: line.mark for shard, line in self._lines.items() if line.mark is not None}

    @property
    def num_waiting(self) -> int:
        """Entries that were read and stand behind a hole."""
        return sum(len(line.waiting) for line in self._lines.values())


def entry_order(entry_id: str) -> tuple[int, int]:
    """A stream id as numbers, for sorting."""
    milliseconds, _, count = entry_id.partition("-")
    return (int(milliseconds), int(count or 0))
