"""Snapshots of one environment: all its layers as bytes, and back into a freshly made one.

It never knows a shard or a broker. The outermost layer that offers `get_state` and `set_state` speaks for everything
beneath it. Of every layer above (of all, when none offers them) the attributes are kept, pickled in one piece, so that
what two layers share is shared again afterwards.

Pickle is used here and nowhere else. Only the worker that runs the experiment's own code reads such bytes, and only
those that a worker of the same experiment stored: whoever can write them can already write the experiment's spec.
"""

import io
import json
import pickle  # noqa: TID251  the fallback for environments, inside the experiment's own trust boundary: see above
import zlib
from collections.abc import Sequence
from functools import cache
from itertools import chain as chained
from itertools import pairwise
from typing import Any

import numpy as np

from heddle.errors import NotSnapshottable, SnapshotError
from heddle.producers import plain
from heddle.producers.layers import attributes, is_ezpickle, layers_of, set_attributes, speaks

MAGIC = b"HEDENV1\n"
_START = len(MAGIC) + 4
_NUMBERS = "biufc"


def take(env: Any) -> bytes:
    """The state of `env` between two steps, with its random generator and its wrappers.

    Raises:
        NotSnapshottable: some part of it cannot be kept.
    """
    return take_all([env])


def restore(env: Any, data: bytes | memoryview) -> None:
    """Put `env`, freshly made from the same spec, into the state that `take` saw.

    Raises:
        SnapshotError: damaged bytes, or of another kind of environment; `env` is then of no more use.
    """
    restore_all([env], data)


def take_all(envs: Sequence[Any]) -> bytes:
    """As `take`, of several environments at once; what they share is shared again when all are restored."""
    try:
        return _taken(envs)
    except NotSnapshottable:
        raise
    except Exception as error:
        raise NotSnapshottable(f"looking at it raised {type(error).__name__}: {error}") from error


def _taken(envs: Sequence[Any]) -> bytes:
    chains = [layers_of(env) for env in envs]
    above = [_layers_above(chain) for chain in chains]
    for chain, upper in zip(chains, above, strict=True):
        if upper == len(chain) and hasattr(chain[-1], "single_observation_space"):
            raise NotSnapshottable("a vector environment says nothing of its state: give it get_state and set_state")
    said = [_said(chain[upper:]) if upper < len(chain) else b"" for chain, upper in zip(chains, above, strict=True)]
    kept = _pickled(chains, above)
    header = _header(tuple(tuple(map(type, chain)) for chain in chains))
    sizes = np.array([len(header), *map(len, said)], "<u8").tobytes()
    body = b"".join((sizes, header, *said, kept))
    return b"".join((MAGIC, zlib.crc32(body).to_bytes(4, "little"), body))


def restore_all(envs: Sequence[Any], data: bytes | memoryview) -> None:
    """As `restore`, of several environments."""
    try:
        chains = [layers_of(env) for env in envs]
        said, kept = _parts(memoryview(data).cast("B"), chains)
        for chain, part in zip(chains, said, strict=True):
            if part:
                _set_said(chain, part)
        if kept:
            upper = [layer for chain in chains for layer in chain[: _layers_above(chain)]]
            for layer, found in zip(upper, _Reader(io.BytesIO(kept), chains).load(), strict=True):
                set_attributes(layer, *found)
    except SnapshotError:
        raise
    except Exception as error:  # noqa: BLE001  the user's classes may raise anything: whoever asked plays fresh episodes
        raise SnapshotError(f"cannot be restored: {type(error).__name__}: {error}") from error


def _layers_above(chain: list[Any]) -> int:
    """How many layers stand above the one that speaks; all when none does."""
    return next((place for place, layer in enumerate(chain) if speaks(type(layer))), len(chain))


def _set_said(chain: list[Any], said: memoryview) -> None:
    state, generators = plain.load(said)
    spoken_for = chain[_layers_above(chain) :]
    spoken_for[0].set_state(state)
    for layer, generator in zip(spoken_for, generators, strict=True):
        if generator is not None:
            layer.np_random.bit_generator.state = generator


def _said(layers: list[Any]) -> bytes:
    """What the first of `layers` says of itself and all beneath, and the generators that it may have left out."""
    name = type(layers[0]).__name__
    generators = [getattr(layer, "__dict__", {}).get("_np_random") for layer in layers]
    try:
        states = [None if generator is None else generator.bit_generator.state for generator in generators]
        return plain.dump((layers[0].get_state(), states))
    except NotSnapshottable:  # said by an environment that lives elsewhere
        raise
    except plain.PlainError as error:
        reason = f"get_state of {name} gave something that is not plain: {error}"
    except Exception as error:  # noqa: BLE001  the user's class may raise anything
        reason = f"get_state of {name} raised {type(error).__name__}: {error}"
    raise NotSnapshottable(reason)


