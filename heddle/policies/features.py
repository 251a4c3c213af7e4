"""From observations to the flat float vector that a small network reads; the same numbers in numpy and in torch.

It never learns anything. Box leaves are flattened, uint8 ones divided by 255; Discrete ones become one-hot, and so does
every element of a MultiDiscrete; MultiBinary ones are 0 and 1. Leaves stand in sorted order. An action mask
(`find_masks`) is not part of the vector.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heddle.errors import EnvError
from heddle.policies.actions import action_size, find_masks
from heddle.policies.base import Array
from heddle.policies.normalise import CLIP, Normaliser
from heddle.spaces import Box, Discrete, Leaf, LeafSpace, MultiDiscrete, Space, Text, leaves

__all__ = ["IMAGE_SCALE", "Features", "Part", "action_size"]

IMAGE_SCALE = np.float32(1.0 / 255.0)


@dataclass(frozen=True, slots=True)
class Part:
    """One leaf's place in the vector: columns start to stop."""

    leaf: Leaf
    start: int
    stop: int


class Features:
    """How the leaves of one observation space lie in the vector.

    Attributes:
        parts: in order.
        width: length of the vector.

    Raises:
        EnvError: the mask does not fit the action space, nothing is left to see, or a leaf has no fixed shape.
    """

    def __init__(self, observation: Space, action: Space) -> None:
        masks = {name for names in find_masks(observation, action).values() for name in names}
        self.parts: list[Part] = []
        width = 0
        for leaf in leaves(observation):
            if leaf.name in masks:
                continue
            if leaf.ragged:
                raise _ragged(leaf)
            size = _width(leaf.space)
            self.parts.append(Part(leaf, width, width + size))
            width += size
        self.width = width
        if not width:
            raise EnvError("has observations with nothing but an action mask: there is nothing to act on")
        only = self.parts[0].leaf.space
        self._plain = len(self.parts) == 1 and isinstance(only, Box) and only.dtype == "float32"
        self._factors: list[tuple[Array, Array] | None] = [None] * len(self.parts)

    def set_normaliser(self, normaliser: Normaliser | None) -> None:
        """Apply these statistics from now on; None: none."""
        found = [normaliser.factors(part.leaf.name) if normaliser else None for part in self.parts]
        self._factors = [pair and (pair[0].reshape(-1), pair[1].reshape(-1)) for pair in found]

    def encode(self, observations: Mapping[str, Array]) -> NDArray[np.float32]:
        """leaf -> [N, ...] becomes [N, width] float32."""
        if self._plain:
            flat: NDArray[np.float32] = observations[self.parts[0].leaf.name].reshape(-1, self.width)
            return flat if self._factors[0] is None else _normalised(flat, self._factors[0])
        rows = len(observations[self.parts[0].leaf.name])
        out = np.zeros((rows, self.width), np.float32)
        for part, factors in zip(self.parts, self._factors, strict=True):
            space, values = part.leaf.space, observations[part.leaf.name]
            if isinstance(space, Discrete | MultiDiscrete):
                out[np.arange(rows)[:, None], part.start + hot_columns(space, values)] = 1.0
                continue
            target = out[:, part.start : part.stop]
            target[...] = values.reshape(rows, -1)
            if space.dtype == "uint8":
                target *= IMAGE_SCALE
            elif factors is not None:
                target[...] = _normalised(target, factors)
        return out


def hot_columns(space: Discrete | MultiDiscrete, values: Array) -> NDArray[np.int64]:
    """Which columns of the one-hot code of `values` [N, ...] are 1: [N, elements]."""
    if isinstance(space, Discrete):
        return np.asarray(values.reshape(-1, 1) - space.start, np.int64)
    begins = np.cumsum((0, *space.nvec[:-1]))
    return np.asarray(values.reshape(len(values), -1).astype(np.int64) - space.start + begins, np.int64)


def _width(space: LeafSpace) -> int:
    if isinstance(space, Discrete):
        return space.n
    return sum(space.nvec) if isinstance(space, MultiDiscrete) else space.size


def _ragged(leaf: Leaf) -> EnvError:
    kind = "text" if isinstance(leaf.space, Text) and not leaf.depth else "a sequence or graph"
    return EnvError(
        f"has observations that this policy cannot read: {leaf.name} is {kind}, of no fixed size",
        key="policy.id",
        hint="name a policy of your own, which gets it as it is, or wrap the environment to give fixed shapes",
    )


def _normalised(values: Array, factors: tuple[Array, Array]) -> NDArray[np.float32]:
    mean, scale = factors
    out: NDArray[np.float32] = (values - mean) * scale
    np.clip(out, -CLIP, CLIP, out=out)
    return out
