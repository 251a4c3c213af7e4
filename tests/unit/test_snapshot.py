"""Snapshots of one environment: what comes back, and what is refused with a reason."""

import re
import threading
import zlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import (
    FrameStackObservation,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    TimeLimit,
)

from heddle.errors import NotSnapshottable, SnapshotError
from heddle.producers import plain
from heddle.producers.envs import make_env
from heddle.producers.snapshot import restore, restore_all, take, take_all
from heddle.spec import Env
from tests.snapshot_zoo import Clipped, Dice, Easy, Handle, Robot, Walk, layered

Make = Callable[[], Any]


def _play(env: Any, steps: int) -> list[str]:
    seen: list[str] = []
    for step in range(steps):
        observation, reward, terminated, truncated, info = env.step(step % 2)
        info.get("episode", {}).pop("t", None)  # seconds of this machine
        seen.append(repr((observation, reward, terminated, truncated, info)))
        if terminated or truncated:
            seen.append(repr(env.reset()))
    return seen


def _gymnasium(name: str, **kwargs: Any) -> Make:
    return lambda: make_env(Env(id=name, kwargs=kwargs))


@pytest.mark.parametrize(
    "make",
    [
        _gymnasium("CartPole-v1"),
        _gymnasium("FrozenLake-v1"),
        _gymnasium("MountainCar-v0"),
        _gymnasium("Acrobot-v1"),
        _gymnasium("CartPole-v1", max_episode_steps=3),
        Dice,
        layered,
        lambda: TimeLimit(Robot(), 4),
        lambda: Clipped(TimeLimit(Robot(), 4)),
        lambda: RecordEpisodeStatistics(TimeLimit(Walk(), 20)),
        lambda: NormalizeObservation(TimeLimit(Walk(), 20)),
        lambda: NormalizeReward(TimeLimit(Walk(), 20)),
        lambda: FrameStackObservation(RecordEpisodeStatistics(TimeLimit(Walk(), 20)), 3),
        _gymnasium("tests.snapshot_zoo:layered"),
    ],
)
def test_a_restored_environment_goes_on_bit_for_bit_over_resets_that_name_no_seed(make: Make) -> None:
    env, other = make(), make()
    env.reset(seed=7)
    _play(env, 13)
    restore(other, take(env))
    assert _play(env, 60) == _play(other, 60)


def test_what_layers_share_is_shared_again() -> None:
    env, other = Clipped(TimeLimit(Walk(), 50)), Clipped(TimeLimit(Walk(), 50))
    env.reset(seed=1)
    _play(env, 3)
    restore(other, take(env))
    assert other.inner is other.unwrapped
    assert getattr(other.reset_inner, "__self__", None) is other.unwrapped
    assert other.total == env.total != 0.0


def test_environments_of_one_shard_share_again_what_they_shared() -> None:
    def pair() -> list[Any]:
        rng = np.random.default_rng(3)
        made = [Walk(), Walk()]
        for env in made:
            env.np_random = rng
        return made

    envs, others = pair(), pair()
    for env in envs:
        env.reset()
    restore_all(others, take_all(envs))
    turns = [[_play(env, 1) for env in some] for _ in range(5) for some in (envs, others)]
    assert turns[0::2] == turns[1::2]


def test_a_space_that_was_drawn_from_draws_on() -> None:
    env, other = Walk(), Walk()
    env.action_space = gymnasium.spaces.Discrete(1000)
    other.action_space = gymnasium.spaces.Discrete(1000)
    env.reset(seed=1)
    env.action_space.seed(5)
    env.action_space.sample()
    restore(other, take(env))
    assert [env.action_space.sample() for _ in range(5)] == [other.action_space.sample() for _ in range(5)]


def test_a_generator_spawns_the_children_it_would_have_spawned() -> None:
    env, other = Walk(), Walk()
    env.reset(seed=1)
    env.np_random.spawn(2)
    restore(other, take(env))
    assert other.np_random.spawn(1)[0].random() == env.np_random.spawn(1)[0].random()


def test_attributes_that_the_play_removed_are_gone_and_new_ones_are_there() -> None:
    env, other = Walk(), Walk()
    other.left_over = 1  # type: ignore[attr-defined]
    env.reset(seed=1)
    env.found = {"gold": [1, 2]}  # type: ignore[attr-defined]
    restore(other, take(env))
    assert vars(other).keys() == vars(env).keys()


class Slotted(Walk):
    __slots__ = ("deck", "hidden")

    def __init__(self) -> None:
        super().__init__()
        self.deck: list[int] = []


def test_slots_are_kept() -> None:
    env, other = Slotted(), Slotted()
    env.reset(seed=1)
    env.deck = [4, 2]
    restore(other, take(env))
    assert other.deck == [4, 2]


class Tidy(Handle):
    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "handle"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def test_a_class_that_says_what_pickle_should_keep_is_heard() -> None:
    env, other = Tidy(), Tidy()
    env.reset(seed=3)
    _play(env, 5)
    restore(other, take(env))
    assert _play(other, 5) == _play(env, 5)
    assert other.handle is not env.handle


class Reduces(Walk):
    def __reduce__(self) -> Any:
        return Reduces, ()


class InC(threading.local, Walk):
    """Has state that is no attribute."""

    def __init__(self) -> None:
        Walk.__init__(self)


