"""Four troubles in a fleet of real processes, named by `why`, `top`, `logs` and what alerts and panels ask a real
Prometheus; no panel that is shipped is empty, but those of a GPU where there is none."""

import json
import math
import os
import re
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.broker.server import start_server
from tests.e2e.shell import Started, heddle, heddle_json, started
from tests.helpers import eventually
from tests.panels import panels
from tests.prometheus import Prometheus, alerts, binary, free_port, prometheus

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="stops processes by their pid")

CODE = """
import time
import gymnasium
from heddle.consumers.learners.none import NoLearner


class Arm(gymnasium.Wrapper):
    def __init__(self, seconds):
        super().__init__(gymnasium.make("CartPole-v1"))
        self._seconds = seconds

    def step(self, action):
        time.sleep(self._seconds)
        return super().step(action)


def make(env_index):
    return Arm(0.03 if env_index == 3 else 0.0)


class Slow(NoLearner):
    def update(self, *args, **kwargs):
        time.sleep(1.0)
        return super().update(*args, **kwargs)
"""
UNEVEN = """
[experiment]
name = "uneven"
[env]
id = "arms:make"
num_envs = 4
envs_per_shard = 1
[policy]
hidden = [8]
[rollout]
steps = 16
sync = true
[trainer]
learner = "ppo"
passes = 1
[eval]
every_updates = 5
episodes = 4
[budget]
env_steps = 100_000_000
"""
FULL = """
[experiment]
name = "full"
[env]
id = "CartPole-v1"
num_envs = 2
envs_per_shard = 1
[policy]
hidden = [8]
[rollout]
steps = 16
[trainer]
learner = "arms:Slow"
[limits]
max_entries = 8
[budget]
env_steps = 100_000_000
"""
LONG_S = 120.0


@dataclass
class Fleet:
    """Two workers that play two experiments, a trainer for each that nobody would replace, and who watches."""

    folder: Path
    url: str
    uneven: str
    full: str
    trainer: Started
    top: Started
    watching: Prometheus

    def said(self, *arguments: str) -> str:
        """What a command prints, in one line."""
        return " ".join(heddle(*arguments, cwd=self.folder, url=self.url).stdout.split())

    def says(self, text: str, *arguments: str) -> str:
        """The same, once `text` is in it."""

        def found() -> str:
            said = self.said(*arguments)
            return said if text in said else ""

        return eventually(found, timeout_s=LONG_S, every_s=0.5, what=f"heddle {' '.join(arguments)}: {text}")

    def json(self, *arguments: str) -> Any:
        return heddle_json(*arguments, cwd=self.folder, url=self.url)

    def player(self, shard: int) -> str:
        """Worker that plays a shard of the uneven one."""
        return str(self.json("shards", self.uneven)["shards"][shard]["worker"] or "")

    def alarmed(self, alert: str) -> set[str]:
        """Experiments for which the expression of an alert is true, its window of minutes made one of seconds."""
        expression = re.sub(r"\[\d+m\]", "[15s]", alerts()[alert]["expr"])
        return {one["metric"]["experiment"] for one in self.watching.query(expression)}

    def alarms(self, alert: str, experiment: str) -> None:
        """Wait until it is true, of this experiment and no other."""
        eventually(lambda: self.alarmed(alert) == {experiment}, timeout_s=LONG_S, every_s=0.5, what=alert)

    def number(self, expression: str) -> float:
        (one,) = self.watching.query(expression)
        return float(one["value"][1])

    def drawn(self, panel: str, label: str = "experiment") -> dict[str, float]:
        """The highest line that a panel draws for each value of a label, now; NaN where it draws none."""
        lines: dict[str, float] = defaultdict(lambda: math.nan)
        for one in self.watching.query(dict(panels())[panel]):
            of, value = one["metric"].get(label, ""), float(one["value"][1])
            lines[of] = max(value, lines.get(of, value))
        return lines

    def shows(self, panel: str, is_shown: Callable[[dict[str, float]], bool], label: str = "experiment") -> None:
        """Wait until a panel draws who it is."""

        eventually(lambda: is_shown(self.drawn(panel, label)), timeout_s=LONG_S, every_s=0.5, what=f"{panel} shows it")


