"""Episodes that do not end: how long each environment of an evaluation has played since it last ended one.

It never decides what is wanted; whoever plays the evaluation gives up on those that it names.
"""

from collections.abc import Sequence

import numpy as np

from heddle.layout import Segments
from heddle.shard import ShardPlan


class Endless:
    """The lanes of one shard during one evaluation.

    Args:
        most_steps: that a lane may play without ending an episode; those in which it waits for its turn count as well.
    """

    def __init__(self, plan: ShardPlan, most_steps: int) -> None:
        self._agents, self._most = plan.agents, most_steps
        self._steps = np.zeros(plan.lanes, np.int64)

    def among(self, active: Sequence[int], segments: Segments) -> list[int]:
        """After these segments, rows without steps left out: the active lanes that are not worth waiting for."""
        arrays = segments.arrays
        self._steps += int(arrays["length"].max(initial=0)) or segments.layout.steps
        ended = (arrays["episode_length"] > 0).any(axis=1)
        self._steps[arrays["env"][ended] * self._agents + arrays["agent"][ended]] = 0
        return [lane for lane in active if self._steps[lane] >= self._most]
