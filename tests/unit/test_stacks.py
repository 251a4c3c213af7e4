"""Stacked observations: sent with each frame once they come back bit for bit, and nothing else gets through."""

from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from heddle.batch import checksum, decode, decode_stacks, encode, encode_folded
from heddle.blocks import Blocks
from heddle.codec import codec_of
from heddle.errors import BatchError
from heddle.folding import Folded, fold, foldable, stackable, take_apart
from heddle.layout import Layout, Segments, make_layout
from heddle.spaces import Box, DictSpace, Discrete, Text
from heddle.stacks import Stack
from tests.space_zoo import assert_same

CAP = 1 << 24
FRAME = {"uint8": (16, 17), "float32": (8, 9), "int16": (12, 13), "uint16": (12, 13), "float64": (5, 7)}
PADDINGS = ("reset", "zero", "custom", "fresh")


def layout_of(k: int = 4, *, dtype: str = "uint8", steps: int = 6, beside: bool = False) -> Layout:
    image = Box((k, *FRAME[dtype]), dtype, 0, 255)
    shown = DictSpace({"image": image, "speed": Box((3,), "float32")}) if beside else image
    return make_layout(shown, Discrete(3), steps=steps, outputs={"log_prob": ("float32", ())}, info_keys=["lives"])


def frames_of(dtype: str, count: int, rng: np.random.Generator) -> NDArray[Any]:
    """Any bytes; of floats, too, but for NaN and infinity, which nobody may send."""
    shape = (count, *FRAME[dtype])
    if np.dtype(dtype).kind != "f":
        return rng.integers(0, 100, shape).astype(dtype)
    return np.where(rng.random(shape) < 0.1, -0.0, rng.standard_normal(shape)).astype(dtype)


class Stacking:
    """One environment with a FrameStack around it: episodes begin with a padded stack."""

    def __init__(self, k: int, dtype: str, padding: str, rng: np.random.Generator) -> None:
        self.k, self.dtype, self.padding, self.rng = k, dtype, padding, rng
        self.begin()

    def begin(self) -> NDArray[Any]:
        first = frames_of(self.dtype, self.k, self.rng)
        if self.padding == "reset":
            first[:-1] = first[-1]
        elif self.padding == "zero":
            first[:-1] = 0
        elif self.padding == "custom":
            first[:-1] = np.asarray(7, self.dtype)
        self.now = first
        return self.now

    def step(self) -> NDArray[Any]:
        self.now = np.concatenate([self.now[1:], frames_of(self.dtype, 1, self.rng)])
        return self.now


def played(
    layout: Layout, rows: int, *, seed: int, ending: float, padding: str = "reset", full: bool = True
) -> Segments:
    """As a player writes them: full or cut short, with episodes that end and are cut off anywhere."""
    rng, steps = np.random.default_rng(seed), layout.steps
    segments = Segments.empty(layout, rows)
    arrays, name = segments.arrays, layout.observation_leaves[0].name
    shown = arrays[name]
    arrays["env"][:], arrays["version"][:] = np.arange(rows), 3
    arrays["length"][:] = steps if full else rng.integers(0, steps + 1, rows)
    finals: list[tuple[int, int, dict[str, Any]]] = []
    for row, length in enumerate(arrays["length"].tolist()):
        env = Stacking(shown.shape[2], shown.dtype.name, padding, rng)
        if rng.random() < 0.5:
            [env.step() for _ in range(5)]
        shown[row, 0] = env.now
        for step in range(length):
            shown[row, step + 1] = env.step()
            if rng.random() < ending:
                is_cut = bool(rng.random() < 0.5)
                arrays["truncated" if is_cut else "terminated"][row, step] = True
                arrays["episode_length"][row, step], arrays["episode_return"][row, step] = 4, 1.0
                if is_cut:
                    last = env.now if rng.random() < 0.8 else frames_of(shown.dtype.name, shown.shape[2], rng)
                    finals.append((row, step, {name: last} | _beside(layout)))
                shown[row, step + 1] = env.begin()
    segments.set_finals(finals)
    return segments


def _beside(layout: Layout) -> dict[str, Any]:
    return {leaf.name: np.zeros(leaf.space.shape, leaf.space.dtype) for leaf in layout.observation_leaves[1:]}


