"""Multi-agent environments: PettingZoo's parallel ones as one vector environment with a lane for each agent of each.

It never steps for experience; `vector_player.py` does. All agents are played by the policy of the experiment, so
their spaces must be equal. An agent that is out before the others waits: its lane neither moves nor begins until the
environment is reset, which the call behind the last agent's end does.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from heddle.errors import EnvError
from heddle.producers.contract import BadAnswer

_NEEDED = ("possible_agents", "observation_space", "action_space", "reset", "step")


class AgentLanes(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Games side by side; lane g * A + a is agent a of game g.

    Attributes:
        agents: their names, in the order of the lanes.
        idle: [lanes] bool, those that the last call neither moved nor began.

    Args:
        games: PettingZoo parallel environments, all of one kind.
        name: as the spec names it, for messages.

    Raises:
        EnvError: they are no such environments, or their agents' spaces differ.
    """

    def __init__(self, games: Sequence[Any], *, name: str) -> None:
        self.games = list(games)
        self.agents = _agents_of(games[0], name)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = None
        self.num_envs = len(games) * len(self.agents)
        self.single_observation_space = _shared(games[0], self.agents, "observation_space", name)
        self.single_action_space = _shared(games[0], self.agents, "action_space", name)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.idle: NDArray[np.bool_] = np.zeros(self.num_envs, np.bool_)
        self._seen: list[Any] = [None] * self.num_envs
        self._over = [False] * len(games)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin every game; a game takes the seed of its first lane."""
        width = len(self.agents)
        for place in range(len(self.games)):
            given = seed[place * width] if isinstance(seed, Sequence) else None if seed is None else seed + place
            self._begin(place, given, options)
        self.idle[:] = False
        return self._observed(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of every game; one whose agents are all out is reset instead."""
        choices = list(iterate(self.action_space, actions))
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}
        self.idle = np.zeros(self.num_envs, np.bool_)
        for place, game in enumerate(self.games):
            if self._over[place]:
                self._begin(place, None, None)
                continue
            first = place * len(self.agents)
            lanes = {agent: first + index for index, agent in enumerate(self.agents)}
            playing = list(game.agents)
            answer = game.step({agent: choices[lanes[agent]] for agent in playing})
            seen, gained, ended, cut, told = _five(answer)
            for agent, lane in lanes.items():
                if agent not in playing:
                    self.idle[lane] = True
                    continue
                self._seen[lane] = _of(seen, agent, "observations")
                rewards[lane] = _of(gained, agent, "rewards")
                terminated[lane], truncated[lane] = bool(ended.get(agent)), bool(cut.get(agent))
                if (agent in game.agents) == bool(terminated[lane] or truncated[lane]):
                    what = "stays in `agents` although it is" if agent in game.agents else "left `agents` without being"
                    raise BadAnswer(f"agent {agent!r} {what} terminated or truncated")
                _note(infos, lane, told.get(agent) or {}, self.num_envs)
            self._over[place] = not game.agents
        return self._observed(), rewards, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Close every game."""
        for game in self.games:
            game.close()

    def _begin(self, place: int, seed: int | None, options: dict[str, Any] | None) -> None:
        answer = self.games[place].reset(seed=seed, options=options)
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], Mapping):
            wanted = "(observations by agent, infos by agent)"
            raise BadAnswer(f"reset returned a {type(answer).__name__}, expected {wanted}")
        for index, agent in enumerate(self.agents):
            if agent not in answer[0]:
                raise BadAnswer(f"reset showed nothing to agent {agent!r}: agents that join later are not supported")
            self._seen[place * len(self.agents) + index] = answer[0][agent]
        if set(self.games[place].agents) != set(self.agents):
            raise BadAnswer("reset began without some agents: agents that join later are not supported")
        self._over[place] = False

    def _observed(self) -> Any:
        space = self.single_observation_space
        blank: Any = create_empty_array(space, self.num_envs)
        return concatenate(space, self._seen, blank)


def _agents_of(game: Any, name: str) -> tuple[str, ...]:
    if missing := [word for word in _NEEDED if not hasattr(game, word)]:
        hint = "name what makes a PettingZoo parallel environment, e.g. pettingzoo.sisl.pursuit_v5:parallel_env"
        raise EnvError(f"is a {type(game).__name__} without {', '.join(missing)}", value=name, hint=hint)
    if hasattr(game, "agent_iter"):
        hint = "name its parallel_env, or turn it into one with pettingzoo.utils.aec_to_parallel"
        raise EnvError("takes turns (an AEC environment): all agents must act at once", value=name, hint=hint)
    if not game.possible_agents:
        raise EnvError("has no possible_agents", value=name)
    return tuple(game.possible_agents)


def _shared(game: Any, agents: Sequence[str], what: str, name: str) -> Any:
    """The space that all agents have. Raises EnvError where they differ."""
    spaces = {agent: getattr(game, what)(agent) for agent in agents}
    first = spaces[agents[0]]
    if other := next((agent for agent, space in spaces.items() if space != first), None):
        shown = f"{agents[0]} has {_short(first)}, {other} has {_short(spaces[other])}"
        hint = "one policy plays all agents: pad their spaces to one with a wrapper in your own factory"
        raise EnvError(f"has agents with different {what}s: {shown}", value=name, hint=hint)
    return first


def _five(answer: Any) -> tuple[Any, ...]:
    if not isinstance(answer, tuple) or len(answer) != 5 or not all(isinstance(part, Mapping) for part in answer):
        raise BadAnswer("step returned something else than five dicts by agent")
    return answer


def _of(parts: Mapping[str, Any], agent: str, what: str) -> Any:
    try:
        return parts[agent]
    except KeyError as error:
        raise BadAnswer(f"step gave no {what} for agent {agent!r}") from error


def _note(infos: dict[str, Any], lane: int, told: Mapping[str, Any], lanes: int) -> None:
    """Numbers of one agent's info into the arrays of all."""
    for key, value in told.items():
        if isinstance(value, bool | int | float | np.number | np.bool_):
            infos.setdefault(key, np.full(lanes, np.nan))[lane] = float(value)
            infos.setdefault(f"_{key}", np.zeros(lanes, np.bool_))[lane] = True


def _short(space: Any) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
