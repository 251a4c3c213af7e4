"""Every command that only reads does all of it with the rights of who only looks: the server refuses it nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from heddle.broker import Broker, keys
from heddle.broker.acl import ROLES
from heddle.broker.dead import bury_foreign
from heddle.broker.pools import WorkerBeat
from heddle.broker.server import LocalServer
from heddle.cli.main import run
from heddle.cli.root import cli
from tests.trainer_kit import submit
from tests.unit.test_cli_mistakes import leaves

READING = {
    "ls": ("",),
    "status": ("EXP",),
    "shards ls": ("EXP",),
    "workers ls": ("",),
    "batches ls": ("EXP",),
    "batches show": ("EXP DEAD",),
    "policy pull": ("EXP weights.safetensors",),
    "top": ("-o json",),
    "logs": ("", "EXP"),
    "plot": ("EXP",),
    "compare": ("EXP",),
    "results": ("", "lr"),
    "trace": ("EXP",),
    "profile": ("EXP --seconds 1",),
    "wait": ("EXP --for queued",),
    "why experiment": ("EXP",),
    "why shard": ("EXP/0",),
    "why worker": ("w1",),
    "doctor": ("",),
}
ASKS_NO_BROKER = {"init", "validate", "plan", "completion", "acl", "data show", "data to-minari", "data from-minari"}
ASKS_NO_BROKER |= {"eval", "record", "policy export"}
DOES_MORE = {"demo", "run", "up", "enqueue", "pause", "resume", "stop", "rm", "shards release", "batches replay"}
DOES_MORE |= {"batches drop", "workers start", "workers scale", "workers drain", "coordinator", "worker", "trainer"}
DOES_MORE |= {"track", "record-experience", "repro"}
DOES_WITHOUT = {"config|get", "client|setinfo", "zremrangebyscore"}
"""Whoever may not ask for settings, name its library or tidy up while looking does without."""
TRIES = {"doctor": {"scan", "script|load", "evalsha", "set"}}
"""The doctor finds out what its user may do."""


@pytest.fixture
def experiment(broker: Broker) -> str:
    """One of a group, with a worker, a trainer that published, measurements, a tracker, a line and a dead batch."""
    made = submit(broker)
    broker.conn.main.hset(keys.spec(made), "group", "lr")
    epoch = broker.seats.claim_seat(made, "t-1")
    assert epoch is not None and broker.policies.publish(made, epoch, 1, b"weights", update=1) == 1
    broker.events.metrics_add(made, 1, {"return": 1.5, "env_steps": 8.0, "update_seconds": 1.0}, seat_epoch=epoch)
    broker.trackers.ensure_group(made, "tensorboard")
    assert broker.trackers.claim(made, "tensorboard", "p-1", told={"kind": "tensorboard"}) is None
    broker.pools.heartbeat(WorkerBeat("w1", host="h", pid=3))
    broker.events.log(made, "worker", "w1", "info", "a line")
    entry: Any = broker.conn.main.xadd(keys.experience(made, 0), {"by": "hand"})
    assert bury_foreign(broker.conn, made, 0, (entry.decode(), {"by": "hand"}), caps=(10, 1 << 20))
    return made


@pytest.fixture
def refused(
    redis_server: LocalServer, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[], set[str]]]:
    """Within it the broker is asked by one who only looks; what the server refused him."""
    execute: Any = raw.execute_command
    execute("ACL", "SETUSER", "looker", "reset", "on", ">secret", *ROLES["reader"].rules())
    execute("ACL", "LOG", "RESET")
    monkeypatch.setenv("HEDDLE_REDIS_URL", redis_server.url.replace("://", "://looker:secret@"))
    monkeypatch.chdir(tmp_path)
    yield lambda: {str(entry["object"]) for entry in raw.acl_log() if entry["username"] == "looker"}
    execute("ACL", "DELUSER", "looker")


def test_every_command_is_one_that_only_reads_or_is_known_to_do_more() -> None:
    assert {path.removeprefix("heddle ") for path, _ in leaves(cli, "heddle")} == {
        *READING
    } | ASKS_NO_BROKER | DOES_MORE


@pytest.mark.parametrize("path", READING)
def test_it_is_refused_nothing(
    path: str,
    broker: Broker,
    experiment: str,
    refused: Callable[[], set[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (dead,) = broker.dead.ls(experiment)
    for words in READING[path]:
        words = words.replace("EXP", experiment).replace("DEAD", dead.id)
        code = run([*path.removesuffix(" experiment").split(), *words.split()])
        assert code == 0, capsys.readouterr().err
    assert refused() - DOES_WITHOUT - TRIES.get(path, set()) == set()


def test_who_only_looks_sees_how_far_a_tracker_is_behind(
    broker: Broker, experiment: str, refused: Callable[[], set[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["status", experiment]) == 0
    assert "tensorboard is fed, 1 entry behind" in capsys.readouterr().out


def test_a_doctor_that_may_not_look_at_every_key_says_so_and_tells_the_rest(
    broker: Broker, experiment: str, refused: Callable[[], set[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor"]) == 0
    told = capsys.readouterr().out
    assert "not looked through: SCAN is not allowed to this user" in told
    assert "workers of default" in told and "1 alive" in told
