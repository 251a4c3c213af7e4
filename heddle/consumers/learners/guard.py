"""What a learner does about gradients that exploded and losses that are not finite: it fails, or skips that step and
may ask for a pause.

It never changes a weight.
"""

import math
from collections.abc import Mapping

from torch import Tensor

from heddle.errors import ExperimentFailed
from heddle.spec import Trainer

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

    def lets_pass(self, norm: Tensor, numbers: Mapping[str, Tensor], *, update: int, of: str = "") -> bool:
        """True when a step with a gradient of this norm may be taken; False when it is to be left out.

        Args:
            norm: scalar, of the whole gradient before it is scaled down.
            numbers: the losses behind it, for the message.
            update: the update under way.
            of: whose step it is, where several optimizers take turns: one that is stuck is not hidden by the others.

        Raises:
            ExperimentFailed: naming update, norm and losses.
        """
        length = float(norm)
        sound = math.isfinite(length) and all(math.isfinite(float(value)) for value in numbers.values())
        if sound and (self._limit is None or length <= self._limit):
            self._in_a_row[of] = 0
            return True
        self.skipped += 1
        self._in_a_row[of] = times = self._in_a_row.get(of, 0) + 1
        if self._pauses:  # however many there are in this update: after it somebody looks
            self.complaint = self.complaint or self._reason(length, numbers, update, "", sound=sound)
            return False
        if self._skips and times <= MOST_SKIPPED:
            return False
        again = f" {times} times one after another" if self._skips else ""
        raise ExperimentFailed(self._reason(length, numbers, update, again, sound=sound))

    def heard(self) -> str:
        """The complaint, which is then heard."""
        found, self.complaint = self.complaint, ""
        return found

    def metrics(self) -> dict[str, float]:
        """How many steps were left out so far, where some were."""
        return {"skipped_steps": float(self.skipped)} if self.skipped else {}

    def _reason(self, length: float, numbers: Mapping[str, Tensor], update: int, again: str, *, sound: bool) -> str:
        shown = ", ".join(f"{name} = {float(value):g}" for name, value in numbers.items())
        what = f"a gradient of norm {length:g}, above trainer.grad_limit = {self._limit or 0:g}"
        if not sound:
            what = "numbers that are not finite"
        return (
            f"update {update} gave {what}{again} ({shown}, grad_norm = {length:g});"
            " lower trainer.lr, or look for extreme observations and rewards"
        )
