"""Be the trainer: take the seat, get fenced batches, publish weights. Acks, checkpoints and the books are kept for you.

Needs a fleet without a trainer: run `heddle up --no-trainer` in this folder, for the environment lies here too.
"""

from pathlib import Path

import torch

import heddle
from heddle.policies.torch_module import make_module

GAMMA = 0.95
HERE = Path(__file__).parent

exp = heddle.submit(
    HERE / "catch.toml", name="own-trainer", overrides=["budget.env_steps=30_000", "policy.hidden=[32]"]
)
with heddle.trainer(exp) as t:
    model = make_module(t.policy, device=torch.device("cpu"))
    optimizer = torch.optim.Adam(model.net.parameters(), lr=3e-3)
    for update, batch in enumerate(t):  # ends when the budget is used, or with `heddle stop`
        data = batch.torch("cpu")
        ended = data.terminated | data.truncated
        returns = torch.zeros_like(data.reward)  # [B, T]: discounted reward to go, within the segment
        running = torch.zeros(len(returns))
        for step in reversed(range(returns.shape[1])):
            running = data.reward[:, step] + GAMMA * running * ~ended[:, step]
            returns[:, step] = running
        observations = {name: leaf[:, :-1].flatten(0, 1) for name, leaf in data.observations.items()}
        judged = model.evaluate(observations, data.actions["action"].flatten(0, 1))
        advantage = (returns - returns.mean()).flatten()
        loss = -(judged.log_prob * advantage + 0.01 * judged.entropy)[data.valid.flatten()].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        t.publish(model.get_weights())
        t.report({"loss": loss.item()})
        if update % 20 == 0:
            print(f"update {update:4d}  steps {batch.num_steps}  mean reward {data.reward[data.valid].mean():.3f}")
print(exp.id, exp.wait(timeout=30).state)
