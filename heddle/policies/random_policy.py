"""The built-in policy that knows nothing: `policy.id = "random"`, a baseline and a source of data.

It never learns; with a learner it is refused, but for "none".

Integers are drawn uniformly, among what a mask allows; floats uniformly where they have bounds, as one bound plus or
minus an exponential number where there is one, from the standard normal distribution where there is none: as
Gymnasium's `Box.sample`.
"""

import math
from collections.abc import Mapping

import numpy as np

from heddle.policies.actions import find_masks
from heddle.policies.base import Acted, Array, Arrays, Noise, ScriptedPolicy
from heddle.policies.heads import multi_categorical
from heddle.spaces import ACTION, Box, Leaf, Space, index_range, leaves


class RandomPolicy(ScriptedPolicy):
    """Draws every action from its noise; `deterministic` means all the same that it draws."""

    def __init__(self, observation: Space, action: Space) -> None:
        self._leaves = leaves(action, ACTION)
        self._masks = find_masks(observation, action)
        self._places: list[tuple[int, int]] = []
        stop = 0
        for leaf in self._leaves:
            begin, stop = stop, stop + leaf.space.size * (2 if isinstance(leaf.space, Box) else 1)
            self._places.append((begin, stop))
        self.noise = Noise("uniform", stop)

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        actions: Arrays = {}
        for leaf, (begin, stop) in zip(self._leaves, self._places, strict=True):
            chance = noise[:, begin:stop]
            if isinstance(leaf.space, Box):
                drawn = _of_box(leaf.space, chance)
            else:
                drawn = self._indices(leaf, chance, observations)
            actions[leaf.name] = drawn.reshape(len(noise), *leaf.space.shape).astype(leaf.chosen_dtype, copy=False)
        return Acted(actions)

    def _indices(self, leaf: Leaf, chance: Array, observations: Mapping[str, Array]) -> Array:
        limits = index_range(leaf.space, chosen=True)
        assert limits is not None
        sizes = (limits[1].reshape(-1) + 1).tolist()
        names = self._masks.get(leaf.name)
        if names is None:
            return np.asarray(np.floor(chance * np.array(sizes)), np.int64)
        mask = np.concatenate([observations[name].reshape(len(chance), -1) for name in names], axis=1)
        indices, _ = multi_categorical(np.zeros(mask.shape, np.float32), sizes, chance, mask)
        return indices


def _of_box(space: Box, chance: Array) -> Array:
    """[N, 2 * size] uniform numbers as values of a Box, of integers and booleans, too."""
    first, second = np.split(chance, 2, axis=1)
    low, high = (bound.reshape(-1) for bound in space.bounds())
    kind = np.dtype(space.dtype).kind
    if kind != "f":
        least, most = (bound.reshape(-1) for bound in space.limits())
        drawn = np.floor(low + first * (high - low + 1.0))
        top = np.nextafter(high, low) if np.dtype(space.dtype).itemsize == 8 else high  # 2**63 has no int64
        return np.asarray(np.clip(np.clip(drawn, low, top).astype(space.dtype), least, most))
    wait, normal = -np.log1p(-first), np.sqrt(-2.0 * np.log1p(-first)) * np.cos(2.0 * math.pi * second)
    below, above = np.isfinite(low), np.isfinite(high)
    with np.errstate(invalid="ignore", over="ignore"):  # of the cases that are not taken
        return np.select(
            [below & above, below, above], [low + first * (high - low), low + wait, high - wait], default=normal
        )
