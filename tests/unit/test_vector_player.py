"""The player of vector environments gives what the plain player gives, in each way of ending an episode."""

from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from heddle.clock import ManualClock
from heddle.layout import Layout, Segments
from heddle.producers.envs import EpisodeCounter
from heddle.producers.envs_vector import VectorCounter
from heddle.producers.play import Play
from heddle.producers.player import Player
from heddle.producers.vector_player import VectorPlayer
from heddle.segment_checks import first_problem
from heddle.spaces import Box, DictSpace, Discrete, Space
from tests.unit.fake_envs import Drawn, Remembering, layout_for, plan_of, spec_of

MODES = list(AutoresetMode)
Stream = dict[str, Any]


class OnceSeeded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Heeds the first seed alone, as what resets itself does."""

    is_seeded = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        first = seed if not self.is_seeded else None
        self.is_seeded = True
        return self.env.reset(seed=first, options=options)


class Walk(gymnasium.Env[Any, Any]):
    """Ends or is cut off by chance, often at once; shows a Dict, always in the same arrays."""

    observation_space = gymnasium.spaces.Dict(
        {"place": gymnasium.spaces.Box(-100, 100, (2,), np.float32), "color": gymnasium.spaces.Discrete(3, start=1)}
    )
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self) -> None:
        self.place = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place[:] = self.np_random.uniform(-1, 1, 2)
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += int(action) - 1 + self.np_random.uniform(-0.1, 0.1, 2).astype(np.float32)
        chance = self.np_random.random()
        return self._show(), float(self.place[0]), bool(chance < 0.15), bool(0.1 < chance < 0.3), {"fuel": chance}

    def _show(self) -> dict[str, Any]:
        return {"place": self.place, "color": np.int64(1 + int(self.np_random.integers(3)))}


SPACE = DictSpace({"place": Box((2,), "float32", -100, 100), "color": Discrete(3, start=1)})


def vector(n: int, mode: AutoresetMode, make: Any = Walk) -> Any:
    return SyncVectorEnv([make] * n, autoreset_mode=mode)


def pair(
    n: int, mode: AutoresetMode, *, policy: Any = Drawn, steps: int = 7, space: Space = SPACE, make: Any = Walk
) -> tuple[Player, VectorPlayer]:
    """A plain player and one of a vector environment, of the same environments and seeds."""
    chooser, spec = policy(), spec_of(env={"num_envs": n}, rollout={"steps": steps}, trainer={"minibatch": 1})
    layout: Layout = layout_for(chooser, steps=steps, observation=space, info_keys=["fuel"])
    envs = [make() if mode is AutoresetMode.DISABLED else OnceSeeded(make()) for _ in range(n)]
    plain = Player(plan_of(n), spec, policy(), layout, envs=envs)
    return plain, VectorPlayer(plan_of(n), spec, chooser, layout, vector=vector(n, mode, make))


def streams(player: Play, n: int, steps: int) -> list[Stream]:
    """What every environment showed, its segments joined, and where its true last observations are."""
    pieces: list[list[tuple[Segments, int]]] = [[] for _ in range(n)]
    while min(sum(int(one.arrays["length"][row]) for one, row in some) for some in pieces) < steps:
        segments = player.play(1)
        assert first_problem(segments) is None
        kept = segments.select(np.arange(segments.rows))
        player.recycle(segments)
        for row in range(kept.rows):
            pieces[kept.arrays["env"][row]].append((kept, row))
    return [_joined(some, steps) for some in pieces]


def _joined(pieces: list[tuple[Segments, int]], steps: int) -> Stream:
    found: Stream = {"finals": {}}
    columns: dict[str, list[Any]] = {}
    begin = 0
    for segments, row in pieces:
        length = int(segments.arrays["length"][row])
        for column in segments.layout.columns:
            if column.per != "segment":
                columns.setdefault(column.name, []).append(segments.arrays[column.name][row, :length])
        for place in np.flatnonzero(segments.arrays["final_row"] == row):
            step = begin + int(segments.arrays["final_step"][place])
            if step < steps:
                found["finals"][step] = {
                    leaf.name: segments.arrays[f"final.{leaf.name}"][place].tolist()
                    for leaf in segments.layout.observation_leaves
                }
        begin += length
    return found | {name: np.concatenate(values)[:steps] for name, values in columns.items()}


def same(found: list[Stream], expected: list[Stream]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        assert one["finals"] == other["finals"]
        for name in one.keys() - {"finals"}:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("n", "steps"), [(1, 7), (4, 1), (4, 7), (4, 64)])
def test_experience_is_that_of_the_plain_player_bit_for_bit(mode: AutoresetMode, n: int, steps: int) -> None:
    plain, player = pair(n, mode, steps=steps)
    expected = streams(plain, n, 150)
    same(streams(player, n, 150), expected)
    assert all(one["terminated"].any() and one["finals"] for one in expected)


@pytest.mark.parametrize("mode", MODES)
def test_a_memory_begins_anew_with_every_episode(mode: AutoresetMode) -> None:
    plain, player = pair(3, mode, policy=Remembering)
    same(streams(player, 3, 150), streams(plain, 3, 150))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", [1, 4, 7])
def test_a_segment_says_with_which_memory_its_first_step_was_chosen(mode: AutoresetMode, steps: int) -> None:
    _, player = pair(3, mode, policy=Remembering, steps=steps)
    begun = []
    for _ in range(60):
        arrays = player.play(1).arrays
        # this policy's memory counts its steps of the episode, and it tells the count as its value
        np.testing.assert_array_equal(arrays["state.steps"][:, 0], arrays["out.value"][:, 0])
        begun += (arrays["state.steps"][:, 0] == 0).tolist()
    assert any(begun) and not all(begun)


@pytest.mark.parametrize("mode", MODES)
def test_an_evaluation_plays_as_many_episodes_of_the_same_returns(mode: AutoresetMode) -> None:
    plain, player = pair(3, mode)
    assert _returns(player, 8) == _returns(plain, 8)


def _returns(player: Player | VectorPlayer, episodes: int) -> list[tuple[int, int, float]]:
    found = []
    for segments, _ in player.play_episodes(1, episodes, deterministic=False):
        arrays = segments.arrays
        found += [
            (
                int(arrays["env"][row]),
                int(arrays["episode_length"][row, step]),
                float(arrays["episode_return"][row, step]),
            )
            for row, step in np.argwhere(arrays["episode_length"])
        ]
    assert len(found) == episodes
    return sorted(found, key=lambda one: one[0])


class Late(Walk):
    """An hour a step, one reward at the end."""

    clock = ManualClock()

    def reset(self, **kwargs: Any) -> Any:
        self.left = 4
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.clock.advance(3600.0)
        observation, *_ = super().step(action)
        self.left -= 1
        return observation, float(self.left == 0), self.left == 0, False, {}


@pytest.mark.parametrize("mode", MODES)
def test_an_episode_of_hours_arrives_in_pieces_and_its_return_is_whole(mode: AutoresetMode) -> None:
    policy, spec = (
        Drawn(),
        spec_of(env={"num_envs": 1}, rollout={"steps": 8, "max_seconds": 7000}, trainer={"minibatch": 1}),
    )
    layout = layout_for(policy, steps=8, observation=SPACE)
    player = VectorPlayer(plan_of(1), spec, policy, layout, vector=vector(1, mode, Late), clock=Late.clock)
    arrays = [player.play(1).arrays for _ in range(4)]
    assert [int(one["length"][0]) for one in arrays[:2]] == [2, 2]
    assert arrays[1]["episode_return"][0, 1] == 1.0
    assert arrays[1]["episode_length"][0, 1] == 4


def test_cut_ends_the_running_segment_at_the_next_step() -> None:
    _, player = pair(3, AutoresetMode.DISABLED)
    player.cut()
    assert player.play(1).num_steps == 3
    assert player.play(1).num_steps == 21


class Cut(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends every episode after three steps, further out than what counts them."""

    steps = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.steps += 1
        observation, _, terminated, truncated, info = self.env.step(action)
        return observation, 1.0, terminated, truncated or self.steps >= 3, info


