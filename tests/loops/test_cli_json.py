"""What `-o json` prints is one object with a version and the names that docs/json.md has."""

import json
import re
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click
import pytest

from heddle.broker import Broker, keys
from heddle.broker.dead import DeadBatch
from heddle.broker.pools import WorkerBeat
from heddle.cli.evaluate import Score
from heddle.cli.options import SCHEMA
from heddle.cli.root import cli
from heddle.errors import Problem
from tests.loops.test_cli_broker import Say, broker, quarantined, say, spec_file
from tests.trainer_kit import submit
from tests.unit.test_cli_mistakes import leaves
from tests.unit.test_film import checkpoint

__all__ = ["broker", "say"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
ROWS = {name.strip(" `"): words for name, words in re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE, flags=re.MULTILINE)}
SILENT = {
    *("demo", "up", "init", "completion", "coordinator", "worker", "trainer", "workers start"),
    *("data to-minari", "data from-minari"),
}
"""Commands that read and order nothing: they start something, or write a file."""


def names(of: str) -> set[str]:
    """The names that the page has of a command or of what is listed."""
    words = ROWS[of].split(";")[0]
    more = names("an experiment") if words.startswith("of an experiment, and ") else set()
    return more | set(words.removeprefix("of an experiment, and ").strip().split(", "))


def told(say: Say, *words: str, code: int = 0) -> dict[str, Any]:
    """What a command prints, without the version that all have."""
    found, out, err = say(*words, "-o", "json")
    assert found == code, err
    value = json.loads(out)
    assert value.pop("schema") == SCHEMA
    return dict(value)


@pytest.fixture
def experiment(broker: Broker) -> str:  # noqa: F811 - the fixture of that name
    broker.pools.heartbeat(WorkerBeat("host-1w1-aa", host="host", pid=17, state="idle"))
    made = quarantined(broker)
    broker.events.log(made, "worker", "host-1w1-aa", "info", "a line")
    return made


def test_every_command_that_reads_takes_it_and_is_on_the_page() -> None:
    reading = {path.removeprefix("heddle ") for path, command in leaves(cli, "heddle") if takes_json(command)}
    writing = {path.removeprefix("heddle ") for path, command in leaves(cli, "heddle") if not takes_json(command)}
    assert writing == SILENT
    shown = {re.sub(r" ([A-Z]+|exp\.toml|--.*)\b.*", "", row) for row in ROWS}
    default = {"shards": "shards ls", "batches": "batches ls", "why": "why experiment"}
    missing = reading - {default.get(one, one) for one in shown} - {one for one in reading if f"`{one}`" in PAGE}
    assert missing == {"why shard", "why worker"}, "as `why EXP`"


def takes_json(command: click.Command) -> bool:
    return any(
        "--output" in parameter.opts and isinstance(parameter.type, click.Choice) and "json" in parameter.type.choices
        for parameter in command.params
    )


def test_names_at_the_top_are_those_of_the_page(say: Say, broker: Broker, experiment: str) -> None:  # noqa: F811
    spec = str(spec_file())
    here = {
        "ls": ("ls",),
        "status EXP": ("status", experiment),
        "shards EXP": ("shards", experiment),
        "shards release EXP": ("shards", "release", experiment),
        "workers ls": ("workers", "ls"),
        "batches EXP": ("batches", experiment),
        "logs": ("logs",),
        "top": ("top",),
        "why EXP": ("why", experiment),
        "profile EXP": ("profile", experiment, "--seconds", "1"),
        "trace EXP": ("trace", experiment, "--slowest"),
        "results": ("results",),
        "enqueue exp.toml": ("enqueue", spec, "--no-check"),
        "enqueue exp.toml --seeds 2": ("enqueue", spec, "--seeds", "2", "--no-check"),
        "results GROUP": ("results", "x"),
        "validate exp.toml": ("validate", spec, "--no-check"),
        "plan exp.toml": ("plan", spec, "--no-check"),
        "acl ROLE": ("acl", "worker"),
        "pause EXP": ("pause", experiment),
        "resume EXP": ("resume", experiment),
        "workers scale N": ("workers", "scale", "3"),
        "workers drain ID": ("workers", "drain", "host-1w1-aa"),
        "batches drop EXP ID": ("batches", "drop", experiment, "--all"),
        "batches replay EXP ID": ("batches", "replay", experiment, "--all"),
        "stop EXP": ("stop", experiment),
        "rm EXP": ("rm", "--force", experiment),
    }
    for row, words in here.items():
        assert set(told(say, *words)) == names(row), row
    Path(spec).write_text("[experiment]\n")
    wrong = told(say, "validate", spec, code=3)
    assert set(wrong) == {"valid", "problems"} == set(ROWS["validate exp.toml"].split(": ")[1].split(", "))
    assert set(wrong["problems"][0]) == names("a problem") == {field.name for field in fields(Problem)}


def test_who_orders_is_told_of_each_what_came_of_it(say: Say, broker: Broker, experiment: str) -> None:  # noqa: F811
    other = submit(broker, experiment={"name": "other"})
    both = told(say, "pause", experiment, other)["experiments"]
    assert [one["experiment"] for one in both] == [experiment, other]
    assert both[0]["says"] == f"{experiment} pauses; go on with: heddle resume {experiment}"
    assert told(say, "workers", "scale", "--reset") == {"pool": "default", "desired": None, "warnings": []}
    assert told(say, "workers", "scale", "3")["desired"] == 3 == broker.pools.pool().desired
    # And where one of several refuses, of the others, with the exit code of the refusal
    broker.conn.main.hset(keys.status(other), "state", "completed")
    broker.conn.main.hset(keys.ctl(other), mapping={"command": "stop", "outcome": "completed"})
    code, out, err = say("resume", experiment, other, "-o", "json")
    assert code == 8 and other in err
    assert [one["experiment"] for one in json.loads(out)["experiments"]] == [experiment]
    assert say("rm", experiment, other, "--force", "-o", "name")[1].split() == [experiment, other]
    assert not broker.experiments.ls()