def folded_of(segments: Segments) -> Folded:
    found = fold(segments)
    assert found is not None
    return found


def sent(segments: Segments) -> bytes:
    """The batch as stacks, written as a worker does."""
    blocks = Blocks()
    return bytes(encode_folded(segments.layout, folded_of(segments), blocks.take, blocks.take))


def read(layout: Layout, data: bytes) -> Segments:
    return decode(layout, data, crc32=checksum(data), size_cap=CAP)


@settings(deadline=None, max_examples=120)
@given(
    k=st.integers(2, 5),
    dtype=st.sampled_from(sorted(FRAME)),
    rows=st.integers(1, 4),
    seed=st.integers(0, 10_000),
    ending=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
    padding=st.sampled_from(PADDINGS),
    beside=st.booleans(),
    full=st.booleans(),
)
def test_stacks_come_back_as_the_plain_path_brings_them_whatever_episodes_do(
    k: int, dtype: str, rows: int, seed: int, ending: float, padding: str, beside: bool, full: bool
) -> None:
    layout = layout_of(k, dtype=dtype, beside=beside)
    segments = played(layout, rows, seed=seed, ending=ending, padding=padding, full=full)
    found = fold(segments)
    if found is None:  # next to nothing follows anything
        assert ending >= 0.4 or segments.num_steps < 3 * rows or k == 2
        return
    blocks = Blocks()
    data = bytes(encode_folded(layout, found, blocks.take, blocks.take))
    plain = decode(layout, bytes(encode(layout, segments)), crc32=None, size_cap=CAP)
    for again in range(2):  # the second time without Arrow, where that can be
        whole = read(layout, data)
        assert_same(whole, plain)
        assert not any(array.flags.writeable for array in whole.arrays.values()), again
    codec_of(layout).stencils.clear()
    assert_same(read(layout, data), plain)
    compressed = encode(layout, found.gathered(Blocks().take), compression="zstd")
    assert_same(read(layout, bytes(compressed)), plain)


def test_a_segment_of_one_episode_is_t_plus_k_frames_and_read_as_a_view_of_them() -> None:
    layout = layout_of(4, steps=64)
    segments = played(layout, 3, seed=2, ending=0.0)
    data, whole = sent(segments), bytes(encode(layout, segments))
    frame = 16 * 17
    assert len(data) < 3 * (64 + 4) * frame + 20_000 < 0.35 * len(whole)
    found = decode_stacks(layout, data, crc32=None, size_cap=CAP)
    assert not found.stacks
    begin = np.frombuffer(data, np.uint8).ctypes.data
    assert 0 <= found.arrays["obs"].ctypes.data - begin < len(data), "a view of the bytes"
    assert found.arrays["obs"].strides[1] == found.arrays["obs"].strides[2] == frame


@pytest.mark.parametrize("padding", ["reset", "zero", "custom", "fresh"])
def test_an_episode_that_begins_on_the_way_costs_only_the_frames_that_its_padding_has(padding: str) -> None:
    layout = layout_of(4, steps=20)
    segments = Segments.empty(layout, 1)
    env = Stacking(4, "uint8", padding, np.random.default_rng(1))
    shown = segments.arrays["obs"]
    segments.arrays["length"][:] = 20
    for step in range(21):
        shown[0, step] = env.now
        env.begin() if step == 9 else env.step()
    segments.arrays["terminated"][0, 9] = True
    segments.arrays["episode_length"][0, 9], segments.arrays["episode_return"][0, 9] = 10, 1.0
    (stack,) = folded_of(segments).gathered(Blocks().take).stacks.values()
    own = {"reset": 1, "zero": 2, "custom": 2, "fresh": 4}[padding]
    assert stack.counts.tolist() == [4 + 9 + own + 10]
    found = decode_stacks(layout, sent(segments), crc32=None, size_cap=CAP)
    assert list(found.stacks) == ["obs"]
    assert "obs" not in found.arrays
    np.testing.assert_array_equal(found.whole().arrays["obs"], shown)
    out, wide = np.ones_like(shown), np.ones(shown.shape, np.int64)
    found.stacks["obs"].write(out)
    found.stacks["obs"].write(wide)
    np.testing.assert_array_equal(out, shown)
    np.testing.assert_array_equal(wide, shown)


