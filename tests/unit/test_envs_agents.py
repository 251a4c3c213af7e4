"""Several agents in one environment: a lane each, no transition of an agent that is out, none across episodes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heddle.consumers.learners.base import TrainBatch
from heddle.errors import EnvError, SpecError
from heddle.producers.envs_agents import AgentLanes
from heddle.producers.evaluate import evaluate
from heddle.producers.vector_check import check_vector
from heddle.producers.vector_player import VectorPlayer
from heddle.segment_checks import first_problem
from heddle.shard import plan_shards
from heddle.spaces import Box, Discrete
from heddle.spec import load_spec
from tests.agents_kit import Countdown
from tests.unit.fake_envs import Drawn, layout_for, plan_of, spec_of

AGENTS = 3
SEEN = Box((3,), "float32", 0.0, 1e6)


def spec_with(**env: Any) -> Any:
    given = {"id": "tests.agents_kit:countdown", "num_envs": 2, "agents": AGENTS, **env}
    return spec_of(env=given, rollout={"steps": 7}, trainer={"minibatch": 1})


def player_of(games: int, *, limit: int = 100, steps: int = 7) -> VectorPlayer:
    policy, spec = Drawn(4), spec_with(num_envs=games)
    layout = layout_for(policy, steps=steps, observation=SEEN, action=Discrete(4), info_keys=["alive"])
    lanes = AgentLanes([Countdown(AGENTS, limit) for _ in range(games)], name="x")
    return VectorPlayer(replace(plan_of(games), agents=AGENTS), spec, policy, layout, vector=lanes)


def played(player: VectorPlayer, games: int, *, segments: int) -> dict[tuple[int, int], dict[str, Any]]:
    """(game, agent) to its columns, its segments joined, and its true last observations by step."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for _ in range(segments):
        batch = player.play(1)
        assert first_problem(batch) is None
        arrays = batch.arrays
        for row in range(batch.rows):
            own = found.setdefault((int(arrays["env"][row]), int(arrays["agent"][row])), {"finals": {}, "n": 0})
            length = int(arrays["length"][row])
            for name in ("obs", "action", "reward", "terminated", "truncated", "episode_return", "info.alive"):
                own.setdefault(name, []).append(arrays[name][row, :length].copy())
            own.setdefault("last", []).append(arrays["obs"][row, length].copy())
            for place in np.flatnonzero(arrays["final_row"] == row):
                own["finals"][own["n"] + int(arrays["final_step"][place])] = arrays["final.obs"][place].copy()
            own["n"] += length
        player.recycle(batch)
    assert found.keys() == {(game, agent) for game in range(games) for agent in range(AGENTS)}
    for own in found.values():
        own |= {name: np.concatenate(own[name]) for name in own.keys() - {"finals", "n", "last"}}
    return found


