"""Two ledgers in one game, by PettingZoo's parallel interface: an observation says which step of whose it is.

It never looks at an action. No process hands a game to another: whoever takes a shard over begins anew.
"""

from typing import Any

from tests.chaos.ledger_env import Ledger

LEFT, RIGHT = "left", "right"
NAME = "tests.chaos.ledger_agents:LedgerPair"


class LedgerPair:
    """Agent "left" of game g is ledger 2 g, "right" is 2 g + 1; who is out first waits for the other."""

    metadata: dict[str, Any] = {"name": "ledger pair"}
    possible_agents = [LEFT, RIGHT]

    def __init__(self, env_index: int = 0, *, step_s: float = 0.0) -> None:
        self.agents: list[str] = []
        own = {LEFT: 2 * env_index, RIGHT: 2 * env_index + 1}
        self._ledgers = {agent: Ledger(number, step_s=step_s / 2) for agent, number in own.items()}

    def observation_space(self, agent: str) -> Any:
        return self._ledgers[agent].observation_space

    def action_space(self, agent: str) -> Any:
        return self._ledgers[agent].action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.agents = list(self.possible_agents)
        seeds = {LEFT: seed, RIGHT: None if seed is None else seed + 1}
        return {agent: self._ledgers[agent].reset(seed=seeds[agent])[0] for agent in self.agents}, dict.fromkeys(
            self.agents, {}
        )

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        answers = {agent: self._ledgers[agent].step(actions[agent]) for agent in self.agents}
        told = tuple({agent: answer[part] for agent, answer in answers.items()} for part in range(5))
        self.agents = [agent for agent, answer in answers.items() if not (answer[2] or answer[3])]
        return told

    def close(self) -> None:
        for ledger in self._ledgers.values():
            ledger.close()
