"""A fleet in which each role is a Redis user of its own with the least rights, as `heddle acl` prints them."""

import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from heddle.broker import keys, open_broker
from heddle.broker.acl import ROLES
from heddle.broker.lines import PRINTED, Line
from heddle.broker.server import LocalServer, start_server
from tests.e2e.shell import heddle, process_of, started
from tests.helpers import eventually
from tests.prometheus import free_port

SPEC = """
[experiment]
name = "roles"
[env]
id = "CartPole-v1"
num_envs = 4
[rollout]
steps = 16
sync = true
[trainer]
minibatch = 32
passes = 2
[budget]
env_steps = 100_000_000
[eval]
num_envs = 2
episodes = 2
every_updates = 10
[faults]
lease_ttl = 1
snapshot_every = 1
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    with start_server(tmp_path / "server", port=0, durability="memory") as running:
        yield running


@pytest.fixture
def admin(server: LocalServer) -> Iterator[Any]:
    client = redis.Redis.from_url(server.url, decode_responses=True)
    yield client
    client.close()


@pytest.fixture
def urls(server: LocalServer, admin: Any, tmp_path: Path) -> dict[str, str]:
    """A URL for each role, with its password in a file."""
    address = server.url.rpartition("@")[2]
    made = {}
    for role in ROLES:
        rules = heddle("acl", role, cwd=tmp_path).stdout.split()
        admin.execute_command("ACL", "SETUSER", role, "reset", "on", f">{role}-password", *rules)
        (tmp_path / role).write_text(f"{role}-password\n")
        made[role] = f"redis://{role}@{address}?password_file={tmp_path / role}"
    admin.execute_command("ACL", "LOG", "RESET")
    return made


TOLERATED = ("config|get", "client|setinfo", "zremrangebyscore")
"""Whoever may not ask for settings, name its library or tidy up while looking does without."""


def refused(admin: Any) -> list[str]:
    """What the server refused to our users, but for what every role asks and does without."""
    told = [(entry["username"], entry["reason"], entry["object"]) for entry in admin.acl_log()]
    return sorted({f"{user} {reason} {what}" for user, reason, what in told if what not in TOLERATED})


def scraped(port: int) -> list[str]:
    """What a coordinator serves."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return list(answer.read().decode().splitlines())


def test_a_whole_run_needs_no_more_rights_than_these(
    server: LocalServer, admin: Any, urls: dict[str, str], tmp_path: Path
) -> None:
    # Given a coordinator, workers and a trainer, each with its own user
    (tmp_path / "exp.toml").write_text(SPEC)
    with ExitStack() as stack:
        port = free_port()
        serving = ("coordinator", "--metrics-port", str(port))
        stack.enter_context(started(*serving, cwd=tmp_path, url=urls["coordinator"]))
        stack.enter_context(started("workers", "start", "-n", "2", cwd=tmp_path, url=urls["worker"]))
        stack.enter_context(started("trainer", cwd=tmp_path, url=urls["trainer"]))
        experiment = heddle("enqueue", "exp.toml", cwd=tmp_path, url=urls["user"]).stdout.strip()

        def steps() -> int:  # asked often, so without a process for each time
            return int(admin.hget(keys.flow(experiment, 0), "trained_steps") or 0)

        # When it runs, is paused, looked at, loses a worker and ends
        eventually(lambda: steps() > 100 or refused(admin), timeout_s=60)
        assert refused(admin) == []
        heddle("pause", experiment, cwd=tmp_path, url=urls["user"])
        heddle("workers", "scale", "2", cwd=tmp_path, url=urls["user"])
        assert "heddle_broker_up 1.0" in scraped(port)
        for argv in ("ls", f"shards {experiment}", "workers ls", f"batches ls {experiment}", f"status {experiment}"):
            heddle(*argv.split(), cwd=tmp_path, url=urls["reader"])
        heddle("resume", experiment, cwd=tmp_path, url=urls["user"])
        victim: Any = eventually(lambda: process_of(tmp_path, "heddle worker "), timeout_s=20, what="a worker")
        os.kill(victim, signal.SIGKILL)
        before = steps()
        eventually(lambda: steps() > before + 500, timeout_s=60, what="progress without the worker")
        heddle("stop", experiment, cwd=tmp_path, url=urls["user"])
        waiting = ("wait", experiment, "--for", "stopped", "--timeout", "60s")
        heddle(*waiting, cwd=tmp_path, url=urls["reader"], timeout_s=90)
    heddle("rm", experiment, cwd=tmp_path, url=urls["user"])
    # Then nothing was refused
    assert refused(admin) == []