class Walked(list[tuple[int, int]]):
    """Counts how often somebody goes through it."""

    times = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        self.times += 1
        return super().__iter__()


def test_final_observations_are_gone_through_once_however_many_segments_there_are() -> None:
    arrays = played(layout_of(steps=20), 6, seed=1, ending=0.1).arrays
    at = Walked(zip(arrays["final_row"].tolist(), arrays["final_step"].tolist(), strict=True))
    assert len(at) > 3
    assert take_apart(arrays["obs"], arrays["length"].tolist(), arrays["final.obs"], at) is not None
    assert at.times == 1


def test_a_codec_without_stacks_is_made_once_however_it_is_asked_for() -> None:
    layout = layout_of(steps=7)
    assert codec_of(layout) is codec_of(layout, ()) is codec_of(layout, stacks=())


def lying(change: Callable[[NDArray[Any]], None]) -> Segments:
    segments = played(layout_of(4, steps=20), 2, seed=2, ending=0.0)
    change(segments.arrays["obs"])
    return segments


def _normalised(shown: NDArray[Any]) -> None:
    for step in range(shown.shape[1]):
        shown[:, step] += step % 3


def _one_pixel(shown: NDArray[Any]) -> None:
    shown[1, 12, 1, 3, 4] += 1


def test_an_environment_whose_frames_change_from_stack_to_stack_sends_whole_observations() -> None:
    assert fold(lying(_normalised)) is None


def test_a_wrapper_that_lies_about_one_pixel_costs_frames_and_is_sent_as_it_is() -> None:
    segments = lying(_one_pixel)
    (stack,) = folded_of(segments).gathered(Blocks().take).stacks.values()
    assert stack.counts[1] > stack.counts[0]
    assert_same(read(segments.layout, sent(segments)), segments)


def test_what_lies_behind_the_end_of_a_segment_and_is_not_blank_is_sent_whole() -> None:
    segments = lying(lambda shown: None)
    segments.arrays["length"][0] = 7
    assert fold(segments) is None


def test_bytes_that_mean_the_same_number_are_not_taken_for_the_same_frame() -> None:
    layout = layout_of(3, dtype="float32", steps=8)
    segments = Segments.empty(layout, 1)
    segments.arrays["length"][:] = 8
    shown = segments.arrays["obs"]
    shown[0, ::2] = -0.0
    assert fold(segments) is None


@pytest.mark.parametrize(
    ("space", "found"),
    [
        (Box((4, 84, 84), "uint8"), ("obs",)),
        (Box((84, 84, 4), "uint8"), ()),
        (Box((4, 4), "float32"), ()),
        (Box((3,), "float32"), ()),
        (DictSpace({"a": Box((2, 100), "float32"), "b": Box((3, 300), "uint8"), "c": Discrete(3)}), ("obs.a", "obs.b")),
        (DictSpace({"a": Box((4, 84, 84), "uint8"), "b": Text(9, 1, None)}), ()),
    ],
)
def test_only_arrays_of_a_few_large_frames_are_looked_at(space: Any, found: tuple[str, ...]) -> None:
    layout = make_layout(space, Discrete(2), steps=4, outputs={})
    assert foldable(layout) == found
    assert set(foldable(layout)) <= set(stackable(layout))


def spoiled(change: Callable[[Stack], Any]) -> tuple[Layout, bytes]:
    segments = played(layout_of(4, steps=20), 2, seed=2, ending=0.0)
    gathered = folded_of(segments).gathered(Blocks().take)
    stack = gathered.stacks["obs"]
    changed = change(stack)
    gathered.stacks["obs"] = changed if isinstance(changed, Stack) else stack
    return segments.layout, bytes(encode(segments.layout, gathered))


