"""Batches: what is written comes back, and nothing else ever gets through."""

import struct
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.batch import checksum, decode, encode, finish_in, places, spot_check
from heddle.codec import codec_of
from heddle.errors import BatchError
from heddle.layout import Layout, Segments, has_blanks, make_layout
from heddle.segment_checks import first_problem
from heddle.spaces import DTYPES, Box, DictSpace, Discrete, LeafSpace, Space
from tests.space_zoo import assert_same

CAP = 1 << 26
PLAIN = Box((4,), "float32")
NESTED = DictSpace(
    {
        "camera": Box((3, 2), "uint8", 0, 255),
        "arm": DictSpace({"joints": Box((2,), "float64"), "mode": Discrete(3, 1)}),
        "mask": Box((3,), "bool", 0, 1),
        "height": Box((), "float16"),
    }
)


def layout_of(observation: Space = PLAIN, action: Space | None = None, steps: int = 4) -> Layout:
    return make_layout(
        observation,
        action or Discrete(3),
        steps=steps,
        outputs={"log_prob": ("float32", ()), "logits": ("float32", (3,))},
        state={"h": ("float32", (2,))},
        info_keys=["fuel"],
    )


def values_of(space: LeafSpace, shape: tuple[int, ...], rng: np.random.Generator, *, start: int) -> Any:
    if isinstance(space, Discrete):
        return rng.integers(start, start + space.n, size=shape)
    kind = np.dtype(space.dtype).kind
    drawn = rng.standard_normal(shape) if kind == "f" else rng.integers(0, 2, size=shape)
    return drawn.astype(space.dtype)


def played(layout: Layout, rows: int = 3, *, seed: int = 0, full: bool = False) -> Segments:
    """Segments as a player would make them, with random lengths and endings."""
    rng, steps = np.random.default_rng(seed), layout.steps
    segments = Segments.empty(layout, rows)
    arrays = segments.arrays
    arrays["length"][:] = steps if full else rng.integers(1, steps + 1, size=rows)
    arrays["version"][:] = rng.integers(0, 9, size=rows)
    arrays["env"][:] = np.arange(rows)
    valid = segments.valid()
    leaves = {leaf.name: leaf.space for leaf in [*layout.observation_leaves, *layout.action_leaves]}
    for column in layout.columns:
        array = arrays[column.name]
        if column.name in leaves:
            space = leaves[column.name]
            start = 0 if column.name == "action" else getattr(space, "start", 0)
            array[...] = values_of(space, array.shape, rng, start=start)
        elif column.name == "reward" or column.name.startswith(("out.", "state.", "info.")):
            array[...] = rng.standard_normal(array.shape)
    arrays["terminated"][...] = valid & (rng.random(valid.shape) < 0.2)
    arrays["truncated"][...] = valid & (rng.random(valid.shape) < 0.4)
    ended = arrays["terminated"] | arrays["truncated"]
    arrays["episode_length"][ended] = 7
    arrays["episode_return"][ended] = 1.5
    only = np.argwhere(arrays["truncated"] & ~arrays["terminated"])
    finals = [
        (
            int(row),
            int(step),
            {
                leaf.name: values_of(leaf.space, leaf.space.shape, rng, start=getattr(leaf.space, "start", 0))
                for leaf in layout.observation_leaves
            },
        )
        for row, step in only
    ]
    segments.set_finals(finals)
    return segments


def assert_equal(one: Segments, other: Segments) -> None:
    assert one.rows == other.rows
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        assert array.dtype == other.arrays[name].dtype, name
        np.testing.assert_array_equal(array, other.arrays[name], err_msg=name)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("observation", [PLAIN, NESTED, Discrete(5, 2)])
@pytest.mark.parametrize("action", [Discrete(3), Box((2,), "float32", -1, 1)])
def test_what_is_encoded_comes_back(
    observation: Space, action: Space, compression: Literal["lz4", "zstd"] | None
) -> None:
    layout = layout_of(observation, action)
    segments = played(layout)
    data = encode(layout, segments, compression=compression)
    assert (data.format, data.c_contiguous) == ("B", True)
    assert_equal(segments, decode(layout, bytes(data), crc32=checksum(data), size_cap=CAP))