def test_workers_and_trainers_tell_what_user_code_prints_and_who_looks_reads_it(
    admin: Any, urls: dict[str, str]
) -> None:
    writers = ["worker", "trainer"]
    for role in writers:
        with open_broker(urls[role], role=role) as broker:
            assert broker.events.log_all([Line("e", PRINTED, "w", "info", role)])
    for role in ("user", "reader"):
        with open_broker(urls[role], role=role) as broker:
            assert [event.message for event in broker.events.find(lambda one: one.role == PRINTED)] == writers
    assert refused(admin) == []


def test_who_follows_without_the_right_to_read_prints_is_told_so_and_does_not_wait_for_ever(
    admin: Any, urls: dict[str, str], tmp_path: Path
) -> None:
    # Given a user with the rules of a version that knew no stream of prints
    rules = [rule for rule in ROLES["user"].rules() if keys.PRINTS not in rule]
    admin.execute_command("ACL", "SETUSER", "user", "reset", "on", ">user-password", *rules)
    (tmp_path / "exp.toml").write_text(SPEC)
    # When it submits and follows
    done = heddle("enqueue", "exp.toml", "--no-check", "--follow", cwd=tmp_path, url=urls["user"], code=6)
    # Then the experiment is there, and the command has ended with what was refused
    assert "does not allow this to the user" in done.stderr and done.stdout.strip()
    assert admin.zcard(keys.EXPERIMENTS) + admin.xlen(keys.QUEUE) > 0


def test_prints_of_a_user_that_may_not_add_them_are_dropped_and_told_once_and_events_are_written(
    admin: Any, urls: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a user with the rules of a version that knew no stream of prints
    rules = [rule for rule in ROLES["worker"].rules() if keys.PRINTS not in rule]
    admin.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">worker-password", *rules)
    with open_broker(urls["worker"], role="worker") as broker:
        # When it adds prints and events, then nobody is asked to send any of them again
        for _ in range(3):
            assert broker.events.log_all([Line("e", PRINTED, "w", "info", "x"), Line("e", "worker", "w", "info", "y")])
    assert (admin.xlen(keys.LOG), admin.exists(keys.PRINTS)) == (3, 0)
    assert ["dropped lines=1" in record.getMessage() for record in caplog.records] == [True]


FORBIDDEN: dict[str, list[list[str]]] = {
    "worker": [
        ["XADD", keys.QUEUE, "*", "a", "b"],
        ["HSET", keys.spec("e"), "toml", "x"],
        ["DEL", keys.policy("e", 1)],
    ],
    "trainer": [["HSET", keys.lease("e", 0, 1), "worker", "x"], ["XADD", keys.QUEUE, "*", "a", "b"]],
    "coordinator": [["SET", keys.blob("e", 0, 0, 1, "n", 1), "x"], ["HSET", keys.policy("e", 1), "weights", "x"]],
    "user": [["HSET", keys.COORDINATOR, "leader", "x"], ["SET", "elsewhere", "x"]],
    "tracker": [["HSET", keys.ctl("e"), "command", "stop"], ["HSET", keys.status("e"), "state", "failed"]],
    "reader": [["HSET", keys.ctl("e"), "command", "stop"], ["XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"]],
}
FOR_NOBODY = [["FLUSHALL"], ["KEYS", "*"], ["CONFIG", "GET", "requirepass"], ["GET", "elsewhere"], ["ACL", "LIST"]]
FOR_NOBODY += [["SHUTDOWN"], ["MONITOR"], ["SUBSCRIBE", "elsewhere"], ["FUNCTION", "LIST"]]


@pytest.mark.parametrize("role", ROLES)
def test_no_role_may_do_what_it_need_not(role: str, server: LocalServer, urls: dict[str, str]) -> None:
    address = server.url.rpartition("@")[2]
    client: Any = redis.Redis.from_url(f"redis://{role}:{role}-password@{address}")
    for command in FORBIDDEN[role] + FOR_NOBODY:
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command(*command)
    client.close()


def test_the_coordinator_may_drop_what_an_end_leaves_behind(
    server: LocalServer, admin: Any, urls: dict[str, str]
) -> None:
    # Given a shard whose snapshot nobody will need: whether a run ends with one left is chance
    snapshot = keys.snapshot("e", 0, 0, 1, "n", 1)
    admin.hset(keys.ctl("e", 0), mapping={"command": "stop", "shards": 1})
    admin.hset(keys.shard("e", 0, 0), "snapshot", snapshot)
    admin.set(snapshot, "bytes")
    # When the coordinator ends the experiment
    with open_broker(urls["coordinator"], role="coordinator") as broker:
        broker.experiments.set_status("e", "stopped", leader_epoch=1)
        broker.shards.drop_snapshots("e", 0, leader_epoch=1)
    # Then it is gone, and nothing was refused
    assert not admin.exists(snapshot) and not admin.hexists(keys.shard("e", 0, 0), "snapshot")
    assert refused(admin) == []
