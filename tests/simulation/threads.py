"""What the module `threading` offers, for simulated processes: locks, conditions, events and threads of a hub.

It never blocks a real thread. Only what the shipped code uses is here; anything else is an AttributeError at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tests.simulation.hub import TIMEOUT, Hub, Task


class Lock:
    """A lock; a thread that holds it may take it again, as an RLock may be."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._owner: Task | None = None
        self._depth = 0
        self._waiting: deque[tuple[Task, int]] = deque()

    def acquire(self) -> bool:
        task = self._hub.current
        if task is None:  # the world itself looks at a quiet moment
            return True
        task.process.check()
        if self._hub.jitter and self._owner is not task and self._hub.rng.random() < self._hub.jitter:
            self._hub.wait(0.0)
        while self._owner is not None and self._owner is not task:
            self._waiting.append((task, task.token))
            self._hub.wait(None)
        self._owner = task
        self._depth += 1
        return True

    def release(self) -> None:
        task = self._hub.current
        if task is None or not task.process.alive:
            return
        assert self._owner is task, "released a lock that another thread holds"
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            self._pass_on()

    def give_up(self) -> int:
        """Release it wholly; how deep it was held."""
        depth, self._depth, self._owner = self._depth, 0, None
        self._pass_on()
        return depth

    def take_back(self, depth: int) -> None:
        """The opposite of `give_up`."""
        self.acquire()
        self._depth = depth

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _pass_on(self) -> None:
        if self._waiting:
            self._hub.ready(*self._waiting.popleft(), None)


class Condition:
    """As threading.Condition."""

    def __init__(self, hub: Hub, lock: Lock | None = None) -> None:
        self._hub = hub
        self._lock = lock or Lock(hub)
        self._waiting: list[tuple[Task, int]] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def wait(self, timeout: float | None = None) -> bool:
        task = self._hub.task()
        token = task.token
        self._waiting.append((task, token))
        depth = self._lock.give_up()
        woken = self._hub.wait(timeout) is not TIMEOUT
        if not woken and (task, token) in self._waiting:
            self._waiting.remove((task, token))
        self._lock.take_back(depth)
        return woken

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        process = self._hub.task().process
        until = None if timeout is None else process.monotonic() + timeout
        while not predicate():
            left_s = None if until is None else until - process.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            self.wait(left_s)
        return True

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for task, token in waiting:
            self._hub.ready(task, token, None)

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Event:
    """As threading.Event."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._set = False
        self._waiting: list[tuple[Task, int]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for task, token in waiting:
            self._hub.ready(task, token, None)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        task = self._hub.task()
        if not self._set:
            token = task.token
            self._waiting.append((task, token))
            if self._hub.wait(timeout) is TIMEOUT and (task, token) in self._waiting:
                self._waiting.remove((task, token))
        return self._set


class Thread:
    """As threading.Thread."""

    def __init__(
        self, hub: Hub, target: Callable[..., object], args: Iterable[Any] = (), name: str = "", daemon: bool = False
    ) -> None:
        self._hub = hub
        self._target = target
        self._args = tuple(args)
        self.name = name
        self.daemon = daemon
        self.task: Task | None = None

    def start(self) -> None:
        self.task = self._hub.task().process.spawn(lambda: self._target(*self._args), self.name)
        self.task.thread = self

    def is_alive(self) -> bool:
        return self.task is not None and not self.task.over

    def join(self, timeout: float | None = None) -> None:
        me, task = self._hub.task(), self.task
        if task is not None and not task.over:
            task.joiners.append((me, me.token))
            self._hub.wait(timeout)


_Lock = Lock


class Threading:
    """Stands where a module has `import threading`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def Lock(self) -> _Lock:  # noqa: N802  the names of the module it stands for
        return Lock(self._hub)

    def RLock(self) -> _Lock:  # noqa: N802
        return Lock(self._hub)

    def Condition(self, lock: _Lock | None = None) -> Condition:  # noqa: N802
        return Condition(self._hub, lock)

    def Event(self) -> Event:  # noqa: N802
        return Event(self._hub)

    def Thread(self, **kwargs: Any) -> Thread:  # noqa: N802
        return Thread(self._hub, **kwargs)

    def current_thread(self) -> object:
        """The running thread; a process's first one is nobody's `Thread`."""
        task = self._hub.current
        return task and (task.thread or task)

    def get_ident(self) -> int:
        """A number of the running thread."""
        return id(self._hub.current)
