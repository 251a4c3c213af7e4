"""The evaluations of a run, as its loop sees them: what comes of them, whose policy is the best, which never finish.

It never begins one: the loop does, for that takes a checkpoint.
"""

import logging

from heddle.consumers.evaluation import Finished
from heddle.consumers.parts import Parts
from heddle.consumers.reader import Loaded

log = logging.getLogger("heddle.trainer")


class Evaluations:
    """What becomes of eval batches, one turn of the loop after the other.

    Attributes:
        active: eval shards that count, as the coordinator says.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.active = 0
        self._missing = 0
        self._is_fruitless = False

    def turn(self, loaded: list[Loaded]) -> Finished | None:
        """Take note of eval batches; the evaluation, when it is over with them."""
        parts = self._parts
        for item in loaded:
            if parts.evaluator is not None and parts.evaluator.add(item.pointer, item.segments):
                parts.ledger.hold([item.pointer], "evaluated")
            else:
                parts.ledger.set_aside(item.pointer, "evaluated")
        if loaded and parts.setting.spec.trainer.ack == "update":
            parts.ledger.release()
        self._drop_spoilt()
        done = parts.evaluator.finish(self.active) if parts.evaluator else None
        if parts.evaluator is None or done is None:
            self._tell_fruitless()
            return None
        finished, name = done
        mean = finished.mean_return
        log.info("evaluated update=%d return=%.2f episodes=%d", finished.update, mean, len(finished.returns))
        parts.progress.eval_return = mean
        if self._is_best(mean) and parts.saver.mark_best(name):
            parts.progress.best_return = mean
        parts.report.send(parts.progress.update, finished.metrics())
        return finished

    def _tell_fruitless(self) -> None:
        """Once a trainer: its evaluations bring nothing."""
        if self._parts.evaluator is not None and (update := self._parts.evaluator.fruitless) is not None:
            if not self._is_fruitless:
                told = f"the evaluation of update {update} brought no return: no episode ended in it that counts"
                self._parts.report.tell("warning", told)
            self._is_fruitless = True

    def _drop_spoilt(self) -> None:
        """An evaluation of which a batch is lost can never finish; without it the next one may begin."""
        parts = self._parts
        spoilt, missing = parts.ledger.take_spoilt(), parts.reader.losses.missing
        running = parts.evaluator.version if parts.evaluator is not None else 0
        if parts.evaluator is not None and running and (running in spoilt or missing > self._missing):
            log.warning("dropped an evaluation, some of its batches cannot be used version=%d", running)
            parts.evaluator.drop()
        self._missing = missing

    def mark_best_of_training(self, name: str) -> None:
        """The checkpoint `name` is the best one where training never went better before."""
        progress = self._parts.progress
        mean = progress.whole_window_return
        if mean is not None and self._is_best(mean) and self._parts.saver.mark_best(name):
            progress.best_return = mean

    def _is_best(self, mean: float) -> bool:
        best = self._parts.progress.best_return
        return best is None or mean >= best or not self._parts.setting.spec.policy.returns_compare