def test_names_of_what_is_listed_are_those_of_the_page(say: Say, broker: Broker, experiment: str) -> None:  # noqa: F811
    broker.conn.main.hset(f"heddle:{{{experiment}.0}}:status", "state", "completed")
    for row, words, under in (
        ("an experiment", ("ls",), "experiments"),
        ("an experiment", ("wait", experiment), "experiments"),
        ("a worker", ("workers", "ls"), "workers"),
        ("a shard", ("shards", experiment), "shards"),
        ("a line", ("logs",), "lines"),
        ("a moment", ("why", experiment), "timeline"),
    ):
        (one, *_) = told(say, *words)[under]
        lacks = {"why", "do", "waits_for", "for_s"} if words[0] == "wait" else set()
        assert set(one) == names(row) - lacks, row
    code, out, _ = say("doctor", "-o", "json")
    assert code in (0, 1, 5) and set(json.loads(out)["findings"][0]) == names("a finding")
    assert names("a batch") == {field.name for field in fields(DeadBatch)}
    assert names("an evaluation") == {"checkpoint", *asdict(Score(1, 0, 0, 0, 0, 0))}


def test_a_name_is_never_blank_on_any_command_that_offers_names(
    say: Say,
    broker: Broker,  # noqa: F811
    experiment: str,
    tmp_path: Path,
) -> None:
    # Given something for every command to print that can be had without training
    spec, shard, film = str(spec_file()), f"{experiment}/0", str(checkpoint(tmp_path))
    broker.events.metrics_add(experiment, 1, {"return": 12.5, "env_steps": 64.0})
    made = say("enqueue", spec, "--seeds", "2", "--no-check", "-o", "name")[1].split()
    seat = broker.seats.claim_seat(experiment, "t-1")
    assert seat is not None and broker.policies.publish(experiment, seat, 1, b"weights", update=1) == 1
    expected: dict[str, tuple[tuple[str, ...], list[str]]] = {
        "ls": ((), [*made[::-1], experiment]),
        "status": ((experiment,), [experiment]),
        "wait": ((experiment, "--for", "queued"), [experiment]),
        "shards ls": ((experiment,), [f"{experiment}/{n}" for n in range(len(broker.shards.shards(experiment, 0)))]),
        "workers ls": ((), ["host-1w1-aa"]),
        "top": ((), [*made[::-1], experiment]),
        "why experiment": ((experiment,), [experiment]),
        "why shard": ((shard,), [shard]),
        "why worker": (("host-1w1-aa",), ["host-1w1-aa"]),
        "trace": ((experiment,), [experiment]),
        "plot": ((experiment,), [experiment]),
        "compare": ((experiment,), [experiment]),
        "results": (("x",), made),
        "plan": ((spec, "--no-check"), [*json.loads(say("plan", spec, "--no-check", "-o", "json")[1])["values"]]),
        "validate": ((spec, "--no-check"), ["x"]),
        "acl": (("worker",), ["worker"]),
        "policy pull": ((experiment, "w.safetensors"), ["w.safetensors"]),
        "policy export": ((film, "--format", "safetensors", "--to", "p.safetensors"), ["p.safetensors"]),
        "record": ((film, "--episodes", "1", "--to", "f.gif"), ["f.gif"]),
        "eval": ((film, "--episodes", "1"), [film]),
        "shards release": ((experiment,), [experiment]),
        "pause": ((experiment,), [experiment]),
        "resume": ((experiment,), [experiment]),
        "workers scale": (("3",), ["default"]),
        "workers drain": (("host-1w1-aa",), ["host-1w1-aa"]),
        "stop": ((experiment,), [experiment]),
        "rm": ((experiment, "--force"), [experiment]),
    }
    # When they are asked for names, then those come that other commands take
    for path, (words, names_there) in expected.items():
        code, out, err = say(*path.split(), *words, "-o", "name")
        assert (code, out.splitlines()) == (0, names_there), (path, err)
    for path in ("logs", "doctor"):
        lines = say(path, "-o", "name")[1].splitlines()
        assert len(lines) > 1 and all(line.strip() for line in lines) and len(set(lines)) == len(lines), path
    # And nobody offers names that is not here, but for what takes a run, a failure or a recording to have any
    elsewhere = {
        "run",
        "track",
        "enqueue",
        "repro",
        "profile",
        "record-experience",
        "data show",
        "batches ls",
        "batches show",
        "batches replay",
        "batches drop",
    }
    offering = {path.removeprefix("heddle ") for path, command in leaves(cli, "heddle") if takes_json(command)}
    assert offering == {*expected, "logs", "doctor"} | elsewhere


def test_a_worker_is_flat_with_its_pid_beside_its_id(say: Say, experiment: str) -> None:
    (worker,) = told(say, "workers", "ls")["workers"]
    assert (worker["worker"], worker["host"], worker["pid"], worker["phase"]) == ("host-1w1-aa", "host", 17, "idle")
    assert [name for name, value in worker.items() if isinstance(value, dict)] == ["outcomes", "profile"]


def test_lines_are_one_document_or_one_a_line_and_each_has_the_version(say: Say, experiment: str) -> None:
    lines = told(say, "logs")["lines"]
    each = [json.loads(line) for line in say("logs", "-o", "jsonl")[1].splitlines()]
    assert each == [{"schema": SCHEMA, **line} for line in lines] != []
    assert say("logs", "-f", "-o", "json")[0] == 2
