"""Spaces as JSON, and back."""

import json
from collections.abc import Mapping
from typing import Any

from heddle.spaces.bounds import from_plain, to_plain
from heddle.spaces.kinds import (
    Box,
    DictSpace,
    Discrete,
    Graph,
    LeafSpace,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    SequenceSpace,
    Space,
    Text,
    TupleSpace,
)


def to_json(space: Space) -> dict[str, Any]:
    """A dict that `json.dumps` takes and `from_json` reads back to an equal space; infinities become strings."""
    match space:
        case DictSpace():
            return {"type": "dict", "spaces": {key: to_json(part) for key, part in space.spaces.items()}}
        case TupleSpace():
            return {"type": "tuple", "spaces": [to_json(part) for part in space.spaces]}
        case OneOf():
            return {"type": "one_of", "spaces": [to_json(part) for part in space.spaces]}
        case SequenceSpace():
            return {"type": "sequence", "space": to_json(space.space), "stacked": space.stacked}
        case Graph():
            return {"type": "graph", "node": to_json(space.node), "edge": space.edge and to_json(space.edge)}
        case _:
            return _leaf_to_json(space)


def from_json(data: str | Mapping[str, Any]) -> Space:
    """Read what `to_json` made, as a dict or as text.

    Raises:
        ValueError: it is not the description of a space.
    """
    loaded = json.loads(data) if isinstance(data, str) else data
    try:
        return _read(loaded["type"], loaded)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a space: {error!r} in {str(loaded)[:80]}") from error


def _leaf_to_json(space: LeafSpace) -> dict[str, Any]:
    match space:
        case Discrete():
            return {"type": "discrete", "n": space.n, "start": space.start}
        case MultiBinary():
            return {"type": "multi_binary", "shape": list(space.shape)}
        case MultiDiscrete():
            sizes = {"nvec": list(space.nvec), "start": list(space.start), "shape": list(space.shape)}
            return {"type": "multi_discrete", **sizes, "dtype": space.dtype}
        case Text():
            lengths = {"max_length": space.max_length, "min_length": space.min_length}
            return {"type": "text", **lengths, "charset": space.charset}
        case Box():
            bounds = {"low": to_plain(space.low), "high": to_plain(space.high)}
            return {"type": "box", "shape": list(space.shape), "dtype": space.dtype, **bounds}


def _read(kind: str, told: Mapping[str, Any]) -> Space:
    match kind:
        case "dict":
            return DictSpace({key: from_json(part) for key, part in told["spaces"].items()})
        case "tuple":
            return TupleSpace(tuple(from_json(part) for part in told["spaces"]))
        case "one_of":
            return OneOf(tuple(from_json(part) for part in told["spaces"]))
        case "sequence":
            return SequenceSpace(from_json(told["space"]), bool(told["stacked"]))
        case "graph":
            return Graph(from_json(told["node"]), None if told["edge"] is None else from_json(told["edge"]))
        case _:
            return _read_leaf(kind, told)


def _read_leaf(kind: str, told: Mapping[str, Any]) -> LeafSpace:
    match kind:
        case "discrete":
            return Discrete(int(told["n"]), int(told["start"]))
        case "multi_binary":
            return MultiBinary(tuple(told["shape"]))
        case "multi_discrete":
            return MultiDiscrete(tuple(told["nvec"]), tuple(told["start"]), tuple(told["shape"]), told["dtype"])
        case "text":
            return Text(int(told["max_length"]), int(told["min_length"]), told["charset"])
        case "box":
            return Box(tuple(told["shape"]), told["dtype"], from_plain(told["low"]), from_plain(told["high"]))
        case _:
            raise ValueError(f"not a space: type {kind!r}")
