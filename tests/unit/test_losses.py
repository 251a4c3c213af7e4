"""The terms of PPO's objective, against cases worked out by hand."""

import math

import pytest
import torch

from heddle.consumers.learners.losses import explained_variance, policy_term, standardise, value_term
from heddle.policies.torch_heads import categorical, gaussian, mask_logits


def test_the_surrogate_is_cut_only_where_the_ratio_ran_off_in_the_good_direction() -> None:
    # Ratios 2, 2, 0.5, 0.5 with advantages +1, -1, +1, -1 and clip 0.2:
    # min(2, 1.2) = 1.2; min(-2, -1.2) = -2; min(.5, .8) = .5; min(-.5, -.8) = -.8.  Loss = -(1.2-2+.5-.8)/4
    log_prob = torch.log(torch.tensor([2.0, 2.0, 0.5, 0.5])).requires_grad_()
    term = policy_term(log_prob, torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, -1.0]), clip=0.2)
    assert term.loss.item() == pytest.approx(1.1 / 4)
    assert term.clip_fraction.item() == 1.0
    # and the two cut ones have no gradient: d(-ratio * advantage / 4) = -ratio * advantage / 4 elsewhere
    term.loss.backward()  # type: ignore[no-untyped-call]
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == pytest.approx([0.0, 0.5, -0.125, 0.0])


def test_on_the_acting_policy_itself_ratio_is_one() -> None:
    log_prob = torch.tensor([-0.3, -1.2])
    term = policy_term(log_prob, log_prob.clone(), torch.tensor([2.0, 4.0]), clip=0.2)
    assert term.loss.item() == pytest.approx(-3.0)
    assert term.kl.item() == 0.0
    assert term.clip_fraction.item() == 0.0


def test_kl_is_the_unbiased_positive_estimate() -> None:
    # (r - 1) - log r at r = 2: 1 - log 2
    term = policy_term(torch.tensor([math.log(2.0)]), torch.zeros(1), torch.ones(1), clip=0.2)
    assert term.kl.item() == pytest.approx(1 - math.log(2))


def test_value_loss_is_the_mean_square_and_the_clipped_one_limits_the_move() -> None:
    value, target, old = torch.tensor([1.0, 5.0]), torch.tensor([0.0, 2.0]), torch.tensor([0.9, 4.0])
    assert value_term(value, target, old, clip=None).item() == pytest.approx((1 + 9) / 2)
    # clipped at 0.5 the values are 1.0 and 4.5
    assert value_term(value, target, old, clip=0.5).item() == pytest.approx((1 + 2.5**2) / 2)


def test_advantages_are_standardised_and_one_alone_is_left() -> None:
    done = standardise(torch.tensor([1.0, 2.0, 3.0]))
    assert done.tolist() == pytest.approx([-1.0, 0.0, 1.0])
    assert standardise(torch.tensor([7.0])).tolist() == [7.0]
    assert standardise(torch.full((4,), 2.0)).tolist() == [0.0] * 4


def test_explained_variance_is_one_for_perfect_and_zero_for_constant_values() -> None:
    target = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(target.clone(), target) == 1.0
    assert explained_variance(torch.zeros(3), target) == 0.0
    assert explained_variance(-target, target) == pytest.approx(-3.0)
    assert math.isnan(explained_variance(target, torch.ones(3)))


def test_categorical_agrees_with_torch_and_masked_actions_carry_nothing() -> None:
    logits, actions = torch.randn(50, 4, dtype=torch.float64).float(), torch.randint(0, 4, (50,))
    log_prob, entropy = categorical(logits, actions)
    peer = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(log_prob, peer.log_prob(actions))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(entropy, peer.entropy())  # type: ignore[no-untyped-call]
    masked = mask_logits(torch.zeros(1, 3).requires_grad_(), torch.tensor([[1, 1, 0]]))
    assert categorical(masked, torch.tensor([0]))[1].item() == pytest.approx(math.log(2))


def test_a_mask_that_allows_nothing_is_not_applied() -> None:
    logits = torch.tensor([[1.0, 2.0]])
    assert mask_logits(logits, torch.zeros(1, 2)).tolist() == logits.tolist()


def test_gaussian_agrees_with_torch() -> None:
    mean, log_std, actions = torch.randn(50, 3), torch.tensor([0.3, -1.0, 0.0]), torch.randn(50, 3)
    log_prob, entropy = gaussian(mean, log_std, actions)
    peer = torch.distributions.Normal(mean, log_std.exp())
    torch.testing.assert_close(log_prob, peer.log_prob(actions).sum(1))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(entropy, peer.entropy().sum(1))  # type: ignore[no-untyped-call]
