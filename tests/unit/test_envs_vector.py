"""Vector environments: made by id, factory or EnvPool, seeded, counted at the innermost, refused with a reason."""

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from heddle.errors import EnvError, NotSnapshottable, SpecError
from heddle.producers.envs import make_env
from heddle.producers.evaluate import evaluate
from heddle.producers.snapshot_check import try_snapshot
from heddle.producers.vector_check import check_vector
from heddle.producers.vector_player import VectorPlayer
from heddle.spaces import Box, Discrete
from tests.unit.fake_envs import Drawn, layout_for, plan_of, spec_of

HERE = "tests.unit.test_envs_vector"


class Counting(VectorEnv[Any, Any, Any]):
    """Shows [environment, step]; episodes last 3 steps and are cut off; resets itself in the next step.

    Args:
        wrong: what it does wrong.
        mode: what it says of how it resets.
    """

    def __init__(self, num_envs: int = 2, *, wrong: str = "", mode: Any = AutoresetMode.NEXT_STEP) -> None:
        self.num_envs, self.wrong = num_envs, wrong
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = spaces.Discrete(3)
        self.steps = np.zeros(num_envs)
        self.calls = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if self.wrong == "reset":
            raise RuntimeError("no simulator")
        self.steps[:] = 0
        return self._show(), {}

    def step(self, actions: Any) -> Any:
        self.calls += 1
        if self.wrong == "raise" and self.calls > 2:
            raise RuntimeError("the arm fell off")
        self.steps = np.where(self.steps == 3, 0, self.steps + 1)
        shown, rewards, cut = self._show(), np.ones(self.num_envs), self.steps == 3
        changed: dict[str, Any] = {
            "nan": lambda: shown.__setitem__((1, 0), np.nan if self.calls == 21 else 0),
            "nan at once": lambda: shown.__setitem__((1, 0), np.nan),
        }
        changed.get(self.wrong, lambda: None)()
        answer: dict[str, Any] = {
            "shape": (shown[:, :1], rewards, cut & False, cut, {}),
            "kind": (shown.astype(complex), rewards, cut & False, cut, {}),
            "reward": (shown, rewards[:1], cut & False, cut, {}),
            "reward text": (shown, np.array(["1"] * self.num_envs), cut & False, cut, {}),
            "reward texts": (shown, np.array(["1"] * self.num_envs, object), cut & False, cut, {}),
            "reward nan": (shown, rewards * np.nan, cut & False, cut, {}),
            "flag": (shown, rewards, cut.astype(int), cut, {}),
            "four": (shown, rewards, cut, cut),
            "info": (shown, rewards, cut & False, cut, []),
            "info key": (shown, rewards, cut & False, cut, {"fuel": np.array(["x"] * self.num_envs)}),
            "chance": (shown, rewards * np.random.default_rng().random(), cut & False, cut, {}),
        }
        return answer.get(self.wrong, (shown, rewards, cut & False, cut, {}))

    def _show(self) -> Any:
        return np.stack([np.arange(self.num_envs), self.steps], axis=1).astype(np.float32)


class Speaking(Counting):
    """Says what its state is."""

    def get_state(self) -> Any:
        return {"steps": self.steps}

    def set_state(self, state: Any) -> None:
        self.steps = state["steps"]


def fixed() -> Any:
    return Counting(5)


def single() -> Any:
    return gymnasium.make("CartPole-v1")


def cut_same_step(num_envs: int, with_final: bool) -> Any:
    """Resets in the same step, and may forget to say where the episode ended."""
    made = Counting(num_envs, mode=AutoresetMode.SAME_STEP)
    step = made.step

    def both(actions: Any) -> Any:
        shown, rewards, ended, cut, info = step(actions)
        if with_final and cut.any():
            info = {"final_obs": shown.copy(), "_final_obs": cut}
        return shown, rewards, ended, cut, info

    made.step = both  # type: ignore[method-assign]
    return made


def spec_for(id: str, *, num_envs: int = 2, **env: Any) -> Any:
    return spec_of(env={"id": id, "vector": True, "num_envs": num_envs, "envs_per_shard": num_envs, **env})


def player_for(
    id: str, *, n: int = 2, steps: int = 8, observation: Any = None, actions: int = 3, policy: Any = None, **env: Any
) -> VectorPlayer:
    chooser = policy or Drawn(actions)
    observation = observation or Box((2,), "float32")
    spec = spec_of(env={"id": id, "vector": True, "num_envs": n, "envs_per_shard": n, **env}, rollout={"steps": steps})
    layout = layout_for(chooser, steps=steps, observation=observation, action=Discrete(actions))
    return VectorPlayer(plan_of(n, first_env=6, index=1), spec, chooser, layout)


