"""Weights of a policy that acts in numpy: given out and taken as copies, the statistics of observations among them.

It never acts.
"""

from collections.abc import Mapping

import numpy as np

from heddle.policies.base import Array, Arrays
from heddle.policies.normalise import Normaliser
from heddle.policies.weights import check, split_norm
from heddle.spaces import Space


class NumpyWeights:
    """What the built-in policies have in common. A subclass lays its weights out for acting in `_pack`."""

    observation: Space
    _weights: Arrays
    _normaliser: Normaliser | None

    def get_weights(self) -> Arrays:
        """Copies by name, the statistics under "norm."."""
        norm = self._normaliser.weights() if self._normaliser else {}
        return {name: array.copy() for name, array in self._weights.items()} | norm

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """The opposite of `get_weights`. Raises WeightsError where they are of another policy."""
        proper, norm = split_norm(weights)
        check(proper, self._weights)
        normaliser = None
        if norm:
            normaliser = Normaliser(self.observation)
            normaliser.load(norm)
        self._weights = {name: np.array(proper[name]) for name in self._weights}
        self._normaliser = normaliser
        self._pack()

    def _pack(self) -> None:
        raise NotImplementedError