def test_an_episode_that_a_wrapper_cuts_off_is_told_at_its_own_end_where_the_player_resets() -> None:
    _, player = pair(2, AutoresetMode.DISABLED, make=lambda: Cut(Walk()))
    player.play(1)
    arrays = player.play(1).arrays
    over = arrays["terminated"] | arrays["truncated"]
    assert over.any()
    np.testing.assert_array_equal(np.isfinite(arrays["episode_return"]), over)


class Parts(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Cuts episodes off after three steps and lets the game go on, as a lost life does; what plain players play."""

    steps, is_over, last = 0, True, None

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        if self.is_over:
            self.is_over, (self.last, _) = False, self.env.reset(**kwargs)
        return deepcopy(self.last), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.last, reward, terminated, truncated, info = self.env.step(action)
        self.is_over = terminated or truncated
        return self.last, reward, terminated, truncated or self.steps >= 3, info


class VectorParts(gymnasium.vector.VectorWrapper):
    """`Parts`, around a vector environment."""

    def reset(self, **kwargs: Any) -> Any:
        self.steps = np.zeros(self.num_envs, np.int64)
        self.resets = np.zeros(self.num_envs, np.bool_)
        return self.env.reset(**kwargs)

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, info = self.env.step(actions)
        self.steps = np.where(self.resets, 0, self.steps + 1)
        over = terminated | truncated
        self.resets = over if self.env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP else self.resets
        cut = truncated | (self.steps >= 3)
        self.steps[over | cut] = 0
        return observations, rewards, terminated, cut, info


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("steps", [1, 7])
def test_a_game_that_goes_on_behind_a_wrappers_ending_loses_no_step(mode: AutoresetMode, steps: int) -> None:
    n, chooser = 4, Drawn()
    spec = spec_of(env={"num_envs": n}, rollout={"steps": steps}, trainer={"minibatch": 1})
    layout: Layout = layout_for(chooser, steps=steps, observation=SPACE, info_keys=["fuel"])
    plain = Player(
        plan_of(n), spec, Drawn(), layout, envs=[Parts(EpisodeCounter(OnceSeeded(Walk()))) for _ in range(n)]
    )
    made = VectorParts(VectorCounter(vector(n, mode)))
    expected = streams(plain, n, 150)
    found = streams(VectorPlayer(plan_of(n), spec, chooser, layout, vector=made), n, 150)
    same(found, expected)
    ended = sum(int(np.isfinite(one["episode_return"]).sum()) for one in found)
    parts = sum(int((one["terminated"] | one["truncated"]).sum()) for one in found)
    assert 0 < ended < parts, "some parts ended with their game, others did not"
