"""Endings: how a seated trainer completes, stops, fails or merely leaves, with nothing left unsettled.

It never decides that a run is over. Stopping goes: command stop, workers release, what they still delivered is trained
or counted, checkpoint, ack, outcome; then the seat is free.
"""

import logging
from typing import Any

from heddle.broker.experience_types import Flow
from heddle.broker.records import Outcome
from heddle.consumers.accounts import accounting
from heddle.consumers.draining import POLL_MS, drain, say_stop
from heddle.consumers.loop import Loop
from heddle.consumers.publisher import CLOSE_S

log = logging.getLogger("heddle.trainer")

FINAL_EVALUATION_S = 30.0
"""How long the end waits for an evaluation of the last weights."""
SAVE_S = 60.0
"""How long the end waits for a disk that does not take the last checkpoint."""
SETTLE_TRIES = 3
"""Looks for batches that are in flight although all were settled."""


def leave(loop: Loop) -> None:
    """Make durable and ack what is trained; the experiment goes on with the next trainer."""
    parts = loop.parts
    if loop.unsaved:
        _save(loop)
    if loop.training_on:  # nobody died of it
        parts.reader.loading([])
    parts.patience.call("ack", parts.ledger.flush_or_raise)
    parts.report.tell("info", f"left the seat at update {parts.progress.update}: {parts.stop.reason}")


def complete(loop: Loop, reason: str) -> Outcome:
    """The budget is used: evaluate the last weights, then end."""
    spec = loop.parts.setting.spec
    aim, mean = spec.budget.target_return, loop.parts.progress.spent(evaluated=spec.eval is not None).mean_return
    if aim is None or mean is None or mean < aim:
        _evaluate_last(loop)
    return _end(loop, "completed", reason)


def stop(loop: Loop) -> Outcome:
    """Somebody said stop: train once more when what is there is worth it, then end.

    The coordinator says it, too, of an experiment that cannot go on: then it failed, for the reason that it wrote.
    """
    if why := loop.reached():  # an earlier trainer may have died while it completed
        return _end(loop, "completed", why)
    failure = _failure(loop)
    return _end(loop, "failed" if failure else "stopped", failure or "stopped by command")


def fail(loop: Loop, reason: str) -> Outcome:
    """The learner raised: the last good checkpoint stays, and nothing is trained any more.

    The outcome is told first: a trainer that came after a death in the middle would not know it.
    """
    parts = loop.parts
    for pointer in loop.training_on:
        parts.ledger.bury(pointer, reason)
    loop.training_on = []
    parts.reader.loading([])
    parts.ledger.roll_back()
    final = _finish(loop, "failed", reason)
    _settle_rest(loop, train=False, save=False)
    return final


def _failure(loop: Loop) -> str:
    """Why the coordinator stops the experiment; "" where somebody else does, or a trainer has told its end already."""
    parts = loop.parts
    status = parts.patience.call("read the status", lambda: parts.broker.experiments.status(parts.experiment))
    return status.reason if status.state == "stopping" and not status.outcome else ""


def _end(loop: Loop, outcome: Outcome, reason: str) -> Outcome:
    parts = loop.parts
    say_stop(parts.broker, parts.experiment, parts.patience, seat_epoch=parts.seat.epoch)
    _settle_rest(loop, train=outcome != "completed", save=True)
    parts.publisher.settle(CLOSE_S)
    final = _finish(loop, outcome, reason)
    for _ in range(SETTLE_TRIES):
        if not loop.flow().entries:
            break
        parts.intake.look_again()  # a broker that was killed meanwhile came back with what had been acked
        _settle_rest(loop, train=False, save=True)
    return final


