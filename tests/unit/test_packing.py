"""Packing: a batch that was played where it lies is the batch that was played elsewhere and copied there."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from heddle.batch import checksum, decode, encode, encode_into
from heddle.errors import PlaneError
from heddle.layout import Layout, Segments, make_layout
from heddle.plane import Home, Slot, file_of, open_plane
from heddle.producers.envs import check_env
from heddle.producers.packing import Packed, Packer
from heddle.producers.player import Player
from heddle.shard import plan_shards
from heddle.spec import ExperimentSpec, load_spec
from tests.plane_kit import HERE, files
from tests.unit.fake_envs import Drawn

STEPS = 5


class Mixed(gymnasium.Env[Any, Any]):
    """Observations of several kinds; every third episode is truncated, and lasts longer than a segment."""

    def __init__(self, env_index: int = 0) -> None:
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict(
            {
                "image": box(0, 255, (6, 5), np.uint8),
                "half": box(-10, 10, (3,), np.float16),
                "wide": box(-1e9, 1e9, (), np.float64),
                "flags": gymnasium.spaces.MultiBinary(4),
                "words": gymnasium.spaces.Text(9),
            }
        )
        self.action_space = gymnasium.spaces.Discrete(3)
        self._episode, self._step, self._index = -1, 0, env_index

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        cut = self._episode % 3 == 2
        over = self._step >= (7 if cut else 2 + self._index)
        return self._observe(), float(self._step), over and not cut, over and cut, {}

    def _observe(self) -> Any:
        rng = self.np_random
        return {
            "image": rng.integers(0, 256, (6, 5), np.uint8),
            "half": rng.random(3).astype(np.float16),
            "wide": np.float64(rng.random()),
            "flags": rng.integers(0, 2, 4, np.int8),
            "words": "abcdefghi"[: int(rng.integers(1, 10))],
        }


class Plain(gymnasium.wrappers.TransformObservation[Any, Any, Any]):
    """Its image alone."""

    def __init__(self, env_index: int = 0) -> None:
        env = Mixed(env_index)
        image = gymnasium.spaces.Box(0, 255, (6, 5), np.uint8)
        super().__init__(env, lambda seen: seen["image"], image)


class Scene:
    """A player and a packer of the same experiment."""

    def __init__(self, name: str, root: Path) -> None:
        self.spec: ExperimentSpec = load_spec(
            {
                "experiment": {"name": "packing", "seed": 3},
                "env": {"id": f"tests.unit.test_packing:{name}", "num_envs": 3, "envs_per_shard": 3},
                "rollout": {"steps": STEPS, "plane": "shm"},
                "trainer": {"minibatch": 1},
                "budget": {"env_steps": 1000},
            }
        ).spec
        self.home = Home(open_plane(root, HERE), "b1", "packing-1")
        observation, action = check_env(self.spec)
        policy: Any = Drawn()
        outputs = dict(policy.outputs)
        self.layout: Layout = make_layout(observation, action, steps=STEPS, outputs=outputs)
        self.player = Player(plan_shards(self.spec)[0], self.spec, policy, self.layout)
        self.packer = Packer(self.spec, lambda: self.home)
        self.made = 0

    def play(self, *, plane: str, lend: bool) -> tuple[bytes, Packed]:
        """The next batch: as it is encoded anywhere, and as it was packed."""
        if lend:
            self.packer.lend(self.player, self.layout, plane)
        segments = self.player.play(1)
        plain = bytes(encode(self.layout, segments))
        packed = self.packer.pack(self.layout, segments, plane)
        self.player.recycle(segments)
        return plain, packed

    def deliver(self, packed: Packed) -> str:
        """As the appender does."""
        assert packed.slot is not None
        self.made += 1
        name = file_of(0, 1, "n", self.made)
        packed.slot.offer(name)
        packed.slot.close()
        return name

    def segments(self, data: bytes) -> Segments:
        return decode(self.layout, data, crc32=None, size_cap=1 << 20)


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers of every size are played in, and used again."""
    monkeypatch.setattr("heddle.plane.ring.REUSED_FROM", 0)
    monkeypatch.setattr("heddle.producers.packing.IN_PLACE_FROM", 0)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[[str], Scene]]:
    made: list[Scene] = []

    def make(name: str) -> Scene:
        made.append(Scene(name, tmp_path / "memory"))
        return made[-1]

    yield make
    for one in made:
        one.player.close()
        one.packer.close()
    assert all(".ring-" not in file for file in files(tmp_path / "memory"))


