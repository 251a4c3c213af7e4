"""From Python: submit a spec, follow its metrics, wait for the end. Run it where `heddle up` runs."""

from pathlib import Path

import heddle

HERE = Path(__file__).parent

exp = heddle.submit(HERE / "cartpole.toml", name="from-python", overrides=["budget.env_steps=20_000"])
print("submitted", exp.id)
for metric in exp.metrics(follow=True):
    if "return" in metric.values:
        print(f"update {metric.update:4d}  return {metric.values['return']:6.1f}")
status = exp.wait(timeout=60)
print(exp.id, status.state, "checkpoint", status.result.get("checkpoint"))
