"""The loop that anybody would write for one environment. It knows nothing of Heddle.

All that it shares with a run is what a run cannot choose differently: the actions and the seeds.
"""

import importlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from tests.conformance.cases import Case


@dataclass(slots=True)
class Stream:
    """What one environment showed, step by step.

    Attributes:
        observations: one more than there are steps; behind an ending stands the first of the next episode.
        finals: step -> true last observation, of episodes that were cut off.
        returns, lengths: step -> of the episode that ended there, by the environment without its wrappers.
        infos: step -> of the infos those that are wanted.
    """

    observations: list[Any] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    finals: dict[int, Any] = field(default_factory=dict)
    returns: dict[int, float] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    infos: list[dict[str, Any]] = field(default_factory=list)


class Count(gymnasium.Wrapper[Any, Any, Any, Any]):
    """What the environment beneath paid since its last reset."""

    total, steps = 0.0, 0

    def reset(self, **kwargs: Any) -> Any:
        self.total, self.steps = 0.0, 0
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        answer = super().step(action)
        self.total += float(answer[1])
        self.steps += 1
        return answer


def make(case: Case) -> tuple[Any, Count]:
    """The environment of a case, and the counter in its midst."""
    if case.id.startswith("tests."):
        module, _, name = case.id.partition(":")
        env = getattr(importlib.import_module(module), name)(**case.kwargs)
    else:
        _register(case.package)
        env = gymnasium.make(case.id, **case.kwargs)
    env = counter = Count(env)
    for wrapper, kwargs in case.wrappers:
        module, _, name = wrapper.rpartition(":")
        env = getattr(importlib.import_module(module or "gymnasium.wrappers"), name)(env, **kwargs)
    return env, counter


def play(case: Case, seeds: Sequence[int], actions: Sequence[Any]) -> Stream:
    """Play `actions` in episodes that are reset with `seeds`, one after the other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env, counter = make(case)
        try:
            return _play(env, counter, iter(seeds), actions, case.info_keys)
        finally:
            env.close()


def _play(env: Any, counter: Count, seeds: Any, actions: Sequence[Any], info_keys: Sequence[str]) -> Stream:
    stream = Stream()
    observation, _ = env.reset(seed=next(seeds))
    stream.observations.append(_kept(observation))
    for step, action in enumerate(actions):
        observation, reward, terminated, truncated, info = env.step(_given(action, env.action_space))
        stream.rewards.append(reward)
        stream.terminated.append(bool(terminated))
        stream.truncated.append(bool(truncated))
        stream.infos.append({key: info[key] for key in info_keys if key in info})
        if terminated or truncated:
            if not terminated:
                stream.finals[step] = _kept(observation)
            stream.returns[step], stream.lengths[step] = counter.total, counter.steps
            observation, _ = env.reset(seed=next(seeds))
        stream.observations.append(_kept(observation))
    return stream


def _given(action: Any, space: Any) -> Any:
    """What a policy chose, as the environment takes it: counted from the start of the space, within its bounds."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(action) + int(space.start)
    return np.clip(action, space.low, space.high)


def _kept(observation: Any) -> Any:
    """A copy, for environments reuse what they return."""
    if isinstance(observation, dict):
        return {key: _kept(value) for key, value in observation.items()}
    return observation.copy() if isinstance(observation, np.ndarray) else observation


def _register(package: str) -> None:
    """What the manual of a package says must be done before its environments can be made."""
    if package == "minatar":
        importlib.import_module("minatar.gym").register_envs()
    elif package != "gymnasium":
        gymnasium.register_envs(importlib.import_module(package.replace("-", "_")))
