"""Environments: made by id or factory, described, counted at the innermost, and refused with a reason of one line."""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from heddle.errors import EnvError
from heddle.producers import envs_homes
from heddle.producers.envs import EpisodeCounter, check_env, counter_of, make_env, make_envs
from heddle.producers.envs_spaces import describe, describe_action
from heddle.shard import ShardPlan
from heddle.spaces import Box, DictSpace, Discrete, MultiBinary, MultiDiscrete, TupleSpace
from heddle.spec.objects import describe_error, import_object, is_object_name
from tests.unit.fake_envs import Scripted, spec_of

HERE = "tests.unit.test_envs"


class Proper(gymnasium.Env[Any, Any]):
    """Keeps the contract; what it was made with is on it."""

    observation_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def __init__(self, **made_with: Any) -> None:
        self.made_with = made_with

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        over = bool(self.np_random.random() < 0.3)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), 1.0, over, False, {}


def all_named(color: str, env_index: int, num_envs: int, seed: int) -> Proper:
    return Proper(color=color, env_index=env_index, num_envs=num_envs, seed=seed)


def only_kwargs(**kwargs: Any) -> Proper:
    return Proper(**kwargs)


def raising() -> Proper:
    raise RuntimeError("no licence\nfound")


def nothing() -> None:
    return None


def not_an_env() -> object:
    return object()


def vector() -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")


def self_resetting() -> Any:
    return gymnasium.wrappers.Autoreset(gymnasium.make("CartPole-v1"))


NOT_CALLABLE = 3


def made(id: str, **env: Any) -> Any:
    return make_env(spec_of(env={"id": id, **env}).env, index=2, num_envs=4, seed=9)


def test_a_gymnasium_id_is_made_with_its_kwargs() -> None:
    env = made("CartPole-v1", kwargs={"max_episode_steps": 7, "sutton_barto_reward": True})
    assert env.spec.max_episode_steps == 7
    assert env.unwrapped._sutton_barto_reward


def test_a_factory_gets_its_kwargs_and_what_it_names_of_index_number_and_seed() -> None:
    assert made(f"{HERE}:all_named", kwargs={"color": "red"}).made_with == {
        "color": "red",
        "env_index": 2,
        "num_envs": 4,
        "seed": 9,
    }
    assert made(f"{HERE}:all_named", kwargs={"color": "red", "seed": 1}).made_with["seed"] == 1
    assert made(f"{HERE}:only_kwargs", kwargs={"a": 1}).made_with == {"a": 1}


