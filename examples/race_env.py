"""A race for two by PettingZoo's parallel interface: whoever is first at the goal wins what the other loses.

A runner may rest, walk one field or sprint two. A sprint takes 2 of its strength, of which a rest gives back 1; who
has too little stumbles and stays. Both see where they are and how strong.

`env.id = "race_env:make"` names the factory below. This file must be importable where workers run.
"""

from typing import Any

import numpy as np
from gymnasium import spaces

REST, WALK, SPRINT = range(3)


class Race:
    """Whoever makes a parallel environment offers these attributes and methods; pettingzoo itself is not needed."""

    metadata: dict[str, Any] = {"name": "race"}
    possible_agents = ["left", "right"]

    def __init__(self, length: int = 12, strength: int = 4, most_steps: int = 40) -> None:
        self.length, self.strength, self.most_steps = length, strength, most_steps
        self.agents: list[str] = []
        self._place: dict[str, int] = {}
        self._left: dict[str, int] = {}
        self._step = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0.0, 1.0, (4,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = list(self.possible_agents)
        self._place = dict.fromkeys(self.agents, 0)
        self._left = dict.fromkeys(self.agents, self.strength)
        self._step = 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self._step += 1
        for agent in self.agents:
            self._move(agent, int(actions[agent]))
        there = [agent for agent in self.agents if self._place[agent] >= self.length]
        won, over, cut = len(there) == 1, bool(there), self._step >= self.most_steps
        playing = self.agents
        rewards = {agent: (1.0 if agent in there else -1.0) if won else 0.0 for agent in playing}
        self.agents = [] if over or cut else playing
        flags = ({agent: flag for agent in playing} for flag in (over, cut and not over))
        return self._seen(), rewards, *flags, {agent: {} for agent in playing}

    def close(self) -> None:
        pass

    def _move(self, agent: str, action: int) -> None:
        if action == REST:
            self._left[agent] = min(self.strength, self._left[agent] + 1)
        elif action == WALK:
            self._place[agent] += 1
        elif self._left[agent] >= 2:
            self._left[agent] -= 2
            self._place[agent] += 2

    def _seen(self) -> dict[str, Any]:
        own = {a: (min(1.0, self._place[a] / self.length), self._left[a] / self.strength) for a in self.possible_agents}
        return {
            agent: np.array([*own[agent], *own[other]], np.float32)
            for agent, other in zip(self.possible_agents, reversed(self.possible_agents), strict=True)
        }


def make(**kwargs: Any) -> Race:
    """One race; there is no chance in it."""
    return Race(**kwargs)
