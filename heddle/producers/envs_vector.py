"""Vector environments: one object that steps all environments of a shard, made as a spec says and made sense of.

It never steps for experience; `vector_player.py` does. What such an object does when an episode ends differs
(Gymnasium calls it the autoreset mode), and so do its seeds: both are found out here.
"""

import importlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import vector as vector_wrappers
from numpy.typing import NDArray

from heddle.errors import EnvError
from heddle.producers.contract import BadAnswer
from heddle.producers.envs_agents import AgentLanes
from heddle.producers.envs_homes import install_hint
from heddle.producers.envs_make import call_factory, call_gymnasium, wrap
from heddle.spec import Env
from heddle.spec.environments import ENVPOOL
from heddle.spec.objects import describe_error, is_object_name, nearest, user_errors

_NEUTRAL = (vector_wrappers.RecordEpisodeStatistics, vector_wrappers.DictInfoToList)
_PLAIN_STEPS = (
    gymnasium.vector.VectorWrapper.step,
    gymnasium.vector.VectorObservationWrapper.step,
    gymnasium.vector.VectorActionWrapper.step,
)


class VectorCounter(gymnasium.vector.VectorWrapper):
    """Counts return and length of every environment beneath, whatever the wrappers above make of them.

    EnvPool clips rewards and ends episodes with a life on its own; where its infos tell what the game itself said,
    that is counted.

    Attributes:
        over: [n] bool, whose episode the last call ended beneath, so that it resets itself if it ever does. A wrapper
            above may end others, which go on with their game.
    """

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self._mode = mode_of(env, "")
        self._sums, self._steps = np.zeros(env.num_envs), np.zeros(env.num_envs, np.int64)
        self.over = np.zeros(env.num_envs, np.bool_)
        self._finished: dict[int, tuple[float, int]] = {}

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        mask = (kwargs.get("options") or {}).get("reset_mask")
        for env in range(self.num_envs) if mask is None else np.flatnonzero(mask):
            self._close(int(env))
        self.over = np.zeros(self.num_envs, np.bool_)
        return self.env.reset(**kwargs)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        answer = self.env.step(actions)
        _, rewards, terminated, truncated, info = answer
        is_raw = _tells_the_game(self.env, info)
        gained = np.asarray(info["reward"] if is_raw else rewards, np.float64)
        counts = ~self.over if self._mode == "NextStep" else np.ones(self.num_envs, np.bool_)
        self._sums += np.where(counts, gained, 0.0)
        self._steps += counts
        over = np.logical_or(np.asarray(info["terminated"]) != 0 if is_raw else terminated, truncated)
        for env in np.flatnonzero(over & counts):
            self._close(int(env))
        self.over = np.logical_or(terminated, truncated)
        return answer

    def take(self, env: int) -> tuple[float, int] | None:
        """Return and length of the episode of `env` that ended since the last call, None if none did."""
        return self._finished.pop(env, None)

    def _close(self, env: int) -> None:
        if self._steps[env]:
            self._finished[env] = (float(self._sums[env]), int(self._steps[env]))
        self._sums[env], self._steps[env] = 0.0, 0


