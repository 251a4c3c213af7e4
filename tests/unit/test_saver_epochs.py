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


def seated(home: Path, seat_epoch: int) -> Saver:
    """A trainer's that has looked for what to go on from."""
    saver = Saver(home, "test-1", SPEC, {}, seat_epoch=seat_epoch)
    saver.resume()
    return saver


def names(home: Path) -> list[str]:
    return sorted(path.name for path in (home / DIRECTORY).iterdir())


def test_a_later_trainers_checkpoint_never_hides_what_an_earlier_one_wrote_meanwhile(tmp_path: Path) -> None:
    # Given a trainer whose seat the broker forgot before its first checkpoint, so that the one before it went on
    earlier = seated(tmp_path, 7)
    save(earlier, 1)
    later = seated(tmp_path, 8)
    save(earlier, 2)
    earlier.check_newest()  # it may ack
    # Then the later one, which does not hold that, writes nothing, whatever its next try
    for update in (1, 2, 3):
        with pytest.raises(SeatLost, match=file_name(7, 2)):
            save(later, update)
    assert names(tmp_path) == [file_name(7, 1), file_name(7, 2)]
    # And the next one, which read it, does, and goes on doing so
    third = seated(tmp_path, 9)
    assert [save(third, update).name for update in (2, 3, 3)] == [file_name(9, 2), file_name(9, 3), file_name(9, 3)]


@pytest.mark.parametrize("earlier_is_there", [False, True])
def test_of_two_trainers_that_write_at_once_one_sees_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier_is_there: bool
) -> None:
    # Given two that know the same checkpoint, and the later one's next file begun and not yet there
    save(seated(tmp_path, 6), 1)
    earlier, later = seated(tmp_path, 7), seated(tmp_path, 8)
    known, lost = Saver._check_known, []

    def meanwhile(saver: Saver) -> None:
        """The earlier one writes and looks right before, or right after, the later one looks."""
        monkeypatch.setattr(Saver, "_check_known", known)
        if not earlier_is_there:
            known(saver)
        save(earlier, 2)
        with pytest.raises(SeatLost, match="seat epoch 8"):
            earlier.check_newest()  # it may not ack
        lost.append(earlier)
        if earlier_is_there:
            known(saver)

    monkeypatch.setattr(Saver, "_check_known", meanwhile)
    # When the later one goes on
    if earlier_is_there:
        with pytest.raises(SeatLost, match=file_name(7, 2)):
            save(later, 1)
    else:
        save(later, 1)
    # Then never both may go on
    assert lost == [earlier]
    assert names(tmp_path)[-1] == (file_name(7, 2) if earlier_is_there else file_name(8, 1))


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
    first = seated(tmp_path, 7)
    save(first, 1)
    torn = save(first, 2)
    torn.write_bytes(torn.read_bytes()[:40])
    second = seated(tmp_path, 8)
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
