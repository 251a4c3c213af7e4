"""Gymnasium's contract, asked of one environment by playing a few steps of it.

It never imports Gymnasium and never decides what follows from a breach.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.producers.choices import choices_for
from heddle.spaces import ACTION, Box, DictSpace, Discrete, Leaf, LeafSpace, Space, index_range, leaves, validate_value
from heddle.spaces.cells import boxed, padded, to_cell
from heddle.spec.objects import describe_error, user_errors

_TOLERANCE = 1e-5
"""Two runs of the same seed may differ by this much, as in Gymnasium's own checker."""


class BadAnswer(Exception):
    """An environment or policy answered against its contract; the message says what.

    Attributes:
        env: which one of several that are stepped as one; None where the player knows.
    """

    def __init__(self, what: str, *, env: int | None = None) -> None:
        super().__init__(what)
        self.env = env


_LANE = "_heddle_lane"


@contextlib.contextmanager
def at_lane(lane: int) -> Iterator[None]:
    """What is raised in it is of one of several environments that are stepped as one: the one with that lane."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(Exception):  # of a class that takes no attributes
            setattr(error, _LANE, lane)
        raise


def lane_of(error: BaseException) -> int | None:
    """Of which lane an error is; None where nothing says so."""
    own = error.env if isinstance(error, BadAnswer) else None
    lane: int | None = getattr(error, _LANE, None) if own is None else own
    return lane


def first_breach(
    env: Any,
    observation: Space,
    action: Space,
    *,
    seed: int,
    steps: int,
    info_keys: Sequence[str] = (),
    again: Callable[[], Any] | None,
) -> str | None:
    """The first way in which `env` breaks the contract, in one line; None when it keeps it.

    Plays `steps` steps from `reset(seed=seed)`, twice with the same actions, and compares. Some environments carry a
    little over from one episode into the next, and yet do the same whenever they are made anew: those are taken.

    Args:
        env: has reset and step.
        seed: of all resets and of the actions.
        info_keys: those whose values must be numbers where they occur.
        again: makes another such environment; None: two runs with the same seed may differ.
    """
    choices = some_actions(action, steps, np.random.default_rng(seed))
    try:
        first = _play(env, observation, action, choices, seed=seed, info_keys=info_keys)
        second = _play(env, observation, action, choices, seed=seed, info_keys=info_keys)
        if again is not None and difference(first, second):
            another = again()
            try:
                second = _play(another, observation, action, choices, seed=seed, info_keys=info_keys)
            finally:
                with contextlib.suppress(Exception):  # of no further interest
                    another.close()
    except BadAnswer as breach:
        return str(breach)
    if again is not None and (found := difference(first, second)):
        what = f"is not deterministic: {found} differs between two runs with the same seed and the same actions"
        return f"{what}; where that is as it should be, say so: deterministic = false in [env]"
    return None


def difference(first: Sequence[NDArray[Any]], second: Sequence[NDArray[Any]]) -> str:
    """The first call whose answer differs, one [numbers] float64 a call as of `flattened`; "" when none does."""
    for step, (one, other) in enumerate(zip(first, second, strict=False)):  # an episode may end sooner in one of them
        if not _same(one, other):
            return "reset" if step == 0 else f"step {step}"
    return ""


def _play(
    env: Any, observation: Space, action: Space, choices: Sequence[Any], *, seed: int, info_keys: Sequence[str]
) -> list[NDArray[Any]]:
    """Everything seen, one flat array a call, the first from reset."""
    value = _reset(env, observation, seed)
    seen = [flattened(observation, value)]
    for step, choice in enumerate(choices, start=1):
        value, reward, terminated, truncated, info = _step(env, permitted(choice, value, action), step)
        where = f"step {step}"
        _expect(not (problem := observation_problem(observation, value)), f"{where}: {problem}")
        _expect(_is_number(reward), f"{where} returned the reward {short(reward)}, expected one finite number")
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            _expect(isinstance(flag, bool | np.bool_), f"{where} returned {name} = {short(flag)}, expected a bool")
        _expect_info(info, where, info_keys)
        seen.append(np.append(flattened(observation, value), [float(reward), bool(terminated), bool(truncated)]))
        if terminated or truncated:
            value = _reset(env, observation, seed + step)
            seen.append(flattened(observation, value))
    return seen


def _reset(env: Any, observation: Space, seed: int) -> Any:
    try:
        answer = env.reset(seed=seed)
    except user_errors() as error:
        raise BadAnswer(f"reset raised {describe_error(error)}") from error
    is_pair = isinstance(answer, tuple) and len(answer) == 2
    _expect(is_pair, f"reset returned {short(answer)}, expected (observation, info)")
    value, info = answer
    _expect(not (problem := observation_problem(observation, value)), f"reset: {problem}")
    _expect_info(info, "reset", ())
    return value


def _step(env: Any, choice: Any, step: int) -> Any:
    try:
        answer = env.step(choice)
    except user_errors() as error:
        raise BadAnswer(f"step {step} raised {describe_error(error)} for action {short(choice)}") from error
    size = len(answer) if isinstance(answer, tuple) else 0
    described = f"a tuple of {size}" if size else short(answer)
    wanted = "(observation, reward, terminated, truncated, info)"
    _expect(size == 5, f"step returned {described}, expected {wanted}")
    return answer


def observation_problem(space: Space, value: Any) -> str | None:
    """Why `value` is not an observation of `space` as the player needs it: arrays but for Discrete; else None."""
    if problem := validate_value(space, value):
        return problem
    for leaf in leaves(space):
        if not leaf.direct:
            continue
        part = leaf.pick(value)
        if not isinstance(leaf.space, Discrete) and not isinstance(part, np.ndarray | np.generic):
            return f"{leaf.name} is a {type(part).__name__}, expected a numpy array"
    return None


def some_actions(action: Space, steps: int, rng: np.random.Generator) -> Sequence[Any]:
    """As the player would pass them."""
    return choices_for(action)({leaf.name: _drawn(leaf.space, steps, rng) for leaf in leaves(action, ACTION)})


def _drawn(space: LeafSpace, steps: int, rng: np.random.Generator) -> NDArray[Any]:
    """[steps, ...], as a policy might choose them."""
    shape = (steps, *space.shape)
    if isinstance(space, Box):
        if np.dtype(space.dtype).kind == "f":
            return np.asarray(rng.standard_normal(shape), space.dtype)
        low, high = space.limits()
        return np.asarray(rng.integers(low, high, size=shape, dtype=space.dtype, endpoint=True))
    found = index_range(space, chosen=True)
    assert found is not None
    return np.asarray(rng.integers(*found, size=shape, endpoint=True))


def permitted(choice: Any, observation: Any, action: Space) -> Any:
    """`choice`, or the next one that the observation's `action_mask` allows: no policy would choose another.

    Groups of agents with spaces of their own stand side by side, each with its mask.
    """
    if (
        isinstance(action, DictSpace)
        and isinstance(observation, Mapping)
        and observation.keys() >= action.spaces.keys()
    ):
        return {key: permitted(choice[key], observation[key], part) for key, part in action.spaces.items()}
    if not isinstance(action, Discrete) or not isinstance(observation, Mapping):
        return choice
    mask = np.ravel(observation.get("action_mask", ()))
    if len(mask) != action.n or not mask.any():
        return choice
    index = int(choice) - action.start
    allowed = next(other % action.n for other in range(index, index + action.n) if mask[other % action.n])
    return choice + (allowed - index)


def flattened(space: Space, value: Any) -> NDArray[Any]:
    """A value as one array of numbers, [numbers] float64."""
    return np.concatenate([_numbers(leaf, leaf.pick(value)) for leaf in leaves(space)])


def _numbers(leaf: Leaf, picked: Any) -> NDArray[np.float64]:
    if not leaf.ragged:
        return np.ravel(picked).astype(np.float64)
    found = padded(leaf, boxed([to_cell(leaf, picked)])).values()
    return np.concatenate([np.ravel(values).astype(np.float64) for values in found])


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.shape == other.shape and np.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE)


def _expect_info(info: Any, where: str, keys: Sequence[str]) -> None:
    _expect(isinstance(info, dict), f"{where} returned the info {short(info)}, expected a dict")
    for key in keys:
        if key in info:
            is_number = np.ndim(info[key]) == 0 and np.asarray(info[key]).dtype.kind in "biuf"
            _expect(is_number, f"{where} gave info[{key!r}] = {short(info[key])}, expected one number")


def _expect(fact: bool, reason: str) -> None:
    if not fact:
        raise BadAnswer(reason)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool | int | float | np.number | np.bool_):
        return bool(np.isfinite(value))
    return (
        isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "biuf" and bool(np.isfinite(value))
    )


def short(value: Any) -> str:
    """A value as people shall read it, on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