@pytest.mark.parametrize(
    ("id", "reason", "hint"),
    [
        ("CartPol-v1", "there is no such environment", "did you mean CartPole-v1"),
        ("CartPole-v77", "there is no such environment: .*v77", "CartPole-v1"),
        ("not_there_at_all:Pong-v5", "there is no module 'not_there_at_all'", "installed"),
        ("not_there_at_all:factory", "there is no module 'not_there_at_all'", "installed"),
        ("tests.unit.not_there:factory", "there is no module 'tests.unit.not_there'", "installed"),
        (f"{HERE}:factori", "module tests.unit.test_envs has no 'factori'", ""),
        (f"{HERE}:raisin", "has no 'raisin'", "did you mean raising"),
        (f"{HERE}:raising", r"the factory raised RuntimeError: no licence found at tests/unit/test_envs.py:\d+", ""),
        (f"{HERE}:all_named", "the factory raised TypeError: .*missing 1 required positional argument: 'color'", ""),
        (f"{HERE}:nothing", "the factory returned nothing", "return"),
        (f"{HERE}:not_an_env", "is a object without reset, step, observation_space, action_space", ""),
        (f"{HERE}:vector", "is a vector environment", ""),
        (f"{HERE}:self_resetting", "resets itself", "remove Autoreset"),
        (f"{HERE}:NOT_CALLABLE", "is a int, not a function or class", ""),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused_with_the_reason(id: str, reason: str, hint: str) -> None:
    with pytest.raises(EnvError) as refused:
        made(id)
    (problem,) = refused.value.problems
    assert re.search(reason, problem.reason), problem.reason
    assert hint in problem.hint
    assert (problem.key, problem.value) == ("env.id", id)
    assert "\n" not in str(refused.value)


def test_a_module_that_lies_in_a_folder_below_is_found_there_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "lies_below.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvError) as refused:
        made("lies_below:Env")
    (problem,) = refused.value.problems
    assert problem.hint == "mine/lies_below.py is there: run the command in mine, or set PYTHONPATH=mine"


@pytest.mark.parametrize(
    ("wrapper", "reason", "hint"),
    [
        ("ClipRewrd", "is neither a wrapper of gymnasium.wrappers nor", "did you mean ClipReward"),
        ({"id": "TimeLimit", "kwargs": {"max_steps": 3}}, "wrapping raised TypeError: .*max_steps", ""),
        (f"{HERE}:gone", "has no 'gone'", ""),
    ],
)
def test_a_wrapper_that_does_not_fit_is_refused_under_its_own_key(wrapper: Any, reason: str, hint: str) -> None:
    with pytest.raises(EnvError) as refused:
        made("CartPole-v1", wrappers=["RecordEpisodeStatistics", wrapper])
    (problem,) = refused.value.problems
    assert re.search(reason, problem.reason), problem.reason
    assert hint in problem.hint
    assert problem.key == "env.wrappers[1]"


def test_wrappers_go_around_in_order() -> None:
    env = made("CartPole-v1", wrappers=[{"id": "TimeLimit", "kwargs": {"max_episode_steps": 5}}, "FlattenObservation"])
    assert isinstance(env, gymnasium.wrappers.FlattenObservation)
    assert isinstance(env.env, gymnasium.wrappers.TimeLimit)


class LoseALife(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends what it calls an episode after every two steps, and goes on where it was, as Atari's life-loss wrapper."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.steps, self.inner_over, self.word = 0, True, ""

    def reset(self, **kwargs: Any) -> Any:
        raw: Any = self.env
        self.word = raw.anything  # asks the raw environment, through whatever lies between
        if self.inner_over:
            return self.env.reset(**kwargs)
        self.inner_over = False
        return self.last, {}

    def step(self, action: Any) -> Any:
        self.last, reward, self.inner_over, truncated, info = self.env.step(action)
        self.steps += 1
        return self.last, min(1.0, float(reward)), self.inner_over or self.steps % 2 == 0, truncated, info


class Gym(gymnasium.Env[Any, Any]):
    """A scripted environment as Gymnasium knows them: an episode of five steps with rewards 1 to 5."""

    observation_space: Any = Scripted.observation_space
    action_space: Any = Scripted.action_space
    anything = "asked for"

    def __init__(self) -> None:
        self.scripted = Scripted([(5, "terminated")])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.scripted.reset(seed=seed)

    def step(self, action: Any) -> Any:
        return self.scripted.step(action)


def with_lives() -> Any:
    return gymnasium.wrappers.TimeLimit(LoseALife(Gym()), 100)


def finished_after(env: Any, steps: int) -> list[tuple[float, int]]:
    counter, finished = counter_of(env), []
    assert counter is not None
    env.reset(seed=0)
    for _ in range(steps):
        *_, terminated, truncated, _ = env.step(0)
        if terminated or truncated:
            env.reset(seed=0)
        if one := counter.take():
            finished.append(one)
    return finished


def test_a_factory_s_own_life_loss_wrapper_does_not_hide_the_true_episode() -> None:
    env = made(f"{HERE}:with_lives")
    assert [type(layer).__name__ for layer in layers(env)] == [
        "TimeLimit",
        "LoseALife",
        "EpisodeCounter",
    ]
    assert finished_after(env, 12) == [(1 + 2 + 3 + 4 + 5, 5), (101 + 102 + 103 + 104 + 105, 5)]
    assert env.env.word == "asked for"


def test_a_time_limit_further_out_ends_the_counted_episode() -> None:
    clip = {"id": "ClipReward", "kwargs": {"min_reward": 0, "max_reward": 1}}
    env = made(f"{HERE}:Gym", wrappers=[clip, {"id": "TimeLimit", "kwargs": {"max_episode_steps": 3}}])
    assert finished_after(env, 6) == [(1 + 2 + 3, 3), (101 + 102 + 103, 3)]


@pytest.mark.parametrize(
    "wrappers",
    [
        [],
        ["RecordEpisodeStatistics"],
        [{"id": "TimeLimit", "kwargs": {"max_episode_steps": 3}}],
        ["FlattenObservation"],
        [{"id": "DtypeObservation", "kwargs": {"dtype": "float32"}}],
    ],
)
def test_wrappers_that_leave_rewards_and_endings_alone_need_no_counter(wrappers: Any) -> None:
    assert counter_of(made("CartPole-v1", wrappers=wrappers)) is None


def layers(env: Any) -> list[Any]:
    found = []
    while isinstance(env, gymnasium.Wrapper):
        found.append(env)
        env = env.env
    return found


def test_the_counter_says_honestly_that_a_private_name_is_not_its_own() -> None:
    with pytest.raises(AttributeError):
        _ = EpisodeCounter(Proper())._anything


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Discrete(3, start=2), Discrete(3, 2)),
        (spaces.Box(0, 255, (2, 2, 1), np.uint8), Box((2, 2, 1), "uint8", 0, 255)),
        (spaces.Box(-np.inf, np.inf, (), np.float64), Box((), "float64")),
        (
            spaces.Box(np.array([0.0, 1.0]), np.array([2.0, 2.0]), dtype=np.float64),
            Box((2,), "float64", (0.0, 1.0), 2.0),
        ),
        (
            spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Dict({"c": spaces.Box(0, 1, (1,))})}),
            DictSpace({"a": DictSpace({"c": Box((1,), "float32", 0.0, 1.0)}), "b": Discrete(2)}),
        ),
        (
            spaces.MultiDiscrete(np.array([[2, 3]]), dtype="int32", start=np.array([[0, -1]])),
            MultiDiscrete((2, 3), (0, -1), (1, 2), "int32"),
        ),
        (spaces.Tuple((spaces.MultiBinary(2), spaces.Discrete(2))), TupleSpace((MultiBinary((2,)), Discrete(2)))),
        (spaces.Box(0, 2**63 + 1, (1,), np.uint64), Box((1,), "uint64", 0, 2**63 + 1)),
    ],
)
def test_spaces_are_described_in_our_own_words(space: Any, expected: Any) -> None:
    assert describe(space) == expected


