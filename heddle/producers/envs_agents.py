"""Multi-agent environments: PettingZoo's parallel ones as one vector environment with a lane for each agent of each.

It never steps for experience; `vector_player.py` does. Agents that one policy plays must have equal spaces. An agent
that is out before the others waits: its lane neither moves nor begins until the environment is reset, which the call
behind the last agent's end does. One that joins later, or again, waits until then in the same way, and begins with what
it is shown by the step that it joins in.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from heddle.errors import EnvError
from heddle.producers.contract import BadAnswer, at_lane
from heddle.producers.envs_agent_spaces import AgentSpaces, nothing_of
from heddle.producers.envs_spaces import demand_same, describe
from heddle.producers.kinds import demand_parts, has_ended, number_kind, wanted
from heddle.spaces import leaves

_NEEDED = ("possible_agents", "observation_space", "action_space", "reset", "step")


class AgentLanes(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Games side by side; lane g * A + a is agent a of game g.

    Attributes:
        agents: their names, in the order of the lanes: group by group where there are groups.
        idle: [lanes] bool, those that the last call neither moved nor began.
        missed: [lanes] bool, those that took no part in a game that the last call ended.

    Args:
        games: PettingZoo parallel environments, all of one kind; AEC ones that are parallelizable are converted.
        name: as the spec names it, for messages.
        groups: name to its agents; {} where one policy plays all.
        first: number of the first game within the experiment, for messages.

    Raises:
        EnvError: they are no such environments, the groups' agents are others, spaces of one policy's agents differ, or
            those of one agent from game to game.
    """

    def __init__(
        self, games: Sequence[Any], *, name: str, groups: Mapping[str, Sequence[str]] | None = None, first: int = 0
    ) -> None:
        self.games = games = [_at_once(game, name) for game in games]
        self.agents = _ordered(_agents_of(games[0], name), groups or {}, name)
        for place, game in enumerate(games[1:], 1):
            _demand_like(game, games[0], who=f"environment {first + place}", name=name)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = None
        self.num_envs = len(games) * len(self.agents)
        self._shows, self._takes = (
            AgentSpaces(
                {agent: getattr(games[0], what)(agent) for agent in self.agents}, groups or {}, what=what, name=name
            )
            for what in ("observation_space", "action_space")
        )
        self.single_observation_space, self.single_action_space = self._shows.whole, self._takes.whole
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.idle, self.missed, self._came = (np.zeros(self.num_envs, np.bool_) for _ in range(3))
        shown = describe(self.single_observation_space, value=name)
        self._wanted = wanted(shown)
        is_fixed = len(self._wanted) == len(leaves(shown))  # others are refused by whoever plays this
        self._seen = [nothing_of(self.single_observation_space) if is_fixed else None] * self.num_envs
        self._over = [False] * len(games)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin every game; a game takes the seed of its first lane."""
        width = len(self.agents)
        self.idle, self.missed = (np.zeros(self.num_envs, np.bool_) for _ in range(2))
        for place in range(len(self.games)):
            given = seed[place * width] if isinstance(seed, Sequence) else None if seed is None else seed + place
            with at_lane(place * width):
                self._begin(place, given, options)
        return self._observed(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of every game; one whose agents are all out is reset instead.

        Returns:
            Observations, [n, ...] a leaf, rewards [n] float64, terminated, truncated [n] bool, infos: n agents in all.

        Raises:
            BadAnswer: a game answered with something else.
        """
        choices = list(iterate(self.action_space, actions))
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}
        self.idle, self.missed = (np.zeros(self.num_envs, np.bool_) for _ in range(2))
        for place, game in enumerate(self.games):
            playing = [] if self._over[place] else list(game.agents)
            with at_lane(self._lane(place, playing[0] if playing else self.agents[0])):
                if self._over[place]:
                    self._begin(place, None, None)
                else:
                    self._play(place, playing, choices, (rewards, terminated, truncated), infos)
        return self._observed(), rewards, terminated, truncated, infos

    def _lane(self, place: int, agent: str) -> int:
        return place * len(self.agents) + self.agents.index(agent)

    def _play(
        self,
        place: int,
        playing: Sequence[str],
        choices: Sequence[Any],
        into: tuple[Any, Any, Any],
        infos: dict[str, Any],
    ) -> None:
        """One step of the game at `place`; what it gave goes `into` rewards, terminated and truncated, [n] each."""
        game, (rewards, terminated, truncated) = self.games[place], into
        first = place * len(self.agents)
        lanes = {agent: first + index for index, agent in enumerate(self.agents)}
        answer = game.step({agent: self._takes.taken(agent, choices[lanes[agent]]) for agent in playing})
        seen, gained, ended, cut, told = _five(answer)
        for agent, lane in lanes.items():
            if agent not in playing:
                self._wait(agent, lane, game.agents, seen)
                continue
            self._seen[lane] = self._shows.shown(agent, _of(seen, agent, "observations", lane))
            reward, over = _of(gained, agent, "rewards", lane), (ended.get(agent, False), cut.get(agent, False))
            self._demand(agent, lane, reward, over)
            rewards[lane], (terminated[lane], truncated[lane]) = reward, over
            if (agent in game.agents) == bool(terminated[lane] or truncated[lane]):
                what = "stays in `agents` although it is" if agent in game.agents else "left `agents` without being"
                raise BadAnswer(f"agent {agent!r} {what} terminated or truncated", env=lane)
            _note(infos, lane, told.get(agent) or {}, self.num_envs)
        self._over[place] = not game.agents
        if self._over[place]:
            own = slice(first, first + len(lanes))
            self.missed[own] = ~self._came[own]

    def _demand(self, agent: str, lane: int, reward: Any = 0.0, over: tuple[Any, Any] = (False, False)) -> None:
        """Look at what `agent` was shown and given, before numpy takes it for something else."""
        try:
            demand_parts(self._wanted, self._seen[lane])
            number_kind(reward)
            has_ended(*over)
        except BadAnswer as breach:
            raise BadAnswer(f"of agent {agent!r}: {breach}", env=lane) from breach

    def close_extras(self, **kwargs: Any) -> None:
        """Close every game."""
        for game in self.games:
            game.close()

    def _begin(self, place: int, seed: int | None, options: dict[str, Any] | None) -> None:
        answer = self.games[place].reset(seed=seed, options=options)
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], Mapping):
            wanted = "(observations by agent, infos by agent)"
            raise BadAnswer(f"reset returned a {type(answer).__name__}, expected {wanted}")
        if not self.games[place].agents:
            raise BadAnswer("reset began without any agent")
        for index, agent in enumerate(self.agents):
            lane = place * len(self.agents) + index
            self._came[lane] = False
            self._wait(agent, lane, self.games[place].agents, answer[0])
        self._over[place] = False

    def _wait(self, agent: str, lane: int, here: Sequence[str], seen: Mapping[str, Any]) -> None:
        """Of an agent that did not act: it begins now, where it is among those that are here, or goes on waiting."""
        self.idle[lane] = agent not in here
        if not self.idle[lane]:
            self._came[lane] = True
            self._seen[lane] = self._shows.shown(agent, _of(seen, agent, "observations", lane))
            self._demand(agent, lane)

    def _observed(self) -> Any:
        space = self.single_observation_space
        blank: Any = create_empty_array(space, self.num_envs)
        return concatenate(space, self._seen, blank)


