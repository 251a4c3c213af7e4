"""Environments of one experiment that do not declare the same spaces: named before a step of theirs is trained."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from heddle.errors import EnvError
from heddle.producers.envs import make_envs
from heddle.producers.player import Player
from heddle.producers.vector_player import VectorPlayer
from heddle.spaces import Box
from tests.unit.fake_envs import Drawn, Scripted, layout_for, plan_of, spec_of

SEEN = Box((2,), "float32", -1.0, 1.0)


class Declaring(Scripted):
    """Environment 1 declares what `odd` says."""

    def __init__(self, env_index: int, odd: str = "", **_: Any) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        if env_index == 1 and odd == "observation":
            self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        if env_index == 1 and odd == "action":
            self.action_space = spaces.Discrete(4)
        if env_index == 1 and odd == "bounds":
            self.observation_space = spaces.Box(-2, 2, (2,), np.float32)


def player_of(odd: str, **env: Any) -> Player:
    given = {"id": "tests.unit.test_differing_spaces:Declaring", "num_envs": 2, "kwargs": {"odd": odd}, **env}
    policy = Drawn()
    return Player(plan_of(2), spec_of(env=given), policy, layout_for(policy, steps=4, observation=SEEN))


@pytest.mark.parametrize("isolation", ["inline", "process"])
@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (
            "observation",
            r"environment 1 has the observation space Box\(shape=\(3,\).*where the others have Box\(shape=\(2",
        ),
        ("action", r"environment 1 has the action space Discrete\(n=4.*where the others have Discrete\(n=3"),
    ],
)
def test_an_environment_with_other_spaces_than_the_others_is_named_when_it_is_made(
    odd: str, reason: str, isolation: str
) -> None:
    with pytest.raises(EnvError, match=reason):
        player_of(odd, isolation=isolation)


def test_other_bounds_of_an_observation_are_no_other_space() -> None:
    player = player_of("bounds")
    player.play(1)
    player.close()


def test_an_evaluation_of_one_process_asks_nothing_of_environments_that_it_describes_itself() -> None:
    assert len(make_envs(plan_of(2), spec_of(env={"num_envs": 2}), 1)) == 2


def test_a_vector_environment_with_other_spaces_is_named_with_its_shard() -> None:
    spec = spec_of(env={"id": "CartPole-v1", "num_envs": 2, "vector": True})
    policy = Drawn()
    layout = layout_for(policy, steps=4, observation=SEEN)
    with pytest.raises(
        EnvError, match=r"the vector environment of shard 0 has the observation space Box\(shape=\(4,\)"
    ):
        VectorPlayer(plan_of(2), spec, policy, layout)