leaf_spaces = st.one_of(
    st.builds(Discrete, st.integers(1, 5), st.integers(-3, 3)),
    st.builds(
        Box,
        st.lists(st.integers(1, 3), max_size=3).map(tuple),
        st.sampled_from(sorted(DTYPES)),
    ),
)
any_spaces = st.recursive(
    leaf_spaces,
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "ä"]), inner, min_size=1, max_size=3).map(DictSpace),
    max_leaves=4,
)
action_spaces = st.one_of(
    st.builds(Discrete, st.integers(1, 5), st.integers(-3, 3)),
    st.builds(Box, st.just((2,)), st.sampled_from(["float32", "float64"])),
)


@settings(max_examples=60, deadline=None)
@given(any_spaces, action_spaces, st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
def test_every_space_travels(observation: Space, action: Space, steps: int, rows: int, seed: int) -> None:
    layout = layout_of(observation, action, steps)
    segments = played(layout, rows, seed=seed)
    assert first_problem(segments) is None
    data = encode(layout, segments)
    assert_equal(segments, decode(layout, data, crc32=checksum(data), size_cap=CAP))


def test_decoded_arrays_are_read_only_views_of_the_bytes() -> None:
    layout = layout_of(NESTED)
    data = bytes(encode(layout, played(layout)))
    place = np.frombuffer(data, np.uint8)
    segments = decode(layout, data, crc32=None, size_cap=CAP)
    for name, array in segments.arrays.items():
        assert not array.flags.writeable, name
        if name != "final_row" and array.dtype != np.float16:  # worked out from the offsets; travels as float32
            assert np.shares_memory(array, place) or not array.size, name


def test_bytes_that_may_still_change_give_read_only_arrays_too() -> None:
    layout = layout_of()
    data = memoryview(bytearray(encode(layout, played(layout))))
    segments = decode(layout, data, crc32=None, size_cap=CAP)
    assert not any(array.flags.writeable for array in segments.arrays.values())


def test_bytes_at_an_odd_address_are_copied_into_place() -> None:
    layout = layout_of()
    segments = played(layout)
    data = memoryview(b"x" + bytes(encode(layout, segments)))[1:]
    found = decode(layout, data, crc32=None, size_cap=CAP)
    assert all(array.flags.aligned for array in found.arrays.values())
    assert_equal(segments, found)


def test_any_arrow_reader_can_open_a_batch() -> None:
    layout = layout_of()
    segments = played(layout)
    table = pa.ipc.open_stream(encode(layout, segments)).read_all()
    tensor = table.column("obs").chunk(0).to_numpy_ndarray()
    np.testing.assert_array_equal(tensor, segments.arrays["obs"])
    assert table.column("version").to_pylist() == segments.arrays["version"].tolist()


def test_finals_given_out_of_order_are_written_in_order() -> None:
    layout = layout_of()
    segments = played(layout, rows=4, seed=3, full=True)
    assert segments.num_finals > 2
    shuffled = np.random.default_rng(0).permutation(segments.num_finals)
    for name in ("final_row", "final_step", "final.obs"):
        segments.arrays[name] = segments.arrays[name][shuffled]
    found = decode(layout, encode(layout, segments), crc32=None, size_cap=CAP)
    assert_equal(played(layout, rows=4, seed=3, full=True), found)


def test_an_array_of_another_shape_or_dtype_is_not_written() -> None:
    layout = layout_of()
    for name, wrong in (("reward", np.zeros((3, 4))), ("obs", np.zeros((3, 4, 4), np.float32))):
        segments = played(layout)
        segments.arrays[name] = wrong
        with pytest.raises(ValueError, match=f"{name} is .* the layout says"):
            encode(layout, segments)
    del segments.arrays["reward"]
    segments.arrays["obs"] = played(layout).arrays["obs"]
    with pytest.raises(ValueError, match="lack reward"):
        encode(layout, segments)


def spoiled(name: str, value: object, at: Any = (0, 0)) -> Callable[[Segments], None]:
    def spoil(segments: Segments) -> None:
        segments.arrays[name][at] = value

    return spoil


def cut_final(segments: Segments) -> None:
    assert segments.num_finals
    for name in ("final_row", "final_step", "final.obs"):
        segments.arrays[name] = segments.arrays[name][1:]


def end_beyond(segments: Segments) -> None:
    segments.arrays["length"][0] = 2
    segments.arrays["terminated"][0, 3] = True


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (spoiled("length", 5, 0), "length 5 is outside 0..4"),
        (spoiled("length", -1, 0), "length -1 is outside 0..4"),
        (spoiled("version", -1, 1), "version -1 is negative"),
        (spoiled("env", -2, 1), "env -2 is negative"),
        (spoiled("agent", -2, 1), "agent -2 is negative"),
        (spoiled("reward", np.nan, (1, 2)), "reward is not a finite number in row 1 at step 2"),
        (spoiled("reward", np.inf, (1, 2)), "reward is not a finite number in row 1 at step 2"),
        (spoiled("obs", np.nan, (2, 4, 1)), "obs is not a finite number in row 2 at step 4"),
        (spoiled("out.log_prob", np.nan), "out.log_prob is not a finite number"),
        (spoiled("state.h", np.nan), "state.h is not a finite number"),
        (spoiled("action", 3), "action 3 is outside 0..2"),
        (spoiled("action", -1), "action -1 is outside 0..2"),
        (spoiled("episode_length", -1), "an episode length is negative"),
        (spoiled("episode_return", np.nan, (slice(None), slice(None))), "disagree on where an episode ended"),
        (spoiled("final.obs", np.nan, (0, 0)), "final.obs is not a finite number"),
        (spoiled("truncated", False, (slice(None), slice(None))), "final observations are not exactly"),
        (cut_final, "final observations are not exactly"),
        (end_beyond, "an episode ends beyond the length"),
        (spoiled("final_step", 4, 0), "final_step 4 is outside 0..3"),
    ],
)
def test_contents_that_cannot_be_are_refused(spoil: Callable[[Segments], None], reason: str) -> None:
    layout = layout_of()
    segments = played(layout, rows=4, seed=3, full=True)
    spoil(segments)
    with pytest.raises(BatchError, match=reason):
        decode(layout, encode(layout, segments), crc32=None, size_cap=CAP)