@cache
def _header(kinds: tuple[tuple[type, ...], ...]) -> bytes:
    return json.dumps([[f"{kind.__module__}.{kind.__qualname__}" for kind in chain] for chain in kinds]).encode()


def _parts(view: memoryview, chains: list[list[Any]]) -> tuple[list[memoryview], memoryview]:
    """What the speaker of each environment said, empty where none does, and the attributes of the layers above."""
    start = _START + 8 * (len(chains) + 1)
    if len(view) < start or view[: len(MAGIC)] != MAGIC:
        raise SnapshotError("does not begin as a snapshot of so many environments does")
    crc = int.from_bytes(view[len(MAGIC) : _START], "little")
    ends = (start + np.cumsum(np.frombuffer(view[_START:start], "<u8"))).tolist()
    if zlib.crc32(view[_START:]) != crc or ends[-1] > len(view):
        raise SnapshotError("is damaged: its checksum does not fit its bytes")
    header = view[start : ends[0]]
    if header != _header(tuple(tuple(map(type, chain)) for chain in chains)):
        raise SnapshotError(f"is of other environments, of {str(header, 'utf-8', 'replace')}")
    return [view[begin:end] for begin, end in pairwise(ends)], view[ends[-1] :]


def _pickled(chains: list[list[Any]], above: list[int]) -> bytes:
    upper = [layer for chain, count in zip(chains, above, strict=True) for layer in chain[:count]]
    if not upper:
        return b""
    found = [attributes(layer) for layer in upper]
    try:
        return _dumped(found, chains)
    except Exception as error:
        raise NotSnapshottable(_culprit(upper, chains) or f"{type(error).__name__}: {error}") from error


def _dumped(value: Any, chains: list[list[Any]]) -> bytes:
    out = io.BytesIO()
    _Writer(out, chains).dump(value)
    return out.getvalue()


def _culprit(upper: list[Any], chains: list[list[Any]]) -> str:
    """The first attribute that cannot be pickled, and why; "" when each one can."""
    for layer in upper:
        for name, value in attributes(layer)[0].items():
            try:
                _dumped(value, chains)
            except Exception as error:  # noqa: BLE001  told to people
                return f"attribute {name!r} of {type(layer).__name__} ({type(value).__name__}): {error}"
    return ""


class _Writer(pickle.Pickler):
    """Refers to the layers by their place, and writes arrays and generators in a quicker way than they do."""

    def __init__(self, out: io.BytesIO, chains: list[list[Any]]) -> None:
        super().__init__(out, protocol=5)
        self._places = {id(layer): at for at, layer in enumerate(chained.from_iterable(chains))}

    def reducer_override(self, obj: Any) -> Any:
        if (place := self._places.get(id(obj))) is not None:
            return _layer, (place,)
        kind = type(obj)
        if kind is np.ndarray:
            if obj.dtype.kind in _NUMBERS and obj.flags.c_contiguous:
                return _array, (obj.tobytes(), obj.dtype.str, obj.shape)
            return NotImplemented
        if kind is np.random.Generator:
            return np.random.Generator, (obj.bit_generator,)
        if kind is np.random.PCG64:
            state = obj.state
            return _pcg64, (obj.seed_seq, *state["state"].values(), state["has_uint32"], state["uinteger"])
        if kind is np.random.SeedSequence:
            return _seeds, (obj.entropy, obj.spawn_key, obj.pool_size, obj.n_children_spawned)
        if any(map(is_ezpickle, kind.__mro__)):
            raise NotSnapshottable(f"a {kind.__name__} pickles only the arguments it was made with (EzPickle)")
        return NotImplemented


class _Reader(pickle.Unpickler):
    """Reads what `_Writer` wrote; a layer's place stands for the layer that exists."""

    def __init__(self, source: io.BytesIO, chains: list[list[Any]]) -> None:
        super().__init__(source)
        self._layers = list(chained.from_iterable(chains))

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (_layer.__module__, _layer.__name__):
            return self._layers.__getitem__
        return super().find_class(module, name)


def _layer(place: int) -> Any:
    raise SnapshotError(f"layer {place} can only be found while a snapshot is read")


def _array(data: bytes, dtype: str, shape: tuple[int, ...]) -> Any:
    return np.frombuffer(data, dtype).reshape(shape).copy()


def _pcg64(seeds: Any, state: int, inc: int, has_uint32: int, uinteger: int) -> np.random.PCG64:
    bits = np.random.PCG64(seeds)
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": state, "inc": inc},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return bits


def _seeds(entropy: Any, spawn_key: tuple[int, ...], pool_size: int, spawned: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=spawned)
