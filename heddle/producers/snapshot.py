"""Snapshots of one environment: all its layers as bytes, and back into a freshly made one.

It never knows a shard or a broker. Pickle is the fallback for layers that offer no `get_state` and `set_state`, here
and nowhere else: only the worker that runs the experiment's own code reads such bytes, and only bytes that a worker
of the same experiment wrote.

The first layer, seen from outside, that offers both methods speaks for everything beneath it. Of every layer above
the attributes are kept, in one piece, so that what two layers share is shared again afterwards.
"""

import io
import pickle  # noqa: TID251  inside the experiment's own trust boundary, see above
from typing import Any

from heddle.errors import HeddleError
from heddle.producers import plain

_FORMAT = 1
_KEPT = frozenset({"env", "spec", "_cached_spec", "_saved_kwargs"})


class NotSnapshottable(HeddleError):
    """This environment cannot be snapshotted; the message says which part of it and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SnapshotError(HeddleError):
    """Bytes that are no snapshot of such an environment."""


def take(env: Any) -> bytes:
    """The state of `env` with its random generator and wrappers; between two steps.

    Raises:
        NotSnapshottable: some part of it cannot be kept.
    """
    layers = _layers(env)
    speaker = next((place for place, layer in enumerate(layers) if _speaks(layer)), None)
    above = layers if speaker is None else layers[:speaker]
    content: dict[str, Any] = {"format": _FORMAT, "layers": [_name(layer) for layer in layers]}
    if speaker is not None:
        content["state"] = _ask(layers[speaker])
    content["rngs"] = [_generator_state(layer) for layer in layers[len(above) :]]
    content["attributes"] = _pickled(above, layers) if above else b""
    try:
        return plain.dump(content)
    except plain.PlainError as error:
        raise NotSnapshottable(f"get_state of {_name(layers[len(above)])} gave something not plain: {error}") from error


def restore(env: Any, data: bytes | memoryview) -> None:
    """Put `env`, freshly made by the same spec, into the state that `take` saw.

    Raises:
        SnapshotError: damaged bytes, or of another kind of environment; `env` is then of no more use.
    """
    layers = _layers(env)
    try:
        content = plain.load(data)
    except plain.PlainError as error:
        raise SnapshotError(f"is no snapshot: {error}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise SnapshotError("has a format that this version does not know")
    if content["layers"] != [_name(layer) for layer in layers]:
        raise SnapshotError(f"is of {content['layers']}, this environment of {[_name(layer) for layer in layers]}")
    try:
        _put(layers, content)
    except Exception as error:  # noqa: BLE001  whatever the user's classes raise: the caller plays fresh episodes
        raise SnapshotError(f"cannot be restored: {type(error).__name__}: {error}") from error


def _put(layers: list[Any], content: dict[str, Any]) -> None:
    above = len(layers) - len(content["rngs"])
    if "state" in content:
        layers[above].set_state(content["state"])
    for layer, state in zip(layers[above:], content["rngs"], strict=True):
        if state is not None:
            layer._np_random.bit_generator.state = state
    if above:
        states = _Reader(io.BytesIO(content["attributes"]), layers).load()
        for layer, state in zip(layers[:above], states, strict=True):
            vars(layer).update(state)


def _layers(env: Any) -> list[Any]:
    layers = [env]
    while (inner := vars(layers[-1]).get("env")) is not None and hasattr(inner, "step"):
        layers.append(inner)
    return layers


def _speaks(layer: Any) -> bool:
    """Asked of the class: a wrapper may pass every unknown attribute on to what it wraps."""
    return callable(getattr(type(layer), "get_state", None)) and callable(getattr(type(layer), "set_state", None))


def _ask(layer: Any) -> Any:
    try:
        return layer.get_state()
    except Exception as error:
        raise NotSnapshottable(f"get_state of {_name(layer)} raised {type(error).__name__}: {error}") from error


def _generator_state(layer: Any) -> Any:
    generator = vars(layer).get("_np_random")
    return None if generator is None else generator.bit_generator.state


def _pickled(above: list[Any], layers: list[Any]) -> bytes:
    states = [{name: value for name, value in vars(layer).items() if name not in _KEPT} for layer in above]
    out = io.BytesIO()
    try:
        _Writer(out, layers).dump(states)
    except Exception as error:
        raise NotSnapshottable(f"{type(error).__name__}: {error}") from error
    return out.getvalue()


def _name(layer: Any) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


class _Writer(pickle.Pickler):
    """Refers to the layers themselves by their place, and does not look into them."""

    def __init__(self, out: io.BytesIO, layers: list[Any]) -> None:
        super().__init__(out, protocol=5)
        self._places = {id(layer): place for place, layer in enumerate(layers)}

    def persistent_id(self, obj: Any) -> int | None:
        return self._places.get(id(obj))


class _Reader(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, layers: list[Any]) -> None:
        super().__init__(source)
        self._layers = layers

    def persistent_load(self, pid: Any) -> Any:
        return self._layers[pid]
