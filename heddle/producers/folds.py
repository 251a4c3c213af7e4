"""Folds: which batches of an experiment are looked at for stacks of frames, so that those without any cost little.

It never decides by what an environment is said to be, and remembers nothing but how the last batches turned out.
"""

from heddle.folding import Folded, fold, foldable
from heddle.layout import Layout, Segments
from heddle.spec import ExperimentSpec

MOST_PASSED_OVER = 64
"""Batches in a row that are not looked at after some that did not stack."""


class Folds:
    """Of one experiment, in one thread.

    Attributes:
        is_folding: the last batch was folded.
    """

    def __init__(self, spec: ExperimentSpec) -> None:
        self._wanted = spec.rollout.frames
        self._cap = spec.limits.batch_bytes
        self._failed = self._passed_over = 0
        self.is_folding = False

    def fold(self, layout: Layout, segments: Segments, *, is_shared: bool) -> Folded | None:
        """The batch with each frame once; None where it shall be sent whole.

        Args:
            is_shared: it will lie in shared memory.
        """
        self.is_folding = False
        if self._wanted == "whole" or (is_shared and self._wanted == "auto") or not foldable(layout):
            return None
        if layout.bytes_of(segments.rows, segments.num_finals) > self._cap:  # no reader would take it
            return None
        if self._passed_over < min(2**self._failed, MOST_PASSED_OVER) - 1:
            self._passed_over += 1
            return None
        found = fold(segments)
        self.is_folding = found is not None
        self._failed, self._passed_over = 0 if found else min(self._failed + 1, 10), 0
        return found