class Unprintable(spaces.Space[Any]):
    """A space of somebody's own, without words for itself."""


class Complex(spaces.Box):
    """A Box of a kind that Gymnasium itself does not make."""

    def __init__(self) -> None:
        super().__init__(0, 1, (2,), np.float32)
        self.dtype: Any = np.dtype(np.complex64)


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        (spaces.Tuple(()), "a tuple space needs at least one entry"),
        (spaces.Dict({"a.b": spaces.Discrete(2)}), r"key 'a.b' must be .* without a dot"),
        (spaces.Box(0, 1, (0,)), "has no elements"),
        (Complex(), "dtype 'complex64' is not supported: one of bool, float16"),
        (None, "observation space None is not supported"),
        (Unprintable(), r"observation space of class tests\.unit\.test_envs\.Unprintable is not supported"),
    ],
)
def test_spaces_that_heddle_does_not_carry_are_named(space: Any, reason: str) -> None:
    with pytest.raises(EnvError, match=reason) as refused:
        describe(space)
    assert "wrapper may" in refused.value.problems[0].hint


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        (spaces.Text(3), r"action space Text\(.*\) has action of varying length"),
        (spaces.Dict({"a": spaces.Text(3)}), r"has action.a of varying length"),
    ],
)
def test_action_spaces_that_heddle_does_not_carry_are_named(space: Any, reason: str) -> None:
    with pytest.raises(EnvError, match=reason):
        describe_action(space)


@pytest.mark.parametrize(
    "id", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCarContinuous-v0", "FrozenLake-v1", "CliffWalking-v1"]
)
def test_gymnasium_s_own_environments_pass_the_check(id: str) -> None:
    observation, action = check_env(spec_of(env={"id": id}))
    env = gymnasium.make(id)
    assert observation == describe(env.observation_space)
    assert action == describe_action(env.action_space)


