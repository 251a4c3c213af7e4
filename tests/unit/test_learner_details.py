"""What learners must agree on: PPO and the policy gradient, one detail switched on and off, a learner in one file, and
messages that name the number behind a failure."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heddle.consumers.learners import Learner, Ppo, TrainBatch, make_learner
from heddle.consumers.learners.gae import gae
from heddle.consumers.learners.losses import value_term
from heddle.consumers.learners.on_policy import bootstraps
from heddle.consumers.learners.suspects import suspect
from heddle.errors import ExperimentFailed, SpecError
from heddle.policies import make_policy
from heddle.policies.torch_module import make_module
from heddle.spaces import Box, Discrete, Space
from heddle.spec import load_spec
from tests.unit.policy_zoo import CARTPOLE, make_spec
from tests.unit.test_ppo import CPU, ZOO, play

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("action", "named"),
    [(Discrete(3), {}), (Box((2,), "float32", -1, 1), {}), (Discrete(3), {"id": f"{ZOO}:Remembers"})],
)
def test_ppo_at_one_pass_with_one_minibatch_is_the_policy_gradient(action: Space, named: dict[str, Any]) -> None:
    # Given one update of PPO with nothing but its policy term, the whole batch at once
    spec = make_spec(
        policy=named, passes=1, minibatch=256, value_coef=0.0, normalize_advantage=False, max_grad_norm=1e9
    )
    policy = make_policy(spec.policy, CARTPOLE, action, seed=1)
    batch = play(policy, CARTPOLE, action, shorten=True)
    learner: Any = make_learner(spec, policy, device=CPU, seed=0)
    # When the gradient of E[log pi(a|s) A] is computed beside it
    model = make_module(policy, device=CPU)
    ended = batch.terminated | batch.truncated
    values, finals = model.values(
        batch.observations,
        ended=ended,
        state=batch.state,
        final_index=batch.final_index,
        final_observations=batch.final_observations,
    )
    following = bootstraps(values, finals, batch)
    advantage = gae(batch.reward, values, following, ended=ended, valid=batch.valid, gamma=0.99, lam=0.95)
    if model.recurrent:
        judged = model.evaluate_sequence(batch.observations, batch.actions, ended, batch.state)
        log_prob = judged.log_prob[batch.valid]
    else:
        seen = {name: values[:, :-1][batch.valid] for name, values in batch.observations.items()}
        log_prob = model.evaluate(seen, {name: taken[batch.valid] for name, taken in batch.actions.items()}).log_prob
    (-(log_prob * advantage[batch.valid]).mean()).backward()  # type: ignore[no-untyped-call]
    learner.update(batch, 0.0)
    # Then it is PPO's
    own = dict(learner.model.net.named_parameters())
    for name, parameter in model.net.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(own[name].grad, expected, rtol=1e-3, atol=1e-6)
    assert any(float(parameter.grad.abs().sum()) > 0 for parameter in own.values())
    assert isinstance(learner, Ppo)


def test_value_clipping_compares_the_clipped_value_alone_or_takes_the_larger_error() -> None:
    value, target, old = torch.tensor([2.0, 1.0]), torch.tensor([3.0, 0.5]), torch.tensor([1.0, 0.0])
    # clipped to 1.2 and 0.2: errors 1.8^2 and 0.3^2; not clipped: 1^2 and 0.5^2
    assert float(value_term(value, target, old, clip=None)) == pytest.approx((1 + 0.25) / 2)
    assert float(value_term(value, target, old, clip=0.2)) == pytest.approx((3.24 + 0.09) / 2)
    assert float(value_term(value, target, old, clip=0.2, pessimistic=True)) == pytest.approx((3.24 + 0.25) / 2)


def test_a_detail_of_value_clipping_without_value_clipping_is_refused() -> None:
    with pytest.raises(SpecError, match=r"value_clip_pessimistic = True: has no meaning without trainer\.value_clip"):
        make_spec(value_clip_pessimistic=True)


# ---- a learner in one file


def _example() -> Any:
    found = importlib.util.spec_from_file_location("own_learner", EXAMPLES / "own_learner.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_the_learner_shown_is_short_learns_and_goes_on_where_it_stopped() -> None:
    assert len((EXAMPLES / "own_learner.py").read_text().splitlines()) < 120
    spec = make_spec(lr=1e-2, entropy=0.01)
    policy = make_policy(spec.policy, CARTPOLE, Discrete(3), seed=1)
    learner = _example().A2c(spec, policy, device=CPU, seed=1, steps_back=4)
    assert isinstance(learner, Learner)
    before = float(play(policy, CARTPOLE, Discrete(3), seed=999).reward.mean())
    for update in range(40):
        learner.update(play(policy, CARTPOLE, Discrete(3), seed=update, shorten=True), update / 40)
        policy.set_weights(learner.get_weights())
    assert float(play(policy, CARTPOLE, Discrete(3), seed=999).reward.mean()) > before + 0.3
    other = _example().A2c(spec, policy, device=CPU, seed=1, steps_back=4)
    other.set_weights(learner.get_weights())
    other.load(*learner.state())
    batch = play(policy, CARTPOLE, Discrete(3), seed=50)
    assert learner.update(batch, 0.5) == other.update(batch, 0.5)
    assert all(np.array_equal(learner.get_weights()[name], array) for name, array in other.get_weights().items())


def test_its_returns_reach_so_many_steps_and_stop_at_ends() -> None:
    spec = make_spec(gamma=0.5)
    policy = make_policy(spec.policy, CARTPOLE, Discrete(3), seed=1)
    batch = play(policy, CARTPOLE, Discrete(3), rows=1)
    batch.reward[...] = torch.arange(1.0, 9.0)
    batch.terminated[...] = False
    batch.terminated[0, 3] = True
    values = torch.full((1, 9), 100.0)
    returns = _example().A2c(spec, policy, device=CPU, seed=0, steps_back=2).returns(batch, values, torch.zeros(0))
    # two rewards and the value two steps on; none beyond step 3, and one step alone at the segment's end
    expected = [1 + 1 + 25, 2 + 1.5 + 25, 3 + 2, 4, 5 + 3 + 25, 6 + 3.5 + 25, 7 + 4 + 25, 8 + 50]
    assert returns[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["cartpole_vtrace", "cartpole_dqn", "pendulum_sac", "own_learner"])
def test_examples_of_learners_are_valid(name: str) -> None:
    assert load_spec(EXAMPLES / f"{name}.toml").spec.budget.env_steps is not None


def test_the_spec_shown_is_valid_and_means_what_is_said_of_it() -> None:
    page = (EXAMPLES.parent / "docs" / "learning.md").read_text(encoding="utf-8")
    section = page.partition("## Learners")[2]
    spec = load_spec(section.partition("```toml")[2].partition("```")[0]).spec
    assert (spec.trainer.learner, spec.policy.id, spec.rollout.max_policy_lag) == ("dqn", "q", None)
    assert spec.trainer.replay is not None and spec.trainer.replay.prioritised


# ---- what failures name


def _batch() -> TrainBatch:
    policy = make_policy(make_spec().policy, CARTPOLE, Discrete(2))
    batch = play(policy, CARTPOLE, Discrete(2), rows=4)
    batch.shard[2] = 7
    return batch


def test_the_number_behind_a_failure_is_named_with_its_place() -> None:
    batch = _batch()
    assert suspect(batch) == ""
    batch.observations["obs"][3, 1, 2] = -2e9
    place = "(shard 0, environment 3, step 1 of its segment)"
    assert suspect(batch) == f"; the batch holds obs = -2e+09 {place}"
    batch.reward[2, 5] = math.nan
    assert suspect(batch) == "; the batch holds reward = nan (shard 7, environment 2, step 5 of its segment)"


def test_what_was_not_played_is_no_suspect() -> None:
    batch = _batch()
    batch.valid[1, 4:] = False
    batch.reward[1, 6] = math.inf
    assert suspect(batch) == ""


def test_a_compiled_network_learns_the_same_under_the_same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given torch's compiler up to where it would call one for C++, which takes half a minute
    compiled, whole = [], torch.nn.Module.compile

    def traced(net: torch.nn.Module) -> None:
        compiled.append(net)
        whole(net, backend="eager")

    monkeypatch.setattr(torch.nn.Module, "compile", traced)
    results = []
    for compile_it in (False, True):
        spec = make_spec(compile=compile_it, passes=2, minibatch=64)
        policy = make_policy(spec.policy, CARTPOLE, Discrete(3), seed=1)
        learner = make_learner(spec, policy, device=CPU, seed=0)
        learner.update(play(policy, CARTPOLE, Discrete(3), shorten=True), 0.0)
        results.append(learner.get_weights())
    plain, made = results
    assert len(compiled) == 1
    assert plain.keys() == made.keys()
    for name, array in plain.items():
        np.testing.assert_allclose(made[name], array, rtol=1e-5, atol=1e-6)


def test_a_compiler_that_fails_is_named_with_the_key_that_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no working C++ compiler")

    def fails(net: Any) -> None:
        net.forward = broken

    monkeypatch.setattr(torch.nn.Module, "compile", fails)
    spec = make_spec(compile=True)
    policy = make_policy(spec.policy, CARTPOLE, Discrete(3), seed=1)
    learner = make_learner(spec, policy, device=CPU, seed=0)
    with pytest.raises(ExperimentFailed, match=r"no working C\+\+ compiler.*set trainer.compile = false"):
        learner.update(play(policy, CARTPOLE, Discrete(3)), 0.0)
