"""A broker that forgets its last moments at any moment of a poll, before the shipped reader, ordering and ledger.

What is acked as trained is in a model that was saved, each batch is trained once at most, and none that the broker
remembers is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from heddle.broker.experience_types import Pointer
from heddle.broker.pointers import identity_of
from heddle.clock import ManualClock
from heddle.consumers.ledger import ASIDE_KEPT, Ledger
from heddle.consumers.marks import OWNERS_KEPT, Mark
from heddle.consumers.ordering import Hole, Ordering
from heddle.consumers.patience import Patience
from heddle.consumers.reader import Loaded, Reader
from heddle.errors import BrokerUnreachable

Owner = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Known:
    """All that a broker knows of one shard: its owner, what it accepted, and what it handed out."""

    owner: Owner = (0, "")
    seq: int = 0
    claim_seq: int = 0
    stream: tuple[Pointer, ...] = ()
    pending: frozenset[str] = frozenset()
    read: int = 0
    """The time of the newest entry that was handed out."""


@dataclass(slots=True)
class Worker:
    """Who owned the shard once, and goes on with it whenever it is its turn, if it may."""

    owner: Owner
    seq: int


class Clock(ManualClock):
    """Time that passes whenever somebody looks at it: now and then the reader looks for what others hold."""

    def monotonic(self) -> float:
        self.advance(0.3)
        return super().monotonic()


class Forgetful:
    """Stands for `Experience`; before every call something befalls it."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.known = Known()
        self.saved: set[str] = set()
        self.restless = True
        self.zombies = True
        self._rng = rng
        self._past: list[Known] = []
        self._now = 0
        self._workers: list[Worker] = []

    # ---- what befalls it

    def befall(self) -> None:
        if not self.restless:
            return
        happens = [self.give, self.give, self.give, self.claim, self.forget, self.zombie_reads]
        for _ in range(int(self._rng.integers(0, 4))):
            happens[int(self._rng.integers(len(happens)))]()

    def claim(self) -> None:
        """The shard changes hands."""
        if len({worker.owner for worker in self._workers}) >= OWNERS_KEPT - 1:
            return
        self._now += 1
        owner = (max(self.known.owner[0] + 1, self._now), f"n{self._now}")
        self._workers.append(Worker(owner, self.known.seq))
        self._learn(replace(self.known, owner=owner, claim_seq=self.known.seq))

    def give(self) -> None:
        """Somebody who believes to own it appends the next batch, and hears what came of it, or not."""
        if not self._workers:
            return self.claim()
        worker = self._workers[int(self._rng.integers(len(self._workers)))]
        seq, known = worker.seq + 1, self.known
        if worker.owner != known.owner:
            return None  # FENCED
        if known.claim_seq < seq <= known.seq:
            worker.seq = seq  # DUP
            return None
        if seq != known.seq + 1:
            return self.claim()  # GAP
        self._now += 1
        pointer = pointer_of(self._now, worker.owner, seq)
        self._learn(replace(known, seq=seq, stream=(*known.stream, pointer)))
        if self._rng.random() < 0.7:
            worker.seq = seq
        return None

    def forget(self) -> None:
        """It dies, and comes back without what it did last."""
        for _ in range(int(self._rng.integers(1, 5))):
            if self._past:
                self.known = self._past.pop()

    def zombie_reads(self) -> None:
        """What is new is handed to somebody who does not use it."""
        if self.zombies:
            self._hand_out()

    def _learn(self, known: Known) -> None:
        self._past.append(self.known)
        self.known = known

    def _hand_out(self) -> list[Pointer]:
        new = [one for one in self.known.stream if time_of(one) > self.known.read]
        if new:
            pending = self.known.pending | {one.entry_id for one in new}
            self._learn(replace(self.known, pending=pending, read=time_of(new[-1])))
        return new

    # ---- as `Experience` has it

    def read(self, *_: Any, count: int, block_ms: int) -> list[Pointer]:
        self.befall()
        found = self._hand_out()
        if self.restless and self._rng.random() < 0.2:
            raise BrokerUnreachable("its answer is lost")
        return found

    def take_over(self, *_: Any) -> list[Pointer]:
        self.befall()
        return [one for one in self.known.stream if one.entry_id in self.known.pending]

    def fetch_views(self, pointers: Sequence[Pointer]) -> list[bytes | memoryview | None]:
        self.befall()
        there = {identity_of(one) for one in self.known.stream}
        return [b"bytes" if identity_of(one) in there else None for one in pointers]

    def are_there(self, experiment: str, p: int, pointers: Sequence[Pointer]) -> list[bool]:
        self.befall()
        return [one in self.known.stream for one in pointers]

    def set_loading(self, *_: Any, alone: bool) -> None:
        self.befall()

    def ack(self, experiment: str, p: int, seat: int, settled: Sequence[tuple[Pointer, str]], **_: Any) -> int:
        self.befall()
        gone = [pointer for pointer, _ in settled if pointer in self.known.stream]
        for pointer in gone:
            assert identity_of(pointer) in self.saved, f"acked, and in no saved model: {identity_of(pointer)}"
        stream = tuple(one for one in self.known.stream if one not in gone)
        self._learn(replace(self.known, stream=stream, pending=self.known.pending - {one.entry_id for one in gone}))
        return len(gone)


