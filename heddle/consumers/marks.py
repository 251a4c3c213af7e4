"""Marks: which batch is which, where a shard stands, and what is a repeat there.

Pure values; a manifest holds the marks.

A batch is known by (shard, epoch, nonce, seq). Within a shard `seq` goes up by one, also from one epoch to the next,
except that a new epoch starts lower when the broker lost the tail: then the same seq under a higher epoch is new data.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

Place = tuple[int, int]
"""(epoch, seq): what orders the batches of one shard."""
Key = tuple[str, int, int, str, int]

FIRST_SEQ = 1
"""seq of the first batch that a shard ever gives."""
OWNERS_KEPT = 8
"""Of so many earlier owners of a shard a mark says where they stand, as the broker itself does."""


class Identity(Protocol):
    """What tells batches apart; `broker.experience_types.Pointer` has it."""

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
        """Where it stands among the batches of its shard."""
        return (self.epoch, self.seq)

    def covers(self, pointer: Identity) -> bool:
        """True when `pointer` is at or before this mark: seen again, it is a repeat.

        Of an owner that is known its seq alone counts. Where the broker lost its tail and with it the next owner's
        claim, the owner before goes on, and what it gives first may have been consumed: it gives it again under an id
        above the mark's, and what it gives after that is new.
        The same epoch under another nonce is another owner's: the broker lost a claim and its clock stepped back.
        An epoch above all that were ever seen is a later owner's, and what it gives is new, whatever its id: where the
        broker lost its tail and its clock stepped back, ids begin again below the mark's. Then so may epochs: while a
        mark has all owners there ever were, nothing of any other one was dealt with. Once it had to let go of some the
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
        if self.entry and len(self.earlier) < OWNERS_KEPT:
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


def mark_of(pointer: Identity) -> Mark:
    """The mark that stands at `pointer`."""
    return Mark(pointer.epoch, pointer.nonce, pointer.seq, pointer.entry_id)


def key_of(pointer: Identity) -> Key:
    """What tells an entry from every other one, even from one of the same id after the broker lost its tail."""
    return (pointer.entry_id, pointer.shard, pointer.epoch, pointer.nonce, pointer.seq)


def entry_order(entry_id: str) -> tuple[int, int]:
    """A stream id as numbers, for sorting."""
    milliseconds, _, count = entry_id.partition("-")
    return (int(milliseconds), int(count or 0))
