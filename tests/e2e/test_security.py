"""A whole fleet under watch: nothing runs code out of data, and the broker's password shows nowhere."""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from heddle.broker.server_setup import PASSWORD_FILE
from tests.e2e.shell import ROOT, environment, heddle, heddle_json, processes_of, started
from tests.helpers import eventually

WATCH = f"{ROOT}/tests/audit:{ROOT}"
SPEC = """
[experiment]
name = "watched"
[env]
id = "{env}"
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
ENV = """
import gymnasium


def make(**_):
    return gymnasium.make("CartPole-v1")
"""


@dataclass
class Seen:
    """What a run left behind, and what could be seen of it from outside.

    Attributes:
        secret: the broker's password.
        texts: where something was seen -> what.
        events: of the audit hook.
    """

    secret: str
    texts: dict[str, str] = field(default_factory=dict)
    events: list[list[str]] = field(default_factory=list)

    def look_at_processes(self, folder: Path) -> None:
        """Arguments of every process of the fleet, as anybody on this machine can read them."""
        for pid, command in processes_of(folder).items():
            self.texts[f"arguments of {pid}"] = command

    def keep(self, where: str, done: subprocess.CompletedProcess[str]) -> None:
        self.texts[where] = done.stdout + done.stderr


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """A fleet of `heddle up -vv` with a password, a run on it, a killed worker and a killed broker, and its end."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "my_env.py").write_text(ENV)
    (folder / "exp.toml").write_text(SPEC.format(env="my_env:make"))
    audit = folder / "audit.log"
    extra = {"PYTHONPATH": WATCH, "HEDDLE_AUDIT_FILE": str(audit)}
    arguments = ("up", "-vv", "--bind", "127.0.0.1", "--port", "0", "--workers", "2")
    with started(*arguments, cwd=folder, extra=extra) as up:
        up.says("heddle enqueue")
        secret = (folder / ".heddle" / PASSWORD_FILE).read_text().strip()
        url = _url(folder)
        found = Seen(secret)
        experiment = heddle("enqueue", "exp.toml", cwd=folder, timeout_s=60).stdout.strip()
        eventually(lambda: _steps(folder, experiment) > 200, timeout_s=90, every_s=0.2, what="first updates")
        found.look_at_processes(folder)
        worker = next(pid for pid, command in processes_of(folder).items() if " heddle worker" in command)
        os.kill(worker, signal.SIGKILL)
        eventually(lambda: "pickle.find_class" in audit.read_text(), timeout_s=60, what="a snapshot restored")
        server = next(pid for pid, command in processes_of(folder).items() if "-server" in command)
        os.kill(server, signal.SIGKILL)
        before = _steps(folder, experiment)
        eventually(lambda: _steps(folder, experiment) > before + 500, timeout_s=90, every_s=0.2, what="going on")
        heddle("stop", experiment, cwd=folder)
        heddle("wait", experiment, "--for", "stopped", "--timeout", "60s", cwd=folder, timeout_s=90)
        found.look_at_processes(folder)
        for argv in ("status watched", "ls", "shards watched", "workers ls", "batches ls watched"):
            found.keep(argv, heddle(*argv.split(), "-o", "json", "-vv", cwd=folder))
        found.keep("wrong password", heddle("ls", "-vv", cwd=folder, url=url.replace(secret, "guess"), code=6))
        found.keep("wrong database", heddle("ls", "-vv", cwd=folder, url=url.replace("/0", "/99"), code=None))
        found.keep("worker", _briefly(folder, url, "worker", "-vv"))
        found.texts |= _values(url)
        up.interrupt()
        up.ends()
        found.texts["up"] = up.output()
    found.keep("nobody there", heddle("ls", "-vv", cwd=folder, url=url, code=5))
    found.keep("coordinator", heddle("coordinator", "-vv", cwd=folder, url=url, code=5))
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in ("my_env.py",):
            found.texts[f"file {path.relative_to(folder)}"] = path.read_bytes().decode("latin-1")
    found.events = [line.split("\t") for line in audit.read_text().splitlines()]
    yield found


def _url(folder: Path) -> str:
    return str(json.loads((folder / ".heddle" / "server.json").read_text())["url"])


def _steps(folder: Path, experiment: str) -> float:
    return float(heddle_json("status", experiment, cwd=folder)["metrics"].get("env_steps", 0))


