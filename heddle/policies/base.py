"""What a policy is: the protocol that workers act with and learners train.

It never imports torch: a worker that plays a numpy policy stays light. `make_policy` builds what a spec names.

Observations and actions are dicts of arrays keyed by leaf name ("obs", "obs.key", "action"), one row per environment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = dict[str, Array]

MASK_LEAF = "obs.action_mask"
"""A leaf of a Dict observation that says which actions of a Discrete space are allowed (non-zero = allowed)."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The chance a policy needs for one action of one environment.

    The player draws it, so that the same seeds give the same actions whichever worker plays.

    Attributes:
        kind: "uniform" on [0, 1), standard "normal", or "none".
        size: numbers per environment and step; 0 with "none".
        always: drawn for the likeliest actions, too: not all that the policy does has a likeliest one.
    """

    kind: Literal["uniform", "normal", "none"]
    size: int
    always: bool = False


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Shape and type of one array of a policy, per environment.

    Attributes:
        dtype: numpy name, e.g. "float32".
        shape: without the leading environment dimension.
    """

    dtype: str
    shape: tuple[int, ...] = ()


@dataclass(slots=True)
class Acted:
    """What a policy answers to N observations.

    The arrays may be the policy's own buffers: copy what must outlive the next `act`.

    Attributes:
        actions: leaf name -> [N, ...]; Discrete as int64 from 0, Box in the space's dtype and not clipped.
        outputs: name -> [N, ...], as the policy's `outputs` declares.
        state: name -> [N, ...], to be passed to the next `act`; {} when memoryless.
    """

    actions: Arrays
    outputs: Arrays = field(default_factory=dict)
    state: Arrays = field(default_factory=dict)


@runtime_checkable
class Policy(Protocol):
    """What Heddle asks of a policy.

    Attributes:
        noise: what the player draws per environment and step.
        outputs: what `act` adds per step. PPO needs "log_prob", float32 with shape ().
        state: recurrent state per environment, {} when memoryless. It is set to `initial_state` when an episode starts.
    """

    noise: Noise
    outputs: Mapping[str, OutputSpec]
    state: Mapping[str, OutputSpec]

    def initial_state(self, n: int) -> Arrays:
        """State of `n` environments whose episode starts: name -> [n, ...]."""
        ...

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        """Choose an action for each of N environments.

        Args:
            observations: leaf name -> [N, ...] in the space's dtype; [N] objects where lengths differ, as
                `heddle.spaces.cells` says: a str for a Text, an array [k, ...] for a Sequence.
            state: name -> [N, ...].
            noise: [N, noise.size] float; not looked at when `deterministic`.
            deterministic: the likeliest action instead of a drawn one.
        """
        ...

    def get_weights(self) -> Arrays:
        """Weights by name, copies, shaped as the policy has them; {} when there are none."""
        ...

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """Take over `weights`; also names under "norm.", the statistics of normalised observations.

        Raises:
            WeightsError: a name is missing or unknown, or a shape or dtype differs.
        """
        ...


class ScriptedPolicy:
    """A base for policies without weights: override `act`. It cannot be trained."""

    noise: Noise = Noise("none", 0)
    outputs: Mapping[str, OutputSpec] = {}
    state: Mapping[str, OutputSpec] = {}

    def initial_state(self, n: int) -> Arrays:
        return zero_state(self.state, n)

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        raise NotImplementedError(f"{type(self).__name__} does not say how to act")

    def get_weights(self) -> Arrays:
        return {}

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """Accepts anything: there is nothing to set."""


def zero_state(specs: Mapping[str, OutputSpec], n: int) -> Arrays:
    """All zeros for `n` environments: by name, [n, *shape] of the dtype that the spec says."""
    return {name: np.zeros((n, *spec.shape), dtype=spec.dtype) for name, spec in specs.items()}
