"""What an environment is given for what a policy chose: the only place where actions are shifted or clipped.

It never changes the arrays that are recorded.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.spaces import ACTION, Box, DictSpace, Discrete, MultiBinary, MultiDiscrete, OneOf, Space, TupleSpace, parts

Chosen = Mapping[str, NDArray[Any]]
"""Actions by leaf."""
Choices = Callable[[Chosen], Sequence[Any]]
Whole = Callable[[Chosen], NDArray[Any]]
Batches = Callable[[Chosen], Any]


def choices_for(action: Space, *, raw: bool = True, root: str = ACTION) -> Choices:
    """A function from the policy's actions, by leaf [N, ...], to N values for `env.step`.

    Discrete: Python integers, `start` added. MultiDiscrete: arrays of the space's dtype, `start` added. MultiBinary:
    arrays of int8. Box: arrays clipped to the bounds. Dict and Tuple: dicts and tuples of these. OneOf: a number and
    the choice of that alternative. All arrays are fresh.

    Args:
        raw: False where the arrays hold what `env.step` takes already, and only need to be put together.
        root: name of the leaf, or what the names of the leaves begin with.

    Raises:
        ValueError: a Text, Sequence or Graph.
    """
    if isinstance(action, DictSpace | TupleSpace):
        within = [choices_for(part, raw=raw, root=f"{root}.{key}") for key, part in parts(action)]
        return _together(within, tuple(action.spaces) if isinstance(action, DictSpace) else None)
    if isinstance(action, OneOf):
        within = [choices_for(part, raw=raw, root=f"{root}.{number}") for number, part in enumerate(action.spaces)]
        return _one_of(f"{root}.index", within)
    if isinstance(action, Discrete):
        return _indexes(root, action.start if raw else 0)
    whole = _whole(action, root, raw=raw)
    return lambda chosen: _each(whole(chosen))


def batches_for(action: Space, root: str = ACTION) -> Batches:
    """As `choices_for`, but the N values as one: arrays [N, ...], in dicts and tuples where the space has them.

    That is what a vector environment takes, and there are no values of each environment on the way. Raises as it does.
    """
    if isinstance(action, DictSpace):
        within = [batches_for(part, f"{root}.{key}") for key, part in parts(action)]
        keys = tuple(action.spaces)
        return lambda chosen: {key: values(chosen) for key, values in zip(keys, within, strict=True)}
    if isinstance(action, TupleSpace):
        placed = [batches_for(part, f"{root}.{key}") for key, part in parts(action)]
        return lambda chosen: tuple(values(chosen) for values in placed)
    if isinstance(action, OneOf):
        choose = choices_for(action, root=root)
        return lambda chosen: batched(choose(chosen))
    return _whole(action, root, raw=True)


def batched(choices: Sequence[Any]) -> Any:
    """Values for each environment as one: arrays [n, ...], in dicts and tuples where the action space has them."""
    first = choices[0]
    if isinstance(first, dict):
        return {key: batched([choice[key] for choice in choices]) for key in first}
    if isinstance(first, tuple):
        return tuple(batched(parts) for parts in zip(*choices, strict=True))
    return np.array(choices)


def _whole(action: Space, name: str, *, raw: bool) -> Whole:
    """The values of a space without parts as one fresh array."""
    if isinstance(action, Discrete):
        return _arrays(name, "int64", action.start if raw and action.start else None)
    if isinstance(action, Box) and raw:
        return _clipped(name, action)
    if isinstance(action, MultiDiscrete):
        return _arrays(name, action.dtype, action.starts() if raw and any(action.start) else None)
    if isinstance(action, Box | MultiBinary):
        return _arrays(name, action.dtype, None)
    raise ValueError(f"no policy can choose in {action}")


def _together(within: Sequence[Choices], keys: tuple[str, ...] | None) -> Choices:
    if keys is None:
        return lambda chosen: list(zip(*(choose(chosen) for choose in within), strict=True))
    return lambda chosen: [
        dict(zip(keys, values, strict=True)) for values in zip(*(choose(chosen) for choose in within), strict=True)
    ]


def _one_of(name: str, within: Sequence[Choices]) -> Choices:
    def choose(chosen: Chosen) -> Sequence[Any]:
        values = [alternative(chosen) for alternative in within]
        return [(which, values[which][row]) for row, which in enumerate(chosen[name].tolist())]

    return choose


def _indexes(name: str, start: int) -> Choices:
    if start == 0:
        return lambda chosen: chosen[name].tolist()
    return lambda chosen: np.add(chosen[name], start, dtype=np.int64).tolist()  # of a policy's uint8 it would wrap


def _arrays(name: str, kind: str, start: NDArray[np.int64] | int | None) -> Whole:
    dtype = np.dtype(kind)
    if start is None:
        return lambda chosen: chosen[name].astype(dtype)
    return lambda chosen: np.add(chosen[name], start, dtype=np.int64).astype(dtype, copy=False)


def _clipped(name: str, action: Box) -> Whole:
    low, high = action.limits()
    if not _binds(low, high):
        return _arrays(name, action.dtype, None)
    return lambda chosen: np.minimum(np.maximum(chosen[name], low), high).astype(action.dtype, copy=False)


def _each(values: NDArray[Any]) -> Sequence[Any]:
    """A row each, as arrays even where a row is one number."""
    return list(values) if values.ndim > 1 else [values[row, ...] for row in range(len(values))]


def _binds(low: NDArray[Any], high: NDArray[Any]) -> bool:
    """Whether the bounds leave anything out: infinite ones and the ends of an integer type do not."""
    if low.dtype.kind == "f":
        return bool(np.isfinite(low).any() or np.isfinite(high).any())
    least, most = (0, 1) if low.dtype.kind == "b" else (np.iinfo(low.dtype).min, np.iinfo(low.dtype).max)
    return bool((low != least).any() or (high != most).any())
