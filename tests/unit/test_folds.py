"""Folds: a worker sends the frames of stacked observations once, and whoever reads sees what was played."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from heddle.producers import folds
from heddle.spec import spec_from_json
from tests.frames_kit import ENVS, STACK, STEPS, VECTOR, Scene, scenes
from tests.space_zoo import assert_same
from tests.unit.test_stacks import layout_of, played

NORMALIZED = {"id": "NormalizeObservation"}


class Liar(gymnasium.wrappers.FrameStackObservation):
    """Stacks, but for some time all of its frames are others at every step."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        seen, *others = super().step(action)
        self._count = getattr(self, "_count", 0) + 1
        lies = 3 * STEPS < self._count <= 6 * STEPS
        return (seen + np.uint8(self._count) if lies else seen, *others)


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers of every size are played in, and used again."""
    monkeypatch.setattr("heddle.plane.ring.REUSED_FROM", 0)
    monkeypatch.setattr("heddle.producers.packing.IN_PLACE_FROM", 0)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    with scenes(tmp_path / "memory") as make:
        yield make


WAYS: dict[str, dict[str, Any]] = {
    "inline": {},
    "zero padding": {"wrappers": [{"id": STACK["id"], "kwargs": {"stack_size": 4, "padding_type": "zero"}}]},
    "two frames": {"wrappers": [{"id": STACK["id"], "kwargs": {"stack_size": 2}}]},
    "one long episode": {"kwargs": {"spread": 10_000}},
    "threads": {"stepping": "threads"},
    "a vector environment, next step": VECTOR | {"kwargs": {"mode": "NextStep", "stacked": 4}},
    "a vector environment, same step": VECTOR | {"kwargs": {"mode": "SameStep", "stacked": 4}},
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_sent_with_each_frame_once_is_read_as_the_plain_path_brings_it(
    scene: Callable[..., Scene], way: str
) -> None:
    # Given one that sends frames once, and its twin that sends whole observations
    one, twin = scene(env=WAYS[way]), scene(env=WAYS[way], rollout={"frames": "whole"})
    held: list[tuple[memoryview, bytes]] = []
    finals = saved = 0
    for number in range(25):
        if number % 8 == 7 and one.spec.env.stepping == "inline":
            one.player.cut()
            twin.player.cut()
        own, packed = one.play()
        whole, other = twin.play()
        # Then the twin sends what is encoded anywhere, and readers of both see the same
        assert bytes(other.blob) == whole
        seen = one.read(packed.blob)
        assert_same(seen, one.read(own))
        if one.spec.env.stepping == "inline":  # threads cut batches where they happen to be
            assert_same(seen, twin.read(other.blob))
        finals += seen.num_finals
        saved += len(packed.blob) < 0.85 * len(own)
        held.append((packed.blob, bytes(packed.blob)))  # and what is on its way stays as it is
        assert all(bytes(blob) == kept for blob, kept in held[-3:])
        del held[:-3]
    assert saved > 10, way
    assert finals > 3 or "long" in way


def test_frames_once_in_shared_memory_need_less_of_it_and_auto_leaves_whole_observations_there(
    scene: Callable[..., Scene],
) -> None:
    long = {"kwargs": {"spread": 10_000}}
    one = scene(env=long, rollout={"plane": "shm", "frames": "once"})
    auto = scene(env=long, rollout={"plane": "shm"})
    sizes = []
    for _ in range(8):
        _, packed = one.play(one.home.token)
        whole, other = auto.play(auto.home.token)
        assert packed.slot is not None
        assert other.slot is not None
        assert bytes(other.blob) == whole
        assert_same(one.read(packed.blob), auto.read(other.blob))
        sizes.append(packed.slot.size)
        one.settle(packed)
        auto.settle(other)
    assert max(sizes[-4:]) < 0.4 * len(whole)


def test_with_a_normalizer_above_the_stack_observations_travel_whole_and_are_hardly_ever_looked_at(
    scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = scene(env={"wrappers": [STACK, NORMALIZED], "deterministic": False})
    looked = list[int]()
    monkeypatch.setattr(folds, "fold", lambda segments: looked.append(1))
    for _ in range(40):
        whole, packed = one.play()
        assert bytes(packed.blob) == whole
    assert 3 < len(looked) < 8


def test_a_stack_that_turns_into_something_else_is_sent_whole_from_then_on_and_once_again_when_it_is_one(
    scene: Callable[..., Scene],
) -> None:
    one = scene(env={"wrappers": [{"id": "tests.unit.test_folds:Liar", "kwargs": {"stack_size": 4}}]})
    kinds = ""
    for _ in range(14):
        whole, packed = one.play()
        assert_same(one.read(packed.blob), one.read(whole))
        kinds += "w" if bytes(packed.blob) == whole else "o"
    assert kinds.startswith("ooowww")
    assert kinds.endswith("ooo")


@pytest.mark.parametrize("shards", [2, 3, 4])
def test_a_shard_that_does_not_stack_has_no_other_ones_batches_sent_whole(
    scene: Callable[..., Scene], shards: int
) -> None:
    # Given shards that stack, and a last one that shows noise
    layout, own = layout_of(), folds.Folds(scene().spec)
    stacking, noise = played(layout, 2, seed=1, ending=0.0), played(layout, 2, seed=1, ending=0.0)
    noise.arrays["obs"][:] = np.random.default_rng(1).integers(0, 99, noise.arrays["obs"].shape)
    # When they take turns
    for _ in range(40):
        for shard in range(shards):
            one = noise if shard == shards - 1 else stacking
            folded = own.fold(layout, one, shard=shard, is_shared=False)
            # Then each is sent as it is itself
            assert (folded is not None) == (one is stacking) == own.is_folding(shard)


def test_a_batch_that_is_whole_above_the_cap_is_not_made_to_fit_for_no_reader_would_take_it(
    scene: Callable[..., Scene],
) -> None:
    limits = {"batch_bytes": "64KiB", "max_bytes": "64MiB"}
    one = scene(env={"kwargs": {"spread": 10_000}}, limits=limits)
    assert one.layout.bytes_of(ENVS, 0) > one.spec.limits.batch_bytes
    whole, packed = one.play()
    assert bytes(packed.blob) == whole


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_frames_once_are_compressed_too(scene: Callable[..., Scene], compression: str) -> None:
    one = scene(rollout={"compression": compression})
    for _ in range(5):
        whole, packed = one.play()
        assert_same(one.read(packed.blob), one.read(whole))
        assert len(packed.blob) < 0.85 * len(whole)


def test_an_experiment_of_a_version_that_knew_no_stacks_is_played_with_whole_observations(
    scene: Callable[..., Scene],
) -> None:
    spec = scene().spec
    assert spec_from_json(spec.canonical_json()) == spec
    assert spec.rollout.frames == "auto"
    stored = json.loads(spec.canonical_json())
    del stored["rollout"]["frames"]
    assert spec_from_json(json.dumps(stored)).rollout.frames == "whole"
