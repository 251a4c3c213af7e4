"""A two-player board game of PettingZoo as an environment for one: a scripted opponent answers every move."""

import importlib
from typing import Any

import gymnasium
import numpy as np


class Against(gymnasium.Env[Any, Any]):
    """The player moves first; the opponent, seeded with the episode, takes any legal move.

    Args:
        game: module of pettingzoo.classic.
    """

    def __init__(self, game: str) -> None:
        self._game = importlib.import_module(f"pettingzoo.classic.{game}").env()
        self._game.reset(seed=0)
        self._me, self._other = self._game.possible_agents
        self.action_space = self._game.action_space(self._me)
        self.observation_space = self._game.observation_space(self._me)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._game.reset(seed=seed)
        return self._game.observe(self._me), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._game.step(int(action))
        if not self._is_over():
            legal = np.flatnonzero(self._game.observe(self._other)["action_mask"])
            self._game.step(int(self.np_random.choice(legal)))
        return self._game.observe(self._me), float(self._game.rewards[self._me]), self._is_over(), False, {}

    def _is_over(self) -> bool:
        return bool(self._game.terminations[self._me])


def against(game: str) -> Against:
    """The factory that a spec names."""
    return Against(game)