def _needs_gpu(expression: str) -> bool:
    """Whether it may well be empty here."""
    return "_gpu_" in expression and not torch.cuda.is_available()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    binary()
    folder, port = tmp_path_factory.mktemp("fleet"), free_port()
    for name, text in (("arms.py", CODE), ("uneven.toml", UNEVEN), ("full.toml", FULL)):
        (folder / name).write_text(text)
    with ExitStack() as inside:
        url = inside.enter_context(start_server(folder / "broker")).url

        def start(*arguments: str) -> Started:
            extra = {"HEDDLE_METRICS_PORT": str(port)} if arguments == ("coordinator",) else None
            return inside.enter_context(started(*arguments, cwd=folder, url=url, extra=extra))

        start("coordinator")
        watching = inside.enter_context(prometheus(folder, f"127.0.0.1:{port}"))
        uneven, full = (
            heddle("enqueue", spec, "--no-check", cwd=folder, url=url).stdout.split()[0]
            for spec in ("uneven.toml", "full.toml")
        )
        start("trainer", uneven)
        trainer = start("trainer", full)
        top = start("top", "--plain", "--interval", "0.5")
        start("workers", "start", "-n", "2")
        yield Fleet(folder, url, uneven, full, trainer, top, watching)


def test_a_slow_environment_is_named_with_its_shard_and_its_worker(fleet: Fleet) -> None:
    fleet.top.says("waits slow shard 3 (shard 3 takes ", timeout_s=LONG_S)
    told = fleet.says("shard 3 takes", "why", fleet.uneven)
    match = re.search(r"shard 3 takes [\d.]+ s to play a batch, the mean is [\d.]+ s, played by (\S+?);", told)
    assert match, told
    worker = match[1]
    assert worker == fleet.player(3)
    assert "shard 3 takes" in (own := fleet.said("why", f"{fleet.uneven}/3")) and "the others wait for it" in own
    assert f"played by {worker})" in fleet.top.output()
    assert "claimed shard=3" in fleet.said("logs", fleet.uneven, "--worker", worker, "--level", "debug")
    fleet.alarms("HeddleSlowShard", fleet.uneven)
    fleet.shows("experiments: Slowest shard: A", lambda drawn: drawn[fleet.uneven] == 3)
    fleet.shows("experiments: Time of a step, over shards: A", lambda drawn: drawn[fleet.uneven] >= 0.03)


def test_a_killed_worker_is_named_with_its_signal_and_its_shard_and_no_panel_is_empty(fleet: Fleet) -> None:
    worker = eventually(lambda: fleet.player(3), timeout_s=LONG_S, every_s=0.5)
    pids = {one["worker"]: one["pid"] for one in fleet.json("workers", "ls")["workers"]}
    os.kill(pids[worker], signal.SIGKILL)
    ended = "ended with signal SIGKILL"
    fleet.top.says("ended by themselves: ", timeout_s=LONG_S)
    listed = fleet.said("top", "--once")
    assert ended in listed.partition(f" {worker} dead ")[2][:100], listed
    assert f"worker {worker} is dead: it {ended}" in fleet.said("why", "worker", worker)
    logged = fleet.said("logs", fleet.uneven, "--level", "warning")
    assert re.search(rf"freed shard=3, its worker {ended}[^;]*; epoch=\d+ of worker={worker}", logged), logged
    eventually(lambda: fleet.player(3) not in ("", worker), timeout_s=LONG_S, every_s=0.5, what="another plays it")
    moved = f'heddle_shards_reassigned_total{{experiment="{fleet.uneven}",reason="worker_ended"}}'
    eventually(lambda: fleet.number(moved) >= 1, timeout_s=LONG_S, every_s=0.5)
    fleet.shows("experiments: Shards that moved: A", lambda drawn: drawn["worker_ended"] > 0, "reason")
    fleet.shows("workers: Workers that ended by themselves: A", lambda drawn: drawn["signal"] > 0, "how")

    def empty() -> list[str]:
        return [where for where, asked in panels() if not fleet.watching.query(asked) and not _needs_gpu(asked)]

    eventually(lambda: not empty(), timeout_s=LONG_S, every_s=1.0, what="every panel shows something")
    # And no rule is broken, nor says that batches are not accounted for
    groups = fleet.watching.ask("/api/v1/rules")["groups"]
    rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert {rule["health"] for rule in rules.values()} == {"ok"}, json.dumps(rules)[:2000]
    assert rules["HeddleBatchesUnaccounted"]["state"] != "firing"
    assert rules["HeddleMetricsMissing"]["state"] == "inactive"


