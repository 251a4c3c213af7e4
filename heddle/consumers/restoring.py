"""Restoring: which checkpoint a trainer goes on from, this experiment's or that of the one which it continues.

It never deletes any: one that cannot be used is passed over, and an older one taken.
"""

from collections.abc import Callable
from dataclasses import dataclass

from heddle.broker.experience_types import Flow
from heddle.broker.metrics import Metric
from heddle.checkpoint import Checkpoint
from heddle.consumers.saver import Saver
from heddle.consumers.setting import Setting
from heddle.errors import CheckpointError

_ELSEWHERE = "start the trainer where its files are (--dir), or start a new run"


class CheckpointMissing(CheckpointError):
    """The experiment has been trained, and no checkpoint of it that can be used is here. It does not end by that."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a trainer continues from.

    Attributes:
        checkpoint: None at the very start.
        own: the same when it is of this experiment, so that its marks and counters are about the same stream.
    """

    checkpoint: Checkpoint | None
    own: Checkpoint | None


def restore(
    saver: Saver, setting: Setting, *, flow: Callable[[], Flow], newest: Callable[[], Metric | None]
) -> Restored:
    """The newest whole checkpoint of this experiment, else of the one that it continues.

    Args:
        flow: reads the counters, which tell whether there ought to be one.
        newest: reads the newest metrics, which tell it of an offline run: nothing flows there, and it has a checkpoint
            before its first update.

    Raises:
        CheckpointMissing: the checkpoints are not here.
        CheckpointError: they cannot be read, or the other experiment has none.
    """
    experiment = setting.stored.experiment
    own = saver.resume()
    if own is not None:
        return Restored(own, own)
    told = newest() if setting.spec.data is not None else None
    if told is not None and told.update > 0:
        why = _unusable(saver) if saver.skipped else f"there is no checkpoint in {saver.directory}: {_ELSEWHERE}"
        raise CheckpointMissing(f"{experiment} was trained for {told.update} updates already, and {why}")
    if setting.stored.resume_from:
        return Restored(saver.continued(setting.stored.resume_from), None)
    trained = flow().trained.batches
    if saver.skipped and trained:
        raise CheckpointMissing(f"{experiment} was trained on {trained} batches already, and {_unusable(saver)}")
    if trained and setting.spec.trainer.ack == "checkpoint":
        raise CheckpointMissing(
            f"{experiment} was trained on {trained} batches already, but there is no checkpoint"
            f" of it in {saver.directory}: start the trainer where its files are (--dir)"
        )
    return Restored(None, None)


def resume(go_on: Callable[[Checkpoint], None], restored: Restored, saver: Saver) -> Restored:
    """Have training go on from what was restored, or from the newest older checkpoint with which it can.

    A checkpoint may be whole and the learner's files that it names may not.

    Args:
        go_on: raises CheckpointError.

    Raises:
        CheckpointMissing: it can go on from none of this experiment's.
        CheckpointError: not from the other experiment's.
    """
    own = restored.own
    if own is None:
        if restored.checkpoint is not None:
            go_on(restored.checkpoint)
        return restored
    while own is not None:
        try:
            go_on(own)
        except CheckpointError as error:
            last, own = error, saver.resume_older(str(error))
        else:
            return Restored(own, own)
    raise CheckpointMissing(_unusable(saver)) from last


def _unusable(saver: Saver) -> str:
    return (
        f"none of the {len(saver.skipped)} checkpoints in {saver.directory} can be used, e.g. {saver.skipped[0]}:"
        " put a copy of one back, or start a new run"
    )
