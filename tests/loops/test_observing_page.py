"""What docs/observing.md shows runs as it stands, against a real server with an experiment in it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from heddle.broker import keys, open_broker
from heddle.broker.presence import WorkerBeat
from heddle.broker.server import LocalServer
from tests.helpers import eventually
from tests.trainer_kit import submit
from tests.unit.test_observing_page import shell_lines

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
    return tmp_path


@pytest.mark.parametrize("line", shell_lines())
def test_a_line_of_it_does_what_it_says(line: str, folder: Path) -> None:
    command, _, remark = line.partition(" #")
    shell = command.replace("heddle ", f"{sys.executable} -m heddle ")
    out = folder / "out"
    with out.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {shell}"], cwd=folder, stdout=output, stderr=output, env=dict(os.environ)
        )
        try:
            if "stays" in remark:
                eventually(lambda: out.read_text().strip(), timeout_s=90, what=line)
                assert process.poll() is None, out.read_text()
            else:
                assert process.wait(90) == 0, out.read_text()
                assert out.read_text().strip()
        finally:
            process.kill()
            process.wait()
    assert "Traceback" not in out.read_text()