def test_a_registered_vector_environment_is_made_for_a_shard_and_checked() -> None:
    observation, action = check_vector(spec_for("CartPole-v1"))
    assert (observation.shape, observation.dtype, action) == ((4,), "float32", Discrete(2))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("id", "kwargs", "reason", "hint"),
    [
        ("Pendulum-v1", {}, "has no vector environment of its own", "leave vector out"),
        ("CartPol-v1", {}, "there is no such environment", "did you mean CartPole-v1"),
        (f"{HERE}:fixed", {}, "holds 5 environments where a shard has 2", "num_envs"),
        (f"{HERE}:single", {}, "is a OrderEnforcing without|is a TimeLimit without", "leave vector out"),
        (
            f"{HERE}:Counting",
            {"mode": None},
            "does not say what it does when an episode ends",
            "AutoresetMode.NEXT_STEP",
        ),
        (f"{HERE}:Counting", {"wrong": "reset"}, "reset raised RuntimeError: no simulator at tests/unit", ""),
        (f"{HERE}:Counting", {"wrong": "raise"}, "step 3 raised RuntimeError: the arm fell off at tests/unit", ""),
        (f"{HERE}:Counting", {"wrong": "shape"}, r"step 1, environment 0: obs has shape \(1,\), its space \(2,\)", ""),
        (f"{HERE}:Counting", {"wrong": "kind"}, "step 1, environment 0: obs has dtype complex", ""),
        (f"{HERE}:Counting", {"wrong": "nan at once"}, "step 1, environment 1: obs is not finite", ""),
        (f"{HERE}:Counting", {"wrong": "reward"}, r"rewards of shape \(1,\), expected \(2,\)", ""),
        (f"{HERE}:Counting", {"wrong": "reward text"}, "rewards array.*'1', '1'.*, expected 2 numbers", ""),
        (f"{HERE}:Counting", {"wrong": "reward texts"}, "rewards array.*'1', '1'.*, expected 2 numbers", ""),
        (f"{HERE}:Counting", {"wrong": "reward nan"}, "step 1 returned the rewards .nan, nan.", ""),
        (f"{HERE}:Counting", {"wrong": "flag"}, "step returned terminated = array.*, expected 2 bools", ""),
        (f"{HERE}:Counting", {"wrong": "four"}, "step returned a tuple of 4", ""),
        (f"{HERE}:Counting", {"wrong": "info"}, r"step returned the info \[\], expected a dict", ""),
        (f"{HERE}:Counting", {"wrong": "info key"}, "info.'fuel'. is x, expected one number", ""),
        (f"{HERE}:Counting", {"wrong": "chance"}, "is not deterministic: step 1 differs.*deterministic = false", ""),
        (f"{HERE}:cut_same_step", {"with_final": False}, "without its last observation: its info has no final_obs", ""),
    ],
)
def test_what_cannot_be_carried_is_refused_with_the_reason(id: str, kwargs: Any, reason: str, hint: str) -> None:
    spec = spec_of(
        env={"id": id, "vector": True, "num_envs": 2, "envs_per_shard": 2, "kwargs": kwargs},
        rollout={"info_keys": ["fuel"]},
    )
    with pytest.raises(EnvError) as refused:
        check_vector(spec)
    (problem,) = refused.value.problems
    assert re.search(reason, problem.reason), problem.reason
    assert hint in problem.hint
    assert "\n" not in str(refused.value)


