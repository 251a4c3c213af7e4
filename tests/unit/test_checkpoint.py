"""A checkpoint is there whole or not at all."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from heddle import checkpoint as cp
from heddle.checkpoint import Checkpoint
from heddle.errors import CheckpointError, SeatLost


def made(seat_epoch: int = 3, update: int = 7, **changes: object) -> Checkpoint:
    """A checkpoint with something in every part."""
    values: dict[str, object] = {
        "experiment": "cartpole-7f3a",
        "spec_json": '{"experiment": {"name": "cartpole"}}',
        "spec_sha256": "ab" * 32,
        "spaces": {"observation": {"type": "discrete", "n": 2}, "action": {"type": "discrete", "n": 2}},
        "seat_epoch": seat_epoch,
        "update": update,
        "policy_version": 12,
        "env_steps": 1792,
        "episodes": 40,
        "weights": {"policy.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "norm.obs.count": np.array(3.0)},
        "learner": {"adam.step": np.array(140.0), "generator": np.arange(5, dtype=np.uint8)},
        "learner_meta": {"learner": "ppo", "updates": 7},
        "counters": {"wall": 12.5},
        "rng": {"state": [1, 2**80]},
        "marks": {"0/3": [1_700_000_000_123, "n0nce", 9]},
        "extra": {"returns": [1.0, 2.0]},
        "mean_return": 99.5,
        "best_return": None,
    }
    return Checkpoint(**(values | changes))  # type: ignore[arg-type]


def test_everything_comes_back(tmp_path: Path) -> None:
    # Given a checkpoint saved in a directory that is not there yet
    path = cp.save(tmp_path / "runs" / "x", made())
    # When loaded
    again = cp.load(path)
    # Then every field is equal
    assert path.name == "checkpoint-00000000000000000003-000000000007.safetensors"
    for name in cp._MANIFEST_FIELDS:
        assert getattr(again, name) == getattr(made(), name), name
    for part in ("weights", "learner"):
        expected = getattr(made(), part)
        assert getattr(again, part).keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(getattr(again, part)[name], array)
            assert getattr(again, part)[name].dtype == array.dtype


def test_saving_leaves_no_other_file(tmp_path: Path) -> None:
    path = cp.save(tmp_path, made())
    assert list(tmp_path.iterdir()) == [path]


def test_every_torn_file_is_refused(tmp_path: Path) -> None:
    data = cp.encode(made())
    path = tmp_path / cp.file_name(3, 7)
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match="not a whole checkpoint"):
            cp.load(path)


def test_every_flipped_byte_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    # Given a checkpoint with one byte flipped, at each place in turn
    data = cp.encode(made())
    path = tmp_path / cp.file_name(3, 7)
    whole = 0
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :])
        # When loaded, then it is refused; or the byte was in the header's padding
        try:
            again = cp.load(path)
        except CheckpointError:
            continue
        whole += 1
        assert again.marks == made().marks
        np.testing.assert_array_equal(again.weights["policy.0.weight"], made().weights["policy.0.weight"])
    assert whole < 16


def test_a_tail_of_zeros_or_of_anything_else_is_refused(tmp_path: Path) -> None:
    # Given files whose end never reached the disk, or which something was appended to
    data = cp.encode(made())
    path = tmp_path / cp.file_name(3, 7)
    assert data[-1] != 0, "else the last byte alone would change nothing"
    for kept in range(0, len(data), 5):
        path.write_bytes(data[:kept] + bytes(len(data) - kept))
        with pytest.raises(CheckpointError, match="not a whole checkpoint"):
            cp.load(path)
    for more in (b"\0", b"x", data):
        path.write_bytes(data + more)
        with pytest.raises(CheckpointError, match="not a whole checkpoint"):
            cp.load(path)


def test_a_file_that_was_renamed_is_not_taken_for_a_newer_one(tmp_path: Path) -> None:
    cp.save(tmp_path, made(update=8))
    cp.save(tmp_path, made(update=7)).rename(tmp_path / cp.file_name(3, 9))
    found = cp.find(tmp_path)
    assert found.checkpoint is not None and found.checkpoint.update == 8
    assert "holds another checkpoint than its name says" in found.skipped[0]


def test_what_was_passed_over_is_named_with_its_reason(tmp_path: Path) -> None:
    # Given a whole one, and newer ones: torn, of another experiment, a folder in its place
    whole = cp.save(tmp_path, made(update=1))
    torn = cp.save(tmp_path, made(update=2))
    torn.write_bytes(torn.read_bytes()[:100])
    cp.save(tmp_path, made(update=3, experiment="theirs"))
    (tmp_path / cp.file_name(3, 4)).mkdir()
    # When looked through
    found = cp.find(tmp_path, experiment="cartpole-7f3a")
    # Then the whole one is taken, and each of the others has its reason, the newest first
    assert (found.path, found.checkpoint is not None) == (whole, True)
    reasons = ("cannot read", "is of experiment theirs", "not a whole checkpoint")
    assert [reason in told for reason, told in zip(reasons, found.skipped, strict=True)] == [True] * 3


def test_a_disk_that_is_full_leaves_no_half_file_and_the_last_one_stays(tmp_path: Path) -> None:
    # Given a process that may write no file longer than 2 KB, as if the disk were full then
    cp.save(tmp_path, made(update=1))
    program = (
        "import resource, signal, sys, numpy as np\n"
        "from pathlib import Path\n"
        "from heddle import checkpoint as cp\n"
        "found = cp.newest(Path(sys.argv[1]))\n"
        "found.update, found.weights = 2, {'w': np.zeros(10_000)}\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))\n"
        "try:\n    cp.save(Path(sys.argv[1]), found)\n"
        "except cp.CheckpointError as error:\n    print(error)\n"
    )
    # When it saves
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    # Then it is told so, and only the one before is there
    assert "cannot write" in done.stdout, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [cp.file_name(3, 1)]


def test_what_dead_writers_left_is_swept_and_the_living_ones_stays(tmp_path: Path) -> None:
    dead, living = (tmp_path / f".{cp.file_name(epoch, 9)}.tmp" for epoch in (4, 5))
    for path in (dead, living):
        path.write_bytes(b"half")
    whole = cp.save(tmp_path, made())
    cp.sweep(tmp_path, below=5)
    assert sorted(tmp_path.iterdir()) == sorted([living, whole])


def test_the_highest_epoch_counts_torn_and_unfinished_files_and_no_nonsense(tmp_path: Path) -> None:
    assert cp.highest_epoch(tmp_path / "nowhere") == 0
    cp.save(tmp_path, made(seat_epoch=4))
    (tmp_path / cp.file_name(6, 1)).write_bytes(b"torn")
    (tmp_path / f".{cp.file_name(7, 1)}.tmp").write_bytes(b"half")
    (tmp_path / cp.file_name(10**19, 1)).write_bytes(b"no trainer wrote this")
    assert cp.highest_epoch(tmp_path) == 7


def test_others_know_of_a_file_before_it_is_there_and_may_keep_it_out(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def look() -> None:
        seen.append((cp.highest_epoch(tmp_path), len(cp.listing(tmp_path))))

    cp.save(tmp_path, made(seat_epoch=4), check=look)
    assert seen == [(4, 0)]

    def refuses() -> None:
        look()
        raise SeatLost("another one has written")

    with pytest.raises(SeatLost):
        cp.save(tmp_path, made(seat_epoch=5), check=refuses)
    assert seen[1:] == [(5, 1)] and cp.highest_epoch(tmp_path) == 4 and len(list(tmp_path.iterdir())) == 1


def test_a_file_that_was_swept_while_it_was_written_never_comes_to_be(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot write"):
        cp.save(tmp_path, made(seat_epoch=4), check=lambda: cp.sweep(tmp_path, below=5))
    assert list(tmp_path.iterdir()) == []


def test_newest_goes_by_seat_epoch_then_update_and_skips_what_does_not_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Given three checkpoints, the newest torn, and a foreign file under such a name
    cp.save(tmp_path, made(seat_epoch=1, update=900))
    cp.save(tmp_path, made(seat_epoch=2, update=5))
    torn = cp.save(tmp_path, made(seat_epoch=2, update=6))
    torn.write_bytes(torn.read_bytes()[:-1])
    (tmp_path / cp.file_name(9, 9)).write_bytes(b"not ours")
    (tmp_path / "notes.txt").write_text("hello")
    # When asked for the newest
    with caplog.at_level(logging.WARNING, logger="heddle.checkpoint"):
        found = cp.newest(tmp_path)
    # Then it is the highest that loads, and each skipped one has its line
    assert found is not None
    assert (found.seat_epoch, found.update) == (2, 5)
    assert [record.getMessage().split()[0] for record in caplog.records] == ["skipped", "skipped"]


def test_newest_passes_over_other_experiments(tmp_path: Path) -> None:
    cp.save(tmp_path, made(seat_epoch=1, experiment="mine"))
    cp.save(tmp_path, made(seat_epoch=2, experiment="theirs"))
    found = cp.newest(tmp_path, experiment="mine")
    assert found is not None
    assert found.experiment == "mine"


def test_newest_of_nothing_is_none(tmp_path: Path) -> None:
    assert cp.newest(tmp_path) is None
    assert cp.newest(tmp_path / "nowhere") is None


def test_prune_keeps_the_newest_the_protected_and_the_best(tmp_path: Path) -> None:
    # Given five checkpoints, the first one the best, and what a dead writer left
    paths = [cp.save(tmp_path, made(update=update)) for update in range(1, 6)]
    best = cp.mark_best(tmp_path, paths[0])
    left = tmp_path / f".{cp.file_name(2, 99)}.tmp"
    left.write_bytes(b"half")
    # When pruned to two, with the second protected
    gone = cp.prune(tmp_path, 2, protect={paths[1]})
    # Then
    assert sorted(gone) == sorted([paths[0], paths[2], left])
    assert sorted(tmp_path.iterdir()) == sorted([best, paths[1], paths[3], paths[4]])
    assert cp.load(best).update == 1


def test_prune_leaves_a_living_writers_file_alone(tmp_path: Path) -> None:
    cp.save(tmp_path, made(seat_epoch=3, update=7))
    writing = tmp_path / f".{cp.file_name(3, 8)}.tmp"
    writing.write_bytes(b"half")
    assert cp.prune(tmp_path, 1) == []
    assert writing.exists()


def test_the_best_is_replaced_in_one_step(tmp_path: Path) -> None:
    first, second = (cp.save(tmp_path, made(update=update)) for update in (1, 2))
    cp.mark_best(tmp_path, first)
    best = cp.mark_best(tmp_path, second)
    assert cp.load(best).update == 2
    assert cp.load(first).update == 1


def test_marking_the_best_again_leaves_no_other_file(tmp_path: Path) -> None:
    path = cp.save(tmp_path, made())
    cp.mark_best(tmp_path, path)
    cp.mark_best(tmp_path, path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [cp.BEST, path.name]


def test_the_best_is_copied_where_links_are_not_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    path = cp.save(tmp_path, made())
    monkeypatch.setattr(os, "link", refuse)
    assert cp.load(cp.mark_best(tmp_path, path)).update == 7


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot write"):
        cp.save(tmp_path / "file", made())


def test_another_format_says_which_is_read(tmp_path: Path) -> None:
    from safetensors.numpy import save

    path = tmp_path / cp.file_name(1, 1)
    path.write_bytes(save({}, {"format": "heddle-checkpoint/9"}))
    with pytest.raises(CheckpointError, match="'heddle-checkpoint/9', this version reads 'heddle-checkpoint/1'"):
        cp.load(path)
