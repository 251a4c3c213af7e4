"""Behaviour cloning: the loss is the likelihood of what was done, and learning makes it what is done."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heddle.consumers.assemble import Assembler
from heddle.consumers.learners import Bc, TrainBatch, make_learner
from heddle.consumers.learners.suspects import suspect
from heddle.errors import CheckpointError, ExperimentFailed, SpecError
from heddle.layout import Segments, make_layout
from heddle.policies import make_policy
from heddle.spaces import Box, DictSpace, Discrete, Space
from heddle.spec import ExperimentSpec, load_spec

CPU = torch.device("cpu")
OBSERVATION = Box((2,), "float32")


def spec_of(**sections: Any) -> ExperimentSpec:
    raw: dict[str, Any] = {
        "experiment": {"name": "bc"},
        "env": {"id": "CartPole-v1"},
        "policy": {"hidden": [16]},
        "data": {"path": "demos"},
        "trainer": {"learner": "bc", "lr": 1e-2, "minibatch": 64},
        "budget": {"updates": 10},
    }
    return load_spec({**raw, **{name: {**raw.get(name, {}), **value} for name, value in sections.items()}}).spec


def batch_of(action: Space, policy: Any, *, rows: int = 32, steps: int = 8, seed: int = 0) -> TrainBatch:
    """Segments in which the action follows from the observation: its sign, or its half."""
    layout = make_layout(OBSERVATION, action, steps=steps, outputs={}, state=policy.state)
    segments, rng = Segments.empty(layout, rows), np.random.default_rng(seed)
    arrays = segments.arrays
    arrays["obs"][:] = rng.normal(size=arrays["obs"].shape)
    told = arrays["obs"][:, :-1, 0]
    arrays["action"][:] = told > 0 if isinstance(action, Discrete) else told[..., None] / 2
    arrays["length"][:] = rng.integers(1, steps + 1, size=rows)
    return Assembler(layout, device=CPU).assemble([segments], [0])


@pytest.mark.parametrize("action", [Discrete(2), Box((1,), "float32", -1.0, 1.0)])
def test_the_first_loss_is_the_mean_negative_log_likelihood_of_the_valid_steps(action: Space) -> None:
    spec = spec_of(trainer={"lr": 1e-9, "minibatch": 10_000, "learner": "bc", "batch_steps": 10_000})
    policy = make_policy(spec.policy, OBSERVATION, action, seed=1)
    learner, batch = Bc(spec, policy, device=CPU, seed=1), batch_of(action, policy)
    shown = {"obs": batch.observations["obs"][:, :-1][batch.valid]}
    judged = learner.model.evaluate(shown, batch.actions["action"][batch.valid])
    metrics = learner.update(batch, 0.0)
    assert metrics["bc_loss"] == pytest.approx(-judged.log_prob.mean().item(), rel=1e-5)
    assert metrics["entropy"] == pytest.approx(judged.entropy.mean().item(), rel=1e-5)


@pytest.mark.parametrize("policy_id", ["mlp", "lstm"])
def test_discrete_actions_are_imitated(policy_id: str) -> None:
    spec = spec_of(policy={"id": policy_id})
    policy = make_policy(spec.policy, OBSERVATION, Discrete(2), seed=1)
    learner = make_learner(spec, policy, device=CPU, seed=1)
    losses = [learner.update(batch_of(Discrete(2), policy, seed=seed), 0.0)["bc_loss"] for seed in range(40)]
    assert losses[0] > 0.6 and np.mean(losses[-5:]) < 0.25


def test_continuous_actions_are_imitated_with_normalised_observations() -> None:
    action = Box((1,), "float32", -5.0, 5.0)
    spec = spec_of(trainer={"learner": "bc", "lr": 1e-2, "minibatch": 64, "normalize_observations": True})
    policy = make_policy(spec.policy, OBSERVATION, action, seed=1)
    learner = make_learner(spec, policy, device=CPU, seed=1)
    for seed in range(60):
        learner.update(batch_of(action, policy, seed=seed), 0.0)
    policy.set_weights(learner.get_weights())
    shown = np.array([[1.0, 0.0], [-1.0, 0.0]], np.float32)
    means = policy.act({"obs": shown}, {}, np.zeros((2, policy.noise.size))).actions["action"].reshape(-1)
    assert means == pytest.approx([0.5, -0.5], abs=0.15)


def test_it_goes_on_exactly_from_its_state_and_refuses_anothers() -> None:
    spec = spec_of()
    policy = make_policy(spec.policy, OBSERVATION, Discrete(2), seed=1)
    one, other = (make_learner(spec, policy, device=CPU, seed=1) for _ in range(2))
    for seed in range(3):
        one.update(batch_of(Discrete(2), policy, seed=seed), 0.0)
    other.set_weights(one.get_weights())
    other.load(*one.state())
    batch = batch_of(Discrete(2), policy, seed=9)
    assert one.update(batch, 0.1) == other.update(batch, 0.1)
    assert all((one.get_weights()[name] == array).all() for name, array in other.get_weights().items())
    with pytest.raises(CheckpointError, match="not of bc"):
        other.load({}, {"learner": "ppo"})


def test_entropy_is_a_part_of_its_loss() -> None:
    spreads = []
    for weight in (0.0, 5.0):
        spec = spec_of(trainer={"learner": "bc", "lr": 1e-2, "minibatch": 64, "entropy": weight})
        policy = make_policy(spec.policy, OBSERVATION, Discrete(2), seed=1)
        learner = make_learner(spec, policy, device=CPU, seed=1)
        spreads.append([learner.update(batch_of(Discrete(2), policy, seed=seed), 0.0) for seed in range(20)][-1])
    assert spreads[0]["entropy"] < 0.5 < 0.6 < spreads[1]["entropy"]


@pytest.mark.parametrize("policy_id", ["mlp", "lstm"])
def test_recorded_actions_that_their_mask_forbids_are_left_out_and_counted(policy_id: str) -> None:
    # Given a recording where a quarter of the actions is forbidden, and one without those
    observation = DictSpace({"action_mask": Box((2,), "int8", 0, 1), "x": Box((2,), "float32")})
    spec = spec_of(policy={"id": policy_id})
    policy = make_policy(spec.policy, observation, Discrete(2), seed=1)
    layout = make_layout(observation, Discrete(2), steps=4, outputs={}, state=policy.state)
    segments = Segments.empty(layout, 8)
    arrays, rng = segments.arrays, np.random.default_rng(0)
    arrays["obs.x"][:] = rng.normal(size=arrays["obs.x"].shape)
    arrays["obs.action_mask"][:] = (1, 0)
    arrays["action"][:, 3] = 1
    arrays["length"][:] = 4
    batch = Assembler(layout, device=CPU).assemble([segments], [0])
    learner = make_learner(spec, policy, device=CPU, seed=1)
    # When it is learned from, then the others alone count
    metrics = learner.update(batch, 0.0)
    assert metrics["masked_share"] == 0.25
    assert metrics["bc_loss"] == pytest.approx(0.0, abs=1e-6)
    # And a recording of which nothing is left is refused
    batch.actions["action"][...] = 1
    with pytest.raises(ExperimentFailed, match="update 2: the action_mask of the recording forbids every action"):
        learner.update(batch, 0.0)


def test_a_failed_update_is_told_even_where_its_batch_cannot_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy(spec_of().policy, OBSERVATION, Discrete(2), seed=1)
    batch = batch_of(Discrete(2), policy)

    def broken(values: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch, "isfinite", broken)
    assert "cannot be looked at" in suspect(batch) and "device-side assert" in suspect(batch)


def test_numbers_that_are_not_finite_fail_the_update() -> None:
    spec = spec_of()
    policy = make_policy(spec.policy, OBSERVATION, Box((1,), "float32"), seed=1)
    learner, batch = make_learner(spec, policy, device=CPU, seed=1), batch_of(Box((1,), "float32"), policy)
    batch.actions["action"][:] = 1e30
    with pytest.raises(ExperimentFailed, match=r"update 1 gave numbers that are not finite.*bc_loss"):
        learner.update(batch, 0.0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"trainer": {"learner": "ppo"}}, "cannot learn from a recording"),
        ({"rollout": {"sync": True}}, "no worker plays"),
        ({"data": None}, "imitates recorded experience"),
        ({"data": None, "trainer": {"learner": "ppo"}, "budget": {"passes": 2}}, "has no meaning without"),
        ({"data": {"path": ""}}, "data.path"),
        ({"budget": {"updates": None}}, "at least one of"),
    ],
)
def test_what_cannot_be_meant_offline_is_named(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    raw: dict[str, Any] = spec_of().model_dump(mode="json", exclude_unset=True, exclude_none=True)
    raw["trainer"] = {"learner": "bc"}
    raw["rollout"] = {}
    raw["budget"] = {"updates": 10}
    raw["limits"] = {}
    for name, value in change.items():
        raw[name] = value if value is None else {**raw.get(name, {}), **value}
    with pytest.raises(SpecError, match=why):
        load_spec({name: value for name, value in raw.items() if value is not None})
