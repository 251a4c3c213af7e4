"""The replay buffer: what is drawn is what was played, n-step targets end where they should, and disk holds it all."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.consumers.learners.replay import Replay
from heddle.consumers.learners.replay_chunk import Chunk, make_chunk, row_bytes
from heddle.consumers.learners.sum_tree import SumTree
from heddle.errors import CheckpointError, ExperimentFailed
from heddle.spec.learning import ReplayOptions
from tests.unit.replay_kit import GAMMA, World, target

ROW = row_bytes(make_chunk(World().play()).leaves)


def make_replay(*, rows: int = 5000, seed: int = 0, directory: Path | None = None, **options: Any) -> Replay:
    """A buffer of so many rows."""
    made = ReplayOptions.model_construct(**(ReplayOptions().model_dump() | {"capacity": rows * ROW} | options))
    replay = Replay(made, gamma=GAMMA, seed=seed)
    if directory is not None:
        replay.open(directory)
    return replay


def drawn(replay: Replay, count: int = 400) -> dict[tuple[float, float], tuple[int, float, float, tuple[float, ...]]]:
    """What was drawn: observation -> action, returns, discount, what followed."""
    sample = replay.sample(count)
    found = {}
    for index in range(count):
        seen = tuple(sample.leaves["obs"][index].tolist())
        after = tuple(sample.following["obs"][index].tolist())
        numbers = (float(sample.returns[index]), float(sample.discount[index]))
        found[seen] = (int(sample.leaves["action"][index]), *numbers, after)
    return found


# ---- the sum tree


@given(st.lists(st.integers(0, 5), min_size=1, max_size=70), st.randoms(use_true_random=False))
def test_the_tree_finds_what_running_sums_find_and_never_an_index_of_priority_zero(
    priorities: list[int], random: Any
) -> None:
    tree = SumTree(len(priorities))
    order = list(range(len(priorities)))
    random.shuffle(order)
    tree.set(np.array(order), np.array([float(priorities[index]) for index in order]))
    assert tree.total == sum(priorities)
    assert tree.get(np.arange(len(priorities))).tolist() == priorities
    if sum(priorities):
        mass = np.arange(sum(priorities), dtype=np.float64) + 0.5
        expected = np.repeat(np.arange(len(priorities)), priorities)
        assert tree.find(mass).tolist() == expected.tolist()
        assert priorities[int(tree.find(np.array([tree.total]))[0])] > 0


def test_priorities_can_be_changed_and_taken_back() -> None:
    tree = SumTree(5)
    tree.set(np.arange(5), 2.0)
    tree.set(np.array([1, 3]), np.array([0.0, 0.5]))
    assert tree.total == pytest.approx(6.5)
    tree.set(np.arange(5), 0.0)
    assert tree.total == 0.0


# ---- what is drawn


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 7), updates=st.integers(1, 12))
def test_every_step_is_drawn_with_its_own_target_across_borders_and_never_across_an_episodes_end(
    seed: int, n: int, updates: int
) -> None:
    # Given segments of random lengths with terminations and truncations, that follow on each other
    world, replay = World(seed=seed), make_replay(n_step=n, seed=seed)
    for _ in range(updates):
        replay.insert(make_chunk(world.play()))
    # When many are drawn
    found = drawn(replay, 200)
    # Then each is what was played, with the target that the whole track gives
    known = {step.seen: (track, at) for track in world.tracks for at, step in enumerate(track)}
    assert replay.num_steps == len(known)
    for seen, (action, returns, discount, after) in found.items():
        track, at = known[seen]
        expected, factor, led_to = target(track, at, n, len(track))
        assert (action, after) == (track[at].action, led_to if factor else after)
        assert (returns, discount) == pytest.approx((expected, factor))


def test_segments_of_another_owner_or_behind_a_gap_are_not_joined() -> None:
    for spoil in ("epoch", "gap"):
        world, replay = World(envs=1, seed=4), make_replay(n_step=50)
        replay.insert(make_chunk(world.play(epoch=1)))
        border = len(world.tracks[0])
        if spoil == "gap":
            world.skip()
        replay.insert(make_chunk(world.play(epoch=2 if spoil == "epoch" else 1)))
        track = world.tracks[0]
        for seen, (_, returns, discount, _) in drawn(replay).items():
            at = [step.seen for step in track].index(seen)
            expected, factor, _ = target(track, at, 50, border if at < border else len(track))
            assert (returns, discount) == pytest.approx((expected, factor))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(24, 80), prioritised=st.booleans())
def test_the_newest_segments_that_fit_are_kept_and_what_was_overwritten_is_never_drawn(
    seed: int, rows: int, prioritised: bool
) -> None:
    world, replay = World(seed=seed), make_replay(rows=rows, n_step=3, prioritised=prioritised)
    for _ in range(25):
        replay.insert(make_chunk(world.play()))
    kept = {step.seen for track in world.tracks for step in track[-(rows // 4) :]}
    known = {step.seen: (track, at) for track in world.tracks for at, step in enumerate(track)}
    found = drawn(replay, 300)
    assert 0 < replay.num_steps <= rows
    assert len(found) <= replay.num_steps
    assert found.keys() <= known.keys()
    newest = max(known, key=lambda seen: seen[1] if seen[0] == 0 else -1)
    assert newest in kept
    for seen, (_, returns, discount, _) in found.items():
        track, at = known[seen]
        expected, factor, _ = target(track, at, 3, len(track))
        assert (returns, discount) == pytest.approx((expected, factor))


def test_steps_are_drawn_in_proportion_to_their_priority_and_weighted_against_it() -> None:
    world, replay = World(envs=1, seed=1), make_replay(prioritised=True, alpha=0.5)
    replay.insert(make_chunk(world.play(lengths=[4])))
    rows = np.unique(replay.sample(200).rows)
    assert len(rows) == 4
    # Given temporal differences whose roots are 1, 2, 3 and 4
    replay.set_priorities(rows, np.array([1.0, -4.0, 9.0, 16.0]))
    # When many are drawn
    sample = replay.sample(10_000, beta=1.0)
    # Then their shares are 0.1 to 0.4, and rare ones count more
    shares = [float(np.mean(sample.rows == row)) for row in rows]
    assert shares == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.01)
    weights = [float(sample.weights[sample.rows == row][0]) for row in rows]
    assert weights == pytest.approx([1.0, 1 / 2, 1 / 3, 1 / 4], rel=1e-4)
    assert set(replay.sample(50, beta=0.0).weights.tolist()) == {1.0}


def test_a_segment_larger_than_the_buffer_is_refused_with_what_to_do() -> None:
    with pytest.raises(ExperimentFailed, match=r"trainer.replay.capacity = \d+ holds 3 rows, one segment needs"):
        make_replay(rows=3).insert(make_chunk(World().play(lengths=[5, 5])))


def test_a_chunk_survives_its_bytes() -> None:
    chunk = make_chunk(World(seed=3).play())
    again = Chunk.from_bytes(chunk.to_bytes())
    for name in ("reward", "kind", "after", "rows", "steps", "shard", "env", "epoch"):
        np.testing.assert_array_equal(getattr(again, name), getattr(chunk, name))
    assert all(np.array_equal(again.leaves[name], chunk.leaves[name]) for name in chunk.leaves)
    with pytest.raises(CheckpointError, match="cannot be read"):
        Chunk.from_bytes(b"nothing of the kind")


# ---- disk


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(30, 90),
    before=st.integers(1, 20),
    lost=st.integers(0, 3),
    prioritised=st.booleans(),
)
def test_a_resumed_buffer_holds_what_its_state_covers_and_goes_on_as_the_first_would_have(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rows: int, before: int, lost: int, prioritised: bool
) -> None:
    # Given a buffer that was saved now and then, and took in more that no saved state covers
    folder = tmp_path_factory.mktemp("replay")
    options: dict[str, Any] = {"rows": rows, "n_step": 3, "prioritised": prioritised, "directory": folder}
    world, first = World(seed=seed), make_replay(**options)
    for update in range(before):
        first.insert(make_chunk(world.play()))
        first.set_priorities(first.sample(4).rows, np.arange(4.0))
        if update % 3 == 0:
            first.state()
    tensors, meta = first.state()
    expected = [first.sample(64) for _ in range(2)]
    more = [make_chunk(world.play()) for _ in range(lost + 1)]
    for chunk in more:
        first.insert(chunk)
    if lost:
        first.state()
    after = first.sample(64)
    # When another process loads that state, and takes in the same
    second = make_replay(**options)
    second.load(tensors, meta)
    # Then it draws the same steps with the same targets, before and after
    for one in expected:
        _same(one, second.sample(64))
    for chunk in more:
        second.insert(chunk)
    _same(after, second.sample(64))
    assert (second.inserted, second.filled) == (first.inserted, first.filled)
    # And what it saves can be loaded again
    third = make_replay(**options)
    third.load(*second.state())
    _same(second.sample(64), third.sample(64))


def test_a_state_costs_what_changed_however_much_is_in_the_buffer(tmp_path: Path) -> None:
    # Given a full buffer with priorities that were saved
    world, replay = World(), make_replay(rows=20_000, prioritised=True, directory=tmp_path)
    while replay.num_steps < 8_000:
        replay.insert(make_chunk(world.play(lengths=[5, 5])))
    replay.state()
    before = sum(path.stat().st_size for path in tmp_path.iterdir())
    # When a few were drawn since, and ten put in
    replay.insert(chunk := make_chunk(world.play(lengths=[5, 5])))
    drawn_rows = replay.sample(8).rows
    replay.set_priorities(drawn_rows, np.arange(8.0) + 3)
    tensors, meta = replay.state()
    # Then the checkpoint holds no priority, and the files grew by those alone
    assert not tensors
    grown = sum(path.stat().st_size for path in tmp_path.iterdir()) - before
    assert 0 < grown < len(chunk.to_bytes()) + 18 * 16 + 500
    second = make_replay(rows=20_000, prioritised=True, directory=tmp_path)
    second.load(tensors, meta)
    np.testing.assert_array_equal(priorities_of(second), priorities_of(replay))
    assert len(set(priorities_of(second)[:, 1])) > 6


def test_priorities_outlast_many_trainers_files_that_go_away_and_steps_that_are_overwritten(tmp_path: Path) -> None:
    world, rng = World(), np.random.default_rng(3)
    replay = make_replay(rows=90, prioritised=True, directory=tmp_path)
    for round_ in range(12):
        for _ in range(3):
            replay.insert(make_chunk(world.play()))
            replay.set_priorities(replay.sample(16).rows, rng.random(16) * 10)
        if round_ == 6:
            for path in tmp_path.iterdir():
                path.unlink()
        state = replay.state()
        if round_ % 2:
            expected, replay = replay, make_replay(rows=90, prioritised=True, directory=tmp_path)
            replay.load(*state)
            np.testing.assert_array_equal(priorities_of(replay), priorities_of(expected))


def test_a_checkpoint_that_held_all_priorities_itself_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a checkpoint as they were made before, with the priorities of all steps within
    world, first = World(), make_replay(rows=200, prioritised=True, directory=tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Replay, "_changes", lambda self: [])
        for _ in range(6):
            first.insert(make_chunk(world.play()))
            first.set_priorities(first.sample(8).rows, np.arange(8.0))
        _, meta = first.state()
    old = {"priorities": priorities_of(first)[:, 1]}
    # Then it is loaded, and what is saved from then on is loaded, too
    second, third = (make_replay(rows=200, prioritised=True, directory=tmp_path) for _ in range(2))
    second.load(old, meta)
    np.testing.assert_array_equal(priorities_of(second), priorities_of(first))
    second.insert(make_chunk(world.play()))
    third.load(*second.state())
    np.testing.assert_array_equal(priorities_of(third), priorities_of(second))


def priorities_of(replay: Replay) -> np.ndarray[Any, Any]:
    """Row and priority of each step."""
    rows = replay._ring.step_rows()
    assert replay._ring.tree is not None
    return np.column_stack([rows, replay._ring.tree.get(rows)])


def _same(one: Any, two: Any) -> None:
    np.testing.assert_array_equal(one.leaves["obs"], two.leaves["obs"])
    for name in ("rows", "returns", "discount", "weights"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def _saved(folder: Path) -> tuple[Any, dict[str, Any], Path]:
    world, replay = World(), make_replay(directory=folder)
    for _ in range(3):
        replay.insert(make_chunk(world.play()))
    tensors, meta = replay.state()
    return tensors, meta, folder / meta["files"][0][0]


@pytest.mark.parametrize("harm", ["torn", "flipped", "missing", "foreign"])
def test_files_that_are_not_as_they_were_are_refused_by_name(tmp_path: Path, harm: str) -> None:
    tensors, meta, file = _saved(tmp_path)
    data = bytearray(file.read_bytes())
    if harm == "torn":
        file.write_bytes(data[:-1])
    elif harm == "flipped":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif harm == "missing":
        file.unlink()
    else:
        meta["files"][0][0] = "../escape.replay"
    reason = {"torn": "is torn", "flipped": "is damaged at byte", "missing": "cannot read"}.get(harm, "no replay file")
    with pytest.raises((CheckpointError, ValueError), match=reason):
        make_replay(directory=tmp_path).load(tensors, meta)


def test_what_was_written_after_a_state_is_not_loaded_with_it_and_not_written_over(tmp_path: Path) -> None:
    # Given a writer that goes on after its state was saved, and one that resumed that state meanwhile
    world, first = World(), make_replay(directory=tmp_path)
    first.insert(make_chunk(world.play()))
    tensors, meta = first.state()
    steps = first.num_steps
    first.insert(make_chunk(world.play()))
    first.state()
    second = make_replay(directory=tmp_path)
    second.load(tensors, meta)
    assert second.num_steps == steps
    second.insert(make_chunk(world.play()))
    # Then each has files of its own
    names = {name for _, meta in (first.state(), second.state()) for name, *_ in meta["files"]}
    assert len(names) == 2


def test_disk_stays_bounded_while_every_file_that_a_kept_checkpoint_names_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heddle.consumers.learners.replay.LEAST_ROLL_BYTES", 2000)
    world, replay = World(), make_replay(rows=100, directory=tmp_path)
    metas = []
    for _ in range(200):
        replay.insert(make_chunk(world.play()))
        metas.append(replay.state()[1])
        replay.keep(metas[-2:])
        for meta in metas[-2:]:
            assert all((tmp_path / name).stat().st_size >= size for name, size, *_ in meta["files"])
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) < 40
    written = sum({name: size for meta in metas for name, size, *_ in meta["files"]}.values())
    assert sum(sizes) < written / 4


def test_a_disk_that_takes_nothing_is_told_and_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, replay = World(), make_replay(directory=tmp_path)
    replay.insert(make_chunk(world.play()))
    replay.state()
    replay.insert(make_chunk(world.play()))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            replay.state()
    tensors, meta = replay.state()
    again = make_replay(directory=tmp_path)
    again.load(tensors, meta)
    assert again.num_steps == replay.num_steps


def test_without_a_folder_the_buffer_begins_anew() -> None:
    replay = make_replay()
    replay.insert(make_chunk(World().play()))
    tensors, meta = replay.state()
    again = make_replay()
    again.load(tensors, meta)
    assert (again.num_steps, again.filled, again.inserted) == (0, 0, replay.inserted)
