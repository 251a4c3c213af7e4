"""Environments and policies for tests of the player: small, scripted, and honest about what they were told."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from heddle.layout import Layout, make_layout
from heddle.policies.base import Acted, Array, Arrays, Noise, OutputSpec, ScriptedPolicy
from heddle.shard import ShardPlan
from heddle.spaces import Box, Discrete, Space
from heddle.spec import ExperimentSpec, load_spec

Ending = tuple[int, str]
"""Steps of an episode, and how it ends: "terminated", "truncated" or "both"."""

OBSERVATION = Box((2,), "float32")


class Scripted:
    """Plays episodes of given lengths and endings, over and over; shows [episode, step], always in the same buffer.

    Rewards are 100 * episode + step. Remembers seeds and actions.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, script: Sequence[Ending] = ((3, "terminated"),)) -> None:
        self.script = script
        self.episode, self.steps = -1, 0
        self.buffer = np.zeros(2, np.float32)
        self.seeds: list[int] = []
        self.actions: list[Any] = []
        self.closed = False
        self.over = True

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        self.seeds.append(seed)
        self.episode, self.steps, self.over = self.episode + 1, 0, False
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert not self.over, "stepped after the episode ended"
        self.actions.append(action)
        self.steps += 1
        length, how = self.script[self.episode % len(self.script)]
        self.over = self.steps == length
        terminated = self.over and how in ("terminated", "both")
        truncated = self.over and how in ("truncated", "both")
        return self._show(), 100.0 * self.episode + self.steps, terminated, truncated, {"fuel": self.steps / 2}

    def close(self) -> None:
        self.closed = True

    def _show(self) -> Any:
        self.buffer[:] = self.episode, self.steps
        return self.buffer


class Drawn(ScriptedPolicy):
    """Takes its action from its noise and repeats what it saw as an output."""

    noise = Noise("uniform", 1)
    outputs: Mapping[str, OutputSpec] = {"value": OutputSpec("float32"), "log_prob": OutputSpec("float32")}

    def __init__(self, n: int = 3) -> None:
        self.n = n
        self.deterministic: list[bool] = []

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        self.deterministic.append(deterministic)
        actions = np.zeros(len(noise), np.int64) if deterministic else (noise[:, 0] * self.n).astype(np.int64)
        first = next(iter(observations.values())).reshape(len(noise), -1)
        return Acted(
            {"action": actions}, {"value": first[:, -1].astype(np.float32), "log_prob": noise[:, 0].astype(np.float32)}
        )


class Remembering(ScriptedPolicy):
    """Counts, in its state, the steps since the episode began, and gives the count out as its value."""

    state: Mapping[str, OutputSpec] = {"steps": OutputSpec("float32", (1,))}
    outputs: Mapping[str, OutputSpec] = {"value": OutputSpec("float32")}

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        n = len(state["steps"])
        return Acted(
            {"action": np.zeros(n, np.int64)}, {"value": state["steps"][:, 0].copy()}, {"steps": state["steps"] + 1}
        )


def spec_of(**sections: Mapping[str, Any]) -> ExperimentSpec:
    """A small spec; `sections` are merged over it."""
    base: dict[str, dict[str, Any]] = {
        "experiment": {"name": "test", "seed": 5},
        "env": {"id": "CartPole-v1", "num_envs": 2},
        "rollout": {"steps": 4},
        "trainer": {"minibatch": 2},
        "budget": {"env_steps": 100},
    }
    merged = {name: {**base.get(name, {}), **sections.get(name, {})} for name in {*base, *sections}}
    return load_spec(merged).spec


def plan_of(num_envs: int, *, index: int = 0, first_env: int = 0) -> ShardPlan:
    return ShardPlan(index=index, kind="train", first_env=first_env, num_envs=num_envs)


def layout_for(
    policy: Any,
    *,
    steps: int = 4,
    observation: Space = OBSERVATION,
    action: Space | None = None,
    info_keys: Sequence[str] = (),
) -> Layout:
    return make_layout(
        observation,
        action or Discrete(3),
        steps=steps,
        outputs=policy.outputs,
        state=policy.state,
        info_keys=info_keys,
    )
