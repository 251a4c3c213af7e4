"""What is done about gradients and steps that exploded and losses that are not finite: the run fails, or that step is
skipped, and maybe a pause is asked for.

It never changes a weight.
"""

import math
import re
from collections.abc import Mapping

from torch import Tensor

from heddle.errors import ExperimentFailed
from heddle.spec import Trainer

ADVICE = "lower trainer.lr, or look for extreme observations and rewards"
MOST_SKIPPED = 100
"""Gradient steps skipped one after another; one more fails: nothing is learned any more."""


class Guard:
    """Looks at each gradient step before it is taken.

    Attributes:
        skipped: gradient steps that were not taken, in all.
        complaint: why the experiment shall pause, from the first step that was not taken since somebody heard it; ""
            for nothing.

    Args:
        options: `grad_limit`, `on_bad_step` and `lr`.
    """

    def __init__(self, options: Trainer) -> None:
        self.skipped, self.complaint = 0, ""
        self._limit = options.grad_limit
        self._skips, self._pauses = options.on_bad_step == "skip", options.on_bad_step == "pause"
        self._in_a_row: dict[str, int] = {}

    def lets_pass(
        self, norm: Tensor, numbers: Mapping[str, Tensor], *, update: int, leap: float = 0.0, of: str = ""
    ) -> bool:
        """True when a step with a gradient of this norm may be taken; False when it is to be left out.

        Args:
            norm: scalar, of the whole gradient before it is scaled down.
            numbers: the losses behind it, for the message.
            update: the update under way.
            leap: how far the step moves weights beside what they are; above 1 it wipes them out.
            of: whose step it is, where several optimizers take turns: one that is stuck is not hidden by the others.

        Raises:
            ExperimentFailed: naming update, norm and losses.
        """
        length = float(norm)
        sound = math.isfinite(length) and all(math.isfinite(float(value)) for value in numbers.values())
        if sound and leap <= 1.0 and (self._limit is None or length <= self._limit):
            self._in_a_row[of] = 0
            return True
        self.skipped += 1
        self._in_a_row[of] = times = self._in_a_row.get(of, 0) + 1
        if self._pauses:  # however many there are in this update: after it somebody looks
            self.complaint = self.complaint or self._reason(length, numbers, update, "", leap=leap, sound=sound)
            return False
        if self._skips and times <= MOST_SKIPPED:
            return False
        again = f" {times} times one after another" if self._skips else ""
        raise ExperimentFailed(self._reason(length, numbers, update, again, leap=leap, sound=sound))

    def heard(self) -> str:
        """The complaint, which is then heard."""
        found, self.complaint = self.complaint, ""
        return found

    def metrics(self) -> dict[str, float]:
        """How many steps were left out so far, where some were."""
        return {"skipped_steps": float(self.skipped)} if self.skipped else {}

    def _reason(
        self, length: float, numbers: Mapping[str, Tensor], update: int, again: str, *, leap: float, sound: bool
    ) -> str:
        shown = ", ".join(f"{name} = {float(value):g}" for name, value in numbers.items())
        what = f"a gradient of norm {length:g}, above trainer.grad_limit = {self._limit or 0:g}"
        if not sound:
            what = "numbers that are not finite"
        elif leap > 1.0:
            what = f"a step that moves every weight by {leap:.3g} times what weights are"
        return f"update {update} gave {what}{again} ({shown}, grad_norm = {length:g}); {ADVICE}"


class Hearsay:
    """Looks at what a learner of whatever kind tells of an update, of which it has taken every step already.

    Args:
        options: `grad_limit` and `on_bad_step`.
    """

    def __init__(self, options: Trainer) -> None:
        self._limit = math.inf if options.grad_limit is None else options.grad_limit
        self._does = options.on_bad_step
        self._in_a_row = 0

    def objection(self, metrics: Mapping[str, float]) -> str:
        """Why the experiment shall pause; "" for nothing.

        Args:
            metrics: a NaN in one whose name ends in "loss" is bad, as is a "grad_norm" that is not finite or above the
                limit. An infinite loss may be the best one so far; one that was learned from spoils the weights.

        Raises:
            ExperimentFailed: they are bad, and that fails, or they have been for too long.
        """
        bad = [f"{name} = {value:g}" for name, value in metrics.items() if self._is_bad(name, value)]
        if not bad:
            self._in_a_row = 0
            return ""
        self._in_a_row += 1
        again = f" {self._in_a_row} times one after another" if self._does == "skip" else ""
        above = "" if math.isinf(self._limit) else f" (trainer.grad_limit = {self._limit:g})"
        reason = f"the learner tells of {', '.join(bad)}{above}{again}; {ADVICE}"
        if self._does == "fail" or self._in_a_row > MOST_SKIPPED:
            raise ExperimentFailed(reason)
        return reason if self._does == "pause" else ""

    def _is_bad(self, name: str, value: float) -> bool:
        last = re.split(r"[./]", name)[-1].lower()
        if last == "grad_norm":
            return not (math.isfinite(value) and value <= self._limit)
        return last.endswith("loss") and math.isnan(value)
