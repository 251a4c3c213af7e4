"""Spaces: Heddle's own description of what an environment shows and accepts.

It never imports an environment library: `producers/envs.py` translates, everything else works on these values.

Everywhere else observations and actions are `dict[str, ndarray]` keyed by leaf name: a plain space has the one leaf
"obs" (or "action"); a dict space has "obs.camera", "obs.arm.joints" and so on, a tuple space "obs.0", "obs.1". Leaves
that differ in length from step to step, of Text, Sequence and Graph, are arrays of objects: see `heddle.spaces.cells`.

An observation leaf holds what the environment returned, a Discrete one with its `start`. What a policy chooses is
counted from 0 in every Discrete and MultiDiscrete leaf; the player adds `start` for the environment alone.
"""

from heddle.spaces.bounds import Bound, bound
from heddle.spaces.description import from_json, to_json
from heddle.spaces.kinds import (
    DTYPES,
    Box,
    Composite,
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
    index_range,
    parts,
)
from heddle.spaces.nesting import GraphValue, unflatten
from heddle.spaces.tree import ACTION, OBSERVATION, Leaf, blank, flatten, is_action, leaves
from heddle.spaces.values import validate_value

__all__ = [
    "ACTION",
    "DTYPES",
    "OBSERVATION",
    "Bound",
    "Box",
    "Composite",
    "DictSpace",
    "Discrete",
    "Graph",
    "GraphValue",
    "Leaf",
    "LeafSpace",
    "MultiBinary",
    "MultiDiscrete",
    "OneOf",
    "SequenceSpace",
    "Space",
    "Text",
    "TupleSpace",
    "blank",
    "bound",
    "flatten",
    "from_json",
    "index_range",
    "is_action",
    "leaves",
    "parts",
    "to_json",
    "unflatten",
    "validate_value",
]
