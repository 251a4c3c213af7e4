"""Spaces, specs and user policies that the tests of policies and learners share."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heddle.policies.base import Acted, Array, Arrays, Noise, OutputSpec, ScriptedPolicy
from heddle.policies.features import action_size
from heddle.policies.heads import categorical
from heddle.policies.torch_module import ActorCritic, Evaluated, make_module
from heddle.spaces import Box, DictSpace, Discrete, Space, leaves
from heddle.spec import ExperimentSpec, load_spec

torch.set_num_threads(1)  # as trainers and workers do; on a busy machine more of them wait for each other
CARTPOLE = Box((4,), "float32")
MASKED = DictSpace(
    {"action_mask": Box((3,), "int8", 0, 1), "goal": Discrete(4, start=2), "position": Box((2,), "float64")}
)


def make_spec(*, policy: Mapping[str, Any] | None = None, **trainer: Any) -> ExperimentSpec:
    """A spec whose [policy] and [trainer] are as given."""
    return load_spec(
        {
            "experiment": {"name": "zoo"},
            "env": {"id": "CartPole-v1"},
            "rollout": {"sync": True},
            "policy": dict(policy or {}),
            "trainer": trainer,
            "budget": {"env_steps": 1_000_000},
        }
    ).spec


def draw(space: Space, rows: int, rng: np.random.Generator) -> Arrays:
    """Random observations of `space` by leaf, [rows, ...]."""
    drawn: Arrays = {}
    for leaf in leaves(space):
        shape = (rows, *leaf.space.shape)
        if isinstance(leaf.space, Discrete):
            drawn[leaf.name] = rng.integers(leaf.space.start, leaf.space.start + leaf.space.n, shape)
        elif np.dtype(leaf.space.dtype).kind == "f":
            drawn[leaf.name] = rng.standard_normal(shape).astype(leaf.space.dtype)
        else:
            drawn[leaf.name] = rng.integers(0, 2, shape).astype(leaf.space.dtype)
    return drawn


class Linear(nn.Module):
    """A user's module for Discrete or Box actions."""

    def __init__(self, observation: Space, action: Space, *, width: int = 8) -> None:
        super().__init__()
        assert isinstance(observation, Box)
        self.discrete = isinstance(action, Discrete)
        out = action_size(action)
        self.body = nn.Linear(observation.size, width)
        self.head = nn.Linear(width, out)
        self.critic = nn.Linear(width, 1)
        self.log_std = nn.Parameter(torch.full((out,), -0.5))

    def forward(self, observations: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Any]:
        hidden = torch.tanh(self.body(observations["obs"].float()))
        value = self.critic(hidden)
        if self.discrete:
            return {"logits": self.head(hidden), "value": value}
        return {"mean": self.head(hidden), "log_std": self.log_std, "value": value}


class Forgets(nn.Module):
    """A user's module with dropout, for a Box of one number; its mean has no dimension of its own."""

    def __init__(self, observation: Space, action: Space) -> None:
        super().__init__()
        assert isinstance(observation, Box) and action_size(action) == 1
        self.body = nn.Sequential(nn.Linear(observation.size, 64), nn.Dropout(0.5), nn.Linear(64, 2))
        self.log_std = nn.Parameter(torch.zeros(1))

    def forward(self, observations: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Any]:
        out = self.body(observations["obs"].float())
        return {"mean": out[:, 0], "log_std": self.log_std, "value": out[:, 1]}


class Remembers(nn.Module):
    """A user's recurrent module: a GRU cell over what it saw."""

    def __init__(self, observation: Space, action: Space) -> None:
        super().__init__()
        assert isinstance(observation, Box) and isinstance(action, Discrete)
        self.state_spec = {"hidden": OutputSpec("float32", (16,))}
        self.cell = nn.GRUCell(observation.size, 16)
        self.head = nn.Linear(16, action.n)
        self.critic = nn.Linear(16, 1)

    def forward(self, observations: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Any]:
        hidden = self.cell(observations["obs"].float(), state["hidden"])
        return {"logits": self.head(hidden), "value": self.critic(hidden).squeeze(1), "state": {"hidden": hidden}}