@pytest.mark.parametrize("steps", [1, 3, 7, 32])
def test_each_agent_has_its_own_stream_and_waits_while_others_go_on(steps: int) -> None:
    for (_, agent), own in played(player_of(2, steps=steps), 2, segments=60 // steps + 8).items():
        # an episode of agent i has 3 + i steps, seen as (episode, step, agent)
        lasts, n = 3 + agent, own["n"]
        assert n >= 2 * lasts
        expected = np.array([(1 + t // lasts, t % lasts, agent) for t in range(n)], np.float32)
        np.testing.assert_array_equal(own["obs"], expected)
        np.testing.assert_allclose(own["reward"], own["action"] + 0.1 * agent, rtol=1e-6)
        np.testing.assert_array_equal(own["terminated"], np.arange(n) % lasts == lasts - 1)
        assert not own["truncated"].any() and not own["finals"]
        for end in np.flatnonzero(own["terminated"]):
            assert own["episode_return"][end] == pytest.approx(own["reward"][end - lasts + 1 : end + 1].sum(), rel=1e-6)


def test_who_is_cut_off_leaves_its_true_last_observation_and_who_is_out_before_does_not() -> None:
    for (_, agent), own in played(player_of(2, limit=4), 2, segments=12).items():
        lasts = min(4, 3 + agent)
        cut = np.flatnonzero(own["truncated"] & ~own["terminated"])
        assert len(cut) == (0 if agent < 2 else len(np.flatnonzero(np.arange(own["n"]) % lasts == lasts - 1)))
        assert sorted(own["finals"]) == cut.tolist()
        for step, final in own["finals"].items():
            assert final.tolist() == [1 + step // lasts, 4, agent]


def test_an_evaluation_plays_the_episodes_of_every_agent() -> None:
    result = evaluate(Drawn(4), spec_with(), episodes=6, seed=3, num_envs=2)
    assert sorted(result.lengths.tolist()) == [3, 3, 4, 4, 5, 5]


def test_all_numbers_of_a_spec_count_agents() -> None:
    spec = load_spec(
        {
            "experiment": {"name": "x"},
            "env": {"id": "tests.agents_kit:countdown", "num_envs": 8, "agents": AGENTS},
            "rollout": {"steps": 32, "sync": True},
            "budget": {"env_steps": 1000},
        }
    ).spec
    assert spec.trainer.batch_steps == 8 * AGENTS * 32
    assert all(plan.lanes == plan.num_envs * AGENTS for plan in plan_shards(spec))


def test_rows_of_two_agents_of_one_environment_are_told_apart_by_a_learner() -> None:
    import torch

    from heddle.consumers.assemble import Assembler

    player = player_of(2)
    batch: TrainBatch = Assembler(player.layout, device=torch.device("cpu")).assemble([player.play(1)], [0])
    assert len(set(batch.env.tolist())) == 2 * AGENTS and (batch.env & 0xFFFFFFFF).max() == 1


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"agents": 2}, "has 3 agents: agent_0, agent_1, agent_2"),
        ({"id": "CartPole-v1"}, "is no function that makes an environment of several agents"),
        ({"id": "tests.unit.test_envs_agents:uneven"}, "has agents with different action_spaces"),
        ({"id": "tests.unit.test_envs_agents:nothing"}, "without possible_agents"),
        ({"id": "tests.unit.test_envs_agents:ghost"}, "stays in `agents` although it is terminated or truncated"),
        ({"id": "tests.unit.test_envs_agents:late"}, "reset began without any agent"),
        ({"id": "tests.unit.test_envs_agents:deserter"}, "left `agents` without being terminated or truncated"),
    ],
)
def test_what_cannot_be_played_by_several_agents_is_refused_with_the_reason(env: dict[str, Any], reason: str) -> None:
    with pytest.raises(EnvError, match=reason):
        check_vector(spec_with(**env))


@pytest.mark.parametrize(
    ("env", "key"),
    [
        ({"variants": [{"name": "a"}, {"name": "b"}]}, "env.variants"),
        ({"vector": True}, "env.vector"),
        ({"isolation": "process"}, "env.isolation"),
        ({"wrappers": ["X"]}, "env.wrappers"),
    ],
)
def test_keys_that_do_not_go_with_agents_are_named(env: dict[str, Any], key: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_with(**env)
    assert [problem.key for problem in caught.value.problems] == [key]


def test_agents_that_take_turns_only_on_paper_are_played_at_once_as_the_parallel_ones_are() -> None:
    from pettingzoo.utils.conversions import parallel_to_aec_wrapper

    def player(games: list[Any]) -> VectorPlayer:
        policy, spec = Drawn(4), spec_with(num_envs=2)
        layout = layout_for(policy, steps=7, observation=SEEN, action=Discrete(4), info_keys=["alive"])
        lanes = AgentLanes(games, name="x")
        return VectorPlayer(replace(plan_of(2), agents=AGENTS), spec, policy, layout, vector=lanes)

    paper = played(player([parallel_to_aec_wrapper(Countdown()) for _ in range(2)]), 2, segments=8)
    for lane, own in played(player_of(2), 2, segments=8).items():
        for name in ("obs", "action", "reward", "terminated", "truncated", "info.alive"):
            np.testing.assert_array_equal(paper[lane][name], own[name])


def tictactoe() -> Any:
    from pettingzoo.classic import tictactoe_v3

    return tictactoe_v3.env()


def tictactoe_at_once() -> Any:
    from pettingzoo.utils.conversions import turn_based_aec_to_parallel

    return turn_based_aec_to_parallel(tictactoe())


def test_agents_that_have_to_take_turns_are_refused_with_the_wrapper_that_helps() -> None:
    name = "tests.unit.test_envs_agents:tictactoe"
    with pytest.raises(EnvError, match="takes turns .*turn_based_aec_to_parallel"):
        check_vector(spec_with(id=name, agents=2))
    observation, action = check_vector(spec_with(id=f"{name}_at_once", agents=2))
    assert action == Discrete(9) and "action_mask" in str(observation)


class _Uneven(Countdown):
    def action_space(self, agent: str) -> Any:
        return super().action_space(agent) if agent == "agent_0" else type(super().action_space(agent))(5)


class _Deserter(Countdown):
    def step(self, actions: dict[str, Any]) -> Any:
        answer = super().step(actions)
        self.agents = self.agents[1:]
        return answer


class _Ghost(Countdown):
    def step(self, actions: dict[str, Any]) -> Any:
        playing = list(self.agents)
        answer = super().step(actions)
        self.agents = playing
        return answer


class _Late(Countdown):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        answer = super().reset(seed, options)
        self.agents = []
        return answer


def ghost() -> Any:
    return _Ghost()


def late() -> Any:
    return _Late()


def uneven() -> Any:
    return _Uneven()


def nothing() -> Any:
    return object()


def deserter() -> Any:
    return _Deserter()


class _Absent(Countdown):
    """Agent 0 takes part in no game but every `every`-th."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        seen, infos = super().reset(seed, options)
        if self.episode % self.every:
            self.agents.remove("agent_0")
            del seen["agent_0"]
        return seen, infos


def absent() -> Any:
    return _Absent(10**9)


def seldom() -> Any:
    return _Absent(3)


@pytest.mark.parametrize(
    ("name", "lengths"), [("absent", [4, 5, 4, 5, 4, 5, 4, 5]), ("seldom", [4, 5, 4, 5, 3, 4, 5, 4, 5])]
)
def test_an_evaluation_does_not_wait_for_an_agent_that_its_games_go_on_without(name: str, lengths: list[int]) -> None:
    result = evaluate(Drawn(4), spec_with(id=f"tests.unit.test_envs_agents:{name}"), episodes=12, seed=3, num_envs=1)
    assert sorted(result.lengths.tolist()) == sorted(lengths)
    assert (result.agents == 0).sum() == (name == "seldom")


def test_its_last_batch_says_so_and_has_steps_also_where_only_an_absent_agent_is_still_wanted() -> None:
    # Given a game without agent 0, of which one episode more is wanted than of the others
    policy, spec = Drawn(4), spec_with(num_envs=1)
    layout = layout_for(policy, steps=2, observation=SEEN, action=Discrete(4))
    lanes = AgentLanes([_Absent(10**9)], name="x")
    player = VectorPlayer(replace(plan_of(1), agents=AGENTS), spec, policy, layout, vector=lanes)
    batches = list(player.play_episodes(1, AGENTS + 1))
    assert [last for _, last in batches] == [False] * (len(batches) - 1) + [True]
    assert batches[-1][0].rows > 0
    # and where it alone is wanted there is nothing to evaluate
    with pytest.raises(EnvError, match="took no part in their games"):
        list(player.play_episodes(1, 1))