def test_a_vector_environment_where_a_single_one_is_expected_is_told_how_to_say_so() -> None:
    with pytest.raises(EnvError, match="add vector = true"):
        make_env(spec_of(env={"id": f"{HERE}:fixed"}).env)


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({"id": "envpool:CartPole-v1"}, "EnvPool makes vector environments.*add vector = true"),
        ({"vector": True, "isolation": "process"}, "has no meaning with vector = true"),
    ],
)
def test_what_cannot_go_together_is_found_in_the_spec(env: Any, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        spec_of(env=env)


def test_factories_learn_how_many_and_which_environments_the_shard_has() -> None:
    player = player_for(f"{HERE}:told")
    assert player._vector.told[:2] == (6, 2)
    assert player._vector.told[2] > 0


def told(env_index: int, num_envs: int, seed: int) -> Any:
    made: Any = Counting(num_envs)
    made.told = (env_index, num_envs, seed)
    return made


def test_a_value_that_nobody_can_learn_from_is_named_with_shard_environment_and_step() -> None:
    player = player_for(f"{HERE}:Counting", kwargs={"wrong": "nan"})
    with pytest.raises(EnvError) as failed:
        for _ in range(4):
            player.play(1)
    text = str(failed.value)
    assert re.search(r"environment 7 \(number 1 of shard 1\) gave obs = .*nan.*, which is not a finite number", text)
    assert re.search(r"seed \d+, episode 6, step 1, last actions \[\d\]", text), text


def test_what_the_whole_vector_raises_names_the_shard_the_call_and_the_error() -> None:
    player = player_for(f"{HERE}:Counting", kwargs={"wrong": "raise"})
    with pytest.raises(
        EnvError, match="environments 6 to 7, which are shard 1, stepped as one, failed in step, in call 3"
    ):
        player.play(1)


def test_it_cannot_be_snapshotted_unless_it_says_its_state() -> None:
    spec = spec_for(f"{HERE}:Counting")
    assert "give it get_state and set_state" in try_snapshot(spec, Box((2,), "float32"), Discrete(3)).reason
    player = player_for(f"{HERE}:Counting")
    player.play(1)
    with pytest.raises(NotSnapshottable, match="give it get_state and set_state"):
        player.standing.pack()
    assert try_snapshot(spec_for(f"{HERE}:Speaking"), Box((2,), "float32"), Discrete(3)).size > 0


@pytest.mark.parametrize("steps", [3, 8])
def test_a_snapshot_continues_exactly_there_even_between_an_ending_and_its_reset(steps: int) -> None:
    one, other = (player_for(f"{HERE}:Speaking", steps=steps) for _ in range(2))
    one.play(1)
    other.resume(one.standing.pack())
    for _ in range(3):
        expected, found = one.play(1).arrays, other.play(1).arrays
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


class Halved(gymnasium.vector.VectorWrapper):
    """Changes rewards, as clipping does."""

    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = self.env.step(actions)
        return observations, rewards / 2, *rest


def test_returns_come_from_beneath_the_wrappers_that_change_rewards() -> None:
    player = player_for(f"{HERE}:Counting", steps=12, wrappers=[f"{HERE}:Halved"])
    arrays = player.play(1).arrays
    over = arrays["episode_length"] > 0
    assert arrays["episode_length"][over].tolist() == [3.0] * 6
    assert arrays["episode_return"][over].tolist() == [3.0] * 6
    assert set(arrays["reward"][:, :9].ravel().tolist()) == {0.5}


def test_wrappers_that_leave_rewards_alone_need_no_counter() -> None:
    player = player_for(f"{HERE}:Counting", wrappers=["RecordEpisodeStatistics"])
    assert player._counter is None


def test_the_evaluation_of_one_process_plays_them_too() -> None:
    found = evaluate(Drawn(3), spec_for(f"{HERE}:Counting"), episodes=5, seed=1, num_envs=2)
    assert found.returns.tolist() == [3.0] * 5
    assert found.lengths.tolist() == [3] * 5


def test_envpool_is_an_id_with_a_prefix() -> None:
    pytest.importorskip("envpool")
    observation, action = check_vector(spec_for("envpool:CartPole-v1"))
    assert (observation.shape, action) == ((4,), Discrete(2))  # type: ignore[union-attr]
    with pytest.raises(EnvError, match="there is no such environment in EnvPool.*did you mean CartPole-v1"):
        check_vector(spec_for("envpool:CartPol-v1"))


def test_two_owners_of_an_envpool_shard_play_the_same_episodes() -> None:
    pytest.importorskip("envpool")
    space = Box((4,), "float32")
    one, other = (player_for("envpool:CartPole-v1", n=3, steps=64, observation=space, actions=2) for _ in range(2))
    for _ in range(3):
        expected, found = one.play(1).arrays, other.play(1).arrays
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    assert expected["episode_length"].any()


def test_the_game_is_counted_beneath_envpool_s_own_clipping_and_lives() -> None:
    pytest.importorskip("envpool")
    observation = Box((4, 84, 84), "uint8", 0, 255)
    kwargs = {"reward_clip": True, "episodic_life": True, "max_episode_steps": 300}
    player = player_for("envpool:Breakout-v5", n=1, steps=320, observation=observation, actions=4, kwargs=kwargs)
    arrays = player.play(1).arrays
    lives, games = int(arrays["terminated"].sum()), np.flatnonzero(arrays["episode_length"][0])
    assert lives > 1
    assert len(games) < lives + int(arrays["truncated"].sum())


def test_a_gymnasium_id_can_be_made_of_single_ones_in_any_mode() -> None:
    kwargs = {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": "Disabled"}}
    player = player_for("CartPole-v1", observation=Box((4,), "float32"), actions=2, kwargs=kwargs)
    assert isinstance(player._vector, SyncVectorEnv)
    assert player.play(1).num_steps == 16
