"""The flat optimizer takes torch's own steps, and costs a starting trainer nothing."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from heddle.consumers.learners.optimizer import ADAM_EPSILON, FlatAdam
from heddle.consumers.learners.target import Target

START = """
import sys
from torch import nn
from heddle.consumers.learners.optimizer import FlatAdam
optimizer = FlatAdam(nn.Linear(3, 2))
optimizer.grad.fill_(1.0)
optimizer.step(0.5)
print(sorted(name for name in sys.modules if name in ("torch._dynamo", "torch._inductor")))
"""


def test_its_steps_are_those_of_torch_adam_with_clipping_also_after_a_resume() -> None:
    torch.manual_seed(1)
    mine, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(mine.state_dict())
    flat, adam = FlatAdam(mine), torch.optim.Adam(theirs.parameters(), eps=ADAM_EPSILON)
    for step in range(6):
        if step == 3:
            saved, flat = flat.state(), FlatAdam(mine)
            flat.load(saved)
        lr = 1e-2 / (step + 1)
        flat.set_lr(lr)
        adam.param_groups[0]["lr"] = lr
        inputs = torch.randn(5, 3)
        flat.zero_grad()
        adam.zero_grad()
        mine(inputs).square().sum().backward()
        theirs(inputs).square().sum().backward()
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        assert float(flat.step(0.5)) == pytest.approx(float(norm))
        adam.step()
        for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_loss_that_runs_through_another_network_leaves_no_gradient_there() -> None:
    torch.manual_seed(1)
    actor, critic = nn.Linear(3, 2), nn.Linear(2, 1)
    mine, others, inputs = FlatAdam(actor), FlatAdam(critic), torch.randn(5, 3)
    others.backward(critic(torch.randn(5, 2)).mean())
    kept = others.grad.clone()
    mine.backward(critic(actor(inputs)).mean())
    assert mine.grad.abs().sum() > 0
    assert torch.equal(others.grad, kept)
    given = mine.grad.clone()
    mine.backward(critic(actor(inputs)).mean())
    assert torch.equal(mine.grad, given), "it is not added to what was there"


def test_a_target_moves_towards_what_is_trained_and_is_the_same_in_the_rest() -> None:
    torch.manual_seed(1)
    first = nn.Linear(3, 4)
    first.weight.requires_grad = False
    online = nn.Sequential(first, nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = FlatAdam(online)
    target = Target(online, optimizer)
    before = {name: value.clone() for name, value in target.net.state_dict().items()}
    optimizer.backward(online(torch.randn(8, 3)).square().mean())
    optimizer.step(10.0)
    first.weight.data.add_(1.0)
    target.follow(0.25)
    trained = {name for name, item in online.named_parameters() if item.requires_grad}
    for name, now in online.state_dict().items():
        aim = torch.lerp(before[name], now, 0.25) if name in trained else now
        torch.testing.assert_close(target.net.state_dict()[name], aim)
        assert name == "1.num_batches_tracked" or not torch.equal(before[name], now)


def test_it_does_not_load_the_compiler_that_a_starting_trainer_would_wait_for() -> None:
    said = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True, timeout=100)
    assert said.stdout.strip() == "[]"