class Secretive(Robot):
    def get_state(self) -> Any:
        raise RuntimeError("the arm\nmoves")


class Moody(Walk):
    def __getstate__(self) -> Any:
        raise ZeroDivisionError("not today")


class Remote(Robot):
    def get_state(self) -> Any:
        raise NotSnapshottable("attribute 'arm' of Arm (lock): cannot pickle")


class Vague(Robot):
    def get_state(self) -> Any:
        return {"handle": self.handle}


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (Handle(), "attribute 'handle' of Handle (lock): cannot pickle"),
        (TimeLimit(Handle(), 5), "attribute 'handle' of Handle (lock): cannot pickle"),
        (Easy(), "attribute 'handle' of Easy (lock): cannot pickle"),
        (Reduces(), "Reduces defines __reduce__"),
        (InC(), "InC keeps state outside Python"),
        (Secretive(), "get_state of Secretive raised RuntimeError: the arm moves"),
        (Moody(), "looking at it raised ZeroDivisionError: not today"),
        (Remote(), "attribute 'arm' of Arm (lock): cannot pickle"),
        (Vague(), "get_state of Vague gave something that is not plain: [0]['handle'] is of type lock"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_part_and_the_reason(env: Any, said: str) -> None:
    env.reset(seed=1)
    with pytest.raises(NotSnapshottable, match=re.escape(said)):
        take(env)


def test_an_environment_within_an_environment_that_pickles_only_its_arguments_is_refused() -> None:
    class Plain(gymnasium.utils.EzPickle):
        pass

    env = Walk()
    env.reset(seed=1)
    env.model = Plain()  # type: ignore[attr-defined]
    with pytest.raises(NotSnapshottable, match="attribute 'model' of Walk .*EzPickle"):
        take(env)


@pytest.mark.parametrize("other", [Dice, lambda: TimeLimit(Walk(), 5), layered, Robot])
def test_a_snapshot_of_another_kind_of_environment_is_refused(other: Make) -> None:
    env = Walk()
    env.reset(seed=1)
    with pytest.raises(SnapshotError, match="is of other environments"):
        restore(other(), take(env))


class Stubborn(Robot):
    def set_state(self, state: Any) -> None:
        raise KeyError("joint")


def test_an_environment_that_cannot_be_put_there_says_why() -> None:
    env = Stubborn()
    env.reset(seed=1)
    with pytest.raises(SnapshotError, match="cannot be restored: KeyError: 'joint'"):
        restore(Stubborn(), take(env))


class Moved(Robot):
    def set_state(self, state: Any) -> None:
        raise SnapshotError("is of another arm")


def test_what_an_environment_elsewhere_says_of_its_state_is_passed_on_as_it_is() -> None:
    env = Moved()
    env.reset(seed=1)
    with pytest.raises(SnapshotError, match="^is of another arm$"):
        restore(Moved(), take(env))


def test_damaged_bytes_are_refused_before_anything_is_unpickled() -> None:
    env = layered()
    env.reset(seed=1)
    whole, rng = take(env), np.random.default_rng(4)
    for _ in range(400):
        damaged = bytearray(whole)
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        with pytest.raises(SnapshotError):
            restore(layered(), bytes(damaged))
        with pytest.raises(SnapshotError):
            restore(layered(), whole[: rng.integers(len(whole))])


# ---- plain values


PLAIN: list[Any] = [
    None,
    True,
    -(2**200),
    1.5,
    float("nan"),
    float("-inf"),
    "ü",
    b"\x00\xff",
    [],
    (1, (2,), []),
    {"a": {1: 2}, (1, "b"): None, "": -0.0},
    np.float32(1.25),
    np.datetime64("2020-01-01").view("int64"),
    np.arange(6, dtype=">i2").reshape(2, 3),
    np.zeros((0, 3)),
    np.array(["ab", "c"]),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.random.default_rng(1).bit_generator.state,
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: repr(value)[:30])
def test_a_plain_value_comes_back_as_it_was(value: Any) -> None:
    back = plain.load(plain.dump(value))
    assert type(back) is type(value)
    assert repr(back) == repr(value)
    if isinstance(value, np.ndarray):
        assert back.dtype == value.dtype
        assert back.flags.writeable


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": [1, object()]}, "['a'][1] is of type object"),
        (np.array([object()]), "the value is of type ndarray"),
        ({1, 2}, "the value is of type set"),
        ({"robot": Robot()}, "['robot'] is of type Robot"),
    ],
)
def test_what_is_not_plain_is_named_by_its_place(value: Any, said: str) -> None:
    with pytest.raises(plain.PlainError, match=re.escape(said)):
        plain.dump(value)


def test_endless_nesting_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(plain.PlainError, match="nested"):
        plain.dump(value)


def test_bytes_that_lie_never_raise_anything_but_a_plain_error() -> None:
    whole, rng = plain.dump(PLAIN), np.random.default_rng(5)
    length, refused = int.from_bytes(whole[12:16], "little"), 0
    for _ in range(3000):
        body = bytearray(whole[12:])
        for _ in range(rng.integers(1, 4)):
            body[rng.integers(4 + length)] = rng.choice(list(b'0123456789{}[],":adfstb-.e'))
        try:
            plain.load(plain.MAGIC + zlib.crc32(body).to_bytes(4, "little") + bytes(body))
        except plain.PlainError:
            refused += 1
    assert refused > 300, "lies that are found out"
