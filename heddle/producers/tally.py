"""Returns and lengths of episodes, over the borders of segments.

It never looks at an environment: it is told rewards and where episodes ended.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Tally:
    """What the running episodes of `n` environments have gathered in earlier segments."""

    def __init__(self, n: int) -> None:
        self._returns = [0.0] * n
        self.lengths = [0] * n

    def clear(self, env: int) -> None:
        """A fresh episode starts."""
        self._returns[env], self.lengths[env] = 0.0, 0

    def settle(
        self,
        rewards: NDArray[np.float64],
        lengths: Sequence[int],
        ended: Sequence[tuple[int, int]],
        arrays: dict[str, NDArray[Any]],
    ) -> None:
        """Write `episode_return` and `episode_length` of one batch and carry the rest.

        Sums run strictly from the first reward to the last, so they do not depend on where segments are cut.

        Args:
            rewards: [n, T], as the environments gave them.
            lengths: steps played in this batch, per environment.
            ended: (env, step) of every ending, rising in step.
        """
        begin = [0] * len(lengths)
        for env, step in ended:
            arrays["episode_return"][env, step] = self._plus(env, rewards[env, begin[env] : step + 1])
            arrays["episode_length"][env, step] = self.lengths[env] + step + 1 - begin[env]
            self.clear(env)
            begin[env] = step + 1
        for env, length in enumerate(lengths):
            if length > begin[env]:
                self._returns[env] = self._plus(env, rewards[env, begin[env] : length])
                self.lengths[env] += length - begin[env]

    def _plus(self, env: int, rewards: NDArray[np.float64]) -> float:
        return float(np.add.accumulate(np.concatenate(([self._returns[env]], rewards)))[-1])
