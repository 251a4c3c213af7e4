"""The policy of the conformance suite: any action, and for Boxes also some beyond the bounds."""

from collections.abc import Mapping

import numpy as np

from heddle.policies.base import MASK_LEAF, Acted, Array, Arrays, Noise, ScriptedPolicy
from heddle.spaces import Box, Discrete, Space


class Chooser(ScriptedPolicy):
    """Chooses with its noise alone, among what a mask allows."""

    def __init__(self, observation: Space, action: Space, *, seed: int) -> None:
        assert isinstance(action, Box | Discrete)
        self._action = action
        self.noise = Noise("uniform", action.size)

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        space = self._action
        if isinstance(space, Discrete):
            allowed = observations.get(MASK_LEAF, np.ones((len(noise), space.n), np.int8)) != 0
            allowed = np.where(allowed.any(axis=1, keepdims=True), allowed, True)
            rank = (noise[:, 0] * allowed.sum(axis=1)).astype(np.int64)
            return Acted({"action": np.argmax(allowed.cumsum(axis=1) > rank[:, None], axis=1)})
        low, high = (np.clip(bound, -3.0, 3.0) for bound in space.bounds())
        spread = (high - low) * (1.4 * noise.reshape(len(noise), *space.shape) - 0.2)
        return Acted({"action": (low + spread).astype(space.dtype)})
