"""A mask that allows nothing is told with shard, environment, episode and step, and trained or refused, as asked."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from heddle.layout import make_layout
from heddle.policies import make_policy
from heddle.producers.mishap import PlayError
from heddle.producers.play import Play
from heddle.producers.player import Player
from heddle.producers.vector_check import check_vector
from heddle.producers.vector_player import VectorPlayer
from heddle.shard import plan_shards
from heddle.spaces import Box, DictSpace, Discrete, MultiBinary, MultiDiscrete, Space
from tests.unit.fake_envs import plan_of, spec_of
from tests.unit.test_groups import Unequal, spec_with

EPISODE = 5
SEEN = DictSpace({"action_mask": MultiBinary((3,)), "x": Box((2,), "float32")})
THREE = Discrete(3)
PAIRS = DictSpace({"action_mask": MultiBinary((5,)), "x": Box((2,), "float32")})


class Corridor(gymnasium.Env[Any, Any]):
    """Allows all but action 1; nothing where an episode has ended, nor at one step of one episode.

    Args:
        at: episode and step of that, from 1 and 0; None for nowhere.
        flags: how many numbers its mask has; the last three of them are none then.
        cut: episodes are cut off instead of terminated.
    """

    def __init__(self, at: tuple[int, int] | None = None, *, flags: int = 3, cut: bool = False) -> None:
        self.observation_space = spaces.Dict(
            {"action_mask": spaces.MultiBinary(flags), "x": spaces.Box(-np.inf, np.inf, (2,), np.float32)}
        )
        self.action_space = spaces.Discrete(3) if flags == 3 else spaces.MultiDiscrete([2, 3])
        self._at, self._flags, self._cut, self._episode, self._step = at, flags, cut, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._episode, self._step = self._episode + 1, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        over = self._step == EPISODE
        return self._seen(), 1.0, over and not self._cut, over and self._cut, {}

    def _seen(self) -> Any:
        mask = np.ones(self._flags, np.int8)
        mask[1] = 0
        if self._step == EPISODE:
            mask[:] = 0
        elif (self._episode, self._step) == self._at:
            mask[-3:] = 0
        return {"action_mask": mask, "x": np.zeros(2, np.float32)}


def player(*envs: Corridor, seen: Space = SEEN, action: Space = THREE, vector: Any = None, **env: Any) -> Play:
    """What plays shard 3, whose first environment is number 6, with the policy of the spec."""
    wanted = {"num_envs": 8, "envs_per_shard": 2, **env}
    spec = spec_of(env=wanted, rollout={"steps": 8, "max_policy_lag": 4}, policy={"hidden": [8]})
    policy = make_policy(spec.policy, seen, action)
    layout = make_layout(seen, action, steps=8, outputs=policy.outputs)
    plan = plan_of(2, index=3, first_env=6)
    if vector is not None:
        return VectorPlayer(plan, spec, policy, layout, vector=vector)
    return Player(plan, spec, policy, layout, envs=envs)


def heard(playing: Play, segments: int = 3) -> list[str]:
    """What is told over so many segments."""
    for _ in range(segments):
        playing.recycle(playing.play(7))
    return playing.hear()


TOLD = "environment 7 (number 1 of shard 3) gave obs.action_mask that allows no action; seed "


@pytest.mark.parametrize("mode", ["inline", "NextStep", "SameStep"])
@pytest.mark.parametrize("step", [0, 2])
def test_a_mask_that_allows_nothing_is_told_once_with_its_place_and_trained(mode: str, step: int) -> None:
    if mode == "inline":
        playing = player(Corridor(), Corridor((2, step)))
    else:
        made = [lambda: Corridor(), lambda: Corridor((2, step))]
        autoreset = gymnasium.vector.AutoresetMode(mode)
        playing = player(vector=gymnasium.vector.SyncVectorEnv(made, autoreset_mode=autoreset))
    (told,) = heard(playing)
    assert told.startswith(TOLD) and f"episode 2, step {step}, last actions" in told
    assert told.endswith("policy version 7; every action is taken for allowed there, env.bounds = refuse would fail")
    assert heard(playing) == []


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_mask_of_the_end_of_an_episode_which_nobody_acts_on_may_allow_nothing(cut: bool, at_once: bool) -> None:
    made = [partial(Corridor, cut=cut)] * 2
    vector = gymnasium.vector.SyncVectorEnv(made) if at_once else None
    assert heard(player(*(make() for make in made), vector=vector), segments=6) == []


def test_where_the_spec_refuses_what_an_environment_may_not_give_such_a_mask_is_a_failure() -> None:
    playing = player(Corridor(), Corridor((3, 1)), bounds="refuse")
    with pytest.raises(PlayError) as error:
        heard(playing)
    assert TOLD in str(error.value)
    failure = error.value.failure
    assert (failure.env, failure.doing, failure.cause, failure.episode, failure.step) == (7, "step", "answer", 3, 1)


def test_of_an_action_of_several_values_the_one_is_named_for_which_nothing_is_allowed() -> None:
    envs = Corridor((1, 3), flags=5), Corridor(flags=5)
    (told,) = heard(player(*envs, seen=PAIRS, action=MultiDiscrete((2, 3))))
    assert "environment 6 (number 0 of shard 3) gave obs.action_mask that allows no value of action[1]; " in told
    assert "episode 1, step 3" in told


class Sometimes(Unequal):
    """Agent 2 may do nothing after the first step."""

    def step(self, actions: dict[str, Any]) -> Any:
        return super().step(actions | {"agent_2": 1} if "agent_2" in actions else actions)

    def _seen(self, agent: str) -> Any:
        seen = super()._seen(agent)
        if agent == "agent_2" and self.step_count == 1:
            seen["action_mask"] = np.zeros(3, np.int8)
        return seen


def sometimes() -> Sometimes:
    return Sometimes()


@pytest.mark.parametrize(("name", "count"), [("unequal", 0), ("sometimes", 1)])
def test_a_mask_of_one_group_of_agents_says_nothing_about_the_others(name: str, count: int) -> None:
    module = "tests.unit.test_groups" if name == "unequal" else "tests.unit.test_empty_masks"
    spec = spec_with(env={"id": f"{module}:{name}"})
    seen, action = check_vector(spec)
    policy = make_policy(spec.policy, seen, action)
    layout = make_layout(seen, action, steps=7, outputs=policy.outputs, state=policy.state)
    told = heard(VectorPlayer(plan_shards(spec)[0], spec, policy, layout))
    assert len(told) == count
    for line in told:
        assert "agent 2 of environment 0" in line and "gave obs.solo.action_mask that allows no value of" in line
