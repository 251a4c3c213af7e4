"""Every panel that is shipped, asked of a real Prometheus that watches a real run."""

import json
import subprocess
from pathlib import Path

from tests.e2e.shell import heddle, heddle_json, started
from tests.helpers import eventually
from tests.panels import panels
from tests.prometheus import free_port, prometheus

SPEC = """
[experiment]
name = "watched"
[env]
id = "CartPole-v1"
num_envs = 4
envs_per_shard = 2
[rollout]
steps = 16
sync = true
[trainer]
learner = "ppo"
[eval]
every_updates = 5
episodes = 4
[budget]
env_steps = 10_000_000
"""


def test_no_panel_is_empty_in_a_run_in_which_a_worker_is_killed(tmp_path: Path) -> None:
    # Given services whose coordinator serves metrics, and an experiment that trains
    port = free_port()
    (tmp_path / "exp.toml").write_text(SPEC)
    extra = {"HEDDLE_METRICS_PORT": str(port)}
    with started("up", "--workers", "2", cwd=tmp_path, extra=extra) as services:
        services.says("heddle enqueue")
        with prometheus(tmp_path, f"127.0.0.1:{port}") as watching:
            experiment = heddle("enqueue", "exp.toml", cwd=tmp_path).stdout.split()[0]
            # When it trains, is evaluated, and a worker is killed
            eventually(
                lambda: "eval_return" in heddle_json("status", experiment, cwd=tmp_path)["metrics"],
                timeout_s=240,
                every_s=1.0,
            )
            (worker, *_) = heddle_json("workers", "ls", cwd=tmp_path)["workers"]
            subprocess.run(["kill", "-9", str(worker["pid"])], check=True)

            # Then within a minute every query of every panel has something to show
            def empty() -> list[str]:
                return [where for where, expression in panels() if not watching.query(expression)]

            eventually(lambda: not empty(), timeout_s=120, every_s=1.0, what="every panel shows something")
            deaths = 'sum(heddle_worker_deaths_total{how="signal"})'
            eventually(lambda: watching.query(deaths)[0]["value"][1] == "1", timeout_s=60, every_s=0.5)
            # And no rule is broken, nor says that batches are not accounted for
            groups = watching.ask("/api/v1/rules")["groups"]
            rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
            assert {rule["health"] for rule in rules.values()} == {"ok"}, json.dumps(rules)[:2000]
            assert rules["HeddleBatchesUnaccounted"]["state"] != "firing"
            assert rules["HeddleMetricsMissing"]["state"] == "inactive"
            assert all(
                {"summary", "runbook"} <= rule["annotations"].keys() for rule in rules.values() if rule.get("alerts")
            )
