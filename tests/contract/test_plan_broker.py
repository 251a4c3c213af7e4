"""`plan` where a broker is known."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from heddle.broker.server import LocalServer
from heddle.cli.root import Session, cli

SPEC = """
[experiment]
name = "x"
[env]
id = "CartPole-v1"
[budget]
env_steps = 1000
[limits]
durability = "{least}"
"""


def planned(folder: Path, least: str, url: str) -> str:
    (folder / "exp.toml").write_text(SPEC.format(least=least))
    arguments = ["plan", str(folder / "exp.toml"), "--no-check", "--redis-url", url]
    done = CliRunner().invoke(cli, [*arguments, "-o", "json"], obj=Session())
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(cli, arguments, obj=Session())
    told = str(json.loads(done.stdout)["broker"])
    assert told in shown.stdout
    return told


def test_plan_says_whether_the_broker_here_keeps_what_the_spec_asks_for(
    tmp_path: Path, valkey_server: LocalServer
) -> None:
    assert planned(tmp_path, "memory", valkey_server.url).startswith("the broker is memory: ")
    assert "asks for strict, but the broker is memory" in planned(tmp_path, "strict", valkey_server.url)


def test_plan_needs_no_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no answer from" in planned(tmp_path, "fast", "redis://127.0.0.1:1/0")