def _briefly(folder: Path, url: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """A role for two seconds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "heddle", *argv],
        cwd=folder,
        env=environment(url),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        process.communicate(timeout=2)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def _values(url: str) -> dict[str, str]:
    """Every key of the broker with all that it holds."""
    client: Any = redis.Redis.from_url(url)
    read = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"stream": client.xrange,
        b"zset": lambda key: client.zrange(key, 0, -1),
        b"set": client.smembers,
        b"list": lambda key: client.lrange(key, 0, -1),
    }
    found = {}
    for key in client.scan_iter():
        kind = client.type(key)
        if kind in read:
            found[f"key {key.decode()}"] = f"{key!r} {read[kind](key)!r}"
    client.close()
    return found


def test_the_password_shows_nowhere(seen: Seen) -> None:
    assert len(seen.secret) > 20
    kinds = ("arguments of", "key heddle:", "file runs/", "file .heddle/logs/", "up", "nobody there", "wrong password")
    for kind in kinds:  # the net has been cast everywhere
        assert any(where.startswith(kind) for where in seen.texts), kind
    assert any("Traceback" in text for text in seen.texts.values())
    assert [where for where, text in seen.texts.items() if seen.secret in text] == []


def test_nothing_is_unpickled_but_snapshots_and_nothing_is_executed_but_modules(seen: Seen) -> None:
    watched = {event[0] for event in seen.events}
    assert len(watched) >= 5, "coordinator, supervisor, workers and trainer were not all watched"
    unpickled = [event for event in seen.events if event[1] in ("pickle.load", "pickle.find_class")]
    assert len({event[1] for event in unpickled}) == 2, "a worker was killed, so a snapshot must have been restored"
    assert [event for event in unpickled if "heddle/producers/snapshot.py" not in event[3]] == []
    assert [event for event in seen.events if event[1] in ("os.system", "marshal.loads", "marshal.load")] == []
    # the interpreter itself runs modules named on the command line, and typing compiles the names of types
    executed = [event[3].split(" < ")[0] for event in seen.events if event[1] in ("exec", "compile")]
    assert [where for where in executed if not where.startswith(("<frozen ", sysconfig.get_path("stdlib")))] == []
    assert [where for where in executed if "site-packages" in where] == []


def test_the_only_programs_that_are_started_are_our_own(seen: Seen) -> None:
    programs = {Path(re.findall(r"'([^']+)'", event[2])[0]) for event in seen.events if event[1] == "subprocess.Popen"}
    assert {program.name for program in programs} <= {Path(sys.executable).name, "valkey-server", "redis-server"}


@pytest.mark.parametrize(
    ("code", "event"),
    [
        ("import pickle\npickle.loads(pickle.dumps(print))", "pickle.find_class"),
        ("import pickle\npickle.loads(pickle.dumps(1))", "pickle.load"),
        ("import io, pickle\npickle.load(io.BytesIO(pickle.dumps(1)))", "pickle.load"),
        ("import io, pickle\npickle.Unpickler(io.BytesIO(pickle.dumps(1))).load()", "pickle.load"),
        ("import _pickle\n_pickle.loads(_pickle.dumps(1))", "pickle.load"),
        ("eval('1 + 1')", "compile"),
        ("exec('x = 1')", "exec"),
        ("import marshal\nmarshal.loads(marshal.dumps(1))", "marshal.loads"),
        ("import os\nos.system('true')", "os.system"),
        ("import subprocess\nsubprocess.run(['true'])", "subprocess.Popen"),
    ],
)
def test_the_witness_sees_what_is_planted(code: str, event: str, tmp_path: Path) -> None:
    audit, planted = tmp_path / "audit", tmp_path / "planted.py"
    planted.write_text(f"def run():\n    {code.replace(chr(10), chr(10) + '    ')}\n")
    env = environment(extra={"PYTHONPATH": f"{WATCH}:{tmp_path}", "HEDDLE_AUDIT_FILE": str(audit)})
    subprocess.run([sys.executable, "-c", "import planted; planted.run()"], env=env, check=True)
    seen = [line.split("\t") for line in audit.read_text().splitlines()]
    assert any(found[1] == event and "planted.py" in found[3] for found in seen)
