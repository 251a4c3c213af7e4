"""Episodes that do not end: how long each environment of an evaluation has played since it last ended one.

It never decides what is wanted; whoever plays the evaluation gives up on those that it names.
"""

from collections.abc import Sequence

import numpy as np

from heddle.layout import Segments
from heddle.shard import ShardPlan


class Endless:
    """The lanes of one shard during an evaluation, and which of them were told of before."""

    def __init__(self, plan: ShardPlan) -> None:
        self._agents, self._most = plan.agents, 0
        self._steps = np.zeros(plan.lanes, np.int64)
        self._told, self._news = set[int](), list[int]()

    def begin(self, most_steps: int) -> None:
        """Another evaluation; `most_steps` of a lane without the end of an episode, those that it waits through too."""
        self._most = most_steps
        self._steps[:] = 0

    def among(self, active: Sequence[int], segments: Segments) -> list[int]:
        """After these segments, rows without steps left out: the active lanes that are not worth waiting for."""
        arrays = segments.arrays
        self._steps += int(arrays["length"].max(initial=0)) or segments.layout.steps
        ended = (arrays["episode_length"] > 0).any(axis=1)
        self._steps[arrays["env"][ended] * self._agents + arrays["agent"][ended]] = 0
        found = [lane for lane in active if self._steps[lane] >= self._most]
        self._news += [lane for lane in found if lane not in self._told]
        self._told.update(found)
        return found

    def news(self) -> list[int]:
        """Lanes that were found for the first time."""
        news, self._news = self._news, []
        return news
