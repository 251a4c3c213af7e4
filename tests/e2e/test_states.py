"""What holds a run up is on the screen: a quarantined shard everywhere, and a broker without room from the start."""

from pathlib import Path

import pytest
import redis

from heddle.broker.server import start_server
from tests.e2e.shell import ROOT, heddle, heddle_json, started
from tests.helpers import eventually

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")

BROKEN = """
import gymnasium


class Arm(gymnasium.Wrapper):
    def __init__(self, index):
        super().__init__(gymnasium.make("CartPole-v1"))
        self._index = index
        print(f"arm {index} is mounted", flush=True)

    def step(self, action):
        if self._index == 3:
            raise RuntimeError("the arm fell off")
        return super().step(action)


def make(env_index):
    return Arm(env_index)
"""
SPEC = """
[experiment]
name = "arms"
[env]
id = "arms:make"
num_envs = 4
envs_per_shard = 1
[policy]
hidden = [8]
[rollout]
steps = 16
[trainer]
passes = 1
[budget]
env_steps = 100_000_000
[faults]
lease_ttl = 2
barren_deaths = 1
"""


def test_a_quarantined_shard_is_on_every_screen_until_it_is_released(tmp_path: Path) -> None:
    (tmp_path / "arms.py").write_text(BROKEN)
    (tmp_path / "exp.toml").write_text(SPEC)
    with start_server(tmp_path / "broker") as server:
        url = server.url
        with started("run", "exp.toml", "--no-check", "-n", "2", cwd=tmp_path, url=url) as run:
            out = run.says("shard 3 is quarantined: ", timeout_s=90)
            assert "the arm fell off" in out
            seen = heddle_json("profile", "arms", "--seconds", "2", cwd=tmp_path, url=url)["workers"]
            assert len(seen) == 2
            for worker in seen:
                phases = [
                    share for what, share in worker.items() if what not in ("worker", "steps_per_second", "sending")
                ]
                assert sum(phases) == pytest.approx(1.0)
            run.says("degraded", timeout_s=60)
            printed = heddle("logs", "arms", "--role", "user", cwd=tmp_path, url=url).stdout
            assert "is mounted" in printed and "claimed" not in printed
            (listed,) = heddle_json("ls", cwd=tmp_path, url=url)["experiments"]
            experiment = listed["experiment"]
            assert (listed["state"], listed["phase"]) == ("degraded", "running")
            assert f"heddle shards release {experiment}/3" in listed["do"]
            shown = heddle("status", "arms", cwd=tmp_path, url=url).stdout
            assert f"shard {experiment}/3 is quarantined" in shown and "1 quarantined" in shown
            assert "the arm fell off" in shown
            why = heddle("why", "shard", f"{experiment}/3", cwd=tmp_path, url=url).stdout
            assert "is quarantined" in why and "claimed shard=3" in why and "mounted" not in why
            with started("enqueue", "exp.toml", "--no-check", "--follow", cwd=tmp_path, url=url) as follow:
                follow.says("shard 3 is quarantined: ", timeout_s=60)
                follow.says("degraded", timeout_s=60)
            before = heddle_json("shards", experiment, cwd=tmp_path, url=url)["shards"][3]
            heddle("shards", "release", f"{experiment}/3", cwd=tmp_path, url=url)
            eventually(
                lambda: (
                    (now := heddle_json("shards", experiment, cwd=tmp_path, url=url)["shards"][3])["state"]
                    == "quarantined"
                    and now["attempts"] > before["attempts"]
                ),
                timeout_s=90,
                every_s=0.5,
                what="it is played again, and fails again",
            )
            run.interrupt()
            assert run.ends(timeout_s=90) == 130
            assert "shard 3 is quarantined" in run.output().partition("\nended")[2]


def test_a_broker_without_room_from_the_start_is_said_with_what_to_do(tmp_path: Path) -> None:
    with start_server(tmp_path / "broker", maxmemory=4 << 20) as server:
        url = server.url
        spec = str(ROOT / "examples" / "cartpole.toml")
        big = ("--set", "policy.hidden=[1024, 1024]")
        with started("run", spec, *big, "--no-check", "-n", "1", cwd=tmp_path, url=url) as run:
            out = run.says("raise maxmemory", timeout_s=90)
            assert "waiting: waits for room: the broker " in out
            shown = heddle("status", "cartpole", cwd=tmp_path, url=url).stdout
            assert "waiting: waits for room" in shown and "raise maxmemory" in shown
            (listed,) = heddle_json("ls", cwd=tmp_path, url=url)["experiments"]
            assert (listed["state"], listed["waits_for"]) == ("waiting", "room")
            with redis.Redis.from_url(url) as client:
                client.config_set("maxmemory", 512 << 20)
            eventually(
                lambda: heddle_json("ls", cwd=tmp_path, url=url)["experiments"][0]["state"] == "running",
                timeout_s=60,
                every_s=0.5,
            )
            run.interrupt()
            assert run.ends(timeout_s=90) == 130