def test_a_stream_that_is_full_is_told_with_who_does_not_keep_up(fleet: Fleet) -> None:
    fleet.top.says(" for room in the stream", timeout_s=LONG_S)
    told = fleet.says("for room in the stream", "why", fleet.full)
    assert f"experiment {fleet.full} is running: its trainer does not keep up" in told
    fleet.top.says("full 100%", timeout_s=LONG_S)
    (shown,) = [one for one in fleet.json("top", "--once")["experiments"] if one["experiment"] == fleet.full]
    assert shown["max_batches"] == 8
    assert re.search(rf"{fleet.full} running .* waits room \d shards", fleet.top.output())
    assert "the trainer is the bottleneck" in fleet.said("trace", fleet.full)
    fleet.alarms("HeddleStreamFull", fleet.full)
    fleet.shows("broker: Shards that wait for room: A", lambda drawn: drawn[fleet.full] > 0 == drawn[fleet.uneven])
    fleet.shows("broker: Batches in flight: A", lambda drawn: drawn[fleet.full] == 8 > drawn[fleet.uneven])
    logged = fleet.says("its trainer does not keep up", "logs", fleet.full)
    said = rf"info coordinator \S+ \[{fleet.full}\] full batches=8 waiting_shards=\d trainer=\S+-{fleet.trainer.pid}-"
    assert re.search(said, logged), logged
    assert " full batches=" not in fleet.said("logs", fleet.uneven)


def test_a_trainer_that_stands_still_is_named(fleet: Fleet) -> None:
    logged = fleet.said("logs", fleet.full, "--role", "trainer")
    (trainer,) = set(re.findall(rf"trainer (\S*-{fleet.trainer.pid}-\S+)", logged))
    os.kill(fleet.trainer.pid, signal.SIGSTOP)
    try:
        stalled = f"nothing is trained: trainer {trainer} does not renew its seat"
        fleet.top.says(stalled, timeout_s=LONG_S)
        told = fleet.said("why", fleet.full)
        assert f"experiment {fleet.full} is stalled: {stalled}" in told and f"heddle trainer {fleet.full}" in told
        fleet.alarms("HeddleNoTrainer", fleet.full)
        eventually(lambda: fleet.full in fleet.alarmed("HeddleNothingTrained"), timeout_s=LONG_S, every_s=0.5)
        fleet.shows("trainer: Seat: A", lambda drawn: drawn[fleet.full] == 0 < drawn[fleet.uneven])
        assert f"experiment {fleet.uneven} is running" in fleet.said("why", fleet.uneven)
        missed = f"[{fleet.full}] misses trainer={trainer} because='it does not renew its seat: it ended, is frozen or"
        fleet.says(missed, "logs", fleet.full, "--level", "warning")
        assert "misses" not in fleet.said("logs", fleet.uneven)
    finally:
        os.kill(fleet.trainer.pid, signal.SIGCONT)
