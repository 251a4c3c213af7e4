"""Each role alone, given only the broker's address, and every command that speaks to experiments."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from heddle.broker import open_broker
from heddle.broker.server import LocalServer, start_server
from heddle.broker.server_setup import PASSWORD_FILE
from tests.e2e.shell import ROOT, heddle, heddle_json, process_of, processes_of, started
from tests.helpers import eventually

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")

CARTPOLE = str(ROOT / "examples" / "cartpole.toml")
SHORT = ("--set", "budget.env_steps=8_000", "--set", "eval.every_updates=10", "--set", "eval.episodes=4")
ENDLESS = ("--set", "budget.env_steps=50_000_000", "--set", "trainer.passes=4", "--set", "faults.lease_ttl=2s")


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A broker of the test's own."""
    with start_server(tmp_path_factory.mktemp("broker")) as running:
        yield running


@dataclass(frozen=True)
class Fleet:
    """Where it works, and at which broker."""

    folder: Path
    url: str


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Coordinator, two supervised workers and a trainer host, each alone; one for all tests that want one."""
    folder = tmp_path_factory.mktemp("fleet")
    with (
        start_server(tmp_path_factory.mktemp("broker")) as server,
        started("coordinator", cwd=folder, url=server.url),
        started("workers", "start", "-n", "2", cwd=folder, url=server.url),
        started("trainer", cwd=folder, url=server.url),
    ):
        yield Fleet(folder, server.url)


def phase_of(experiment: str, cwd: Path, url: str) -> str:
    """What the coordinator wrote down last."""
    return str(heddle_json("status", experiment, cwd=cwd, url=url)["phase"])


def is_played(experiment: str, url: str) -> bool:
    """Whether it has given experience that was trained on. Asked often, so without a process for each time."""
    with open_broker(url, role="test") as broker:
        return broker.experience.flow(experiment, 0).trained.batches > 0


def at_work(url: str) -> list[str]:
    """Workers that live and are not draining, likewise."""
    with open_broker(url, role="test") as broker:
        return [worker.beat.worker for worker in broker.pools.workers() if worker.alive and not worker.draining]


def test_roles_alone_train_two_experiments_on_one_pool(fleet: Fleet) -> None:
    folder, url = fleet.folder, fleet.url
    first = heddle("enqueue", CARTPOLE, *SHORT, "--name", "first", cwd=folder, url=url).stdout.strip()
    second = heddle("enqueue", CARTPOLE, *SHORT, "--name", "second", cwd=folder, url=url).stdout.strip()
    for experiment in (first, second):
        heddle("wait", experiment, "--for", "completed", "--timeout", "90s", cwd=folder, url=url)
    listed = heddle_json("ls", cwd=folder, url=url)["experiments"]
    states = {one["experiment"]: one["state"] for one in listed}
    assert (states[first], states[second]) == ("completed", "completed")
    for experiment in (first, second):
        status = heddle_json("status", experiment, cwd=folder, url=url)
        for counts in status["accounting"].values():
            assert counts["lost"] == counts["duplicated"] == counts["in_flight"] == 0
        assert list(folder.glob(f"runs/{experiment}/checkpoints/*.safetensors"))
    assert all(name in heddle("ls", cwd=folder, url=url).stdout for name in (first, second, "completed"))


def test_the_same_spec_is_the_same_experiment_while_it_is_active(server: LocalServer, tmp_path: Path) -> None:
    url = server.url
    one = heddle_json("enqueue", CARTPOLE, "--no-check", cwd=tmp_path, url=url)
    same = heddle_json("enqueue", CARTPOLE, "--no-check", cwd=tmp_path, url=url)
    assert one["created"]
    assert (same["experiment"], same["created"]) == (one["experiment"], False)
    taken = heddle("enqueue", CARTPOLE, "--no-check", "--set", "trainer.gamma=0.9", cwd=tmp_path, url=url, code=8)
    assert "--name" in taken.stderr
    assert len(taken.stderr.splitlines()) == 1
    heddle("rm", one["experiment"], "--force", cwd=tmp_path, url=url)
    again = heddle_json("enqueue", CARTPOLE, "--no-check", cwd=tmp_path, url=url)
    assert again["created"]
    assert again["experiment"] != one["experiment"]


def test_pause_resume_stop_and_rm_take_effect_and_leave_nothing(fleet: Fleet) -> None:
    folder, url = fleet.folder, fleet.url
    experiment = heddle("enqueue", CARTPOLE, *ENDLESS, cwd=folder, url=url).stdout.strip()
    eventually(lambda: is_played(experiment, url), timeout_s=60, every_s=0.2)
    heddle("pause", experiment, cwd=folder, url=url)
    heddle("wait", experiment, "--for", "paused", "--timeout", "10s", cwd=folder, url=url)
    heddle("resume", experiment, cwd=folder, url=url)
    heddle("wait", experiment, "--for", "running", "--timeout", "10s", cwd=folder, url=url)
    shown = heddle("shards", experiment, cwd=folder, url=url).stdout
    assert "playing" in shown or "waits for a policy" in shown
    assert "train" in shown
    assert heddle("rm", experiment, cwd=folder, url=url, code=8).stderr.count("\n") == 1
    policy = folder / "policy.safetensors"
    heddle("policy", "pull", experiment, str(policy), cwd=folder, url=url)
    assert policy.stat().st_size > 1_000
    heddle("stop", "cartpole", cwd=folder, url=url)
    heddle("wait", experiment, "--for", "stopped", "--timeout", "30s", cwd=folder, url=url)
    status = heddle_json("status", experiment, cwd=folder, url=url)
    assert status["accounting"]["batches"]["in_flight"] == 0
    assert Path(folder, status["result"]["checkpoint"]).is_file()
    resumed = heddle("resume", experiment, cwd=folder, url=url, code=8)
    assert "--resume" in resumed.stderr
    heddle("rm", experiment, cwd=folder, url=url)
    heddle("status", experiment, cwd=folder, url=url, code=4)
    eventually(lambda: keys_of(experiment, url) == [], timeout_s=65, every_s=0.5, what="no key is left")


def keys_of(experiment: str, url: str) -> list[str]:
    """Every key of the experiment."""
    import redis

    with redis.Redis.from_url(url, decode_responses=True) as client:
        return [key for key in client.scan_iter(count=1000) if experiment in key]


def test_a_pool_is_scaled_and_drained(fleet: Fleet) -> None:
    folder, url = fleet.folder, fleet.url
    eventually(lambda: len(at_work(url)) == 2, timeout_s=30)
    listed = heddle_json("workers", "ls", cwd=folder, url=url)["workers"]
    assert sorted(one["worker"] for one in listed if one["alive"] and not one["draining"]) == sorted(at_work(url))
    heddle("workers", "scale", "3", cwd=folder, url=url)
    eventually(lambda: len(at_work(url)) == 3, timeout_s=30)
    heddle("workers", "scale", "1", cwd=folder, url=url)
    eventually(lambda: len(at_work(url)) == 1, timeout_s=30)
    (last,) = at_work(url)
    heddle("workers", "drain", last, cwd=folder, url=url)
    eventually(lambda: at_work(url) not in ([], [last]), timeout_s=40)
    assert "desired 1" in heddle("workers", "ls", cwd=folder, url=url).stdout
    heddle("workers", "drain", "nobody", cwd=folder, url=url, code=4)
    heddle("workers", "scale", "--reset", cwd=folder, url=url)
    eventually(lambda: len(at_work(url)) == 2, timeout_s=30)
    assert "say how many" in heddle("workers", "scale", cwd=folder, url=url, code=2).stderr


def test_wait_times_out_and_tells_a_failed_wait(server: LocalServer, tmp_path: Path) -> None:
    url = server.url
    experiment = heddle("enqueue", CARTPOLE, "--no-check", cwd=tmp_path, url=url).stdout.strip()
    late = heddle("wait", experiment, "--timeout", "0.5s", cwd=tmp_path, url=url, code=7)
    assert "queued" in late.stderr
    heddle("wait", experiment, "--for", "queued", cwd=tmp_path, url=url)
    heddle("wait", "nowhere", cwd=tmp_path, url=url, code=4)


def test_up_is_found_from_its_folder_and_ends_without_a_process(tmp_path: Path) -> None:
    with started("up", "--workers", "1", cwd=tmp_path) as up:
        out = up.says("heddle enqueue")
        assert "redis-cli" in out
        done = heddle("enqueue", CARTPOLE, *SHORT, "--wait", "--follow", cwd=tmp_path)
        assert "return" in done.stdout
        told, experiment = done.stderr, done.stdout.split()[0]
        for what in (
            f"{experiment} is completed",
            r"ended +completed: used env_steps \d+",
            r"return +[\d.]+ \(last 100 training episodes\)",
            r"steps +[\d,]+ in \d+:\d\d, [\d,]+ steps/s, [\d,]+ s of processor time in its trainer",
            r"batches +appended (\d+) = trained \d+ .*; lost 0, duplicated 0",
            rf"checkpoint +runs/{experiment}/checkpoints/\S+",
            rf"next:\n  heddle \w+ .*{experiment}",
        ):
            assert re.search(what, told), (what, told)
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        heddle("ls", cwd=elsewhere, code=5)
        up.interrupt()
        assert up.ends() == 0
    assert processes_of(tmp_path) == {}
    with started("up", "--workers", "0", cwd=tmp_path) as up:
        up.says("heddle enqueue")
        (kept,) = heddle_json("ls", cwd=tmp_path)["experiments"]
        assert kept["state"] == "completed"


def test_up_with_bind_says_how_others_reach_it_and_keeps_the_password_in_its_file(tmp_path: Path) -> None:
    with started("up", "--workers", "0", "--bind", "0.0.0.0", "--port", "0", cwd=tmp_path) as up:
        out = up.says("heddle enqueue")
        (url,) = re.findall(r"export HEDDLE_REDIS_URL='(redis://.+:\d+/0\?password_file=.+)'", out)
        file = tmp_path / ".heddle" / PASSWORD_FILE
        assert url.endswith(str(file))
        assert file.read_text().strip() not in out
        assert file.stat().st_mode & 0o077 == 0
        elsewhere = tmp_path.parent
        here = re.sub(r"//.+:(\d+)/", r"//127.0.0.1:\1/", url)
        heddle("ls", cwd=elsewhere, url=here)
        wrong = re.sub(r"//(.+)\?.*", r"//:wrong@\1", here)
        denied = heddle("ls", cwd=elsewhere, url=wrong, code=6)
        assert len(denied.stderr.splitlines()) == 1
    assert not file.exists()


def test_roles_end_with_the_one_who_started_them(server: LocalServer, tmp_path: Path) -> None:
    with started("workers", "start", "-n", "2", cwd=tmp_path, url=server.url) as workers:
        eventually(
            lambda: [" worker " in said for said in processes_of(tmp_path).values()].count(True) == 2, timeout_s=60
        )
        workers.process.kill()
        workers.ends()
        eventually(lambda: processes_of(tmp_path) == {}, timeout_s=15)


def test_a_second_coordinator_takes_over_within_four_seconds(server: LocalServer, tmp_path: Path) -> None:
    url = server.url
    with started("coordinator", cwd=tmp_path, url=url) as first:
        first.says("lead", timeout_s=10)
        with started("coordinator", cwd=tmp_path, url=url) as second:
            eventually(lambda: process_of(tmp_path, "coordinator"), timeout_s=5)
            first.process.kill()
            first.ends()
            experiment = heddle("enqueue", CARTPOLE, "--no-check", cwd=tmp_path, url=url).stdout.strip()
            eventually(lambda: phase_of(experiment, tmp_path, url) == "running", timeout_s=6, every_s=0.1)
            assert second.process.poll() is None
