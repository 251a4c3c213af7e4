"""Environments of coroutines, seen as plain ones: for checks, for replays, for whoever has all the time in the world.

It never plays for experience; `steppers.AsyncStepper` runs many of them in one loop.
"""

import asyncio
import inspect
from typing import Any

from heddle.errors import EnvError, NotSnapshottable
from heddle.producers.closing import close_async


class Awaited:
    """Runs one call of an environment of coroutines after the other, in a loop of its own.

    Attributes:
        inner: the environment, with coroutines for reset and step.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.observation_space, self.action_space = inner.observation_space, inner.action_space
        self.metadata = getattr(inner, "metadata", {})
        self._runner = asyncio.Runner()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """One episode begins."""
        return self._runner.run(self.inner.reset(seed=seed))

    def step(self, action: Any) -> Any:
        """One step."""
        return self._runner.run(self.inner.step(action))

    def get_state(self) -> Any:
        """What the environment keeps of itself. Raises NotSnapshottable: it does not say."""
        if not hasattr(self.inner, "get_state"):
            raise NotSnapshottable("an environment of coroutines is kept only by its own get_state and set_state")
        return self.inner.get_state()

    def set_state(self, state: Any) -> None:
        """Bring back what `get_state` gave."""
        self.inner.set_state(state)

    def close(self) -> None:
        """Close it and its loop."""
        try:
            self._runner.run(close_async(self.inner))
        finally:
            self._runner.close()


def awaited(env: Any, *, name: str) -> Awaited:
    """`env` as a plain environment. Raises EnvError: its reset and step are no coroutines."""
    plain = [method for method in ("reset", "step") if not inspect.iscoroutinefunction(getattr(env, method))]
    if plain:
        reason = f"is stepped as coroutines, and {' and '.join(plain)} of {type(env).__name__} is no async def"
        raise EnvError(reason, value=name, hint='make it one, or use stepping = "threads"')
    return Awaited(env)
