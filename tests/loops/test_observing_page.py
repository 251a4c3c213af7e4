"""What docs/observing.md shows runs as it stands, against a real server with an experiment in it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heddle.broker import keys, open_broker
from heddle.broker.presence import WorkerBeat
from heddle.broker.server import LocalServer
from heddle.checkpoint import Checkpoint, save
from heddle.policies.factory import make_policy
from heddle.spaces import Box, Discrete
from heddle.spec import load_spec
from heddle.spec.write import to_toml
from tests.helpers import eventually
from tests.prometheus import free_port
from tests.tracking_kit import needs
from tests.trainer_kit import SPACES, SPEC, submit
from tests.typed import shell_lines
from tests.unit.test_observing_page import PAGE, TEXT, heddle_lines

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(valkey_server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which an experiment `cartpole` and a worker are seen."""
    monkeypatch.setenv("HEDDLE_REDIS_URL", valkey_server.url)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with open_broker(valkey_server.url, role="test") as broker:
        made = submit(broker, experiment={"name": "cartpole"})
        broker.conn.main.hset(keys.status(made), "state", "running")
        for update in range(1, 30):
            values = {"return": float(update), "env_steps": 64.0 * update, "wall_seconds": float(update)}
            broker.events.metrics_add(made, update, values)
        broker.pools.heartbeat(WorkerBeat("host-1w1-aa", host="host", pid=17, state="idle"), ttl_ms=600_000)
    small = {**SPEC, "trainer": {}, "faults": {}, "budget": {"env_steps": 256}}
    (tmp_path / "exp.toml").write_text(to_toml(small), encoding="utf-8")
    leave_a_checkpoint(tmp_path / "runs" / "cartpole-1a2b3c")
    return tmp_path


def leave_a_checkpoint(run: Path) -> None:
    """As a trainer leaves one: of a policy that knows nothing yet."""
    spec = load_spec({**SPEC, "trainer": {}, "experiment": {"name": "cartpole"}}).spec
    spaces = Box((4,), "float32"), Discrete(2, 0)
    told: dict[str, Any] = {"spec_json": spec.canonical_json(), "spec_sha256": spec.sha256(), "spaces": SPACES}
    told |= {"seat_epoch": 3, "update": 7, "policy_version": 8, "env_steps": 10}
    weights = make_policy(spec.policy, *spaces, seed=1).get_weights()
    save(run / "checkpoints", Checkpoint(experiment=run.name, weights=weights, **told))


def test_its_section_of_a_spec_is_one() -> None:
    (section,) = [block for block in re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL) if "[track]" in block]
    track = load_spec(to_toml({**SPEC, "trainer": {}}) + section).spec.track
    assert track is not None and track.tensorboard and track.wandb and track.mlflow


def test_its_lines_of_python_run_and_are_shown(folder: Path) -> None:
    (block,) = [one for one in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL) if "heddle.connect" in one]
    names: dict[str, Any] = {}
    shown = 0
    for line in block.splitlines():
        exec(line, names)
        if line and "=" not in line.partition("#")[0] and not line.startswith("import"):
            exec(f"last = {line}", names)
            shown += "<" in names["last"]._repr_html_()
    names["client"].close()
    assert shown == 4


@pytest.mark.parametrize("line", [line for line in heddle_lines() if "9464" not in line])
def test_a_line_of_it_does_what_it_says(line: str, folder: Path) -> None:
    for command, libraries in (("track", ("tensorboardX",)), ("record", ("PIL", "imageio_ffmpeg"))):
        if line.startswith(f"heddle {command} "):
            needs(*libraries)
    command, _, remark = line.partition(" #")
    shell = command.replace("heddle ", f"{sys.executable} -m heddle ")
    out = folder / "out"
    with out.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", f"exec env {shell}"], cwd=folder, stdout=output, stderr=output, env=dict(os.environ)
        )
        try:
            if "stays" in remark:
                eventually(lambda: out.read_text().strip(), timeout_s=90, what=line)
                assert process.poll() is None, out.read_text()
            else:
                assert process.wait(90) == 0, out.read_text()
                assert out.read_text().strip()
        finally:
            process.terminate()
            process.wait(60)
    assert "Traceback" not in out.read_text()


def test_its_metrics_are_served_where_its_next_line_asks_for_them(folder: Path) -> None:
    port = str(free_port())
    served, asked = (line.partition(" #")[0].replace("9464", port) for line in shell_lines(PAGE) if "9464" in line)
    command = [sys.executable, "-m", *served.split()]
    with (folder / "out").open("wb") as output, subprocess.Popen(command, cwd=folder, stderr=output) as coordinator:
        try:
            eventually(lambda: "serves metrics" in (folder / "out").read_text(), timeout_s=90)
            told = subprocess.run(asked.split(), capture_output=True, text=True, timeout=60)
        finally:
            coordinator.terminate()
    assert "heddle_broker_up 1.0" in told.stdout
