"""The flat optimizer takes torch's own steps, and costs a starting trainer nothing."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from heddle.consumers.learners.optimizer import ADAM_EPSILON, FlatAdam

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


def test_it_does_not_load_the_compiler_that_a_starting_trainer_would_wait_for() -> None:
    said = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True, timeout=100)
    assert said.stdout.strip() == "[]"
