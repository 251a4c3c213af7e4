"""A game in which agents come late, leave early, and come again; all of it by chance."""

from typing import Any

import numpy as np
from gymnasium import spaces

LONGEST = 12


class Comings:
    """Agent 0 is there from the beginning; agent 1 may go early; agent 2 comes late; agent 3 comes and goes.

    Observations are (step of the round, agent, a random number); the reward is the action and a random number.
    """

    metadata = {"name": "comings"}  # noqa: RUF012
    render_mode: str | None = None

    def __init__(self) -> None:
        self.possible_agents = [f"agent_{number}" for number in range(4)]
        self.agents: list[str] = []
        self._rng, self._step = np.random.default_rng(0), 0

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(0.0, 100.0, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._step, self._late = 0, int(self._rng.integers(1, 6))
        self.agents = ["agent_0", "agent_1"]
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert sorted(actions) == sorted(self.agents), "all that are here act, and no other"
        self._step += 1
        playing = list(self.agents)
        rewards = {agent: float(actions[agent]) + float(self._rng.random()) for agent in playing}
        ended = {agent: self._goes(agent) for agent in playing}
        cut = {agent: not ended[agent] and self._step == LONGEST for agent in playing}
        gone = [agent for agent in playing if ended[agent] or cut[agent]]
        come = [agent for agent in self.possible_agents if agent not in playing and self._comes(agent)]
        self.agents = [agent for agent in playing if agent not in gone] + come
        seen = self._seen() | {agent: self._shown(agent) for agent in gone}
        return seen, rewards, ended, cut, {agent: {} for agent in playing}

    def close(self) -> None:
        pass

    def _goes(self, agent: str) -> bool:
        return bool(self._rng.random() < {"agent_0": 0.0, "agent_1": 0.15, "agent_2": 0.1, "agent_3": 0.5}[agent])

    def _comes(self, agent: str) -> bool:
        if self._step >= LONGEST - 1:
            return False
        return self._step == self._late if agent == "agent_2" else agent == "agent_3" and bool(self._rng.random() < 0.4)

    def _seen(self) -> dict[str, Any]:
        return {agent: self._shown(agent) for agent in self.agents}

    def _shown(self, agent: str) -> Any:
        return np.array([self._step, int(agent[-1]), self._rng.random()], np.float32)


def comings() -> Comings:
    """The factory that a spec names."""
    return Comings()
