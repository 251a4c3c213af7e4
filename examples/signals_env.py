"""A game for two by PettingZoo's parallel interface, with groups of other spaces: one sees, the other acts.

The speaker sees one of `kinds` things and says one of as many words, which mean nothing yet. The listener hears the
word one step later and guesses. Both get 1 when the guess was right: the mean return of a game is `steps` when they
understand each other, and a `kinds`-th of that when they do not.

`env.id = "signals_env:make"` names the factory below. This file must be importable where workers run.
"""

from typing import Any

import numpy as np
from gymnasium import spaces

SPEAKER, LISTENER = "speaker", "listener"


class Signals:
    """Whoever makes a parallel environment offers these attributes and methods; pettingzoo itself is not needed."""

    metadata: dict[str, Any] = {"name": "signals"}
    possible_agents = [SPEAKER, LISTENER]

    def __init__(self, kinds: int = 2, steps: int = 16) -> None:
        self.kinds, self.steps = kinds, steps
        self.agents: list[str] = []
        self._chance = np.random.default_rng()
        self._step = self._shown = self._before = self._word = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(self.kinds) if agent == SPEAKER else spaces.Box(0.0, 1.0, (self.kinds,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(self.kinds)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._chance = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._step, self._word, self._before = 0, -1, -1
        self._shown = int(self._chance.integers(self.kinds))
        return self._seen(), {SPEAKER: {}, LISTENER: {}}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        reward = float(int(actions[LISTENER]) == self._before)
        self._before, self._word = self._shown, int(actions[SPEAKER])
        self._shown = int(self._chance.integers(self.kinds))
        self._step += 1
        over = self._step > self.steps  # nothing can be guessed in the first one
        playing, self.agents = self.agents, [] if over else self.agents
        told: tuple[dict[str, Any], ...] = tuple(
            {agent: part for agent in playing} for part in (reward, over, False, {})
        )
        return self._seen(), *told

    def close(self) -> None:
        pass

    def _seen(self) -> dict[str, Any]:
        heard = np.zeros(self.kinds, np.float32)
        if self._word >= 0:
            heard[self._word] = 1.0
        return {SPEAKER: np.int64(self._shown), LISTENER: heard}


def make(**kwargs: Any) -> Signals:
    """One game; `reset` seeds it."""
    return Signals(**kwargs)