def same(one: Segments, other: Segments) -> None:
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name], err_msg=name)


@pytest.mark.parametrize("name", ["Mixed", "Plain"])
def test_what_was_played_in_shared_memory_is_bit_for_bit_what_was_played_elsewhere(
    scene: Callable[[str], Scene], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[Segments] = []

    def counted(layout: Layout, segments: Segments, take: Callable[[int], memoryview]) -> memoryview:
        encoded.append(segments)
        return encode_into(layout, segments, take)

    monkeypatch.setattr("heddle.producers.packing.encode_into", counted)
    here, there = scene(name), scene(name)
    token, slots, finals, around = here.home.token, set[Slot](), 0, 0
    for number in range(30):
        before = len(encoded)
        plain, packed = here.play(plane=token, lend=True)
        around += len(encoded) == before
        _, copied = there.play(plane="", lend=False)
        assert packed.slot is not None
        assert copied.slot is None
        slots.add(packed.slot)
        finals += here.segments(plain).num_finals
        same(here.segments(bytes(packed.blob)), there.segments(bytes(copied.blob)))
        same(here.segments(bytes(packed.blob)), here.segments(plain))
        assert bytes(packed.blob) == plain
        name_of = here.deliver(packed)
        if number >= 2:
            here.home.remove(file_of(0, 1, "n", here.made - 2))
        assert here.home.view(name_of, len(packed.blob)) is not None
    assert finals > 3
    assert len(slots) < 12, "buffers are used again"
    assert (around > 3) == (name == "Plain"), "without Arrow exactly where all arrays lie in place"


def test_a_short_segment_in_used_memory_is_blank_behind_its_end(scene: Callable[[str], Scene]) -> None:
    one = scene("Mixed")
    for _ in range(4):
        _, packed = one.play(plane=one.home.token, lend=True)
        one.home.remove(one.deliver(packed))
    one.player.cut()
    plain, packed = one.play(plane=one.home.token, lend=True)
    segments = one.segments(bytes(packed.blob))
    assert segments.arrays["length"].tolist() == [1, 1, 1]
    assert not segments.arrays["obs.image"][:, 2:].any()
    assert not segments.arrays["action"][:, 1:].any()
    same(segments, one.segments(plain))


def test_memory_that_became_another_hosts_while_a_batch_was_played_is_left(scene: Callable[[str], Scene]) -> None:
    one = scene("Plain")
    one.deliver(one.play(plane=one.home.token, lend=True)[1])
    one.packer.lend(one.player, one.layout, one.home.token)
    segments = one.player.play(1)
    packed = one.packer.pack(one.layout, segments, "elsewhere/boot/chance")
    one.player.recycle(segments)
    assert packed.slot is None
    assert one.segments(bytes(packed.blob)).num_steps == 3 * STEPS
    assert one.home.names() == [file_of(0, 1, "n", 1)]


def test_a_player_that_is_closed_in_the_middle_of_a_batch_keeps_no_buffer(
    scene: Callable[[str], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = scene("Plain")
    one.deliver(one.play(plane=one.home.token, lend=True)[1])
    one.packer.lend(one.player, one.layout, one.home.token)
    one.player.play(1)
    assert one.player._lent is not None
    slot = one.player._lent.slot
    one.player.close()
    assert isinstance(slot, Slot)
    assert slot.is_gone


def test_without_room_a_batch_is_played_and_packed_in_memory_of_our_own(
    scene: Callable[[str], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = scene("Plain")

    def full(*_: object, **__: object) -> Slot:
        raise PlaneError("no room for the test")

    monkeypatch.setattr("heddle.plane.ring.Slot", full)
    plain, packed = one.play(plane=one.home.token, lend=True)
    assert packed.slot is None
    assert bytes(packed.blob) == plain


def test_what_is_sent_from_where_it_was_played_is_bit_for_bit_what_is_encoded_and_stays_so_while_it_is_sent(
    scene: Callable[[str], Scene],
) -> None:
    one = scene("Plain")
    sent: list[tuple[memoryview, bytes]] = []
    most = 0
    for number in range(30):
        plain, packed = one.play(plane="", lend=True)
        assert (packed.slot, bytes(packed.blob), packed.blob.readonly) == (None, plain, True)
        assert packed.crc32 == checksum(plain)
        sent.append((packed.blob, plain))
        del packed
        if number % 7 > 2:  # answers come in bursts
            del sent[:2]
        assert all(bytes(blob) == expected for blob, expected in sent)
        most = max(most, len(one.packer._pieces._all))
    assert 2 < most < 20
    sent.clear()
    for _ in range(10):
        one.play(plane="", lend=True)
    assert len(one.packer._pieces._all) == 2, "what is not needed any more goes"


def test_a_batch_that_cannot_be_sent_from_where_it_was_played_is_encoded_elsewhere_and_leaves_its_memory(
    scene: Callable[[str], Scene],
) -> None:
    one = scene("Plain")
    for _ in range(6):
        one.packer.lend(one.player, one.layout, "")
        segments = one.player.play(1)
        short = segments.select(np.arange(2))
        short.owner, segments.owner = segments.owner, None
        packed = one.packer.pack(one.layout, short, "")
        assert bytes(packed.blob) == bytes(encode(one.layout, short))
        one.player.recycle(short)
    assert [piece.is_taken for piece in one.packer._pieces._all] == [False]


def test_a_player_that_is_closed_in_the_middle_of_a_batch_keeps_no_memory_of_its_own(
    scene: Callable[[str], Scene],
) -> None:
    one = scene("Plain")
    one.packer.lend(one.player, one.layout, "")
    one.player.play(1)
    (piece,) = one.packer._pieces._all
    assert piece.is_taken
    one.player.close()
    assert not piece.is_taken


def test_a_batch_for_which_there_is_no_memory_as_it_is_encoded_leaves_that_in_which_it_was_played(
    scene: Callable[[str], Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a batch that was played where it is sent from, and cannot be sent from there
    one = scene("Plain")
    one.packer.lend(one.player, one.layout, "")
    segments = one.player.play(1)
    short = segments.select(np.arange(2))
    short.owner, segments.owner = segments.owner, None
    (piece,) = one.packer._pieces._all
    assert piece.is_taken

    # When there is no memory for another copy
    def full(*_: object, **__: object) -> memoryview:
        raise MemoryError("for the test")

    monkeypatch.setattr("heddle.producers.packing.encode_like", lambda *_: None)
    monkeypatch.setattr("heddle.producers.packing.encode", full)
    with pytest.raises(MemoryError, match="for the test"):
        one.packer.pack(one.layout, short, "")
    # Then its own is free again
    assert not piece.is_taken


@pytest.mark.parametrize("name", ["Mixed", "Plain"])
def test_with_compression_or_cells_batches_are_played_elsewhere(scene: Callable[[str], Scene], name: str) -> None:
    one = scene(name)
    if name == "Plain":
        one.packer._compression = "lz4"
    plain, packed = one.play(plane="", lend=True)
    assert one.packer._pieces._all == []
    assert (bytes(packed.blob) == plain) == (name == "Mixed")
    same(one.segments(bytes(packed.blob)), one.segments(plain))
