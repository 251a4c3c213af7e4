"""Shell completion with live names, and the forms of -o."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from heddle.broker import Broker
from heddle.broker.pools import WorkerBeat
from heddle.broker.server import LocalServer
from heddle.cli.root import cli
from heddle.clock import SystemClock
from tests.e2e.shell import environment
from tests.loops.test_cli_broker import Say, broker, say
from tests.trainer_kit import submit
from tests.unit.test_cli_mistakes import leaves
from tests.unit.test_film import checkpoint

__all__ = ["broker", "say"]


def completed(url: str, *words: str, cwd: Path) -> list[str]:
    """What bash is offered for the last of `words`."""
    env = {**environment(url), "_HEDDLE_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["heddle", *words])}
    env |= {"COMP_CWORD": str(len(words)), "HEDDLE_COMPLETION_DEADLINE": "30"}  # this machine may be busy
    done = subprocess.run(
        [sys.executable, "-m", "heddle"], env=env, cwd=cwd, text=True, capture_output=True, timeout=90
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_a_shell_is_offered_the_names_that_the_broker_has(
    broker: Broker,
    valkey_server: LocalServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,  # noqa: F811
) -> None:
    made = submit(broker)
    broker.pools.heartbeat(WorkerBeat("host-1w1-aa"))
    url = valkey_server.url
    for words in (("status", ""), ("why", "te"), ("plot", ""), ("logs", "--exp", "")):
        assert made in completed(url, *words, cwd=tmp_path), words
    assert completed(url, "repro", f"{made}/", cwd=tmp_path)[0] == f"{made}/0"
    assert completed(url, "workers", "drain", "host", cwd=tmp_path) == ["host-1w1-aa"]
    assert completed(url, "workers", "ls", "--pool", "def", cwd=tmp_path) == ["default"]
    assert completed(url, "top", "--pool", "def", cwd=tmp_path) == ["default"]
    grouped = submit(broker, experiment={"name": "seeded", "group": "sweep-1"})
    assert completed(url, "results", "sw", cwd=tmp_path) == ["sweep-1"] and grouped
    assert completed(url, "status", "nobody", cwd=tmp_path) == []
    assert "top" in completed(url, "t", cwd=tmp_path)


def test_runs_that_left_checkpoints_here_are_offered_where_one_is_played(tmp_path: Path) -> None:
    checkpoint(tmp_path / "runs")
    for command in ("record", "eval"):
        assert completed("redis://127.0.0.1:1/0", command, "fi", cwd=tmp_path) == ["film-aaaaaa"]


def test_a_broker_that_is_away_or_never_answers_has_no_names_and_holds_nobody_up(tmp_path: Path) -> None:
    assert completed("redis://127.0.0.1:1/0", "status", "", cwd=tmp_path) == []
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = SystemClock().monotonic()
        assert completed(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", "status", "", cwd=tmp_path) == []
        assert SystemClock().monotonic() - began < 60


def test_each_shell_gets_its_own_script(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    for shell, word in (("bash", "complete -o nosort"), ("zsh", "#compdef heddle"), ("fish", "complete --no-files")):
        code, out, _ = say("completion", shell)
        assert code == 0 and word in out and "_HEDDLE_COMPLETE" in out
    monkeypatch.setenv("SHELL", "/bin/zsh")
    assert "#compdef" in say("completion")[1]
    monkeypatch.setenv("SHELL", "/bin/odd")
    assert say("completion")[0] == 2


def test_every_command_that_reads_takes_every_form() -> None:
    for path, command in leaves(cli, "heddle"):
        for parameter in command.params:
            if "--output" in parameter.opts:
                plain = "lines" if path == "heddle logs" else "table"
                assert set(parameter.type.choices) == {plain, "wide", "json", "jsonl", "name"}, path  # type: ignore[attr-defined]


def test_names_are_what_other_commands_take_and_jsonl_is_an_object_a_line(say: Say, broker: Broker) -> None:  # noqa: F811
    first, second = submit(broker, experiment={"name": "a"}), submit(broker, experiment={"name": "b"})
    broker.pools.heartbeat(WorkerBeat("host-1w1-aa"))
    assert say("ls", "-o", "name")[1].split() == [second, first]
    assert say("workers", "ls", "-o", "name")[1].split() == ["host-1w1-aa"]
    assert say("shards", first, "-o", "name")[1].split()[0] == f"{first}/0"
    assert say("status", first, "-o", "name")[1].split() == [first]
    assert say("top", "-o", "name")[1].split() == [second, first]
    lines = [json.loads(line) for line in say("ls", "-o", "jsonl")[1].splitlines()]
    assert [(one["schema"], one["experiment"]) for one in lines] == [(1, second), (1, first)]
    (one,) = [json.loads(line) for line in say("status", first, "-o", "jsonl")[1].splitlines()]
    assert one["experiment"] == first


def test_wide_breaks_no_line(say: Say, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    submit(broker)
    monkeypatch.setattr("heddle.cli.tables.shutil.get_terminal_size", lambda: os.terminal_size((40, 20)))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert len(say("ls", "-o", "wide")[1].splitlines()) == 2
