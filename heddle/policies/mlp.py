"""The built-in policy: a small multilayer perceptron that acts in numpy.

It never imports torch, unless `module()` is asked for: a trainer does that. `torch_mlp.py` is the same network for
learning.

Weights, all float32, in torch's layout [out, in]: "policy.<i>.weight", "policy.<i>.bias", "value.<i>...", the last of
each being the head; with a shared trunk "trunk.<i>...", "policy.0...", "value.0..."; "log_std" for actions of floats,
unless the network itself says how far they spread.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heddle.policies.actions import Heads
from heddle.policies.base import Acted, Array, Arrays, OutputSpec
from heddle.policies.features import Features
from heddle.policies.heads import choose
from heddle.policies.normalise import Normaliser
from heddle.policies.numpy_weights import NumpyWeights
from heddle.policies.outputs import network_size, split_output
from heddle.spaces import Space

Float32 = NDArray[np.float32]
SCALAR = OutputSpec("float32")


class MlpPolicy(NumpyWeights):
    """Policy and value networks of equal shape, side by side or on one trunk.

    Args:
        observation, action: the spaces.
        hidden: widths of the hidden layers; may be empty.
        activation: between the layers.
        shared: one trunk for policy and value.
        std: "parameter": how far actions of floats spread is a weight; "state": the network says it.
        squash: actions of floats go through tanh to their bounds.
        rng: for the initial weights: orthogonal, hidden gain sqrt(2), policy head 0.01, value head 1, biases 0
            (Andrychowicz et al. 2021, arXiv:2006.05990, section 3.2).

    Raises:
        EnvError: it does not fit the spaces.
    """

    state: Mapping[str, OutputSpec] = {}
    outputs: Mapping[str, OutputSpec] = {"log_prob": SCALAR, "value": SCALAR}

    def __init__(
        self,
        observation: Space,
        action: Space,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: Literal["tanh", "relu"] = "tanh",
        shared: bool = False,
        std: Literal["parameter", "state"] = "parameter",
        squash: bool = False,
        rng: np.random.Generator,
    ) -> None:
        self.observation, self.action = observation, action
        self.hidden, self.activation, self.shared = tuple(hidden), activation, shared
        self.features = Features(observation, action)
        self.heads = Heads(observation, action, squash=squash)
        self.std, self.squash, self.noise = std, squash, self.heads.noise
        self.size = network_size(self.heads, std)
        self._normaliser: Normaliser | None = None
        self._weights = _initial_weights(self, rng)
        self._pack()

    def initial_state(self, n: int) -> Arrays:
        return {}

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        chosen, value = self._forward(self.features.encode(observations))
        answer = split_output(self.heads, chosen, self._weights.get("log_std"))
        actions, log_prob = choose(self.heads, answer, observations, None if deterministic else noise)
        return Acted(actions, {"log_prob": log_prob, "value": value})

    def module(self) -> Any:
        """The same network, with the same weights, as a torch module."""
        from heddle.policies.torch_mlp import MlpModule

        return MlpModule(self)

    def _pack(self) -> None:
        """Lay the weights out for `_forward`: both networks in one stack [G, in, out], so each layer is one call."""
        self.features.set_normaliser(self._normaliser)
        towers = ["trunk"] if self.shared else ["policy", "value"]
        self._layers = [
            _stacked([self._linear(f"{tower}.{index}") for tower in towers]) for index in range(len(self.hidden))
        ]
        index = 0 if self.shared else len(self.hidden)
        policy, value = self._linear(f"policy.{index}"), self._linear(f"value.{index}")
        if self.shared:
            self._head = _stacked([(np.hstack([policy[0], value[0]]), np.hstack([policy[1], value[1]]))])
        else:
            spare = self.size - 1  # the value head is widened with zeros to the policy head's size
            self._head = _stacked([policy, (np.pad(value[0], ((0, 0), (0, spare))), np.pad(value[1], (0, spare)))])

    def _linear(self, name: str) -> tuple[Float32, Float32]:
        return self._weights[f"{name}.weight"].T, self._weights[f"{name}.bias"]

    def _forward(self, features: Float32) -> tuple[Float32, Float32]:
        """[N, width] to logits or means [N, size] and values [N]."""
        hidden: Float32 = features
        for weight, bias in self._layers:
            hidden = np.matmul(hidden, weight)
            hidden += bias
            if self.activation == "tanh":
                np.tanh(hidden, out=hidden)
            else:
                np.maximum(hidden, 0, out=hidden)
        weight, bias = self._head
        out = np.matmul(hidden, weight)
        out += bias
        if self.shared:
            return out[0, :, : self.size], out[0, :, self.size]
        return out[0], out[1, :, 0]


def layer_shapes(policy: MlpPolicy) -> dict[str, tuple[int, int]]:
    """Linear layers by name -> (out, in), in the order of the forward pass."""
    shapes: dict[str, tuple[int, int]] = {}
    last = (policy.features.width, *policy.hidden)[-1]
    trunk = list(itertools.pairwise((policy.features.width, *policy.hidden)))
    for tower in ["trunk"] if policy.shared else ["policy", "value"]:
        shapes |= {f"{tower}.{index}": (out, into) for index, (into, out) in enumerate(trunk)}
    index = 0 if policy.shared else len(policy.hidden)
    return shapes | {f"policy.{index}": (policy.size, last), f"value.{index}": (1, last)}


def orthogonal(rng: np.random.Generator, out: int, into: int, gain: float) -> Float32:
    """[out, into] float32 with orthonormal rows or columns, times `gain`.

    Source: Saxe et al. 2014, arXiv:1312.6120; signs fixed as in torch.nn.init.orthogonal_, so that it is uniform.
    """
    tall = rng.standard_normal((max(out, into), min(out, into)))
    q, r = np.linalg.qr(tall)
    q *= np.sign(np.diag(r))
    return np.ascontiguousarray((q if out >= into else q.T) * gain, dtype=np.float32)


def _initial_weights(policy: MlpPolicy, rng: np.random.Generator) -> Arrays:
    weights: Arrays = {}
    shapes = layer_shapes(policy)
    index = 0 if policy.shared else len(policy.hidden)
    gains = {f"policy.{index}": 0.01, f"value.{index}": 1.0}
    for name, (out, into) in shapes.items():
        weights[f"{name}.weight"] = orthogonal(rng, out, into, gains.get(name, math.sqrt(2)))
        weights[f"{name}.bias"] = np.zeros(out, np.float32)
    if policy.heads.means and policy.std == "parameter":
        weights["log_std"] = np.zeros(policy.heads.means, np.float32)
    return weights


def _stacked(linears: Sequence[tuple[Float32, Float32]]) -> tuple[Float32, Float32]:
    """[(weight [in, out], bias [out])] * G as weight [G, in, out] and bias [G, 1, out]."""
    weight = np.ascontiguousarray(np.stack([weight for weight, _ in linears]))
    return weight, np.stack([bias for _, bias in linears])[:, None, :]
