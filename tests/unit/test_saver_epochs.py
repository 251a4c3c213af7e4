"""A trainer's checkpoints beside those of one that came after it."""

from pathlib import Path
from typing import Any

import pytest

from heddle.checkpoint import Checkpoint, file_name
from heddle.consumers.progress import Progress
from heddle.consumers.restoring import CheckpointMissing, Restored, resume
from heddle.consumers.saver import DIRECTORY, Saver
from heddle.errors import CheckpointError, SeatLost
from heddle.spec import load_spec

SPEC = load_spec({"experiment": {"name": "test"}, "env": {"id": "CartPole-v1"}, "budget": {"env_steps": 1}}).spec


def test_a_trainer_stops_once_one_with_a_higher_seat_epoch_has_written(tmp_path: Path) -> None:
    (tmp_path / DIRECTORY).mkdir()
    saver = Saver(tmp_path, "test-1", SPEC, {}, seat_epoch=7)
    (tmp_path / DIRECTORY / file_name(7, 3)).touch()
    saver.check_newest()
    (tmp_path / DIRECTORY / file_name(8, 1)).touch()
    with pytest.raises(SeatLost, match="seat epoch 8"):
        saver.check_newest()


def save(saver: Saver, update: int) -> Path:
    """A checkpoint whose learner names one file, after the seat and the update."""
    return saver.write(
        Progress(update=update),
        weights={},
        learner=({}, {"file": f"{saver._seat_epoch}-{update}"}),
        version=update,
        marks={},
        partition=0,
        extra={},
    )


def told(saver: Saver) -> list[str]:
    found: list[str] = []
    saver.tell_kept(lambda metas: found.extend(meta["file"] for meta in metas if meta))
    return sorted(found)


def test_a_learner_is_told_what_all_checkpoints_name_whoever_wrote_them(tmp_path: Path) -> None:
    # Given checkpoints of two trainers, one of them torn
    first, second = (Saver(tmp_path, "test-1", SPEC, {}, seat_epoch=epoch) for epoch in (7, 8))
    save(first, 1)
    torn = save(first, 2)
    torn.write_bytes(torn.read_bytes()[:40])
    save(second, 2)
    # Then each trainer is told of the whole ones, also after one was written again, or deleted
    assert told(first) == told(second) == ["7-1", "8-2"]
    save(second, 3)
    (tmp_path / DIRECTORY / file_name(7, 1)).unlink()
    assert told(first) == told(second) == ["8-2", "8-3"]


def test_nothing_is_told_while_a_checkpoint_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(Saver(tmp_path, "test-1", SPEC, {}, seat_epoch=7), 1)

    def fails(path: Path, *args: Any) -> None:
        raise OSError(5, "Input/output error")

    calls: list[Any] = []
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", fails)
        Saver(tmp_path, "test-1", SPEC, {}, seat_epoch=8).tell_kept(calls.append)
    assert calls == []


def test_a_trainer_goes_on_from_the_newest_checkpoint_with_which_its_learner_can(tmp_path: Path) -> None:
    writer = Saver(tmp_path, "test-1", SPEC, {}, seat_epoch=7)
    for update in (1, 2, 3):
        save(writer, update)
    usable = {1, 2}

    def go_on(checkpoint: Checkpoint) -> None:
        if checkpoint.update not in usable:
            raise CheckpointError(f"files of update {checkpoint.update} are gone")

    saver = Saver(tmp_path, "test-1", SPEC, {}, seat_epoch=8)
    newest = saver.resume()
    found = resume(go_on, Restored(newest, newest), saver)
    assert found.own is not None and found.own is found.checkpoint and found.own.update == 2
    assert saver.last is not None and saver.last.name == file_name(7, 2)
    assert [reason.endswith("files of update 3 are gone") for reason in saver.skipped] == [True]
    # With none it is not for this trainer to end the experiment; that of another experiment is refused as ever
    usable.clear()
    newest = saver.resume()
    with pytest.raises(CheckpointMissing, match="none of the 3 checkpoints in .* files of update 3 are gone"):
        resume(go_on, Restored(newest, newest), saver)
    with pytest.raises(CheckpointError, match="^files of update 3 are gone"):
        resume(go_on, Restored(newest, None), saver)
