"""What an environment is given for what a policy chose: the only place where actions are shifted or clipped.

It never changes the array that is recorded.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.spaces import Box, DictSpace, Discrete, Space

Choices = Callable[[NDArray[Any]], Sequence[Any]]


def choices_for(action: Space) -> Choices:
    """A function from the policy's actions [N, ...] to N values for `env.step`.

    Discrete: Python integers, `start` added. Box: rows of a fresh array, clipped to the bounds.

    Raises:
        ValueError: a dict action space.
    """
    if isinstance(action, DictSpace):
        raise ValueError("dict action spaces are not supported")
    if isinstance(action, Discrete):
        return _indexes(action.start)
    return _clipped(action)


def _indexes(start: int) -> Choices:
    if start == 0:
        return lambda actions: actions.tolist()
    return lambda actions: (actions + start).tolist()


def _clipped(action: Box) -> Choices:
    low, high = (bound.astype(action.dtype) for bound in action.bounds())
    if not (np.isfinite(low).any() or np.isfinite(high).any()):
        return lambda actions: list(actions.copy())
    return lambda actions: list(np.minimum(np.maximum(actions, low), high))
