"""Kinds of answers: what an environment gives is looked at whenever it is of another kind than before, which costs next
to nothing where it never is.

It never looks at numbers of the right kind; `scrutiny.py` does, once a segment. Without it numpy would read a text as a
number, take None for NaN, cut off fractions and wrap integers without a word.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from heddle.producers.contract import BadAnswer, short
from heddle.producers.envs_async import Awaited
from heddle.spaces import Space, leaves
from heddle.spaces.values import casts

INTEGERS = frozenset({int, np.int64})
"""Kinds of a Discrete's value that need no further look."""
AGAIN = 64
"""Segments after which an environment that makes its spaces anew whenever it is asked is asked again."""


Want = tuple[tuple[Any, ...], np.dtype[Any], tuple[int, ...]]
"""Of a part of an observation: keys, dtype and shape."""


def wanted(space: Space) -> list[Want]:
    """What the parts of fixed shape must be of an observation of `space`."""
    parts = [leaf for leaf in leaves(space) if leaf.direct]
    return [(leaf.path, np.dtype(leaf.space.dtype), leaf.space.shape) for leaf in parts]


def demand_parts(parts: Sequence[Want], observation: Any) -> None:
    """Raises BadAnswer: a part is missing, or of another shape or kind."""
    for path, dtype, shape in parts:
        value, what = observation, f"the observation's {'.'.join(map(str, path))}" if path else "the observation"
        try:
            for key in path:
                value = value[key]
        except (KeyError, TypeError, IndexError) as error:
            raise BadAnswer(f"the observation has no {'.'.join(map(str, path))}") from error
        array_kind(np.asarray(value) if shape == () else value, shape, dtype, what)


def number_kind(reward: Any) -> type:
    """The kind of a reward: others of it need no look.

    Raises:
        BadAnswer: it is not one number.
    """
    if isinstance(reward, bool | int | float | np.integer | np.floating | np.bool_):
        return type(reward)
    if isinstance(reward, np.ndarray) and reward.shape == () and reward.dtype.kind in "biuf":
        return float  # the next one may be an array of more numbers
    raise BadAnswer(f"step returned the reward {short(reward)}, expected one finite number")


def has_ended(terminated: Any, truncated: Any) -> bool:
    """Whether either is set. Raises BadAnswer: one is no bool."""
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if type(flag) is not bool and type(flag) is not np.bool_:
            raise BadAnswer(f"step returned {name} = {short(flag)}, expected a bool")
    return bool(terminated or truncated)


def demand_dict(info: Any) -> None:
    """Raises BadAnswer: an info is none."""
    if not isinstance(info, dict):
        raise BadAnswer(f"step returned the info {short(info)}, expected a dict")


def demand_integer(value: Any, what: str) -> None:
    """Raises BadAnswer: the value of a Discrete is not one integer."""
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind not in "biu":
        raise BadAnswer(f"{what} is {short(value)}, expected one integer")


def array_kind(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> np.dtype[Any]:
    """The dtype of an array that is to be kept as one of `dtype`; others of it need no look but at their shape.

    Raises:
        BadAnswer: it is no array of that shape, or one of another kind, or with integers that `dtype` cannot hold.
    """
    if not isinstance(value, np.ndarray | np.generic):
        raise BadAnswer(f"{what} is a {type(value).__name__}, expected a numpy array")
    if value.shape != shape:
        raise BadAnswer(f"{what} has shape {value.shape}, its space {shape}")
    if not casts(value.dtype, dtype):
        raise BadAnswer(f"{what} has dtype {value.dtype}, its space {dtype}")
    if dtype.kind not in "iu" or np.can_cast(value.dtype, dtype, "safe"):
        return value.dtype
    held = np.iinfo(dtype)
    for number in (value.min(), value.max()):
        if not held.min <= int(number) <= held.max:
            raise BadAnswer(f"{what} holds {int(number)}, which its space's {dtype} cannot hold")
    return dtype  # the next one may hold others


class Spaces:
    """The spaces that environments had when they were made: who changes them later plays another game.

    Args:
        envs: those of a shard; stand-ins that have no spaces are not looked at.
    """

    _NAMES = ("observation_space", "action_space", "single_observation_space", "single_action_space")

    def __init__(self, envs: Sequence[Any]) -> None:
        self._held: list[tuple[int, Any, str, Any]] = []
        for place, env in enumerate(envs):
            base = env.inner if isinstance(env, Awaited) else getattr(env, "unwrapped", env)
            named = [name for name in self._NAMES if hasattr(base, name)]
            self._held += [(place, base, name, getattr(base, name)) for name in named]
        self._fresh: set[int] = set()  # made anew whenever they are asked for
        self._asked = 0

    def changed(self) -> tuple[int, str] | None:
        """The first environment whose spaces are others now, and what is; None for none."""
        self._asked += 1
        for place, base, name, space in self._held:
            now = getattr(base, name)
            if now is space or (id(base) in self._fresh and self._asked % AGAIN):
                continue
            if now != space:
                return place, f"changed its {name} from {short(space)} to {short(now)} while it was played"
            self._fresh.add(id(base))
        return None
