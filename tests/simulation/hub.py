"""The hub: one virtual clock, one heap of events, and processes whose threads are greenlets.

It never knows what a process does. Shipped code runs in its threads unchanged: wherever it would wait (for a lock, an
event, an answer, time) it comes back here, and the next event in (time, chance) decides who goes on.
"""

import random
import traceback
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any

from greenlet import getcurrent, greenlet

TIMEOUT = object()
"""What `Hub.wait` returns when nobody woke the task in time."""

MOST_LOOKS = 2_000
"""So often a thread may look at its clock without waiting."""

Event = tuple[float, float, int, Callable[[], None]]


class Killed(BaseException):
    """This process was killed: its threads unwind, and nothing that they do on the way reaches anybody."""


class Process:
    """One simulated process.

    Attributes:
        name: unique in its world.
        alive, paused: killed processes never come back; paused ones see nothing until they go on.
        offset_s, rate: of its clock against virtual time.
        steady: its calls meet no bad weather.
        code: exit code, None while it runs or when it was killed; error: what its main thread raised.
    """

    def __init__(self, hub: "Hub", name: str, *, offset_s: float = 0.0, rate: float = 1.0) -> None:
        self.hub = hub
        self.name = name
        self.alive = True
        self.paused = False
        self.offset_s = offset_s
        self.rate = rate
        self.code: int | None = None
        self.error: BaseException | None = None
        self.born = hub.now
        self.steady = False
        self.tasks: list[Task] = []
        self.deferred: list[Callable[[], None]] = []
        self.on_end: Callable[[Process], None] = lambda process: None

    def check(self) -> None:
        """Raises Killed in a thread of a process that is no more."""
        if not self.alive:
            raise Killed(self.name)

    def monotonic(self) -> float:
        """Its own clock. A thread that looks at it again and again and never waits makes no progress."""
        self.hub.looks += 1
        assert self.hub.looks < MOST_LOOKS, f"{self.name} spins: it looks at its clock without ever waiting"
        return (self.hub.now - self.born) * self.rate + self.offset_s

    def spawn(self, run: Callable[[], object], name: str) -> "Task":
        """A new thread of it, ready to run now."""
        self.check()
        task = Task(self, run, name)
        self.tasks.append(task)
        self.hub.ready(task, task.token, None)
        return task

    def kill(self) -> None:
        """SIGKILL. From one of its own threads: the caller raises Killed itself afterwards."""
        if not self.alive:
            return
        self.alive = False
        self.deferred.clear()
        self.hub.at(0.0, self._reap)

    def _reap(self) -> None:
        for task in self.tasks:
            task.unwind()
        self.tasks.clear()
        self.on_end(self)

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True

    def go_on(self) -> None:
        """SIGCONT."""
        self.paused = False
        waiting, self.deferred = self.deferred, []
        for event in waiting:
            self.hub.at(0.0, event)


class Task:
    """One thread of a process."""

    def __init__(self, process: Process, run: Callable[[], object], name: str) -> None:
        self.process = process
        self.name = name
        self.token = 0
        self.over = False
        self.thread: object = None
        self.joiners: list[tuple[Task, int]] = []
        self._run = run
        self._green = greenlet(self._main, parent=process.hub.green)

    def resume(self, token: int, value: object) -> None:
        """Go on with `value`, unless it waits for something else by now. Called by the hub's own greenlet only."""
        process = self.process
        if token != self.token or self.over or not process.alive:
            return
        if process.paused:
            process.deferred.append(partial(self.resume, token, value))
            return
        self.token += 1
        hub = process.hub
        hub.current = self
        hub.looks = 0
        try:
            self._green.switch(value)
        finally:
            hub.current = None

    def unwind(self) -> None:
        """Run the thread's `finally` blocks after its process was killed."""
        if not self.over and self._green:
            self.process.hub.current = self
            try:
                self._green.throw(Killed(self.process.name))
            finally:
                self.process.hub.current = None
        self.over = True

    def stack(self) -> list[str]:
        """Where it is, innermost last."""
        if self.over or not self._green.gr_frame:
            return []
        return [f"   {one.name} {one.filename}:{one.lineno}" for one in traceback.extract_stack(self._green.gr_frame)]

    def _main(self, _: object) -> None:
        try:
            self._run()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  a thread's end; the world looks at it
            self.process.hub.failed(self, error)
        finally:
            self.over = True
            for task, token in self.joiners:
                self.process.hub.ready(task, token, None)


class Hub:
    """Time and turns.

    Attributes:
        now: virtual seconds.
        rng: the only source of chance in a world.
        current: the task that runs.
        looks: how often the running thread looked at its clock since it went on.
        jitter: chance that a thread lets others go first where it takes a lock.
        events: how many were handled.
    """

    def __init__(self, rng: random.Random) -> None:
        self.now = 0.0
        self.rng = rng
        self.events = 0
        self.jitter = 0.0
        self.looks = 0
        self.current: Task | None = None
        self.green = getcurrent()
        self.failed: Callable[[Task, BaseException], None] = _raise
        self._heap: list[Event] = []
        self._count = 0
        self._chance = rng.random

    def at(self, delay_s: float, event: Callable[[], None]) -> None:
        """Have `event` happen `delay_s` from now; those of one moment come in any order."""
        self._count += 1
        heappush(self._heap, (self.now + delay_s, self._chance(), self._count, event))

    def ready(self, task: Task, token: int, value: object) -> None:
        """Let a task go on now, in its turn."""
        self.at(0.0, partial(task.resume, token, value))

    def task(self) -> Task:
        """The running task, whose process lives. Raises Killed when it does not."""
        task = self.current
        assert task is not None, "no simulated thread runs"
        if not task.process.alive:
            raise Killed(task.process.name)
        return task

    def wait(self, timeout_s: float | None) -> Any:
        """Let others run until somebody wakes this task, at most `timeout_s` of its own time; what it is woken with."""
        task = self.task()
        token = task.token
        if timeout_s is not None:
            wakes_in_s = max(0.0, timeout_s) / task.process.rate + 1e-6
            self.at(wakes_in_s, partial(task.resume, token, TIMEOUT))
        value = self.green.switch()
        if not task.process.alive:
            raise Killed(task.process.name)
        return value

    def run(self, until_s: float) -> None:
        """Handle events until virtual time `until_s`."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now, _, _, event = heappop(heap)
            self.events += 1
            event()
        self.now = max(self.now, until_s)


def _raise(task: Task, error: BaseException) -> None:
    raise error
