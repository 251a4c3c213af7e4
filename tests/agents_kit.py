"""A small game for several agents, by PettingZoo's parallel interface: who is out leaves earlier than the others."""

from typing import Any

import numpy as np
from gymnasium import spaces


class Countdown:
    """Agent number i is out after 3 + i steps, terminated; the last one is cut off at `limit` if that comes first.

    An observation is (game's episode, step, agent); the reward is the action plus a tenth of the agent's number.
    """

    metadata: dict[str, Any] = {"name": "countdown"}
    render_mode: str | None = None

    def __init__(self, agents: int = 3, limit: int = 100) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(agents)]
        self.agents: list[str] = []
        self.limit = limit
        self.episode = 0
        self.step_count = 0

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(0.0, 1e6, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(4)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.step_count = list(self.possible_agents), 0
        self.episode += 1
        return {agent: self._seen(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert sorted(actions) == sorted(self.agents), "every living agent acts, and no other"
        self.step_count += 1
        playing = list(self.agents)
        numbers = {agent: int(agent.rpartition("_")[2]) for agent in playing}
        seen = {agent: self._seen(agent) for agent in playing}
        rewards = {agent: float(actions[agent]) + 0.1 * numbers[agent] for agent in playing}
        ended = {agent: self.step_count >= 3 + numbers[agent] for agent in playing}
        cut = {agent: self.step_count >= self.limit for agent in playing}
        self.agents = [agent for agent in playing if not (ended[agent] or cut[agent])]
        return seen, rewards, ended, cut, {agent: {"alive": len(self.agents)} for agent in playing}

    def close(self) -> None:
        pass

    def _seen(self, agent: str) -> Any:
        return np.array([self.episode, self.step_count, int(agent.rpartition("_")[2])], np.float32)


def countdown(agents: int = 3, limit: int = 100) -> Countdown:
    """A factory, as a spec names it."""
    return Countdown(agents, limit)
