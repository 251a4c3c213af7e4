"""Carried steps: those that one segment began and the next one records, for they were under way between the two.

It never steps or acts; `ready_player.py` does.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heddle.policies.base import Arrays
from heddle.producers.reel import Reel


class _Step(NamedTuple):
    """Action, outputs, and the state it was chosen in, by name, of one environment."""

    actions: dict[str, Any]
    outputs: dict[str, Any]
    state: dict[str, Any]


class Carried:
    """The steps of one shard's environments that are carried over."""

    def __init__(self) -> None:
        self._steps: dict[int, _Step] = {}

    def clear(self) -> None:
        """Carry nothing."""
        self._steps.clear()

    def keep(self, reel: Reel, envs: Iterable[int], at: NDArray[np.intp], before: Arrays) -> None:
        """Set aside what the next segments of `envs` begin with, and nothing else.

        Args:
            envs: those with a step under way.
            at: [n] rows at which the environments stand in `reel`.
            before: [n, ...] by name, the state in which each acted last.
        """
        self._steps = {
            env: _Step(
                {name: np.copy(array[env, at[env]]) for name, array in reel.actions},
                {name: np.copy(array[env, at[env]]) for name, array in reel.outputs},
                {name: np.copy(array[env]) for name, array in before.items()},
            )
            for env in envs
        }

    def put(self, reel: Reel, before: Arrays) -> None:
        """Write what was kept into the first rows of `reel`, and the states into `before`, [n, ...] by name."""
        for env, step in self._steps.items():
            for name, array in reel.actions:
                array[env, 0] = step.actions[name]
            for name, array in reel.outputs:
                array[env, 0] = step.outputs[name]
            for name, array in reel.states:
                array[env] = step.state[name]
                before[name][env] = step.state[name]  # it may outlast this segment, too
