"""Linear layers in numpy for policies that act without torch: a trunk, and heads on it.

Weights, all float32, in torch's layout [out, in]: "trunk.<i>.weight", "trunk.<i>.bias", "<head>.weight", "<head>.bias".
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heddle.policies.base import Arrays
from heddle.policies.mlp import orthogonal

Float32 = NDArray[np.float32]


def initial_net(
    rng: np.random.Generator, width: int, hidden: Sequence[int], heads: Mapping[str, tuple[int, float]]
) -> Arrays:
    """First weights: orthogonal, hidden gain sqrt(2), biases 0.

    Args:
        width: of what comes in.
        hidden: widths of the trunk's layers.
        heads: name -> numbers that come out, and gain.
    """
    weights: Arrays = {}
    for index, (into, out) in enumerate(itertools.pairwise((width, *hidden))):
        weights[f"trunk.{index}.weight"] = orthogonal(rng, out, into, math.sqrt(2))
        weights[f"trunk.{index}.bias"] = np.zeros(out, np.float32)
    for name, (out, gain) in heads.items():
        weights[f"{name}.weight"] = orthogonal(rng, out, (width, *hidden)[-1], gain)
        weights[f"{name}.bias"] = np.zeros(out, np.float32)
    return weights


class Net:
    """A forward pass over such weights; they are copied into the order in which it reads them."""

    def __init__(self, weights: Arrays, activation: Literal["tanh", "relu"]) -> None:
        layers = sum(name.startswith("trunk.") and name.endswith(".weight") for name in weights)
        self._layers = [_linear(weights, f"trunk.{index}") for index in range(layers)]
        heads = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
        self._heads = {name: _linear(weights, name) for name in heads if not name.startswith("trunk.")}
        self._tanh = activation == "tanh"

    def __call__(self, features: Float32) -> dict[str, Float32]:
        """[N, width] to [N, out] of each head."""
        hidden = features
        for weight, bias in self._layers:
            hidden = hidden @ weight
            hidden += bias
            if self._tanh:
                np.tanh(hidden, out=hidden)
            else:
                np.maximum(hidden, 0, out=hidden)
        return {name: hidden @ weight + bias for name, (weight, bias) in self._heads.items()}


def _linear(weights: Arrays, name: str) -> tuple[Float32, Float32]:
    return np.ascontiguousarray(weights[f"{name}.weight"].T), weights[f"{name}.bias"]