def breaking(how: str) -> Proper:
    """A proper environment with one thing wrong."""
    env = Proper()
    reset, step = env.reset, env.step
    changes: Mapping[str, Callable[[], None]] = {
        "reset alone": lambda: setattr(env, "reset", lambda **kw: reset(**kw)[0]),
        "reset without seed": lambda: setattr(env, "reset", lambda: reset()),
        "reset info": lambda: setattr(env, "reset", lambda **kw: (reset(**kw)[0], None)),
        "reset raises": lambda: setattr(env, "reset", lambda **kw: 1 / 0),
        "step raises": lambda: setattr(env, "step", lambda action: dict[str, int]()["key"]),
        "four": lambda: setattr(env, "step", lambda action: step(action)[:4]),
        "shape": lambda: setattr(env, "observation_space", spaces.Box(-1, 1, (3,), np.float32)),
        "bounds": lambda: setattr(env, "observation_space", spaces.Box(2.0, 3.0, (2,), np.float32)),
        "kind": lambda: setattr(env, "observation_space", spaces.Box(0, 1, (2,), np.uint8)),
        "list": lambda: setattr(env, "step", lambda action: (step(action)[0].tolist(), *step(action)[1:])),
        "nan": lambda: setattr(env, "step", lambda action: (step(action)[0] * np.nan, *step(action)[1:])),
        "reward array": lambda: setattr(env, "step", lambda action: (step(action)[0], np.ones(1), False, False, {})),
        "reward none": lambda: setattr(env, "step", lambda action: (step(action)[0], None, False, False, {})),
        "reward nan": lambda: setattr(env, "step", lambda action: (step(action)[0], np.nan, False, False, {})),
        "flag": lambda: setattr(env, "step", lambda action: (step(action)[0], 1.0, 0, False, {})),
        "info": lambda: setattr(env, "step", lambda action: (step(action)[0], 1.0, False, False, [])),
        "info key": lambda: setattr(env, "step", lambda action: (step(action)[0], 1.0, False, False, {"fuel": "x"})),
        "chance": lambda: setattr(env, "reset", lambda seed: reset()),
        "step chance": lambda: setattr(
            env, "step", lambda a: (step(a)[0], np.random.default_rng().random(), False, False, {})
        ),
        "actions": lambda: setattr(env, "action_space", spaces.Text(3)),
    }
    changes[how]()
    return env


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("reset alone", r"reset returned array\(.*\), expected \(observation, info\)"),
        ("reset without seed", "reset raised TypeError: .*seed"),
        ("reset info", "reset returned the info None, expected a dict"),
        ("reset raises", r"reset raised ZeroDivisionError: division by zero at tests/unit/test_envs.py:\d+"),
        ("step raises", r"step 1 raised KeyError: 'key' at tests/unit/test_envs.py:\d+ for action [01]"),
        ("four", "step returned a tuple of 4, expected"),
        ("shape", r"reset: obs has shape \(2,\), its space \(3,\)"),
        ("bounds", "reset: obs = .* is outside 2.0..3.0"),
        ("kind", "reset: obs has dtype float32, its space uint8"),
        ("list", "step 1: obs is a list, expected a numpy array"),
        ("nan", "step 1: obs is not finite"),
        ("reward array", r"step 1 returned the reward array\(\[1.\]\), expected one finite number"),
        ("reward none", "step 1 returned the reward None"),
        ("reward nan", "step 1 returned the reward nan"),
        ("flag", "step 1 returned terminated = 0, expected a bool"),
        ("info", r"step 1 returned the info \[\], expected a dict"),
        ("info key", r"step 1 gave info\['fuel'\] = 'x', expected one number"),
        ("chance", "is not deterministic: reset differs"),
        ("step chance", "is not deterministic: step 1 differs"),
        ("actions", r"its action space Text\(.*\) has action of varying length"),
    ],
)
def test_a_breach_of_the_contract_is_named(how: str, reason: str) -> None:
    id = f"{HERE}:breaking"
    with pytest.raises(EnvError) as refused:
        check_env(spec_of(env={"id": id, "kwargs": {"how": how}}, rollout={"info_keys": ["fuel"]}))
    (problem,) = refused.value.problems
    assert re.search(reason, problem.reason), problem.reason
    assert (problem.key, problem.value) == ("env.id", id)
    assert "\n" not in str(refused.value)


def test_an_environment_that_need_not_repeat_itself_is_taken_where_the_spec_says_so() -> None:
    env = {"id": f"{HERE}:breaking", "kwargs": {"how": "step chance"}}
    with pytest.raises(EnvError, match=r"say so: deterministic = false in \[env\]"):
        check_env(spec_of(env=env))
    check_env(spec_of(env=env | {"deterministic": False}))


class Sticky(Proper):
    """Repeats its last action at times, even the last one of the episode before, as MinAtar does."""

    last = 0

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        previous, self.last = self.last, int(action)
        return observation, float(previous), *rest


