"""Small batches: what is sent without Arrow is bit for bit what Arrow writes, and it is sent so wherever it can be."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.batch import checksum, encode, encode_into, encode_like, places
from heddle.blocks import Blocks
from heddle.layout import Layout, Segments, make_layout
from heddle.producers import packing
from heddle.producers.packing import MOST_SIZES, Packed
from tests.frames_kit import STACK, VECTOR, Scene, scenes
from tests.space_zoo import assert_same

T = 6


ODD: dict[str, Any] = {"shape": [3, 5], "shortest": 2, "spread": 5, "cut_every": 11}
"""Observations of an odd number of bytes in short episodes, few of which are cut off."""
SHORT = {"wrappers": [], "kwargs": ODD}
WAYS: dict[str, dict[str, Any]] = {
    "inline": SHORT,
    "threads": SHORT | {"stepping": "threads"},
    "next step": VECTOR | {"kwargs": ODD | {"mode": "NextStep"}},
    "same step": VECTOR | {"kwargs": ODD | {"mode": "SameStep"}},
    "disabled": VECTOR | {"kwargs": ODD | {"mode": "Disabled"}},
}


class Arrow:
    """Counts the batches that Arrow writes for the packer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written = 0
        monkeypatch.setattr(packing, "encode", self._encode)
        monkeypatch.setattr(packing, "encode_into", self._encode_into)

    def _encode(self, layout: Layout, segments: Segments, **how: Any) -> memoryview:
        self.written += 1
        return encode(layout, segments, **how)

    def _encode_into(self, layout: Layout, segments: Segments, take: Callable[[int], memoryview]) -> memoryview:
        self.written += 1
        return encode_into(layout, segments, take)


@pytest.fixture
def arrow(monkeypatch: pytest.MonkeyPatch) -> Arrow:
    return Arrow(monkeypatch)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    with scenes(tmp_path / "memory") as make:
        yield lambda env, **rollout: make(env=env, rollout={"steps": T} | rollout)


def pack(one: Scene, segments: Segments, plane: str = "") -> Packed:
    """As it is packed; bit for bit what Arrow makes of it, and so it stays when its arrays are played in again."""
    whole = bytes(encode(one.layout, segments))
    packed = one.packer.pack(one.layout, segments, plane)
    for array in segments.arrays.values():
        if array.flags.writeable:
            array.fill(0)
    assert bytes(packed.blob) == whole
    assert packed.blob.readonly
    assert packed.slot is not None or packed.crc32 == checksum(whole)
    one.player.recycle(segments)
    return packed


@pytest.mark.parametrize("plane", ["redis", "shm"])
@pytest.mark.parametrize("way", WAYS)
def test_over_borders_of_episodes_and_cut_segments_all_but_cut_off_episodes_goes_without_arrow(
    scene: Callable[..., Scene], arrow: Arrow, way: str, plane: str
) -> None:
    one = scene(WAYS[way], plane=plane)
    token = one.home.token if plane == "shm" else ""
    came, by_arrow, ended, short = set[int](), 0, 0, 0
    for number in range(40):
        if number % 7 == 6:
            one.player.cut()
        one.packer.lend(one.player, one.layout, token)
        segments = one.player.play(number)
        by_arrow += segments.rows not in came or segments.num_finals > 0
        came.add(segments.rows)
        ended += int(segments.arrays["terminated"].sum())
        short += bool((segments.arrays["length"] < T).any())
        packed = pack(one, segments, token)
        assert (packed.slot is not None) == (plane == "shm")
        if packed.slot is not None:
            one.settle(packed)
        assert arrow.written == by_arrow
    assert by_arrow < 40  # in threads sizes come as they come, each by Arrow once
    assert ended > 20
    assert short > 3