def _settle_rest(loop: Loop, *, train: bool, save: bool) -> None:
    """Train, or count, everything that workers delivered, until they hold no shard; `save` what was trained."""
    parts = loop.parts

    def make_room() -> None:
        ctl = loop.ctl()
        if ctl.command != "stop":  # a broker that was killed forgot it with its tail
            say_stop(parts.broker, parts.experiment, parts.patience, seat_epoch=parts.seat.epoch)
        if parts.intake.needs_room(ctl):
            _settle_read(loop, train=train, save=save)
            parts.ledger.flush()

    drain(
        parts.broker,
        parts.experiment,
        parts.partition,
        intake=parts.intake,
        patience=parts.patience,
        clock=parts.clock,
        lease_ttl_s=parts.setting.spec.faults.lease_ttl,
        turn=loop.evaluations.turn,
        make_room=make_room,
    )
    if parts.evaluator is not None:
        parts.evaluator.drop()
    _settle_read(loop, train=train, save=save)
    parts.patience.call("ack", parts.ledger.flush_or_raise)


def _settle_read(loop: Loop, *, train: bool, save: bool) -> None:
    """Train on what was read and is worth an update, set the rest aside, make that durable."""
    parts = loop.parts
    while True:
        same, version = parts.publisher.same, parts.publisher.version
        worth = train and not loop.reached()
        rest = parts.intake.take_remainder(loop.ctl(), version=version, same=same, train=worth)
        if not rest.batches:
            break
        loop.update(rest)
    if save and loop.unsaved:
        _save(loop)


def _finish(loop: Loop, outcome: Outcome, reason: str) -> Outcome:
    """Tell the outcome; the one that it has now: what was told first stays with its reason, whatever is met behind."""
    parts = loop.parts
    result = result_of(loop, loop.flow())
    final = parts.patience.call(
        "tell the outcome",
        lambda: parts.broker.experiments.finish(parts.experiment, parts.seat.epoch, outcome, reason, result),
    )
    why = reason if final == outcome else loop.ctl().reason
    parts.report.end(final, why, result)
    log.info("ended experiment=%s outcome=%s reason=%s", parts.experiment, final, why)
    parts.report.tell("error" if outcome == "failed" else "info", f"{outcome}: {reason}")
    return final


def _evaluate_last(loop: Loop) -> None:
    parts = loop.parts
    evaluator = parts.evaluator
    if evaluator is None or evaluator.evaluated(parts.progress.update):
        return
    if not evaluator.evaluating(parts.progress.update):
        evaluator.drop()
    deadline = parts.clock.monotonic() + FINAL_EVALUATION_S
    while parts.clock.monotonic() < deadline and not parts.stop.draining:
        ctl = loop.ctl()
        if ctl.command == "stop" or not ctl.active_eval:
            return
        if not evaluator.running:
            if parts.publisher.version <= evaluator.pinned:  # that one was given up
                parts.publisher.renumber()
            loop.begin_evaluation()
        held = parts.ledger.num_held
        if held >= ctl.max_entries // 4 or (held and parts.intake.quiet and parts.intake.needs_room(ctl)):
            loop.checkpoint()  # makes room for the rest of it
        if loop.evaluations.turn(parts.intake.poll(block_ms=POLL_MS)) is not None:
            return
        # train shards play on, and what they give may not keep the eval shards' batches out
        version, same = parts.publisher.version, parts.publisher.same
        parts.intake.take_remainder(ctl, version=version, same=same, train=False)
        parts.ledger.flush()
    log.info("ending without an evaluation of the last weights update=%d", parts.progress.update)


def _save(loop: Loop) -> None:
    parts = loop.parts
    deadline = parts.clock.monotonic() + SAVE_S
    while not loop.checkpoint():
        if parts.clock.monotonic() >= deadline or parts.stop.now:
            log.error("ending without a last checkpoint update=%d", parts.progress.update)
            return
        parts.patience.pause()


def result_of(loop: Loop, flow: Flow) -> dict[str, Any]:
    """What a finished run leaves behind, as JSON values."""
    parts, progress = loop.parts, loop.parts.progress
    return {
        "return": progress.mean_return,
        "length": progress.mean_length,
        "eval_return": progress.eval_return,
        "best_return": progress.best_return,
        "env_steps": progress.env_steps,
        "episodes": progress.episodes,
        "updates": progress.update,
        "wall_s": round(progress.wall_s, 3),
        "policy_version": parts.publisher.version,
        "checkpoint": str(parts.saver.last or ""),
        "best": str(parts.saver.best or ""),
        "accounting": accounting(flow) | {"lost": parts.reader.losses.missing},
    }
