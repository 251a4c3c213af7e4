"""From observations to the flat float vector that a small network reads; the same numbers in numpy and in torch.

It never learns anything. Box leaves are flattened, uint8 ones divided by 255, Discrete ones become one-hot; leaves
stand in sorted order. The leaf "obs.action_mask" is not part of the vector when the action is Discrete.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heddle.errors import EnvError
from heddle.policies.base import MASK_LEAF, Array
from heddle.policies.normalise import CLIP, Normaliser
from heddle.spaces import Box, Discrete, Leaf, Space, leaves

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
        mask: name of the action mask's leaf, or None.

    Raises:
        EnvError: the mask does not fit the action space, or nothing is left to see.
    """

    def __init__(self, observation: Space, action: Space) -> None:
        self.mask = find_mask(observation, action)
        self.parts: list[Part] = []
        width = 0
        for leaf in leaves(observation):
            if leaf.name == self.mask:
                continue
            size = leaf.space.n if isinstance(leaf.space, Discrete) else leaf.space.size
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
            if isinstance(space, Discrete):
                out[np.arange(rows), part.start + values - space.start] = 1.0
                continue
            target = out[:, part.start : part.stop]
            target[...] = values.reshape(rows, -1)
            if space.dtype == "uint8":
                target *= IMAGE_SCALE
            elif factors is not None:
                target[...] = _normalised(target, factors)
        return out


def find_mask(observation: Space, action: Space) -> str | None:
    """Name of the action mask's leaf, when there is one and the action is Discrete.

    Raises:
        EnvError: it does not hold one number for each action.
    """
    if not isinstance(action, Discrete):
        return None
    for leaf in leaves(observation):
        if leaf.name != MASK_LEAF:
            continue
        if not isinstance(leaf.space, Box) or leaf.space.size != action.n:
            raise EnvError(
                f"has an action_mask of shape {list(leaf.space.shape)} for {action.n} actions",
                hint="give it one number for each action, 0 where it is not allowed",
            )
        return leaf.name
    return None


def action_size(action: Space) -> int:
    """Numbers that a head gives for one action: logits of a Discrete, means of a Box.

    Raises:
        EnvError: another action space.
    """
    if isinstance(action, Discrete):
        return action.n
    if isinstance(action, Box) and np.dtype(action.dtype).kind == "f":
        return math.prod(action.shape)
    raise EnvError(
        f"has actions that this policy cannot choose: {action}",
        key="policy.id",
        hint="Discrete and float Box actions are supported; wrap the environment or name a policy of your own",
    )


def _normalised(values: Array, factors: tuple[Array, Array]) -> NDArray[np.float32]:
    mean, scale = factors
    out: NDArray[np.float32] = (values - mean) * scale
    np.clip(out, -CLIP, CLIP, out=out)
    return out
