"""What a joiner remembers of the batches that it took: plain values, kept with the recording.

It never joins anything; `joiner.py` does.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from heddle.consumers.marks import Mark
from heddle.consumers.tap import TapBatch

RUNS_KEPT = 1_000
"""Of a shard's batches that were never seen so many runs are known: one that is replayed later is no repeat."""


@dataclass(slots=True)
class State:
    """What a joiner remembers beside its open pieces; JSON values.

    Attributes:
        episode: number of the next episode.
        marks: shard -> the batch it took last, as a mark of the trainer's; [epoch, seq] alone in older recordings.
        begins: "shard/env/agent" -> how its next episode begins, where that is known.
        unknown: shard -> how the episode of an environment begins that was not seen yet.
        unseen: shard -> runs of its batches that were never seen: first and last seq, and the epochs they may be of.
        replays: shard -> what is known of each batch of its that was replayed and is recorded.
        missed: batches that were never seen. repeated: batches that came again, and were passed over.
        cut: episodes that were cut.
    """

    episode: int = 0
    marks: dict[str, list[Any]] = field(default_factory=dict)
    begins: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    unseen: dict[str, list[list[int]]] = field(default_factory=dict)
    replays: dict[str, list[str]] = field(default_factory=dict)
    missed: int = 0
    repeated: int = 0
    cut: int = 0

    def mark(self, shard: int) -> Mark | None:
        """Where a shard stands; None when nothing came of it. Raises ValueError or TypeError."""
        value = self.marks.get(str(shard))
        if value is not None and len(value) == 2:
            value = [value[0], "", value[1]]
        return None if value is None else Mark.from_json(value)

    def has(self, batch: TapBatch) -> bool:
        """Whether the batch that was offered again as this one is recorded."""
        if batch.nonce in self.replays.get(str(batch.shard), ()):
            return True
        epoch, _, rest = batch.nonce.partition(".")
        nonce, _, seq = rest.rpartition(".")
        mark = self.mark(-1 - batch.shard)
        if mark is None or not (epoch.isdecimal() and seq.isdecimal()):
            return False
        original = replace(batch, epoch=int(epoch), nonce=nonce, seq=int(seq), entry_id="")
        runs = self.unseen.get(str(-1 - batch.shard), ())
        if any(first <= original.seq <= last and low <= original.epoch <= high for first, last, low, high in runs):
            return False
        return mark.covers(original)

    def note_unseen(self, batch: TapBatch, count: int) -> None:
        """The `count` batches before this one were never seen."""
        mark, runs = self.mark(batch.shard), self.unseen.setdefault(str(batch.shard), [])
        runs.append([batch.seq - count, batch.seq - 1, min(mark.epoch, batch.epoch) if mark else 0, batch.epoch])
        del runs[:-RUNS_KEPT]

    def seq(self, shard: int) -> int:
        """Of the batch that came last of a shard; 0 for none."""
        mark = self.mark(shard)
        return 0 if mark is None else mark.seq
