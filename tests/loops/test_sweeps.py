"""Sweeps against a broker: submitted once, found by their group, commanded together, shared fairly, compared."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.broker import Broker, keys
from heddle.broker.server import LocalServer
from heddle.cli.main import run
from tests.fixtures import on_valkey

SPEC = """
[experiment]
name = "pole"
seed = 1
[env]
id = "CartPole-v1"
num_envs = 2
envs_per_shard = 1
[budget]
env_steps = 1000
"""
SWEEP = ("enqueue", "exp.toml", "--sweep", "trainer.lr=1e-3,3e-4", "--seeds", "2", "--no-check")
Say = Callable[..., tuple[int, str, str]]

broker = on_valkey


@pytest.fixture
def say(
    valkey_server: LocalServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Say:
    """Runs a command; exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEDDLE_REDIS_URL", valkey_server.url)
    (tmp_path / "exp.toml").write_text(SPEC)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def end(broker: Broker, experiment: str, **result: float) -> None:
    broker.conn.main.hset(
        keys.status(experiment), mapping={"state": "completed", "result": json.dumps({"env_steps": 1_000, **result})}
    )


def test_the_same_sweep_while_it_is_active_gives_the_same_experiments(say: Say) -> None:
    first = say(*SWEEP)
    assert first[0] == 0 and len(first[1].split()) == 4
    again = say(*SWEEP)
    assert again[1] == first[1] and "0 submitted, 4 active already" in again[2]
    told = json.loads(say(*SWEEP, "-o", "json")[1])
    assert told["group"] == "pole"
    assert [one["experiment"] for one in told["experiments"]] == first[1].split()
    assert told["experiments"][3]["values"] == {"trainer.lr": "3e-4"} and told["experiments"][3]["seed"] == 2


def test_each_sweep_has_a_default_group_of_its_own(say: Say, broker: Broker) -> None:
    # Given a sweep that is over
    first = say(*SWEEP)[1].split()
    for experiment in first:
        end(broker, experiment, **{"return": 1.0})
    # When the same file is swept again, the same way and another way
    second = json.loads(say(*SWEEP, "-o", "json")[1])
    other = json.loads(say("enqueue", "exp.toml", "--sweep", "trainer.gamma=0.9,0.99", "--no-check", "-o", "json")[1])
    # Then nobody's results hold those of another
    assert [second["group"], other["group"]] == ["pole-2", "pole-3"]
    for group, count in (("pole", 4), ("pole-2", 4), ("pole-3", 2)):
        rows = json.loads(say("results", group, "-o", "json")[1])["results"]
        assert sum(len(row["experiments"]) for row in rows) == count
    assert json.loads(say("results", "pole", "-o", "json")[1])["results"][0]["mean"] == 1.0
    # And what is active already is found in the group it is in
    assert json.loads(say(*SWEEP, "-o", "json")[1]) == {
        **second,
        "experiments": [{**one, "created": False} for one in second["experiments"]],
    }
    # And the groups are listed, the newest first
    assert [line.split()[0] for line in say("results")[1].splitlines()] == ["GROUP", "pole-3", "pole-2", "pole"]
    assert [one["group"] for one in json.loads(say("results", "-o", "json")[1])["groups"]] == [
        "pole-3",
        "pole-2",
        "pole",
    ]


def test_a_sweep_that_was_cut_short_goes_on_in_its_group(say: Say, broker: Broker) -> None:
    first = say(*SWEEP)[1].split()
    end(broker, first[0])
    again = say(*SWEEP)
    assert again[0] == 0 and "group pole: 1 submitted, 3 active already" in again[2]


def test_a_group_that_is_named_is_taken_as_it_is(say: Say, broker: Broker) -> None:
    for experiment in say(*SWEEP, "--group", "lr")[1].split():
        end(broker, experiment)
    assert "group lr: 4 submitted" in say(*SWEEP, "--group", "lr")[2]
    Path("exp.toml").write_text(SPEC.replace("seed = 1", 'seed = 1\ngroup = "mine"'))
    for _ in range(2):
        told = json.loads(say("enqueue", "exp.toml", "--name", "other", "--seeds", "2", "--no-check", "-o", "json")[1])
        assert told["group"] == "mine"
        for one in told["experiments"]:
            end(broker, one["experiment"])