def test_layouts_that_take_turns_each_have_what_is_around_their_own_arrays(
    scene: Callable[..., Scene], arrow: Arrow
) -> None:
    # Given batches of another length, of other outputs of the policy and of another space through one packer
    one, longer = scene(SHORT), scene(SHORT, steps=T + 1)
    outputs = dict(one.player.policy.outputs) | {"more": ("float64", (3,))}
    parts = (one.layout.observation, one.layout.action)
    others = [make_layout(*parts, steps=T, outputs=outputs), make_layout(parts[1], parts[0], steps=T, outputs=outputs)]
    rng = np.random.default_rng(1)
    for _ in range(6):
        for player in (one.player, longer.player):
            segments = player.play(1)
            assert bytes(one.packer.pack(player.layout, segments, "").blob) == bytes(encode(player.layout, segments))
            player.recycle(segments)
        for layout in others:
            segments = Segments.empty(layout, 3)
            for array in segments.arrays.values():
                array[...] = rng.integers(0, 2, array.shape)
            assert bytes(one.packer.pack(layout, segments, "").blob) == bytes(encode(layout, segments))
    assert arrow.written < 12


def test_where_frames_are_sent_once_what_does_not_stack_for_a_while_goes_without_arrow(
    scene: Callable[..., Scene], arrow: Arrow
) -> None:
    wrapped = {"id": "tests.unit.test_folds:Liar", "kwargs": {"stack_size": 4}}
    one = scene({"wrappers": [wrapped], "kwargs": {"spread": 10_000}}, steps=20)
    kinds = ""
    for _ in range(14):
        whole, packed = one.play()
        assert_same(one.read(packed.blob), one.read(whole))
        kinds += "w" if bytes(packed.blob) == whole else "o"
    assert "owww" in kinds
    assert kinds.endswith("oo")
    assert arrow.written < kinds.count("w")


def test_what_frames_are_in_is_never_sent_without_looking_at_them(scene: Callable[..., Scene], arrow: Arrow) -> None:
    one = scene({"wrappers": [STACK], "kwargs": {"spread": 10_000}}, steps=20)
    for _ in range(6):
        whole, packed = one.play()
        assert len(packed.blob) < 0.85 * len(whole)


def test_of_many_numbers_of_segments_only_some_are_learnt(
    scene: Callable[..., Scene], arrow: Arrow, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, learnt = scene(SHORT), list[int]()

    def counted(layout: Layout, segments: Segments, take: Any = None) -> memoryview | None:
        learnt.append(segments.rows)
        return encode_like(layout, segments, take)

    monkeypatch.setattr(packing, "encode_like", counted)
    for _ in range(3):
        for rows in range(1, 3 * MOST_SIZES):
            pack(one, Segments.empty(one.layout, rows))
    assert set(learnt) == set(range(1, MOST_SIZES + 1))


def test_large_batches_are_left_to_arrow(scene: Callable[..., Scene], arrow: Arrow) -> None:
    one = scene(SHORT)
    rows = packing.IN_PLACE_FROM // one.layout.segment_bytes + 1
    for _ in range(3):
        pack(one, Segments.empty(one.layout, rows))
    assert arrow.written == 3


def _segments(layout: Layout, **changed: Any) -> Segments:
    made = Segments.empty(layout, 2)
    made.arrays |= changed
    return made


def test_arrays_that_do_not_lie_in_one_piece_are_left_to_arrow_and_others_are_refused_as_it_refuses_them(
    scene: Callable[..., Scene],
) -> None:
    layout = scene(SHORT).layout
    assert places(layout, 2).runs
    apart = _segments(layout, reward=np.arange(4 * T, dtype=np.float32).reshape(2, 2 * T)[:, ::2])
    assert encode_like(layout, apart) is None
    wider = _segments(layout, reward=np.zeros((2, T)))
    lacking = _segments(layout)
    del lacking.arrays["reward"]
    for segments in (wider, lacking, _segments(layout, reward=np.zeros((1, T), np.float32))):
        assert encode_like(layout, segments) is None
        with pytest.raises(ValueError, match="reward"):
            encode(layout, segments)


def test_into_memory_that_was_taken_arrays_are_refused_as_arrow_refuses_them(scene: Callable[..., Scene]) -> None:
    layout = scene(SHORT).layout
    lacking = _segments(layout)
    del lacking.arrays["reward"]
    for segments in (_segments(layout, reward=np.zeros((2, T))), lacking):
        for encoder in (encode_like, encode_into):
            with pytest.raises(ValueError, match="reward"):
                encoder(layout, segments, Blocks().take)
