"""Steppers: environments that are stepped beside each other, each at its own pace. What is asked comes back when it is
done, in any order.

They never know a policy, a segment or a shard; one question at a time is open for each environment.
"""

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any, NamedTuple

from heddle.errors import EnvError
from heddle.producers.closing import close_async, close_env
from heddle.producers.fine_loop import new_loop

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


class Asked(NamedTuple):
    """Of the environment at `place`: a step with `choice`, or a reset with `seed`."""

    place: int
    seed: int | None
    choice: Any = None


class ThreadStepper(Stepper):
    """Environments stepped by a pool of threads: for those that wait, or that let go of the interpreter's lock.

    A question wakes exactly one thread: each rests at a gate of its own, for of many that wait at one queue every
    answer wakes another one for nothing. Whoever asks puts the question down before it looks for a resting thread; a
    thread says that it rests before it looks for a question; so none is left lying.

    Args:
        envs: have reset and step.
        threads: how many, at most one for each environment.
    """

    def __init__(self, envs: Sequence[Any], threads: int) -> None:
        super().__init__()
        self._envs = envs
        self._resets, self._steps = [env.reset for env in envs], [env.step for env in envs]
        self._asked: deque[Asked | None] = deque()  # None: a thread ends
        self._resting: list[threading.Lock] = []  # gates; who came to rest last goes on first
        self._threads = [
            threading.Thread(target=copy_context().run, args=(self._run,), name=f"envs {number}", daemon=True)
            for number in range(min(threads, len(envs)))
        ]
        for thread in self._threads:
            thread.start()

    def reset(self, env: int, seed: int) -> None:
        self._ask(Asked(env, seed))

    def step(self, env: int, choice: Any) -> None:
        self._ask(Asked(env, None, choice))

    def flush(self) -> None:
        return  # each was on its way at once

    def close(self) -> None:
        for _ in self._threads:
            self._ask(None)
        for thread in self._threads:
            thread.join(CLOSE_S / len(self._threads))
        if not any(thread.is_alive() for thread in self._threads):  # else one of them is within an environment
            for env in self._envs:
                close_env(env)

    def _ask(self, asked: Asked | None) -> None:
        self._asked.append(asked)
        try:
            gate = self._resting.pop()
        except IndexError:  # nobody rests: whoever is done next looks for it
            return
        gate.release()

    def _run(self) -> None:
        gate = threading.Lock()
        gate.acquire()
        while True:
            while self._asked:
                try:
                    asked = self._asked.popleft()
                except IndexError:  # another one was faster
                    break
                if asked is None:
                    return
                self._answers.put((asked.place, self._answer(asked)))
            self._resting.append(gate)
            if self._asked:
                try:
                    self._resting.remove(gate)
                    continue
                except ValueError:  # it was woken already
                    pass
            gate.acquire()

    def _answer(self, asked: Asked) -> Any:
        env, seed, choice = asked
        try:
            return self._steps[env](choice) if seed is None else self._resets[env](seed=seed)
        except BaseException as error:  # noqa: BLE001  told to the player, which says where it was
            return error


class AsyncStepper(Stepper):
    """Environments whose reset and step are coroutines, all in one event loop in a thread of its own.

    Args:
        envs: have `async def reset(self, *, seed)`, `async def step(self, action)`, and perhaps a close of either kind.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        super().__init__()
        self._envs = envs
        self._asked: list[tuple[int, Callable[[], Any]]] = []
        self._loop = new_loop()
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
        except BaseException as error:  # noqa: BLE001  told to the player, which says where it was
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # by us; else the environment raised what stands for it
                raise
            answer = error
        self._answers.put((env, answer))

    async def _end(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.gather(*(close_async(env) for env in self._envs), return_exceptions=True)