def test_nothing_of_a_sweep_is_submitted_when_one_of_its_names_is_taken(say: Say, broker: Broker) -> None:
    taken = say("enqueue", "exp.toml", "--name", "pole-lr-3e-4-s2", "--no-check")[1].strip()
    code, _, err = say(*SWEEP)
    assert code == 8 and taken in err
    assert [status.experiment for status in broker.experiments.ls()] == [taken]


def test_nothing_of_a_sweep_is_submitted_when_one_combination_is_wrong(say: Say, broker: Broker) -> None:
    code, _, err = say("enqueue", "exp.toml", "--sweep", "trainer.gamma=0.9,7", "--no-check")
    assert code == 3 and "trainer.gamma=7, seed 1" in err
    assert broker.experiments.ls() == []


def test_a_group_is_listed_paused_resumed_stopped_and_removed_as_one(say: Say, broker: Broker) -> None:
    ids = say(*SWEEP, "--group", "lr")[1].split()
    other = say("enqueue", "exp.toml", "--no-check")[1].strip()
    listed = json.loads(say("ls", "--group", "lr", "-o", "json")[1])["experiments"]
    assert sorted(one["experiment"] for one in listed) == sorted(ids)
    assert len(json.loads(say("ls", "--tag", "trainer.lr=1e-3", "-o", "json")[1])["experiments"]) == 2
    for command, state in (("pause", "pause"), ("resume", "run"), ("stop", "stop")):
        code, out, _ = say(command, "--group", "lr")
        assert code == 0 and [line.split()[0] for line in out.splitlines()] == ids
        assert {broker.experiments.ctl(one).command for one in ids} == {state}
    assert broker.experiments.ctl(other).command == "run"
    for one in ids:
        end(broker, one)
    assert "over, or told to stop, already" in say("stop", "--group", "lr")[1]
    assert say("wait", "--group", "lr")[0] == 0
    assert len(say("rm", "--yes", "--group", "lr")[1].splitlines()) == 4
    assert [status.experiment for status in broker.experiments.ls()] == [other]


def test_a_group_that_is_unknown_and_commands_without_a_subject_are_refused(say: Say) -> None:
    say(*SWEEP)
    code, _, err = say("stop", "--group", "pol")
    assert code == 4 and "there are: pole" in err
    assert say("stop")[0] == 2
    assert say("stop", "x", "--group", "pole")[0] == 2
    assert say(*SWEEP, "--follow")[0] == 2


def test_results_are_a_table_with_mean_and_interval_over_the_seeds(say: Say, broker: Broker) -> None:
    ids = say(*SWEEP)[1].split()
    for experiment, score in zip(ids, (100.0, 200.0, 10.0, 20.0), strict=True):
        end(broker, experiment, **{"return": score})
    told = json.loads(say("results", "pole", "-o", "json")[1])
    assert told["metric"] == "return"
    first, second = told["results"]
    assert (first["values"], first["mean"], first["scores"]) == ({"trainer.lr": "1e-3"}, 150.0, [100.0, 200.0])
    assert (second["mean"], second["done"], second["seeds"]) == (15.0, 2, [1, 2])
    # Student's t with one degree of freedom: 12.706 * sd / sqrt(2), sd = 70.7107
    assert (first["low"], first["high"]) == pytest.approx((150 - 635.3, 150 + 635.3), abs=0.1)
    out = say("results", "pole")[1]
    assert "COMBINATION" in out and "trainer.lr=3e-4" in out and "2/2" in out and "15.00" in out
    assert say("results", "pole", "--metric", "nothing")[0] == 4


def test_waiting_for_a_group_tells_the_first_failure_once_all_are_over(say: Say, broker: Broker) -> None:
    ids = say(*SWEEP)[1].split()
    for experiment in ids[1:]:
        end(broker, experiment)
    broker.conn.main.hset(keys.status(ids[0]), mapping={"state": "failed", "reason": "broke"})
    code, _, err = say("wait", "--group", "pole")
    assert code == 1 and f"{ids[0]} failed: broke" in err
    assert say("wait", "--group", "pole", "--for", "running", "--timeout", "0")[0] == 1
