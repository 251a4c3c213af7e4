"""Folds: which batches of an experiment are looked at for stacks of frames, so that those without any cost little.

It never decides by what an environment is said to be, and remembers nothing but how the last batches turned out.
"""

from collections import defaultdict
from dataclasses import dataclass

from heddle.folding import Folded, fold, foldable
from heddle.layout import Layout, Segments
from heddle.spec import ExperimentSpec

MOST_PASSED_OVER = 64
"""Batches in a row that are not looked at after some that did not stack."""


@dataclass(slots=True)
class _Shard:
    """How its last batches turned out: `failed` in a row to stack, `passed_over` since then."""

    failed: int = 0
    passed_over: int = 0
    is_folding: bool = False


class Folds:
    """Of one experiment, in one thread; each shard by itself, for one may stack and another not (variants)."""

    def __init__(self, spec: ExperimentSpec) -> None:
        self._wanted = spec.rollout.frames
        self._cap = spec.limits.batch_bytes
        self._shards = defaultdict[int, _Shard](_Shard)

    def is_folding(self, shard: int) -> bool:
        """The last batch of `shard` was folded."""
        return self._shards[shard].is_folding

    def fold(self, layout: Layout, segments: Segments, *, shard: int, is_shared: bool) -> Folded | None:
        """The batch with each frame once; None where it shall be sent whole.

        Args:
            is_shared: it will lie in shared memory.
        """
        own = self._shards[shard]
        own.is_folding = False
        if self._wanted == "whole" or (is_shared and self._wanted == "auto") or not foldable(layout):
            return None
        if layout.bytes_of(segments.rows, segments.num_finals) > self._cap:  # no reader would take it
            return None
        if own.passed_over < min(2**own.failed, MOST_PASSED_OVER) - 1:
            own.passed_over += 1
            return None
        found = fold(segments)
        own.is_folding = found is not None
        own.failed, own.passed_over = 0 if found else min(own.failed + 1, 10), 0
        return found