class _LastKept(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives the last observation of an episode as a copy."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            observation = deepcopy(observation)
        return observation, reward, terminated, truncated, info


def keep_last_observations(vector: Any) -> None:
    """Where Gymnasium resets an environment in the step that ends it, see that the true last observation survives.

    It holds on to the array that the environment returned, and many environments overwrite that in reset. Those in
    processes of their own (AsyncVectorEnv) are out of reach: they must return fresh arrays.
    """
    core = _layers(vector)[-1]
    if isinstance(core, SyncVectorEnv) and mode_of(core, "") == "SameStep":
        core.envs = [env if isinstance(env, _LastKept) else _LastKept(env) for env in core.envs]


def make_vector(
    env: Env, *, first: int, num_envs: int, seeds: Sequence[int], groups: Mapping[str, Sequence[str]] | None = None
) -> Any:
    """The vector environment of a shard, wrapped, with a `VectorCounter` where one is needed.

    Args:
        first: number of its first environment within the experiment.
        num_envs: how many it shall hold.
        seeds: one for each, for what is seeded when it is made.
        groups: of its agents, name to their names, where each has a policy of its own.

    Raises:
        EnvError: it cannot be made; the reason is one line.
    """
    if env.agents is not None:
        return _call_agents(env, env.agents, first, seeds, groups or {})
    if env.id.startswith(ENVPOOL):
        made = _call_envpool(env, num_envs, seeds)
    elif is_object_name(env.id):
        made = call_factory(env, {"env_index": first, "num_envs": num_envs, "seed": seeds[0]})
    else:
        made = _call_registered(env, num_envs)
    _check(made, env.id, num_envs)
    for place, wrapper in enumerate(env.wrappers):
        made = wrap(made, wrapper, place, of=vector_wrappers)
    mode_of(made, env.id)
    return _with_counter(made, env)


def mode_of(vector: Any, name: str) -> str:
    """What `vector` does when an episode ends: "NextStep", "SameStep" or "Disabled", as Gymnasium calls it.

    Raises:
        EnvError: it does not say.
    """
    mode = (getattr(vector, "metadata", None) or {}).get("autoreset_mode")
    try:
        return str(AutoresetMode(mode).value)
    except ValueError:
        reason = f"does not say what it does when an episode ends: its metadata['autoreset_mode'] is {mode!r}"
        hint = f"set it to one of {', '.join(f'AutoresetMode.{known.name}' for known in AutoresetMode)}"
        raise EnvError(reason, value=name, hint=hint) from None


def counter_in(vector: Any) -> VectorCounter | None:
    """The counter within `vector`; None when its rewards and endings are the innermost environment's own."""
    return next((layer for layer in _layers(vector) if isinstance(layer, VectorCounter)), None)


def reset_all(vector: Any, seeds: Sequence[int]) -> Any:
    """Begin everywhere; the observations.

    Environments that are reset one by one get a seed each. Others take one seed for all, or took theirs when they
    were made (EnvPool).

    Raises:
        BadAnswer: it returned something else.
    """
    if _is_envpool(_layers(vector)[-1]):
        return _observed(vector.reset())
    return _observed(vector.reset(seed=list(seeds) if takes_seeds(vector) else seeds[0]))


def reset_some(vector: Any, mask: NDArray[np.bool_], seeds: Sequence[int]) -> Any:
    """Begin anew where `mask` [n] is set, in an environment that never does so by itself; the observations of all."""
    options = {"reset_mask": mask}
    if takes_seeds(vector):
        wanted = [seed if again else None for seed, again in zip(seeds, mask, strict=True)]
        return _observed(vector.reset(seed=wanted, options=options))
    return _observed(vector.reset(options=options))


def takes_seeds(vector: Any) -> bool:
    """Whether each environment can be given a seed of its own."""
    return isinstance(_layers(vector)[-1], SyncVectorEnv | AsyncVectorEnv)


def _observed(answer: Any) -> Any:
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise BadAnswer(f"reset returned a {type(answer).__name__}, expected (observations, info)")
    return answer[0]


def _call_registered(env: Env, num_envs: int) -> Any:
    def make(id: str, **kwargs: Any) -> Any:
        mode = kwargs.setdefault("vectorization_mode", "vector_entry_point")
        if mode == "vector_entry_point" and gymnasium.spec(id).vector_entry_point is None:
            reason = "has no vector environment of its own (vector_entry_point)"
            hint = 'leave vector out: shards of single environments do the same; or kwargs.vectorization_mode = "sync"'
            raise EnvError(reason, value=id, hint=hint)
        return gymnasium.make_vec(id, num_envs=num_envs, **kwargs)

    return call_gymnasium(env, make)


def _call_agents(
    env: Env, agents: int, first: int, seeds: Sequence[int], groups: Mapping[str, Sequence[str]]
) -> AgentLanes:
    """As many games as `seeds` has lanes for."""
    if not is_object_name(env.id):
        hint = 'name what makes one: "pettingzoo.sisl.pursuit_v5:parallel_env"'
        raise EnvError("is no function that makes an environment of several agents", value=env.id, hint=hint)
    count = len(seeds) // agents
    games = []
    for game in range(count):
        offered = {"env_index": first + game, "num_envs": count, "seed": seeds[game * agents]}
        games.append(call_factory(env, offered))
    made = AgentLanes(games, name=env.id, groups=groups, first=first)
    if len(made.agents) != agents:
        shown = ", ".join(made.agents[:8]) + ("..." if len(made.agents) > 8 else "")
        reason = f"is {agents}, and the environment has {len(made.agents)} agents: {shown}"
        raise EnvError(reason, key="env.agents", value=agents, hint=f"write agents = {len(made.agents)}")
    return made


def lanes_in(vector: Any) -> AgentLanes | None:
    """The lanes of agents within `vector`; None when every environment has one agent."""
    return next((layer for layer in _layers(vector) if isinstance(layer, AgentLanes)), None)


def _call_envpool(env: Env, num_envs: int, seeds: Sequence[int]) -> Any:
    task = env.id.removeprefix(ENVPOOL)
    try:
        envpool = importlib.import_module("envpool")
    except ModuleNotFoundError as error:
        module = error.name or "envpool"
        raise EnvError(f"there is no module {module!r}", value=env.id, hint=install_hint(module)) from error
    known = envpool.list_all_envs()
    if task not in known:
        raise EnvError("there is no such environment in EnvPool", value=env.id, hint=nearest(task, known))
    try:
        return envpool.make_gymnasium(task, num_envs=num_envs, **({"seed": list(seeds)} | env.kwargs))
    except user_errors() as error:
        raise EnvError(f"making it raised {describe_error(error)}", value=env.id) from error


def _check(made: Any, name: str, num_envs: int) -> None:
    wanted = ("reset", "step", "num_envs", "single_observation_space", "single_action_space")
    missing = [attribute for attribute in wanted if not hasattr(made, attribute)]
    if missing:
        hint = "leave vector out, or return a gymnasium.vector.VectorEnv"
        reason = f"is a {type(made).__name__} without {', '.join(missing)}: no vector environment"
        raise EnvError(reason, value=name, hint=hint)
    if made.num_envs != num_envs:
        reason = f"holds {made.num_envs} environments where a shard has {num_envs}"
        raise EnvError(reason, value=name, hint="make as many as the parameter num_envs says")


def _with_counter(vector: Any, env: Env) -> Any:
    layers = _layers(vector)
    if _is_envpool(layers[-1]) and {"reward_clip", "episodic_life"} & env.kwargs.keys():
        return _counted_beneath(vector, layers, len(layers) - 1)
    for place in range(len(layers) - 2, -1, -1):
        layer = layers[place]
        if type(layer) not in _NEUTRAL and type(layer).step not in _PLAIN_STEPS:
            return _counted_beneath(vector, layers, place + 1)
    return vector


def _counted_beneath(vector: Any, layers: Sequence[Any], place: int) -> Any:
    """`vector` with a counter around its layer number `place`."""
    counted = VectorCounter(layers[place])
    if place == 0:
        return counted
    layers[place - 1].env = counted
    return vector


def _layers(vector: Any) -> list[Any]:
    layers = [vector]
    while isinstance(layers[-1], gymnasium.vector.VectorWrapper):
        layers.append(layers[-1].env)
    return layers


def _is_envpool(vector: Any) -> bool:
    return any(base.__module__.startswith("envpool.") for base in type(vector).__mro__)


def _tells_the_game(vector: Any, info: dict[str, Any]) -> bool:
    return "reward" in info and "terminated" in info and _is_envpool(vector)
