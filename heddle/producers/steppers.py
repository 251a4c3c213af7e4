"""Steppers: environments that are stepped beside each other, each at its own pace. What is asked comes back when it is
done, in any order.

They never know a policy, a segment or a shard; one question at a time is open for each environment.
"""

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from heddle.errors import EnvError
from heddle.producers.closing import close_async, close_env
from heddle.producers.isolation.shard import IsolatedEnv, IsolatedEnvs
from heddle.producers.mishap import Mishap

Answer = tuple[int, Any]
"""Which environment, and what it returned; or the exception that it raised."""

CLOSE_S = 5.0
"""Longest wait for environments to close: a stuck one keeps its thread, which ends with the process."""


class Abandoned(EnvError):
    """Nobody wants the answers any more."""


class Stepper(ABC):
    """The environments of one shard.

    Attributes:
        has_deadlines: it ends what lasts too long by itself, and its answer says so.
    """

    has_deadlines = False

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._abandoned = False

    @abstractmethod
    def reset(self, env: int, seed: int) -> None:
        """Have environment `env` begin an episode."""

    @abstractmethod
    def step(self, env: int, choice: Any) -> None:
        """Have environment `env` make a step."""

    @abstractmethod
    def flush(self) -> None:
        """What was asked since the last call is on its way when this returns."""

    @abstractmethod
    def close(self) -> None:
        """Close every environment that is not stuck, and end what drives them."""

    def answers(self, timeout_s: float, *, most: int) -> list[Answer]:
        """The answers that are there; waits for the first one. Empty after `timeout_s`, or when somebody woke it.

        Raises:
            Abandoned: see `abandon`.
        """
        found: list[Answer] = []
        try:
            one = self._answers.get(timeout=timeout_s) if timeout_s > 0 else self._answers.get_nowait()
            while one is not None:
                found.append(one)
                if len(found) >= most:
                    break
                one = self._answers.get_nowait()
        except queue.Empty:
            pass
        if self._abandoned:
            raise Abandoned("its play was given up")
        return found

    def wake(self) -> None:
        """From another thread: whoever waits for answers looks around."""
        self._answers.put(None)

    def abandon(self) -> None:
        """From another thread: whoever waits for answers ends with Abandoned."""
        self._abandoned = True
        self.wake()


class ThreadStepper(Stepper):
    """Environments stepped by a pool of threads: for those that wait, or that let go of the interpreter's lock.

    Args:
        envs: have reset and step.
        threads: how many, at most one for each environment.
    """

    def __init__(self, envs: Sequence[Any], threads: int) -> None:
        super().__init__()
        self._envs = envs
        self._asked: queue.SimpleQueue[tuple[int, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"envs {number}", daemon=True)
            for number in range(min(threads, len(envs)))
        ]
        for thread in self._threads:
            thread.start()

    def reset(self, env: int, seed: int) -> None:
        one = self._envs[env]
        self._asked.put((env, lambda: one.reset(seed=seed)))

    def step(self, env: int, choice: Any) -> None:
        one = self._envs[env]
        self._asked.put((env, lambda: one.step(choice)))

    def flush(self) -> None:
        return  # each was on its way at once

    def close(self) -> None:
        for _ in self._threads:
            self._asked.put(None)
        for thread in self._threads:
            thread.join(CLOSE_S / len(self._threads))
        if not any(thread.is_alive() for thread in self._threads):  # else one of them is within an environment
            for env in self._envs:
                close_env(env)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            env, call = asked
            try:
                answer = call()
            except BaseException as error:  # noqa: BLE001  told to the player, which says where it was
                answer = error
            self._answers.put((env, answer))


