"""The stepper of environments in several children of this process; see `steppers.py`."""

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from heddle.producers.isolation.shard import IsolatedEnv, IsolatedEnvs
from heddle.producers.mishap import Mishap
from heddle.producers.steppers import CLOSE_S, Answer, Asked, Stepper


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
        line.asked.put(Asked(place, seed))

    def step(self, env: int, choice: Any) -> None:
        line, place = self._line_of[env]
        line.asked.put(Asked(place, None, choice))

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


class _Line:
    """One child, and the thread that waits for it.

    Attributes:
        numbers: which environments of the stepper are its own, by place.
    """

    def __init__(self, shard: IsolatedEnvs, answers: "queue.SimpleQueue[Answer | None]") -> None:
        self.shard, self.numbers, self._answers = shard, list[int](), answers
        self.asked: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
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

    def _all_asked(self) -> list[Asked] | None:
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