class Plain:
    """A user's policy in numpy with weights of its own, and its twin in torch for Heddle's learners."""

    noise = Noise("uniform", 1)
    state: Mapping[str, OutputSpec] = {}
    outputs: Mapping[str, OutputSpec] = {"log_prob": OutputSpec("float32")}

    def __init__(self, observation: Space, action: Space, *, seed: int) -> None:
        assert isinstance(observation, Box) and isinstance(action, Discrete)
        self.observation, self.action = observation, action
        rng = np.random.default_rng(seed)
        self.weight = rng.standard_normal((action.n + 1, observation.size)).astype(np.float32) * np.float32(0.1)
        self.bias = np.zeros(action.n + 1, np.float32)

    def initial_state(self, n: int) -> Arrays:
        return {}

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        logits = (observations["obs"] @ self.weight.T + self.bias)[:, :-1]
        actions, log_prob = categorical(logits, None if deterministic else noise)
        return Acted({"action": actions}, {"log_prob": log_prob})

    def get_weights(self) -> Arrays:
        return {"all.weight": self.weight.copy(), "all.bias": self.bias.copy()}

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        self.weight, self.bias = weights["all.weight"].copy(), weights["all.bias"].copy()

    def module(self) -> nn.Module:
        return Twin(*self.weight.T.shape)


class Twin(nn.Module):
    """The same as `Plain`, for learning."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.all = nn.Linear(inputs, outputs)

    def forward(self, observations: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Any]:
        out = self.all(observations["obs"])
        return {"logits": out[:, :-1], "value": out[:, -1]}


class WrongWidth(Linear):
    """Answers with one logit too many."""

    def forward(self, observations: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Any]:
        answer = super().forward(observations, state)
        return answer | {"logits": torch.cat([answer["logits"], answer["value"]], dim=1)}


class Shrinks(Linear):
    """Answers with one number of each action too few once `after` calls were as they should be."""

    after = 2

    def forward(self, observations: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Any]:
        answer = super().forward(observations, state)
        self.after -= 1
        cut = {name: numbers[:, :-1] for name, numbers in answer.items() if name in ("logits", "mean")}
        return answer if self.after >= 0 else answer | cut


class AlwaysRight(ScriptedPolicy):
    """A scripted policy: no weights, no chance."""

    def __init__(self, observation: Space, action: Space, *, choice: int = 1) -> None:
        self.choice = choice

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        rows = len(next(iter(observations.values())))
        return Acted({"action": np.full(rows, self.choice, np.int64)})


class Halfway:
    """Not a policy: it cannot act."""

    noise = Noise("none", 0)

    def __init__(self, observation: Space, action: Space) -> None:
        pass


def raises(observation: Space, action: Space) -> None:
    """A factory that fails."""
    raise ValueError("no such net")


def judge_alone(policy: Any, seen: Arrays, acted: Acted) -> tuple[ActorCritic, Evaluated]:
    """The learner's side of a policy, and what it thinks of one step from fresh states, [rows] each."""
    module = make_module(policy, device=torch.device("cpu"))
    shown, taken = (
        {name: torch.from_numpy(array) for name, array in arrays.items()} for arrays in (seen, acted.actions)
    )
    if not policy.state:
        return module, module.evaluate(shown, taken)
    rows = len(next(iter(seen.values())))
    judged = module.evaluate_sequence(
        {name: tensor.unsqueeze(1) for name, tensor in shown.items()},
        {name: tensor.unsqueeze(1) for name, tensor in taken.items()},
        torch.zeros(rows, 1, dtype=torch.bool),
        module.zero_state(rows),
    )
    return module, Evaluated(*(part.flatten() for part in (judged.log_prob, judged.entropy, judged.value)))
