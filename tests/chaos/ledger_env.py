"""The ledger environment: every observation says which step of which life it is, so that nothing can go astray unseen.

It never looks at an action. `Ledger` can be snapshotted, `OpaqueLedger` cannot.

Columns of an observation, all whole numbers below 2**24 in float32:

    env      number of the environment within the experiment
    high, low  of the nonce: 48 random bits, drawn anew by every process that holds the environment
    episode, step  which step of which episode comes next
    count    steps taken since the nonce was drawn: (nonce, count) names a step that was really played, for ever
    life     steps since the environment first began; a snapshot carries it from one owner to the next
"""

import os
import threading
from typing import Any

import gymnasium
import numpy as np

from heddle.clock import SystemClock
from heddle.producers import snapshot

COLUMNS = ("env", "high", "low", "episode", "step", "count", "life")
WIDTH = len(COLUMNS)
LIMIT = float(2**24)
SNAPSHOTTABLE = "tests.chaos.ledger_env:Ledger"
OPAQUE = "tests.chaos.ledger_env:OpaqueLedger"
CHECKED = "tests.chaos.ledger_env:CheckedLedger"


class Ledger(gymnasium.Env[Any, Any]):
    """Episodes of seeded length, half of them truncated; the reward of a step is its `life` modulo 1000.

    Args:
        step_s: how long a step takes.
        longest: most steps of an episode.
        inner: a Gymnasium id; its flat observation stands behind the ledger's, its endings end episodes too.
    """

    def __init__(self, env_index: int = 0, *, step_s: float = 0.0, longest: int = 40, inner: str = "") -> None:
        self._inner: gymnasium.Env[Any, Any] | None = gymnasium.make(inner) if inner else None
        more = 0 if self._inner is None else int(np.prod(self._inner.observation_space.shape or (0,)))
        low = np.concatenate([np.zeros(WIDTH), np.full(more, -np.inf)]).astype(np.float32)
        high = np.concatenate([np.full(WIDTH, LIMIT), np.full(more, np.inf)]).astype(np.float32)
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self.action_space = self._inner.action_space if self._inner else gymnasium.spaces.Discrete(2)
        self._step_s = step_s
        self._longest = longest
        self._clock = SystemClock()
        self._seen = np.zeros(more, np.float32)
        self._env = env_index
        self._episode, self._step, self._life = -1, 0, 0
        self._length, self._truncates = 1, False
        self._draw_nonce()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode += 1
        self._step = 0
        self._length = int(self.np_random.integers(1, self._longest + 1))
        self._truncates = bool(self.np_random.integers(2))
        if self._inner is not None:
            self._seen = np.asarray(self._inner.reset(seed=seed)[0], np.float32).reshape(-1)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._step_s:
            self._clock.sleep(self._step_s)
        reward = float(self._life % 1000)
        self._count += 1
        self._life += 1
        self._step += 1
        over = self._step >= self._length
        terminated, truncated = over and not self._truncates, over and self._truncates
        if self._inner is not None:
            seen, _, fell, timed_out, _ = self._inner.step(action)
            self._seen = np.asarray(seen, np.float32).reshape(-1)
            terminated, truncated = terminated or fell, truncated or timed_out
        return self._observe(), reward, terminated, truncated, {}

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()

    def _observe(self) -> Any:
        high, low = divmod(self._nonce, 1 << 24)
        numbers = (self._env, high, low, self._episode, self._step, self._count, self._life)
        return np.concatenate([np.array(numbers, np.float32), self._seen])

    def _draw_nonce(self) -> None:
        self._nonce = int.from_bytes(os.urandom(6), "big")
        self._count = 0

    def get_state(self) -> dict[str, Any]:
        """All but the nonce, which belongs to this process."""
        return {
            "numbers": [self._episode, self._step, self._life, self._length, int(self._truncates)],
            "seen": self._seen.tolist(),
            "inner": b"" if self._inner is None else snapshot.take(self._inner),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on where another process stood, under a nonce of this one."""
        self._episode, self._step, self._life, self._length, truncates = state["numbers"]
        self._truncates = bool(truncates)
        self._seen = np.array(state["seen"], np.float32)
        if self._inner is not None:
            self._inner.reset()
            snapshot.restore(self._inner, state["inner"])
        self._draw_nonce()


class OpaqueLedger(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The same, but it holds on to something that no process can hand to another."""

    def __init__(self, env_index: int = 0, **kwargs: Any) -> None:
        super().__init__(Ledger(env_index, **kwargs))
        self._held = threading.Lock()


class CheckedLedger(OpaqueLedger):
    """The same for commands that try an environment out first: outside of workers every reset begins the same life."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        inside = self.env
        if "HEDDLE_WORKER_ID" not in os.environ and isinstance(inside, Ledger):
            inside._episode, inside._life, inside._nonce, inside._count = -1, 0, 0, 0
        return super().reset(seed=seed, options=options)