class Endless(Proper):
    """Ends by its own chance, so that two runs see different numbers of episodes."""

    def step(self, action: Any) -> Any:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, bool(np.random.default_rng().random() < 0.5), truncated, info


def test_what_one_episode_leaves_to_the_next_is_no_chance_of_its_own() -> None:
    check_env(spec_of(env={"id": f"{HERE}:Sticky"}))


def test_episodes_that_end_by_chance_are_told_from_those_that_do_not() -> None:
    with pytest.raises(EnvError, match="is not deterministic: step"):
        check_env(spec_of(env={"id": f"{HERE}:Endless"}))


def test_environments_of_other_packages_are_found_by_their_id_alone() -> None:
    pytest.importorskip("minigrid")
    env = made("MiniGrid-Empty-5x5-v0")
    assert env.unwrapped.width == 5


@pytest.mark.parametrize(
    ("id", "module", "hint"),
    [
        ("ALE/Pong-v5", "ale_py", "pip install 'ale-py'"),
        ("MinAtar/Breakout-v1", "minatar", "pip install 'minatar'"),
        ("dm_control/cartpole-balance-v0", "shimmy", "pip install 'shimmy[dm-control]'"),
        ("highway-v0", "highway_env", "pip install 'highway-env'"),
    ],
)
def test_a_missing_package_is_named_with_what_to_install(
    id: str, module: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs_homes._import.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    for name in [name for name in sys.modules if name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(EnvError) as refused:
        made(id)
    (problem,) = refused.value.problems
    assert problem.reason.startswith(f"needs {module}"), problem.reason
    assert problem.hint == hint


def test_when_one_environment_of_a_shard_cannot_be_made_the_others_are_closed() -> None:
    spec = spec_of(env={"id": f"{HERE}:third_fails"})
    with pytest.raises(EnvError, match="the factory raised ValueError: no third"):
        make_envs(ShardPlan(0, "train", 10, 3), spec, 0)
    assert [env.closed for env in OPENED] == [True, True]


OPENED: list[Scripted] = []


def third_fails(env_index: int) -> Any:
    if env_index == 12:
        raise ValueError("no third")
    OPENED.append(Scripted())
    return OPENED[-1]


def test_user_modules_are_found_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_a_user_1.py").write_text("class Thing:\n    part = 3\n")
    (tmp_path / "of_a_user_2.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "of_a_user_3.py").write_text("def broken(:\n")
    (tmp_path / "of_a_user_4.py").write_text("x = 1\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    assert import_object("of_a_user_1:Thing.part") == 3
    for name, reason in {
        "of_a_user_2:x": "importing of_a_user_2 failed: .*'nowhere_to_be_found' at of_a_user_2.py:1",
        "of_a_user_3:x": "importing of_a_user_3 failed: SyntaxError: .* at of_a_user_3.py:1",
        "of_a_user_4:x": "importing of_a_user_4 failed: ZeroDivisionError: division by zero at of_a_user_4.py:2",
        "of_a_user_5:x": "there is no module 'of_a_user_5'",
        "of_a_user_1": "must have the form package.module:Name",
    }.items():
        with pytest.raises(EnvError, match=reason) as refused:
            import_object(name, key="policy.id")
        assert refused.value.problems[0].key == "policy.id"


def test_a_name_that_a_module_lacks_is_held_against_its_own_not_against_what_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_a_user_6.py").write_text("import numpy as np\n\ndef make(): ...\n")
    monkeypatch.chdir(tmp_path)
    for asked, hint in (("mak", "did you mean make?"), ("npe", "")):
        with pytest.raises(EnvError, match=f"module of_a_user_6 has no '{asked}'") as refused:
            import_object(f"of_a_user_6:{asked}")
        assert refused.value.problems[0].hint == hint


@pytest.mark.parametrize(
    ("name", "is_object"),
    [
        ("a.b:C", True),
        ("a:C.d", True),
        ("CartPole-v1", False),
        ("ale_py:ALE/Pong-v5", False),
        ("a:", False),
        ("a:B-v0", False),
    ],
)
def test_an_object_s_name_is_told_from_a_gymnasium_id(name: str, is_object: bool) -> None:
    assert is_object_name(name) is is_object


def test_an_error_without_a_message_or_a_place_is_still_described() -> None:
    assert describe_error(KeyError()) == "KeyError"
    assert describe_error(ValueError("two\nlines")) == "ValueError: two lines"
