"""Pace: how environments are stepped where the spec leaves that to us (`env.stepping = "auto"`), and why.

It times the first steps that are played and then stays with what it found, for one experiment and worker. It never
steps by itself and never changes what an environment is told.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from heddle.clock import Clock, thread_seconds
from heddle.producers.play import Play
from heddle.producers.player import Player, Step
from heddle.spec import ExperimentSpec

log = logging.getLogger("heddle.worker")

Spent = Callable[[], tuple[float, float]]

ENOUGH_STEPS = 64
ENOUGH_S, LEAST_STEPS = 2.0, 8
"""Slow steps need not be so many: what lasts hundreds of milliseconds is no accident."""
LEAST_WAIT_S = 0.0004
"""A step that waits less is over before a thread is worth it: waking one and its answer cost some 0.05 ms."""
LEAST_SHARE = 0.3
"""Of a step's time; threads take turns for the rest, so that little is won where it is most."""


@dataclass(frozen=True, slots=True)
class Timed:
    """What was seen of steps: how many, and for how long they waited and computed in all.

    When others had the processor does not count: it says nothing of the environment.
    """

    steps: int
    waited_s: float
    computed_s: float

    @property
    def seconds(self) -> float:
        """What they took, or would have on a machine of their own."""
        return self.waited_s + self.computed_s

    @property
    def is_enough(self) -> bool:
        """Whether more of them would tell more."""
        return self.steps >= ENOUGH_STEPS or (self.steps >= LEAST_STEPS and self.seconds >= ENOUGH_S)


@dataclass(frozen=True, slots=True)
class Choice:
    """How environments are stepped, and why."""

    mode: Literal["inline", "threads"]
    reason: str


UNDECIDED = Choice("inline", "its first steps are being timed")


def known_from_spec(spec: ExperimentSpec) -> Choice | None:
    """What follows without timing anything; None when that is needed."""
    if max(spec.env.envs_per_shard, 1) == 1:
        return Choice("inline", "a shard has one environment")
    if spec.faults.snapshot_every and not spec.rollout.sync:
        return Choice("inline", f"faults.snapshot_every = {spec.faults.snapshot_every}, and threads allow no snapshots")
    return None


def choose(timed: Timed) -> Choice:
    """How to step environments whose first steps were like this. Pure."""
    each_s, wait_s = timed.seconds / max(1, timed.steps), timed.waited_s / max(1, timed.steps)
    share = wait_s / each_s if each_s > 0 else 0.0
    seen = f"a step takes {1000 * each_s:.3g} ms and waits for {share:.0%} of it"
    if wait_s < LEAST_WAIT_S:
        return Choice("inline", f"{seen}: too short for a thread")
    if share < LEAST_SHARE:
        return Choice("inline", f"{seen}: it computes, and threads would take turns")
    return Choice("threads", seen)


class Meter:
    """Times the steps of one thread.

    Args:
        clock: tells how long.
        spent: what the thread has computed, and for how long others had the processor, in seconds.
        on_enough: told, in the middle of playing, that enough was seen; no step is timed from then on.
    """

    def __init__(self, clock: Clock, spent: Spent, on_enough: Callable[[], None]) -> None:
        self._clock, self._spent, self._on_enough = clock, spent, on_enough
        self._is_over = False
        self._steps, self._waited_s, self._computed_s = 0, 0.0, 0.0

    @property
    def timed(self) -> Timed:
        """What was seen so far."""
        return Timed(self._steps, self._waited_s, self._computed_s)

    def around(self, step: Step) -> Step:
        """`step`, timed. One that raises is not counted, nor is the first one, which may load or connect."""
        is_first = True

        def timed(action: Any) -> Any:
            nonlocal is_first
            if is_first or self._is_over:
                is_first = False
                return step(action)
            (computed, ready), began = self._spent(), self._clock.monotonic()
            answer = step(action)
            lasted_s = self._clock.monotonic() - began
            computed_s, ready_s = (now - before for now, before in zip(self._spent(), (computed, ready), strict=True))
            self._steps += 1
            self._computed_s += computed_s
            self._waited_s += max(0.0, lasted_s - computed_s - ready_s)
            if self.timed.is_enough:
                self._is_over = True
                self._on_enough()
            return answer

        return timed


class Pace:
    """The choice for one experiment, as this worker plays it.

    Attributes:
        choice: what it is now.
    """

    def __init__(self, spec: ExperimentSpec, *, clock: Clock, spent: Spent = thread_seconds) -> None:
        self.choice = known_from_spec(spec) or UNDECIDED
        self._meter = Meter(clock, spent, self._settle)
        self._player: Play | None = None

    def _settle(self) -> None:
        """Enough was seen. Who waits long at each step shall not finish a segment of them one by one."""
        self.choice = choose(self._meter.timed)
        log.info("steps environments %s: %s", self.choice.mode, self.choice.reason)
        if self.choice.mode == "threads" and self._player is not None:
            self._player.cut()

    def follow(self, player: Play, remake: Callable[[Play], Play]) -> Play:
        """Between two segments: `player`, timed as long as that is needed, or what goes on in its place.

        Args:
            remake: makes one that steps the environments of another beside each other.
        """
        choice, shown = self.choice, player
        if isinstance(player, Player):
            player.time_steps(self._meter.around if choice is UNDECIDED else None)
            if choice.mode == "threads":
                shown = remake(player)
                shown.take_over(player)
        self._player = shown
        shown.pace = f"{choice.mode}: {choice.reason}"
        return shown