def test_what_lies_beyond_the_length_of_a_segment_is_not_looked_at() -> None:
    layout = layout_of()
    segments = played(layout, rows=1, seed=1)
    length = int(segments.arrays["length"][0])
    assert length < layout.steps
    segments.arrays["reward"][0, length:] = np.nan
    segments.arrays["obs"][0, length + 1 :] = np.nan
    segments.arrays["action"][0, length:] = 99
    found = decode(layout, encode(layout, segments), crc32=None, size_cap=CAP)
    assert_same(segments, found)


def test_minus_infinity_is_a_fair_logit() -> None:
    layout = layout_of()
    segments = played(layout)
    segments.arrays["out.logits"][0, 0, 0] = -np.inf
    found = decode(layout, encode(layout, segments), crc32=None, size_cap=CAP)
    assert found.arrays["out.logits"][0, 0, 0] == -np.inf
    assert_same(segments, found)


def test_no_segments_are_no_batch() -> None:
    layout = layout_of()
    data = encode(layout, Segments.empty(layout, 0))
    with pytest.raises(BatchError, match="no segments"):
        decode(layout, data, crc32=None, size_cap=CAP)


def test_the_checks_before_the_first_array_name_what_is_off() -> None:
    layout = layout_of()
    data = bytes(encode(layout, played(layout)))
    crc = checksum(data)
    other = layout_of(steps=5)
    fewer = make_layout(PLAIN, Discrete(3), steps=4, outputs={})
    cases: list[tuple[Layout, bytes, int | None, int, str]] = [
        (layout, data, crc, len(data) - 1, "more than the cap"),
        (layout, data, crc + 1, CAP, "the checksum is"),
        (other, data, crc, CAP, "column obs is .*expected"),
        (layout_of(action=Discrete(3), observation=Box((4,), "float64")), data, None, CAP, "column obs is"),
        (fewer, data, None, CAP, "column out.log_prob is unknown"),
        (layout, bytes(encode(fewer, played(fewer))), None, CAP, "column out.log_prob is missing"),
        (layout, data + b"more bytes", None, CAP, "10 bytes follow the end"),
        (layout, data[:-8], None, CAP, "it was cut"),
        (layout, data[: len(data) // 2], None, CAP, "not a whole Arrow stream"),
        (layout, b"", None, CAP, "not a whole Arrow stream"),
        (layout, b"PK\x03\x04" + bytes(500), None, CAP, "not a whole Arrow stream"),
    ]
    for expected, given_data, crc32, cap, reason in cases:
        with pytest.raises(BatchError, match=reason) as refused:
            decode(expected, given_data, crc32=crc32, size_cap=cap)
        assert "\n" not in str(refused.value)


def test_messages_in_the_wrong_places_are_refused_by_type() -> None:
    layout = layout_of()
    data = bytes(encode(layout, played(layout)))
    (metadata_bytes,) = struct.unpack_from("<i", data, 4)
    schema, rest = data[: 8 + metadata_bytes], data[8 + metadata_bytes :]
    with pytest.raises(BatchError, match="record batch stands where a schema should"):
        decode(layout, rest, crc32=None, size_cap=CAP)
    with pytest.raises(BatchError, match="schema stands where a record batch should"):
        decode(layout, schema + data, crc32=None, size_cap=CAP)


def test_two_record_batches_are_not_a_batch() -> None:
    layout = layout_of()
    batch = pa.ipc.open_stream(encode(layout, played(layout))).read_next_batch()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    with pytest.raises(BatchError, match="follows the record batch"):
        decode(layout, memoryview(sink.getvalue()), crc32=None, size_cap=CAP)


def test_a_boolean_that_is_neither_true_nor_false_is_refused() -> None:
    layout = layout_of()
    segments = played(layout)
    segments.arrays["terminated"].view(np.uint8)[0, 0] = 2
    with pytest.raises(BatchError, match="terminated has a value that is neither"):
        decode(layout, encode(layout, segments), crc32=None, size_cap=CAP)


def test_a_packed_batch_that_would_fill_the_memory_is_refused_before_it_is_unpacked() -> None:
    layout = layout_of(Box((64, 64), "uint8", 0, 255), steps=64)
    segments = Segments.empty(layout, 16)
    segments.arrays["length"][:] = 64
    data = encode(layout, segments, compression="zstd")
    assert len(data) < 100_000
    with pytest.raises(BatchError, match="unpacks to"):
        decode(layout, data, crc32=None, size_cap=1_000_000)
    # and a size that is a plain lie: the eight bytes in front of a packed buffer
    raw = bytes(data)
    head, _, tail = raw.rpartition(struct.pack("<q", 16 * 65 * 64 * 64))
    with pytest.raises(BatchError, match="unpacks to"):
        decode(layout, head + struct.pack("<q", 1 << 60) + tail, crc32=None, size_cap=CAP)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_mutated_bytes_never_crash_and_never_pass_the_checksum(compression: Literal["zstd"] | None) -> None:
    layout = layout_of(NESTED)
    data = bytes(encode(layout, played(layout), compression=compression))
    crc, rng = checksum(data), np.random.default_rng(7)
    survivors = 0
    for _ in range(2_000):
        mutant = mutated(data, rng)
        if mutant == data:
            continue
        with pytest.raises(BatchError):
            decode(layout, mutant, crc32=crc, size_cap=CAP)
        try:
            found = decode(layout, mutant, crc32=checksum(mutant), size_cap=CAP)
        except BatchError as refused:
            assert "\n" not in str(refused)
        else:
            survivors += 1
            assert first_problem(found) is None
            for name, array in found.arrays.items():  # touch every byte
                array.copy()
                if not (has_blanks_of(layout, name) or array.dtype.kind != "f"):
                    np.nan_to_num(array).sum()
    assert survivors < 2_000  # flipped payload may read as other valid data: that is what the checksum is for


def has_blanks_of(layout: Layout, name: str) -> bool:
    return any(has_blanks(column) for column in layout.columns if column.name == name)


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """One to four changes: a flipped bit, a random byte, a random word, a cut, a doubled or a zeroed piece."""
    changed = bytearray(data)
    for _ in range(int(rng.choice([1, 1, 1, 2, 4]))):
        # half of all changes hit the metadata in front, where readers crash
        reach = min(len(changed), 6_000) if rng.random() < 0.5 else len(changed)
        if reach < 16:
            break
        place, kind = int(rng.integers(0, reach - 8)), int(rng.choice([0, 0, 1, 1, 2, 2, 3, 4, 5]))
        if kind == 0:
            changed[place] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:
            changed[place] = int(rng.integers(0, 256))
        elif kind == 2:
            changed[place : place + 4] = struct.pack("<i", int(rng.integers(-(2**31), 2**31)))
        elif kind == 3:
            del changed[place:]
        elif kind == 4:
            changed[place:place] = changed[place : place + int(rng.integers(1, 64))]
        else:
            changed[place : place + 8] = bytes(8)
    return bytes(changed)


def test_the_same_segments_give_the_same_bytes() -> None:
    layout = layout_of(NESTED)
    assert bytes(encode(layout, played(layout))) == bytes(encode(layout, played(layout)))


def test_selected_rows_take_their_final_observations_along() -> None:
    layout = layout_of()
    segments = played(layout, rows=4, seed=3, full=True)
    picked = segments.select(np.array([1, 3]))
    assert first_problem(picked) is None
    np.testing.assert_array_equal(picked.arrays["env"], [1, 3])
    kept = np.isin(segments.arrays["final_row"], [1, 3])
    np.testing.assert_array_equal(picked.arrays["final.obs"], segments.arrays["final.obs"][kept])


def alike(layout: Layout, count: int = 3, rows: int = 3) -> list[bytes]:
    """Batches of as many segments, none with a final observation."""
    found = []
    for seed in range(count):
        segments = played(layout, rows, seed=seed, full=True)
        segments.arrays["truncated"][:] = False
        segments.set_finals([])
        found.append(bytes(encode(layout, segments)))
    return found


def unread(*_: object) -> Any:
    raise AssertionError("Arrow was asked")


@pytest.mark.parametrize("observation", [PLAIN, Box((3, 2), "uint8", 0, 255), Discrete(5, 2)])
def test_a_batch_like_one_that_was_read_is_read_without_arrow_and_has_the_same_arrays(
    observation: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layout_of(observation)
    batches = alike(layout)
    codec_of(layout).stencils.clear()
    plain = [decode(layout, data, crc32=None, size_cap=CAP) for data in batches[:1]]
    for data in batches[1:]:
        codec_of(layout).stencils.clear()
        plain.append(decode(layout, data, crc32=None, size_cap=CAP))
    monkeypatch.setattr("heddle.batch.read_batch", unread)
    for data, expected in zip(batches, plain, strict=True):
        for view in (data, memoryview(data), memoryview(b"." + data)[1:]):
            found = decode(layout, view, crc32=None, size_cap=CAP)
            assert_equal(found, expected)
            assert list(found.arrays) and not any(array.flags.writeable for array in found.arrays.values())
            assert all(array.dtype == expected.arrays[name].dtype for name, array in found.arrays.items())
    other = bytes(encode(layout, played(layout, rows=2)))
    with pytest.raises(AssertionError, match="Arrow was asked"):
        decode(layout, other, crc32=None, size_cap=CAP)


def outcome(layout: Layout, data: bytes) -> Segments | str:
    try:
        return decode(layout, data, crc32=None, size_cap=CAP)
    except BatchError as error:
        return str(error)


@pytest.mark.parametrize("observation", [PLAIN, DictSpace({"image": Box((3,), "uint8", 0, 255), "mode": Discrete(3)})])
def test_bytes_are_judged_alike_whether_arrow_reads_them_or_not(observation: Space) -> None:
    layout, rng = layout_of(observation), np.random.default_rng(5)
    (first, *others), kinds = alike(layout, 4), set[str]()
    for trial in range(400):
        data = bytearray(others[trial % 3])
        for _ in range(rng.integers(0, 3)):
            data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        codec_of(layout).stencils.clear()
        expected = outcome(layout, bytes(data))
        codec_of(layout).stencils.clear()
        decode(layout, first, crc32=None, size_cap=CAP)  # sound, so that others like it need no Arrow
        assert codec_of(layout).stencils
        found = outcome(layout, bytes(data))
        kinds.add(expected if isinstance(expected, str) else "")
        if isinstance(expected, Segments) and isinstance(found, Segments):
            assert_equal(found, expected)
        else:
            assert found == expected
    assert "" in kinds
    assert len(kinds) > 5


def test_a_boolean_that_is_neither_is_refused_without_arrow_too(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layout_of()
    data, _, _ = alike(layout)
    segments = decode(layout, data, crc32=None, size_cap=CAP)
    monkeypatch.setattr("heddle.batch.read_batch", unread)
    at = segments.arrays["terminated"].__array_interface__["data"][0]
    spoilt = bytearray(data)
    spoilt[at - np.frombuffer(data, np.uint8).__array_interface__["data"][0]] = 7
    with pytest.raises(BatchError, match="terminated has a value that is neither 0 nor 1"):
        decode(layout, bytes(spoilt), crc32=None, size_cap=CAP)


@pytest.mark.parametrize("case", ["half floats", "final observations", "compressed"])
def test_batches_whose_arrays_do_not_lie_in_them_as_they_are_have_no_stencil(case: str) -> None:
    layout = layout_of(NESTED if case == "half floats" else PLAIN)
    segments = played(layout, full=True)
    if case != "final observations":
        segments.arrays["truncated"][:] = False
        segments.set_finals([])
    else:
        assert segments.num_finals
    data = bytes(encode(layout, segments, compression="zstd" if case == "compressed" else None))
    codec_of(layout).stencils.clear()
    decode(layout, data, crc32=None, size_cap=CAP)
    assert not codec_of(layout).stencils


def test_a_batch_is_finished_around_its_arrays_exactly_as_it_is_encoded() -> None:
    layout = layout_of(Box((3, 2), "uint8", 0, 255))
    segments = played(layout, full=True)
    segments.arrays["truncated"][:] = False
    segments.set_finals([])
    where = places(layout, segments.rows)
    memory = memoryview(bytearray(b"?" * (where.size + 100)))
    for name, at in where.offsets.items():
        old = segments.arrays[name]
        new: Any = np.frombuffer(memory, old.dtype, old.size, at).reshape(old.shape)
        new[...] = old
        segments.arrays[name] = new
    finished = finish_in(layout, segments, memory)
    assert finished is not None
    assert bytes(finished) == bytes(encode(layout, segments))
    for name in ("reward", "terminated"):  # one elsewhere, or with an ending that has an observation of its own
        kept = segments.arrays[name]
        segments.arrays[name] = kept.copy()
        assert finish_in(layout, segments, memory) is None
        segments.arrays[name] = kept
    assert finish_in(layout, segments, memory[: where.size - 1]) is None
    segments.set_finals([(0, 1, {"obs": np.zeros((3, 2), np.uint8)})])
    assert finish_in(layout, segments, memory) is None


@given(st.binary(max_size=400), st.sampled_from([1, 200, 900]))
@settings(max_examples=40, deadline=None)
def test_a_spot_check_is_the_checksum_of_its_parts_in_order(start: bytes, times: int) -> None:
    data = (start + bytes(range(251))) * times
    size, ends = len(data), 16 << 10
    if size <= 4 * ends:
        assert spot_check(data) == checksum(data)
        return
    parts = [size.to_bytes(8, "little"), data[:ends]]
    step = max(256, (size - 2 * ends) // 64)
    parts += [data[at : at + 256] for at in range(ends, size - ends, step)]
    assert spot_check(memoryview(data)) == checksum(b"".join([*parts, data[size - ends :]]))