class ProcessStepper(Stepper):
    """Environments in several children of this process: those of one child are stepped one after the other, in one
    request, the children beside each other. A thread for each waits for its answers.

    Args:
        envs: the stand-ins of `make_spread`.
    """

    has_deadlines = True

    def __init__(self, envs: Sequence[IsolatedEnv]) -> None:
        super().__init__()
        self._lines: dict[int, _Line] = {}
        self._line_of: list[tuple[_Line, int]] = []
        for env, one in enumerate(envs):
            shard, place = one.home
            line = self._lines.setdefault(id(shard), _Line(shard, self._answers))
            line.numbers.append(env)
            self._line_of.append((line, place))

    def reset(self, env: int, seed: int) -> None:
        line, place = self._line_of[env]
        line.asked.put(_Asked(place, seed))

    def step(self, env: int, choice: Any) -> None:
        line, place = self._line_of[env]
        line.asked.put(_Asked(place, None, choice))

    def flush(self) -> None:
        return  # each was on its way at once

    def close(self) -> None:
        for line in self._lines.values():
            line.asked.put(None)
        for line in self._lines.values():
            line.thread.join(CLOSE_S / len(self._lines))
            if line.thread.is_alive():
                line.shard.process.kill()  # it is stuck within an environment
                line.thread.join(CLOSE_S)
            line.shard.close()


class _Asked(NamedTuple):
    """A step with `choice`, or a reset with `seed`."""

    place: int
    seed: int | None
    choice: Any = None


class _Line:
    """One child, and the thread that waits for it.

    Attributes:
        numbers: which environments of the stepper are its own, by place.
    """

    def __init__(self, shard: IsolatedEnvs, answers: "queue.SimpleQueue[Answer | None]") -> None:
        self.shard, self.numbers, self._answers = shard, list[int](), answers
        self.asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name=f"envs {shard.process.pid}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (asked := self._all_asked()) is not None:
            for place, seed, _ in asked:
                if seed is not None:
                    self._answer(place, lambda place=place, seed=seed: (self.shard.reset(place, seed), {}))  # type: ignore[misc]
            steps = {place: choice for place, seed, choice in sorted(asked, key=lambda one: one.place) if seed is None}
            if steps:
                self.shard.begin(steps, list(steps))
            for place, choice in steps.items():  # by place: where one fails, those behind it have no answer
                self._answer(place, lambda place=place, choice=choice: self.shard.step(place, choice))  # type: ignore[misc]

    def _all_asked(self) -> list[_Asked] | None:
        """What was asked since the last call, at least one; None when no more will be."""
        found = [self.asked.get()]
        with suppress(queue.Empty):
            while found[-1] is not None:
                found.append(self.asked.get_nowait())
        return None if found[-1] is None else [one for one in found if one is not None]

    def _answer(self, place: int, call: Callable[[], Any]) -> None:
        try:
            answer = call()
        except BaseException as error:  # noqa: BLE001  told to the player, which says where it was
            if isinstance(error, Mishap):
                error.env = self.numbers[place]  # it knows its place in the child alone
            answer = error
        self._answers.put((self.numbers[place], answer))


class AsyncStepper(Stepper):
    """Environments whose reset and step are coroutines, all in one event loop in a thread of its own.

    Args:
        envs: have `async def reset(self, *, seed)`, `async def step(self, action)`, and perhaps a close of either kind.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        super().__init__()
        self._envs = envs
        self._asked: list[tuple[int, Callable[[], Any]]] = []
        self._loop = asyncio.new_event_loop()
        self._running: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="envs", daemon=True)
        self._thread.start()

    def reset(self, env: int, seed: int) -> None:
        one = self._envs[env]
        self._asked.append((env, lambda: one.reset(seed=seed)))

    def step(self, env: int, choice: Any) -> None:
        one = self._envs[env]
        self._asked.append((env, lambda: one.step(choice)))

    def flush(self) -> None:
        if self._asked:
            asked, self._asked = self._asked, []
            self._loop.call_soon_threadsafe(self._begin, asked)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        with suppress(TimeoutError):
            ending.result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _begin(self, asked: list[tuple[int, Callable[[], Any]]]) -> None:
        for env, call in asked:
            task = self._loop.create_task(self._answer(env, call))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _answer(self, env: int, call: Callable[[], Any]) -> None:
        try:
            answer = await call()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  told to the player, which says where it was
            answer = error
        self._answers.put((env, answer))

    async def _end(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*(close_async(env) for env in self._envs), return_exceptions=True)
