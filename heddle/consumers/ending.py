"""Endings: how a seated trainer completes, stops, fails or merely leaves, with nothing left unsettled.

It never decides that a run is over. Stopping goes: command stop, workers release, what they still delivered is trained
or counted, checkpoint, ack, outcome; then the seat is free.
"""

import logging
from typing import Any

from heddle.broker.records import Outcome
from heddle.broker.types import Amount, Flow
from heddle.consumers.loop import Loop
from heddle.errors import Conflict, SeatLost

log = logging.getLogger("heddle.trainer")

FINAL_EVALUATION_S = 30.0
"""How long the end waits for an evaluation of the last weights."""
RELEASE_EXTRA_S = 5.0
"""Beyond the lease's TTL, how long the end waits for workers to let go of their shards."""
SAVE_S = 60.0
"""How long the end waits for a disk that does not take the last checkpoint."""
POLL_MS = 100


def leave(loop: Loop) -> None:
    """Make durable and ack what is trained; the experiment goes on with the next trainer."""
    parts = loop.parts
    if parts.ledger.num_trained:
        _save(loop)
    parts.patience.call("ack", parts.ledger.flush_or_raise)
    parts.report.tell("info", f"left the seat at update {parts.progress.update}: {parts.stop.reason}")


def complete(loop: Loop, reason: str) -> Outcome:
    """The budget is used: evaluate the last weights, then end."""
    spec = loop.parts.setting.spec
    aim = spec.budget.target_return
    hit = aim is not None and (loop.parts.progress.spent(evaluated=spec.eval is not None).mean_return or 0.0) >= aim
    if not hit:
        _evaluate_last(loop)
    return _end(loop, "completed", reason)


def stop(loop: Loop) -> Outcome:
    """Somebody said stop: train once more when what is there is worth it, then end."""
    why = loop.reached()  # an earlier trainer may have died while it completed
    return _end(loop, "completed" if why else "stopped", why or "stopped by command")


def fail(loop: Loop, reason: str) -> Outcome:
    """The learner raised: the last good checkpoint stays, and nothing is trained any more."""
    for pointer in loop.training_on:
        loop.parts.ledger.bury(pointer, reason)
    loop.training_on = []
    loop.parts.ledger.roll_back()
    return _end(loop, "failed", reason)


def _end(loop: Loop, outcome: Outcome, reason: str) -> Outcome:
    parts = loop.parts
    _tell_stop(loop)
    _drain(loop)
    ctl = loop.ctl()
    same, version = parts.publisher.same, parts.publisher.version
    rest = parts.intake.take_remainder(ctl, version=version, same=same, train=outcome == "stopped")
    if rest.batches:
        loop.update(rest)
    if parts.evaluator is not None:
        for pointer in parts.evaluator.drop():
            parts.ledger.set_aside(pointer, "evaluated")
    if outcome != "failed":
        _save(loop)
    parts.patience.call("ack", parts.ledger.flush_or_raise)
    result = result_of(loop, loop.flow())
    final = parts.patience.call(
        "tell the outcome",
        lambda: parts.broker.experiments.finish(parts.experiment, parts.seat.epoch, outcome, reason, result),
    )
    log.info("ended experiment=%s outcome=%s reason=%s", parts.experiment, final, reason)
    parts.report.tell("error" if outcome == "failed" else "info", f"{outcome}: {reason}")
    return outcome


def _tell_stop(loop: Loop) -> None:
    parts = loop.parts

    def tell() -> None:
        try:
            parts.broker.experiments.set_command(parts.experiment, "stop")
        except SeatLost:
            raise
        except Conflict as error:  # it is over already
            log.info("cannot say stop error=%s", error)

    parts.patience.call("say stop", tell)


def _drain(loop: Loop) -> None:
    """Read on until no worker holds a shard and nothing comes any more."""
    parts = loop.parts
    deadline = parts.clock.monotonic() + parts.setting.spec.faults.lease_ttl + RELEASE_EXTRA_S
    while True:
        shards = parts.patience.call(
            "look at shards", lambda: parts.broker.shards.shards(parts.experiment, parts.partition)
        )
        leased = [shard.shard for shard in shards if shard.state == "leased"]
        late = parts.clock.monotonic() >= deadline
        loop.turn_eval(parts.intake.poll(block_ms=POLL_MS if leased else 1), loop.ctl())
        if parts.intake.quiet and not leased:
            return
        if late and parts.intake.quiet:
            log.warning("ending although workers hold shards=%s", leased)
            return


def _evaluate_last(loop: Loop) -> None:
    parts = loop.parts
    evaluator = parts.evaluator
    if evaluator is None or evaluator.is_current(parts.publisher.version, parts.progress.update):
        if evaluator is None or not evaluator.running:
            return
    else:
        for pointer in evaluator.drop():
            parts.ledger.set_aside(pointer, "evaluated")
    deadline = parts.clock.monotonic() + FINAL_EVALUATION_S
    asked = evaluator.running
    while parts.clock.monotonic() < deadline and not parts.stop.draining:
        ctl = loop.ctl()
        if ctl.command == "stop" or not ctl.active_eval:
            return
        asked = asked or loop.begin_evaluation()
        if loop.turn_eval(parts.intake.poll(block_ms=POLL_MS), ctl) is not None:
            return
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


def accounting(flow: Flow) -> dict[str, Any]:
    """The counters of promise P2, in batches and steps."""
    names = ("appended", "trained", "evaluated", "stale", "dead", "dropped", "rolled_back", "discarded", "forgotten")
    amounts: dict[str, Amount] = {name: getattr(flow, name) for name in names}
    shown = {name: {"batches": amount.batches, "steps": amount.steps} for name, amount in amounts.items()}
    return shown | {"in_flight": {"batches": flow.entries, "steps": flow.steps}}
