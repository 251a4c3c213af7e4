"""Environments of one experiment that do not declare the same spaces: named before a step of theirs is trained."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from heddle.errors import EnvError
from heddle.producers.envs import make_envs
from heddle.producers.envs_agents import AgentLanes
from heddle.producers.player import Player
from heddle.producers.vector_player import VectorPlayer
from heddle.spaces import Box
from tests.agents_kit import Countdown
from tests.unit.fake_envs import Drawn, Scripted, layout_for, plan_of, spec_of
from tests.unit.test_envs_agents import AGENTS

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
    segments = player.play(1)
    assert segments.arrays["length"].tolist() == [4, 4]
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


class Odd(Countdown):
    """`Countdown` whose agent 1 sees or takes something else, or that has an agent more."""

    def __init__(self, odd: str) -> None:
        super().__init__(AGENTS + (odd == "agent"))
        self._odd = odd

    def observation_space(self, agent: str) -> Any:
        plain = super().observation_space(agent)
        width = {"observation": 4, "bounds": 3}.get(self._odd) if agent == "agent_1" else None
        return plain if width is None else spaces.Box(-9, 9, (width,), np.float32)

    def action_space(self, agent: str) -> Any:
        plain = super().action_space(agent)
        return spaces.Discrete(plain.n + 1) if self._odd == "action" and agent == "agent_1" else plain


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (
            "observation",
            r"agent 'agent_1' of environment 8 has the observation space Box\(shape=\(4,.*others have Box\(shape=\(3,",
        ),
        (
            "action",
            r"agent 'agent_1' of environment 8 has the action space Discrete\(n=\d.*the others have Discrete\(n=",
        ),
        (
            "agent",
            r"environment 8 has the agents agent_0, .*agent_3, where the others have agent_0, agent_1, agent_2  ",
        ),
    ],
)
def test_a_game_with_other_agents_or_spaces_than_the_others_of_its_shard_is_named(odd: str, reason: str) -> None:
    with pytest.raises(EnvError, match=reason):
        AgentLanes([Odd(""), Odd(""), Odd(odd)], name="x", first=6)


def test_games_that_differ_in_the_bounds_of_what_they_show_are_played() -> None:
    assert AgentLanes([Odd(""), Odd("bounds")], name="x").num_envs == 2 * AGENTS
