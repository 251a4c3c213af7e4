"""The intake: batches that were read and wait for their update, and when that update may go ahead.

It never trains: it hands out what `quorum` decides, and sets aside what is too old.
"""

from collections.abc import Callable
from dataclasses import dataclass

from heddle.broker.experience_types import Flow, Pointer
from heddle.broker.types import Ctl
from heddle.clock import Clock
from heddle.consumers.ledger import Ledger
from heddle.consumers.marks import key_of
from heddle.consumers.quorum import Decision, Facts, Rules, Why, decide, decide_remainder, version_of
from heddle.consumers.reader import Loaded, Reader
from heddle.policies.lag import NO_GAP, Gap

FULL_SHARE = 0.95
"""Above this share of a cap the next batch may find no room."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What the next update trains on.

    Attributes:
        batches: in order; [] = no update now.
        why: see `quorum.Decision`.
    """

    batches: list[Loaded]
    why: Why


def is_high_water(flow: Flow, ctl: Ctl) -> bool:
    """True when producers wait for room, or will with their next batch."""
    entries, size = FULL_SHARE * ctl.max_entries, FULL_SHARE * ctl.max_bytes
    return flow.waiting > 0 or flow.entries >= entries or flow.bytes + flow.parked >= size


class Intake:
    """Between the reader and the learner.

    Attributes:
        waited_s: seconds spent waiting for experience since `reset_wait`.
        high_water: producers waited for room when we last had nothing to do.

    Args:
        flow: asks for the counters; called only when there is nothing to train on.
        is_full: True when the broker is out of memory; called likewise.
        gap: version numbers that were left out, and do not count as lag.
    """

    def __init__(
        self,
        reader: Reader,
        ledger: Ledger,
        rules: Rules,
        *,
        clock: Clock,
        flow: Callable[[], Flow],
        is_full: Callable[[], bool] = lambda: False,
        gap: Gap = NO_GAP,
    ) -> None:
        self.waited_s = 0.0
        self.high_water = False
        self._reader = reader
        self._ledger = ledger
        self._rules = rules
        self._clock = clock
        self._flow = flow
        self._is_full = is_full
        self._gap = gap
        self._buffer: list[Loaded] = []
        self._version = 0
        self._first_at: float | None = None
        self._quiet = False

    def poll(self, *, block_ms: int) -> list[Loaded]:
        """Read once. Train batches stay here; the eval batches that came are the answer."""
        began = self._clock.monotonic()
        loaded = self._reader.poll(block_ms=block_ms)
        self.waited_s += self._clock.monotonic() - began
        self._quiet = not loaded
        self._buffer += [item for item in loaded if item.pointer.kind == "train"]
        return [item for item in loaded if item.pointer.kind == "eval"]

    def look_again(self) -> None:
        """Have the next poll look for entries that somebody read and never settled."""
        self._reader.look_again()

    def take(self, ctl: Ctl, *, version: int, same: frozenset[int]) -> Taken:
        """The next update's batches, when it may go ahead."""
        self.high_water = False
        decision = decide(self._rules, self._facts(ctl, version, same, high_water=False))
        if decision.why == "wait" and self._quiet:
            self.high_water = self.needs_room(ctl)
            if self.high_water and not self._ledger.num_held:  # else a checkpoint alone makes room
                decision = decide(self._rules, self._facts(ctl, version, same, high_water=True))
        return self._apply(decision)

    def take_remainder(self, ctl: Ctl, *, version: int, same: frozenset[int], train: bool) -> Taken:
        """What is left at the end of a run: the next update's batches, when `train` and they are worth one."""
        facts = self._facts(ctl, version, same, high_water=False)
        if not train:
            return self._apply(Decision((), tuple(facts.batches), "wait"))
        return self._apply(decide_remainder(self._rules, facts))

    def needs_room(self, ctl: Ctl) -> bool:
        """True when producers wait for room, or the broker is out of memory."""
        return is_high_water(self._flow(), ctl) or self._is_full()

    @property
    def newest(self) -> int:
        """Highest policy version among the batches that wait for an update; 0 for none."""
        return max((item.pointer.version_max for item in self._buffer), default=0)

    def stop_waiting(self) -> None:
        """The time a sync update waits starts anew, e.g. because the experiment is paused."""
        self._first_at = None

    def reset_wait(self) -> float:
        """Seconds waited for experience since this was called last."""
        waited, self.waited_s = self.waited_s, 0.0
        return waited

    @property
    def quiet(self) -> bool:
        """True when the last poll found nothing that could be used."""
        return self._quiet

    @property
    def num_batches(self) -> int:
        """Batches that wait for an update."""
        return len(self._buffer)

    def _facts(self, ctl: Ctl, version: int, same: frozenset[int], *, high_water: bool) -> Facts[Pointer]:
        pointers = [item.pointer for item in self._buffer]
        if version != self._version:
            self._version, self._first_at = version, None
            self._ledger.forget_excuses(version)
        if self._first_at is None and any(version_of(self._rules, pointer) == version for pointer in pointers):
            self._first_at = self._clock.monotonic()
        waited_s = 0.0 if self._first_at is None else self._clock.monotonic() - self._first_at
        return Facts(
            version=version,
            same=same,
            batches=pointers,
            active=ctl.active,
            excused=self._ledger.excused,
            waited_s=waited_s,
            high_water=high_water,
            gap=self._gap,
        )

    def _apply(self, decision: Decision[Pointer]) -> Taken:
        by_key = {key_of(item.pointer): item for item in self._buffer}
        for pointer in decision.stale:
            self._ledger.set_aside(pointer, "stale")
        gone = {key_of(pointer) for pointer in (*decision.stale, *decision.train)}
        self._buffer = [item for item in self._buffer if key_of(item.pointer) not in gone]
        # By shard, not by arrival: equal experience gives equal updates, whoever was faster.
        train = sorted(decision.train, key=lambda pointer: (pointer.shard, pointer.epoch, pointer.seq))
        return Taken([by_key[key_of(pointer)] for pointer in train], decision.why)