@dataclass
class Trainer:
    """A reader that trains on what it reads, saves, and acks; `resumed` is the next one."""

    broker: Forgetful
    marks: dict[int, Any] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        marks = {shard: Mark.from_json(mark) for shard, mark in self.marks.items()}
        stand_in: Any = self
        nothing: Any = None
        self.experience, self.events = self.broker, nothing
        self.ledger = Ledger(stand_in, "e", 0, seat_epoch=1, ordering=Ordering(marks))
        self.learned = list(self.seen)
        self.buffer: list[Loaded] = []
        clock = Clock()
        self.reader = Reader(
            stand_in, "e", 0, seat_epoch=1, ledger=self.ledger, plans=[], size_cap=1,
            layout=nothing, patience=Patience(clock=clock, rng=np.random.default_rng(0)), clock=clock,
        )  # fmt: skip
        self.reader._decode = lambda pointer, blob: nothing  # type: ignore[method-assign]

    def poll(self) -> None:
        self.buffer += self.reader.poll(block_ms=1)

    def train(self) -> None:
        pointers, self.buffer = [item.pointer for item in self.buffer], []
        self.learned += [identity_of(pointer) for pointer in pointers]
        assert len(set(self.learned)) == len(self.learned), "trained twice"
        self.ledger.hold(pointers, "trained")

    def save(self) -> None:
        self.marks = {shard: mark.to_json() for shard, mark in self.ledger.marks().items()}
        self.seen = list(self.learned)
        self.broker.saved = set(self.seen)
        self.ledger.release()

    def resumed(self) -> "Trainer":
        return Trainer(self.broker, self.marks, self.seen)


def pointer_of(now: int, owner: Owner, seq: int) -> Pointer:
    return Pointer(f"{now}-0", 0, owner[0], owner[1], seq, "train", 1, 1, 1, 1, 5, 0, f"blob:{owner}:{seq}")


def time_of(pointer: Pointer) -> int:
    return int(pointer.entry_id.partition("-")[0])


SEEDS = (*range(120), 152, 202, 229, 283, 316, 398, 433, 655)
"""The last ones show what is lost when one rule of reading is left out."""


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_a_broker_forgets_at_whichever_moment_each_batch_is_trained_once_and_acked_in_a_saved_model(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    broker = Forgetful(rng)
    trainer = Trainer(broker)
    for _ in range(40):
        trainer.poll()
        if rng.random() < 0.5:
            trainer.train()
            if rng.random() < 0.5:
                trainer.save()
        if rng.random() < 0.1:
            trainer = trainer.resumed()
    broker.restless = False
    trainer.reader.look_again()
    for _ in range(3):
        trainer.poll()
    trainer.train()
    trainer.save()
    trainer.ledger.flush()
    assert broker.known.stream == ()


def test_what_was_held_as_a_repeat_and_is_none_is_not_acked() -> None:
    trainer = Trainer(Forgetful(np.random.default_rng(0)))
    first, again = pointer_of(1, (1, "n"), 2), pointer_of(2, (1, "n"), 2)
    for pointer in trainer.ledger.ordering.offer([first, again]):
        trainer.ledger.repeat(pointer)
    assert trainer.ledger.num_held == 1
    trainer.ledger.withdraw([again])
    assert trainer.ledger.num_held == 0


def test_what_was_passed_over_takes_no_room_from_what_is_known() -> None:
    stand_in: Any = SimpleNamespace(experience=None)
    carried = {f"0:1:n:{seq}": ("dead", "it was cut") for seq in range(50)}
    ledger = Ledger(stand_in, "e", 0, seat_epoch=1, ordering=Ordering({}), carried=carried)
    for shard in range(200):
        ledger.passed_over(Hole(shard, Mark(1, "n", 5), Mark(2, "m", 1_500), 1_494, resumed=True))
    ledger._forget_old()
    owed = ledger.owed()
    assert all(owed[batch] == ["dead", "it was cut"] for batch in carried)
    assert len(owed) <= 50 + ASIDE_KEPT
    assert owed["199:2:m:1499"] == ["passed", ""] == owed["199:1:n:1499"]
    kept = {batch: (outcome, reason) for batch, (outcome, reason) in owed.items()}
    assert Ledger(stand_in, "e", 0, seat_epoch=1, ordering=Ordering({}), carried=kept).owed() == owed
