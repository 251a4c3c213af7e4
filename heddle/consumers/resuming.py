"""Resuming: what a trainer settles and says, once it has the seat and knows where it goes on.

It never trains and never publishes. Counters and curve shall read as if the time after the checkpoint had not been.
"""

import logging
from functools import partial

from heddle.broker.experience_types import Flow
from heddle.checkpoint import epoch_of
from heddle.consumers.parts import Parts
from heddle.consumers.progress import Progress

log = logging.getLogger("heddle.trainer")


def settle(parts: Parts) -> None:
    """Say what was resumed, take back what a later checkpoint would have held, fill in what was not told.

    Raises:
        SeatLost, Gone.
    """
    _say(parts)
    _say_forgotten(parts)
    _mend_curve(parts)
    _roll_back(parts)


def taken_back(flow: Flow, progress: Progress, *, written_by: int) -> tuple[int, int]:
    """Batches and steps that go from trained to rolled back; below 0 those that come back. Pure.

    A trainer that was frozen may save what it trained after its heir had found no such checkpoint and rolled it back;
    the heir's heir resumes that one. A broker that lost its tail counts less than a checkpoint, too: then nothing comes
    back, for those entries are acked again.

    Args:
        written_by: seat epoch of the trainer that wrote what was resumed; 0 for none.
    """
    batches = flow.trained.batches - progress.flow_batches
    steps = flow.trained.steps - progress.flow_steps
    if batches > 0:
        return batches, steps
    if written_by and written_by < flow.rolled_back_by:
        return -min(-batches, flow.rolled_back.batches), -min(-steps, flow.rolled_back.steps)
    return 0, 0


def _say(parts: Parts) -> None:
    for reason in parts.saver.skipped:
        parts.report.tell("warning", f"passed over a checkpoint: {reason}")
    if parts.saver.last is not None:
        at = f"update {parts.progress.update}, {parts.progress.env_steps:,} steps"
        parts.report.tell("info", f"resumed at {at}, from {parts.saver.last.name}")


def _say_forgotten(parts: Parts) -> None:
    """Batches that are in the model and that the broker does not know any more: it was killed with its last writes.

    They stay in the model, once. The worker that played them counts them, if it is still there.
    """
    shards = parts.patience.call(
        "look at shards", lambda: parts.broker.shards.shards(parts.experiment, parts.partition)
    )
    known, marks = {state.shard: state.seq for state in shards}, parts.ledger.marks()
    lost = sum(max(0, mark.seq - known.get(shard, mark.seq)) for shard, mark in marks.items())
    if lost:
        parts.report.tell("warning", f"the broker forgot {lost} batches or more that were trained; they stay trained")


def _mend_curve(parts: Parts) -> None:
    """Updates after the checkpoint will be done again; the checkpoint's own was perhaps not told any more."""
    events, update = parts.broker.events, parts.progress.update
    gone = parts.patience.call(
        "forget metrics of updates that were rolled back",
        lambda: parts.report.forget(above=update),
    )
    if gone:
        log.info("took back metrics entries=%d above update=%d", gone, update)
    newest = parts.patience.call("read metrics", lambda: events.metrics_newest(parts.experiment))
    if parts.told and (newest is None or newest.update < update):
        parts.report.send(update, parts.told)


def _roll_back(parts: Parts) -> None:
    """Batches that were acked and are not in the weights we resumed go from trained to rolled back."""
    experience, at = parts.broker.experience, (parts.experiment, parts.partition)
    parts.patience.call("ack what was settled", parts.ledger.flush_or_raise)
    last, counted = parts.saver.last, False
    while not counted:
        flow = parts.patience.call("read flow", partial(experience.flow, *at))
        batches, steps = taken_back(flow, parts.progress, written_by=0 if last is None else epoch_of(last))
        if not batches:
            return
        count = partial(experience.roll_back, *at, batches=batches, steps=steps, trained=flow.trained.batches)
        counted = parts.patience.call("count what was rolled back", partial(count, parts.seat.epoch))
    if batches > 0:
        told = f"rolled back {batches} batches that were trained after the last checkpoint"
    else:
        told = f"{-batches} batches that were rolled back are in a checkpoint that came later; they stay trained"
    log.warning("%s steps=%d", told, steps)
    parts.report.tell("warning", told)