def _put(place: tuple[int, ...], value: int) -> Callable[[Stack], Any]:
    return lambda stack: stack.index.__setitem__(place, value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_put((0, 3, 1), 24), "shows frame 24"),
        (_put((1, 0, 0), -1), "shows frame -1"),
        (_put((1, 20, 3), 2**31 - 1), "shows frame 2147483647"),
        (_put((0, 0, 0), -(2**31)), "shows frame -2147483648"),
        (lambda stack: Stack(stack.frames[:-1], stack.counts - [0, 1], stack.index, stack.finals), "shows frame 23"),
        (lambda stack: Stack(stack.frames, stack.counts + [1, -1], stack.index, stack.finals), "shows frame 23"),
        (lambda stack: Stack(stack.frames[:0], stack.counts * 0, stack.index, stack.finals), "shows frame 0"),
    ],
)
def test_an_index_of_a_frame_that_its_segment_has_not_is_refused(change: Callable[[Stack], Any], reason: str) -> None:
    layout, data = spoiled(change)
    for _ in range(2):
        with pytest.raises(BatchError, match=reason):
            decode(layout, data, crc32=checksum(data), size_cap=CAP)


def test_an_index_is_checked_too_where_arrow_is_not_asked() -> None:
    segments = played(layout_of(4, steps=20), 2, seed=2, ending=0.0)
    data = bytearray(sent(segments))
    read(segments.layout, bytes(data))
    codec, stencil = codec_of(segments.layout).stencils[len(data)]
    assert codec.stacks == ("obs",)
    (at,) = [at for column, at, _ in stencil.columns if column.name == "stack.obs"]
    data[at : at + 4] = (99).to_bytes(4, "little")
    assert stencil.fits(bytes(data))
    with pytest.raises(BatchError, match="shows frame 99"):
        read(segments.layout, bytes(data))


def test_few_frames_that_are_shown_again_and_again_do_not_ask_for_all_of_memory() -> None:
    layout = layout_of(4, steps=500)
    segments = Segments.empty(layout, 8)
    segments.arrays["length"][:] = 500
    still = Stack(np.ones((8, 16, 17), np.uint8), np.ones(8, np.int64), np.zeros((8, 501, 4), np.int32), _NONE)
    arrays = {name: array for name, array in segments.arrays.items() if name not in ("obs", "final.obs")}
    data = bytes(encode(layout, Segments(layout, 8, arrays, stacks={"obs": still})))
    cap = 2 * len(data)
    assert layout.bytes_of(8, 0) > 10 * cap
    with pytest.raises(BatchError, match=f"unpacks to {layout.bytes_of(8, 0)} bytes, more than the cap of {cap}"):
        decode(layout, data, crc32=checksum(data), size_cap=cap)
    assert read(layout, data).arrays["obs"].all()


_NONE = np.zeros((0, 4), np.int32)


def test_numbers_that_are_none_are_refused_in_frames_too() -> None:
    layout = layout_of(3, dtype="float32", steps=8)
    segments = played(layout, 2, seed=2, ending=0.3, padding="zero")
    gathered = folded_of(segments).gathered(Blocks().take)
    gathered.stacks["obs"].frames[2, 1, 1] = np.nan
    data = bytes(encode(layout, gathered))
    with pytest.raises(BatchError, match="obs has a frame that is not a finite number|obs is not a finite number"):
        read(layout, data)


def test_another_experiments_stacks_are_refused_by_the_name_of_the_column() -> None:
    data = sent(played(layout_of(4), 2, seed=2, ending=0.0))
    with pytest.raises(BatchError, match="column frames.obs is"):
        read(layout_of(4, dtype="int16"), data)
    with pytest.raises(BatchError, match=r"column stack.obs is|metadata"):
        read(layout_of(3), data)
    plain = make_layout(Box((4,), "float32"), Discrete(3), steps=6, outputs={"log_prob": ("float32", ())})
    with pytest.raises(BatchError, match="column"):
        read(plain, data)


def test_pandas_and_duckdb_read_frames_and_index_as_they_are() -> None:
    layout = layout_of(4)
    segments = played(layout, 3, seed=5, ending=0.3)
    batch = pa.ipc.open_stream(sent(segments)).read_all()
    frame = batch.to_pandas()
    relation = duckdb.sql('select "frames.obs", "stack.obs", length from batch')
    assert relation is not None
    selected = relation.fetchall()
    shape = segments.arrays["obs"].shape[1:]
    for row in range(3):
        for frames, index in ((frame["frames.obs"][row], frame["stack.obs"][row]), selected[row][:2]):
            frames = np.stack([np.asarray(one) for one in frames]).reshape(-1, *shape[2:])
            found = frames[np.asarray(index).reshape(shape[:2])]
            np.testing.assert_array_equal(found, segments.arrays["obs"][row])