def _at_once(game: Any, name: str) -> Any:
    """A game of which all agents act at once: one whose agents take turns only because it is written so, too.

    Raises:
        EnvError: its agents have to take turns, as its metadata say.
    """
    if not hasattr(game, "agent_iter"):
        return game
    if not (getattr(game, "metadata", None) or {}).get("is_parallelizable"):
        reason = "takes turns (an AEC environment), and its metadata do not say that it is_parallelizable"
        hint = (
            "where whoever is not on turn may be asked all the same, return"
            " pettingzoo.utils.conversions.turn_based_aec_to_parallel(env) from a factory of your own"
        )
        raise EnvError(reason, value=name, hint=hint)
    return importlib.import_module("pettingzoo.utils.conversions").aec_to_parallel(game)


def _agents_of(game: Any, name: str) -> tuple[str, ...]:
    if missing := [word for word in _NEEDED if not hasattr(game, word)]:
        hint = "name what makes a PettingZoo parallel environment, e.g. pettingzoo.sisl.pursuit_v5:parallel_env"
        raise EnvError(f"is a {type(game).__name__} without {', '.join(missing)}", value=name, hint=hint)
    if not game.possible_agents:
        raise EnvError("has no possible_agents", value=name)
    return tuple(game.possible_agents)


def _demand_like(game: Any, model: Any, *, who: str, name: str) -> None:
    """The agents of `game` are those of `model`, with the same spaces. Raises EnvError."""
    agents, wanted = _agents_of(game, name), _agents_of(model, name)
    if set(agents) != set(wanted):
        mine, theirs = (", ".join(map(str, found[:8])) for found in (agents, wanted))
        hint = "one spec plays them all: agents that take no part may be left out of `agents`, not of possible_agents"
        raise EnvError(f"{who} has the agents {mine}, where the others have {theirs}", value=name, hint=hint)
    for agent in wanted:
        pairs = [[getattr(one, what)(agent) for what in ("observation_space", "action_space")] for one in (game, model)]
        if pairs[0] != pairs[1]:  # in Gymnasium's words first, for they mostly are the same objects
            found, other = ((describe(seen), describe(taken)) for seen, taken in pairs)
            demand_same(found, other, who=f"agent {agent!r} of {who}", name=name)


def _ordered(agents: tuple[str, ...], groups: Mapping[str, Sequence[str]], name: str) -> tuple[str, ...]:
    """The agents group by group. Raises EnvError where the groups' agents are others."""
    if not groups:
        return agents
    wanted = tuple(agent for members in groups.values() for agent in members)
    unknown = [agent for agent in wanted if agent not in agents]
    missing = [agent for agent in agents if agent not in wanted]
    if unknown or missing:
        told = [
            f"{word} {', '.join(map(str, found[:6]))}" for word, found in (("no", unknown), ("also", missing)) if found
        ]
        reason = f"has other agents than policy.groups name: {'; '.join(told)}"
        raise EnvError(reason, value=name, hint=f"its agents are {', '.join(map(str, agents[:8]))}")
    return wanted


def _five(answer: Any) -> tuple[Any, ...]:
    if not isinstance(answer, tuple) or len(answer) != 5 or not all(isinstance(part, Mapping) for part in answer):
        raise BadAnswer("step returned something else than five dicts by agent")
    return answer


def _of(parts: Mapping[str, Any], agent: str, what: str, lane: int) -> Any:
    try:
        return parts[agent]
    except KeyError as error:
        raise BadAnswer(f"step gave no {what} for agent {agent!r}", env=lane) from error


def _note(infos: dict[str, Any], lane: int, told: Mapping[str, Any], lanes: int) -> None:
    """Numbers of one agent's info into the arrays of all."""
    for key, value in told.items():
        if isinstance(value, bool | int | float | np.number | np.bool_):
            infos.setdefault(key, np.full(lanes, np.nan))[lane] = float(value)
            infos.setdefault(f"_{key}", np.zeros(lanes, np.bool_))[lane] = True
