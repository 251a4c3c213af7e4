"""Layers of an environment, and what each of them keeps.

It never copies and never pickles: it hands out an environment's own objects.
"""

from types import FunctionType
from typing import Any

import numpy as np

from heddle.errors import NotSnapshottable

_AS_MADE = frozenset({"env", "spec", "_cached_spec", "_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs"})
"""Attributes that Gymnasium sets when an environment is made, and that never change."""
_SIMPLE = frozenset({int, float, bool, str, bytes, type(None), np.ndarray, np.random.Generator, dict, list, tuple})
_POINTER = 8
_OWN_GETSTATE: dict[type, bool] = {}


def layers_of(env: Any) -> list[Any]:
    """`env` and what it wraps, outermost first; anything with an `env` that steps is a wrapper."""
    layers = [env]
    while (inner := getattr(layers[-1], "__dict__", {}).get("env")) is not None and hasattr(inner, "step"):
        layers.append(inner)
    return layers


def speaks(kind: type) -> bool:
    """Asked of the class: a wrapper may pass every unknown attribute on to what it wraps."""
    return callable(getattr(kind, "get_state", None)) and callable(getattr(kind, "set_state", None))


def attributes(layer: Any) -> tuple[dict[str, Any], list[str]]:
    """What a layer keeps, and the names of what any freshly made one has as well: functions, unseeded spaces.

    Raises:
        NotSnapshottable: its own __getstate__ gave no dict.
    """
    kind = type(layer)
    own = has_own_getstate(kind)
    found = layer.__getstate__() if own else object.__getstate__(layer)
    if isinstance(found, tuple):  # __dict__ and __slots__
        found = {**(found[0] or {}), **found[1]}
    if not isinstance(found, dict):
        if own:
            raise NotSnapshottable(f"__getstate__ of {kind.__name__} gave a {type(found).__name__}, not a dict")
        found = {}
    state, as_made = {}, []
    for name, value in found.items():
        if name in _AS_MADE or (type(value) not in _SIMPLE and _is_as_made(value)):
            as_made.append(name)
        else:
            state[name] = value
    return state, as_made


def set_attributes(layer: Any, state: dict[str, Any], as_made: list[str]) -> None:
    """Give a freshly made layer what `attributes` found in another one."""
    if has_own_getstate(type(layer)) and hasattr(layer, "__setstate__"):
        layer.__setstate__(state)
        return
    own, slots = getattr(layer, "__dict__", {}), _slots_of(type(layer))
    for name in [name for name in own if name not in state and name not in as_made]:
        del own[name]
    own.update((name, value) for name, value in state.items() if name not in slots)
    for name in slots.intersection(state):
        object.__setattr__(layer, name, state[name])


def has_own_getstate(kind: type) -> bool:
    """Whether `kind` says itself what is kept of it.

    Raises:
        NotSnapshottable: it is pickled in a way of its own that cannot be put into one that exists already.
    """
    if (known := _OWN_GETSTATE.get(kind)) is None:
        known = _OWN_GETSTATE[kind] = _look_at(kind)
    return known


def _look_at(kind: type) -> bool:
    if any(name in vars(base) for base in kind.__mro__[:-1] for name in ("__reduce__", "__reduce_ex__")):
        raise NotSnapshottable(f"{kind.__name__} defines __reduce__; give it get_state and set_state instead")
    if kind.__basicsize__ > object.__basicsize__ + _POINTER * (len(_slots_of(kind)) + 2):
        raise NotSnapshottable(f"{kind.__name__} keeps state outside Python; give it get_state and set_state")
    definer = next(base for base in kind.__mro__ if "__getstate__" in vars(base))
    return definer is not object and not is_ezpickle(definer)


def _slots_of(kind: type) -> set[str]:
    declared = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    return {name for names in declared for name in ((names,) if isinstance(names, str) else names)}


def is_ezpickle(kind: type) -> bool:
    """Gymnasium's EzPickle keeps the arguments that an environment was made with, nothing of what came after."""
    return kind.__name__ == "EzPickle" and kind.__module__.startswith(("gymnasium.", "gym."))


def _is_as_made(value: Any) -> bool:
    """Functions without a name of their own, and spaces nobody has drawn from: any freshly made layer has them, too."""
    if type(value) is FunctionType:
        return "<" in value.__qualname__
    return type(value).__module__.startswith("gymnasium.spaces") and _is_idle(value)


def _is_idle(space: Any) -> bool:
    if getattr(space, "_np_random", None) is not None:
        return False
    within = getattr(space, "spaces", ())
    return all(_is_idle(part) for part in (within.values() if isinstance(within, dict) else within))
