"""From Python: submit a spec, follow its metrics, wait for the end. A fleet must run: `heddle up` in this folder."""

import heddle

exp = heddle.submit("cartpole.toml", name="from-python", overrides=["budget.env_steps=20_000"])
print("submitted", exp.id)
for metric in exp.metrics(follow=True):
    if "return" in metric.values:
        print(f"update {metric.update:4d}  return {metric.values['return']:6.1f}")
status = exp.wait(timeout=60)
print(exp.id, status.state, "checkpoint", status.result.get("checkpoint"))
