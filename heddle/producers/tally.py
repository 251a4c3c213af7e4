"""Returns and lengths of episodes, over the borders of segments.

It never looks at an environment: it is told rewards and where episodes ended.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Tally:
    """What the running episodes of `n` environments have gathered in earlier segments of at most `steps` steps.

    Attributes:
        returns, lengths: by environment.
    """

    def __init__(self, n: int, steps: int) -> None:
        self.returns = [0.0] * n
        self.lengths = [0] * n
        self._scratch = np.zeros((n, steps + 1), np.float64)

    def clear(self, env: int) -> None:
        """A fresh episode starts."""
        self.returns[env], self.lengths[env] = 0.0, 0

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
        n, begin = len(lengths), [0] * len(lengths)
        sums = self._scratch[:, : rewards.shape[1] + 1]
        sums[:, 0], sums[:, 1:] = self.returns, rewards
        for env, step in ended:
            piece = sums[env, begin[env] : step + 2]
            arrays["episode_return"][env, step] = np.add.accumulate(piece)[-1]
            arrays["episode_length"][env, step] = self.lengths[env] + step + 1 - begin[env]
            self.lengths[env], begin[env] = 0, step + 1
            sums[env, : step + 2] = 0.0  # x + 0.0 is x: what follows sums up as if it came first
        totals = np.add.accumulate(sums, axis=1)
        for env in range(n):
            self.returns[env] = float(totals[env, lengths[env]])
            self.lengths[env] += lengths[env] - begin[env]
