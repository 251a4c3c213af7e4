"""deploy/compose.yaml on a real Docker engine: up, enqueue, scale, kill, restart Redis, finish.

Skipped, with the reason, where no engine answers and none can be started (not root, no apt-get).
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import eventually

ROOT = Path(__file__).resolve().parents[2]
PORT = "16379"
URL = f"redis://127.0.0.1:{PORT}/0"
PASSWORD = {"REDISCLI_AUTH": ""}
"""The password that compose drew, as redis-cli takes it; known once the fleet is up."""
ENGINE: dict[str, str] = {}
"""The environment in which `docker` reaches the engine."""


def run(*argv: str, env: dict[str, str], cwd: Path = ROOT, timeout: float = 600) -> str:
    """The command's stdout; fails with all it printed when it does not exit with 0."""
    done = subprocess.run(argv, env=env, cwd=cwd, text=True, capture_output=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{' '.join(argv)} -> {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def engine() -> Iterator[dict[str, str]]:
    """The environment in which `docker` reaches an engine."""
    folder = Path(os.environ.get("HEDDLE_ENGINE_DIR", "/tmp/heddle-engine"))
    up = subprocess.run(
        [ROOT / "tests/engine.sh", "up", folder], text=True, capture_output=True, timeout=900, check=False
    )
    if up.returncode == 3 and not os.environ.get("HEDDLE_ALL_SERVERS"):
        pytest.skip(f"no Docker engine: {up.stderr.strip().splitlines()[-1]}")
    assert up.returncode == 0, up.stderr[-4000:]
    env = dict(os.environ)
    for line in up.stdout.splitlines():
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            env[name] = value
    yield env
    if up.stdout.strip():
        run(str(ROOT / "tests/engine.sh"), "down", str(folder), env=dict(os.environ))


def wheels() -> list[Path]:
    """CPU builds of torch on this machine, in the folders that pip was told of."""
    told = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS") or ""
    if not told:
        asked = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
        told = subprocess.run(asked, text=True, capture_output=True, check=False).stdout
    return [
        wheel
        for folder in told.split()
        if Path(folder).is_dir()
        for wheel in Path(folder).glob("torch-*+cpu-cp311-*.whl")
    ]


@pytest.fixture(scope="module")
def fleet(engine: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """`docker compose` over a copy of the project, built and up; taken down with its volumes at the end."""
    source = tmp_path_factory.mktemp("compose") / "heddle"
    source.mkdir()
    for part in ("heddle", "deploy", "examples"):
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", ".dockerignore"):
        shutil.copy(ROOT / part, source / part)
    for wheel in wheels()[-1:]:
        shutil.copy(wheel, source / "deploy/wheels" / wheel.name)
    env = engine | {"HEDDLE_REDIS_PORT": PORT}
    ENGINE.update(env)

    def compose(*argv: str, timeout: float = 600) -> str:
        return run("docker", "compose", "-f", "deploy/compose.yaml", *argv, env=env, cwd=source, timeout=timeout)

    compose("up", "-d", "--build", "--wait", timeout=900)
    typed = re.search(
        r'export REDISCLI_AUTH="\$\(docker compose -f deploy/compose.yaml (.*)\)"', (ROOT / "README.md").read_text()
    )
    assert typed is not None, "README says how redis-cli gets the password"
    PASSWORD["REDISCLI_AUTH"] = compose(*typed[1].split()).strip()
    yield compose
    compose("down", "-v", "--timeout", "20")


def heddle(*argv: str, timeout: float = 300) -> str:
    url = URL.replace("//", f"//:{PASSWORD['REDISCLI_AUTH']}@")
    env = dict(os.environ) | {"HEDDLE_REDIS_URL": url}
    return run(sys.executable, "-m", "heddle", *argv, env=env, timeout=timeout)


def live_workers() -> list[dict[str, Any]]:
    return [w for w in json.loads(heddle("workers", "ls", "-o", "json"))["workers"] if w["alive"]]


def status(experiment: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(heddle("status", experiment, "-o", "json"))
    return found


def steps(experiment: str) -> float:
    return float(status(experiment)["metrics"].get("env_steps", 0))


def enqueue(*sets: str) -> str:
    argv = ["enqueue", "examples/cartpole.toml", "-o", "json", *(word for item in sets for word in ("--set", item))]
    return str(json.loads(heddle(*argv))["experiment"])


def assert_books_balance(experiment: str) -> None:
    for books in status(experiment)["accounting"].values():
        assert (books["lost"], books["duplicated"], books["in_flight"]) == (0, 0, 0)


def test_a_composed_fleet_scales_loses_a_worker_and_its_broker_and_still_finishes(fleet: Callable[..., str]) -> None:
    # Given a broker that wants the password that was drawn, on this host's loopback only, and shows it to nobody
    password = PASSWORD["REDISCLI_AUTH"]
    assert len(password) == 32
    refused = subprocess.run(["redis-cli", "-p", PORT, "PING"], env=dict(os.environ), text=True, capture_output=True)
    assert "NOAUTH" in refused.stdout
    assert "127.0.0.1" in fleet("port", "redis", "6379")
    shown = (
        fleet("config")
        + fleet("logs")
        + fleet("top")
        + run("docker", "inspect", *fleet("ps", "-aq").split(), env=ENGINE)
    )
    assert password not in shown

    # And a fleet of two workers and a run that goes on until it is stopped
    eventually(lambda: len(live_workers()) == 2, timeout_s=60, every_s=0.5, what="two workers")
    long = enqueue("budget.env_steps=100000000")
    eventually(lambda: steps(long) > 2_000, timeout_s=120, every_s=0.5, what="first updates")

    # When the pool is scaled to 8 and back
    heddle("workers", "scale", "8")
    eventually(lambda: len(live_workers()) == 8, timeout_s=90, every_s=0.5, what="eight workers")
    heddle("workers", "scale", "2")
    eventually(lambda: len(live_workers()) == 2, timeout_s=90, every_s=0.5, what="two workers again")

    # And a worker process is killed inside its container
    victim = live_workers()[0]
    fleet("exec", "-T", "workers", "python", "-c", f"import os; os.kill({victim['pid']}, 9)")

    def is_replaced() -> bool:
        alive = [worker["worker"] for worker in live_workers()]
        return len(alive) == 2 and victim["worker"] not in alive

    eventually(is_replaced, timeout_s=60, every_s=0.5, what="the killed worker replaced")

    # And Redis restarts
    before = steps(long)
    fleet("restart", "redis")
    eventually(lambda: steps(long) > before, timeout_s=90, every_s=0.5, what="progress after the restart")

    # Then a second run on the same pool, of batches that lie in shared memory where there is any, ends by its budget
    large = ("env.num_envs=64", "env.envs_per_shard=32", "rollout.steps=128", "trainer.minibatch=4096")
    short = enqueue("budget.env_steps=20000", "experiment.name=short", *large)
    heddle("wait", short, "--for", "completed", "--timeout", "240s")
    assert steps(short) >= 20_000
    assert_books_balance(short)

    # And the first one ends when it is told to
    heddle("stop", long)
    heddle("wait", long, "--for", "stopped", "--timeout", "60s")
    assert_books_balance(long)

    # And a later `up` leaves the pool's size alone
    heddle("workers", "scale", "3")
    fleet("up", "-d", "--wait")
    assert fleet("exec", "-T", "redis", "cat", "/run/heddle/password").strip() == password
    eventually(lambda: len(live_workers()) == 3, timeout_s=60, every_s=0.5, what="three workers after a second up")

    # And the lines of the README show what it says, from the host
    tag = f"heddle:{{{short}.0}}"
    cli = ["redis-cli", "-p", PORT]
    env = dict(os.environ) | PASSWORD
    assert "command" in run(*cli, "HGETALL", f"{tag}:ctl", env=env)
    flow = run(*cli, "HGETALL", f"{tag}:flow", env=env).split()
    assert int(flow[flow.index("appended") + 1]) >= 3
    assert "mapped" not in flow, "containers share no memory: every large batch went through the broker"
    assert "epoch" in run(*cli, "HGETALL", f"{tag}:shard:0", env=env)
    assert run(*cli, "ZRANGE", f"{tag}:due", "0", "-1", "WITHSCORES", env=env).strip() == ""
    assert run(*cli, "XLEN", f"{tag}:experience", env=env).strip() == "0"
    assert short in run(*cli, "XREVRANGE", "heddle:log", "+", "-", "COUNT", "20", env=env)

    # And rm leaves no key of the experiment
    heddle("rm", short)
    eventually(lambda: not run(*cli, "KEYS", f"*{short}*", env=env).strip(), timeout_s=70, what="no key left")
