"""The reader: an experience stream as decoded batches, each shard's in order, each batch once, none left behind.

It never trains and never decides what is too old. What cannot be decoded it buries, what has no bytes it drops, and
what a mark covers it acks unseen; the ledger tells the broker.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from heddle.broker import Broker, keys
from heddle.broker.experience_types import Pointer
from heddle.clock import Clock
from heddle.consumers.ledger import Ledger
from heddle.consumers.marks import key_of
from heddle.consumers.opening import Opener
from heddle.consumers.patience import Patience
from heddle.consumers.shelf import Shelf
from heddle.errors import BatchError, BrokerFull
from heddle.layout import Layout, Segments
from heddle.shard import ShardPlan

log = logging.getLogger("heddle.trainer")

READ_AT_ONCE = 64
LOOK_AGAIN_FIRST_S = 1.0
"""With nothing to read for so long, look for entries that another consumer holds: a frozen trainer may have woken up
and read what a sync update waits for."""
LOOK_AGAIN_LAST_S = 10.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """A batch that was read and decoded.

    Attributes:
        pointer: its entry.
        segments: its arrays, views of the bytes that came.
        at: monotonic seconds at which it was read.
    """

    pointer: Pointer
    segments: Segments
    at: float = 0.0


@dataclass(slots=True)
class Losses:
    """What was read about and is not there; for reports.

    Attributes:
        missing: batches that the broker accepted and forgot.
        settled: batches missing after a resume: an earlier trainer had acked them, or the broker forgot them.
        dropped: batches whose bytes are gone. dead: batches that cannot be used.
        because: why those were dropped: reason -> how many.
    """

    missing: int = 0
    settled: int = 0
    dropped: int = 0
    dead: int = 0
    because: dict[str, int] = field(default_factory=dict)


class Reader:
    """Reads one partition as the holder of the seat.

    Args:
        probe: trains on a batch and forgets it again: called with each batch that a trainer may have died of, alone.
        plans: of every shard.
        latest: tells the newest policy version that is known.
        shelf: where the bytes are; the broker alone by default.

    Attributes:
        losses: what is not there. last_read: the newest entry that was read for the first time; "" before there is one.
    """

    def __init__(
        self,
        broker: Broker,
        experiment: str,
        partition: int,
        *,
        seat_epoch: int,
        ledger: Ledger,
        layout: Layout,
        plans: Sequence[ShardPlan],
        size_cap: int,
        patience: Patience,
        clock: Clock,
        probe: Callable[[Loaded], None] = lambda loaded: None,
        latest: Callable[[], int] | None = None,
        group: str = keys.TRAINER_GROUP,
        shelf: Shelf | None = None,
    ) -> None:
        self.losses = Losses()
        self.shelf = shelf or Shelf(broker)
        self._events, self._experience = broker.events, broker.experience
        self._at = (experiment, partition)
        self._seat_epoch = seat_epoch
        self._consumer = str(seat_epoch)
        self._group = group
        self._ledger = ledger
        self._opener = Opener.of(layout, plans, size_cap)
        self._latest = latest
        self._patience = patience
        self._clock = clock
        self._probe = probe
        self._suspects: Mapping[str, bool] = {}
        self._stranded = True
        self._has_inherited = False
        self._looked_at = clock.monotonic()
        self._look_again_s = LOOK_AGAIN_FIRST_S
        self.last_read = ""

    def start(self) -> None:
        """Make sure of the group, and learn which batches an earlier trainer died with."""
        self._patience.call(
            "make the group", lambda: self._experience.ensure_group(*self._at, self._group), full_too=True
        )
        self._suspects = self._patience.call("read suspects", lambda: self._experience.loading(*self._at))
        if self._suspects:
            log.info("found suspects entries=%d: each is retried alone", len(self._suspects))

    def poll(self, *, block_ms: int) -> list[Loaded]:
        """What is in order now, waiting at most about `block_ms` for the first.

        Every batch that comes out must be settled in the ledger, once. Train and eval batches come mixed.

        Raises:
            SeatLost, Gone, GivenUp.
        """
        self._offer(self._gather(block_ms))
        ordering = self._ledger.ordering
        given = ordering.ready()
        if ordering.holes():
            pending = self._take_over()
            self._ledger.withdraw(pending)
            self._offer(pending)
            given += ordering.ready()
        while ordering.holes():
            self._declare_lost()
            given += ordering.ready()
        loaded = self._load(given)
        if not loaded:
            self.shelf.tidy()
        self._ledger.flush()
        return loaded

    def look_again(self) -> None:
        """Have the next poll look for entries that another consumer holds, or whose reading was never answered."""
        self._stranded = True

    def loading(self, pointers: Sequence[Pointer], *, alone: bool = False) -> None:
        """Write down what is being decoded or trained on, before: a trainer that dies names its suspects."""
        ids = [pointer.entry_id for pointer in pointers]
        try:
            self._patience.call(
                "name what is loaded",
                lambda: self._experience.set_loading(*self._at, self._seat_epoch, ids, alone=alone),
            )
        except BrokerFull as error:  # an update must go on: it is what frees memory
            log.warning("cannot name what is loaded error=%s", error)

    def fetching_ahead(self) -> AbstractContextManager[None]:
        """Within it bytes of batches that are not read yet may be fetched by another thread."""
        prefetch = self.shelf.prefetch
        return nullcontext() if prefetch is None else prefetch.ahead(self.last_read)

    def _gather(self, block_ms: int) -> list[Pointer]:
        idle_s = self._clock.monotonic() - self._looked_at
        if self._stranded or idle_s >= self._look_again_s:
            found = self._take_over()
            if not self._stranded:
                self._look_again_s = min(2.0 * self._look_again_s, LOOK_AGAIN_LAST_S)
            self._stranded = False
            if found:
                block_ms = 0
        else:
            found = []
        read = self._patience.call("read experience", lambda: self._read(block_ms), on_trouble=self.look_again)
        if self._stranded:  # an answer may have been lost, and with it entries that are ours now
            found += self._take_over()
            self._stranded = False
        if read:
            self._looked_at, self._look_again_s = self._clock.monotonic(), LOOK_AGAIN_FIRST_S
        return found + read

    def _read(self, block_ms: int) -> list[Pointer]:
        found = self._experience.read(*self._at, self._group, self._consumer, count=READ_AT_ONCE, block_ms=block_ms)
        self.last_read = found[-1].entry_id if found else self.last_read
        return found

    def _take_over(self) -> list[Pointer]:
        self._looked_at = self._clock.monotonic()
        found = self._patience.call(
            "take over pending entries", lambda: self._experience.take_over(*self._at, self._group, self._consumer)
        )
        if not self._has_inherited:  # before this one read anything
            self._has_inherited = True
            self._ledger.ordering.inherit(found)
        return found

    def _offer(self, pointers: Sequence[Pointer]) -> None:
        for pointer in self._ledger.ordering.offer(pointers):
            self._ledger.repeat(pointer)

    def _declare_lost(self) -> None:
        """All that was appended before what waits was pending, for the broker knows that it handed that out, and was
        taken over: the rest is gone."""
        holes = self._ledger.ordering.holes()
        for hole in holes:
            if hole.before is not None and hole.after.seq == hole.before.seq + 1:
                log.debug("reading on with the next owner shard=%d %s", hole.shard, hole)
            elif not hole.missing:
                log.info("reading on where the broker lost its tail shard=%d %s", hole.shard, hole)
            elif hole.resumed:
                self.losses.settled += hole.missing
                self._ledger.passed_over(hole)
                log.info("passed over batches that an earlier trainer settled shard=%d %s", hole.shard, hole)
            else:
                self.losses.missing += hole.missing
                log.warning("lost batches, the broker forgot them shard=%d count=%d %s", hole.shard, hole.missing, hole)
        self._ledger.ordering.declare_lost(holes)

    def _load(self, given: Sequence[Pointer]) -> list[Loaded]:
        plain = [pointer for pointer in given if pointer.entry_id not in self._suspects]
        loaded = {key_of(item.pointer): item for item in self._load_all(plain)}
        for pointer in given:
            if pointer.entry_id not in self._suspects or not self._ledger.ordering.is_open(pointer):
                continue
            if (item := self._load_suspect(pointer)) is not None:
                loaded[key_of(pointer)] = item
        is_open = self._ledger.ordering.is_open
        return [loaded[key_of(pointer)] for pointer in given if key_of(pointer) in loaded and is_open(pointer)]

    def _load_suspect(self, pointer: Pointer) -> Loaded | None:
        if self._suspects[pointer.entry_id]:
            self.losses.dead += 1
            self._ledger.bury(pointer, "the trainer died of it twice, the second time with nothing else loaded")
            return None
        log.info("retrying a suspect alone shard=%s", pointer.named)
        items = self._load_all([pointer], alone=True)
        for item in items:
            self._probe(item)
        self.loading([])
        return items[0] if items else None

    def _load_all(self, pointers: Sequence[Pointer], *, alone: bool = False) -> list[Loaded]:
        if not pointers:
            return []
        self.loading(pointers, alone=alone)
        blobs = self._patience.call("fetch batches", lambda: self.shelf.fetch(pointers))
        self._take_back([pointer for pointer, blob in zip(pointers, blobs, strict=True) if blob is None])
        loaded = []
        for pointer, blob in zip(pointers, blobs, strict=True):
            if not self._ledger.ordering.is_open(pointer):
                continue
            if blob is None:
                self._drop(pointer)
                continue
            try:
                loaded.append(Loaded(pointer, self._decode(pointer, blob), self._clock.monotonic()))
            except BatchError as error:
                self.losses.dead += 1
                self._ledger.bury(pointer, str(error))
        if not alone:
            self.loading([])
        return loaded

    def _drop(self, pointer: Pointer) -> None:
        """There is nothing to train on: it is settled as dropped, and why is told once."""
        why = self.shelf.why(pointer)
        log.warning("dropped a batch without bytes shard=%s reason=%s", pointer.named, why)
        self.losses.dropped += 1
        if pointer.location == "shm" and why not in self.losses.because:
            told = f"drops batches, for their bytes cannot be read: {why}"
            self._events.log(self._at[0], "trainer", self._consumer, "warning", told)
        self.losses.because[why] = self.losses.because.get(why, 0) + 1
        self._ledger.set_aside(pointer, "dropped")

    def _take_back(self, empty: Sequence[Pointer]) -> None:
        """Of batches without bytes, those that the broker has forgotten as a whole: nothing may pass over them, for
        their owner gives them again, and acked unseen they were lost."""
        if not empty:
            return
        there = self._patience.call("look for entries", lambda: self._experience.are_there(*self._at, empty))
        for pointer, is_there in zip(empty, there, strict=True):
            if not is_there:
                log.info("took back a batch that the broker forgot shard=%s", pointer.named)
                self._ledger.rewind(pointer)
                self._stranded = True

    def _decode(self, pointer: Pointer, blob: bytes | memoryview) -> Segments:
        return self._opener.open(pointer, blob, latest=self._latest() if self._latest is not None else None)
