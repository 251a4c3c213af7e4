"""What a vector environment takes and answers: one array for all environments, with one row each.

It never plays. An answer of the wrong shape or kind is named before anything of it is kept, for numpy would silently
stretch it over the right one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.producers.contract import BadAnswer, short
from heddle.producers.kinds import array_kind
from heddle.producers.reel import Reel
from heddle.spaces import Leaf

Indexes = NDArray[np.intp]


def store(reel: Reel, observations: Any, envs: Indexes, rows: Indexes, n: int) -> None:
    """Copy the observations of `envs` to their `rows` of a reel.

    Args:
        observations: of all environments.
        n: how many those are.

    Raises:
        BadAnswer: a leaf is missing or has another shape.
    """
    everyone = len(rows) == n
    same = int(rows[0]) if everyone and rows[0] == rows[-1] and np.logical_and.reduce(rows == rows[0]) else None
    for leaf in reel.leaves:
        values = picked(leaf, observations, n)
        if same is None:
            reel.arrays[leaf.name][envs, rows] = values if everyone else values[envs]
        else:
            reel.arrays[leaf.name][:, same] = values


def picked(leaf: Leaf, observations: Any, n: int) -> NDArray[Any]:
    """A leaf of the observations of all `n` environments, [n, ...]. Raises BadAnswer as `store` does."""
    try:
        values = np.asarray(leaf.pick(observations))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise BadAnswer(f"the observations have no {leaf.name}") from error
    if values.shape != (n, *leaf.space.shape):
        raise BadAnswer(f"{leaf.name} has shape {values.shape}, expected {(n, *leaf.space.shape)}")
    if values.dtype != leaf.space.dtype:
        array_kind(values, values.shape, np.dtype(leaf.space.dtype), leaf.name)
    return values


def rewards_of(given: Any, n: int) -> NDArray[np.float64]:
    """[n] float64. Raises BadAnswer."""
    try:
        found = np.asarray(given)
    except ValueError as error:
        raise BadAnswer(f"step returned the rewards {short(given)}, expected {n} numbers") from error
    if found.dtype.kind not in "biuf":
        raise BadAnswer(f"step returned the rewards {short(given)}, expected {n} numbers")
    rewards = found.astype(np.float64, copy=False)
    if rewards.shape != (n,):
        raise BadAnswer(f"step returned rewards of shape {rewards.shape}, expected ({n},)")
    return rewards


def flags_of(given: Any, n: int, name: str) -> NDArray[np.bool_]:
    """[n] bool. Raises BadAnswer."""
    flags = np.asarray(given)
    if flags.shape != (n,) or flags.dtype != np.bool_:
        raise BadAnswer(f"step returned {name} = {short(given)}, expected {n} bools")
    return flags


def five_of(answer: Any) -> tuple[Any, Any, Any, Any, Mapping[str, Any]]:
    """The parts of what step returned. Raises BadAnswer."""
    if not isinstance(answer, tuple) or len(answer) != 5:
        size = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else f"a {type(answer).__name__}"
        raise BadAnswer(f"step returned {size}, expected (observations, rewards, terminated, truncated, info)")
    if type(answer[4]) is not dict and not isinstance(answer[4], Mapping):  # the first question costs next to nothing
        raise BadAnswer(f"step returned the info {short(answer[4])}, expected a dict")
    return answer


def info_of(info: Mapping[str, Any], env: int, *, ended: bool = False) -> dict[str, Any]:
    """What `info` says of one environment.

    Args:
        ended: by this call, in an environment that shows the next episode in the same call.
    """
    if ended and (final := info.get("final_info")) is not None:
        return dict(final[env] or {}) if not isinstance(final, Mapping) else info_of(final, env)
    own = {}
    for key, values in info.items():
        mask = info.get(f"_{key}")
        is_rows = isinstance(values, np.ndarray | list) and len(values) > env
        if is_rows and (mask is None or mask[env]):
            own[key] = values[env]
    return own


def final_of(info: Mapping[str, Any], env: int, leaves: Sequence[Leaf]) -> dict[str, NDArray[Any]]:
    """The true last observation, by leaf, of an episode that this call cut off and followed by the next one.

    Raises:
        BadAnswer: it is not there, or has another shape.
    """
    finals = info.get("final_obs", info.get("final_observation"))
    if finals is None:
        raise BadAnswer("cut an episode off without its last observation: its info has no final_obs")
    found = {}
    for leaf in leaves:
        try:
            is_batched = isinstance(finals, Mapping | tuple)
            value = np.asarray(leaf.pick(finals)[env] if is_batched else leaf.pick(finals[env]))
        except (KeyError, TypeError, IndexError) as error:
            raise BadAnswer(f"the last observation of a truncated episode has no {leaf.name}") from error
        if value.shape != leaf.space.shape:
            what = f"the last observation of a truncated episode, {leaf.name},"
            raise BadAnswer(f"{what} has shape {value.shape}, its space {leaf.space.shape}")
        array_kind(value, value.shape, np.dtype(leaf.space.dtype), f"the last observation of an episode, {leaf.name},")
        found[leaf.name] = value.astype(leaf.space.dtype)
    return found
