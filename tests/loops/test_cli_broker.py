"""Commands against a broker, in this process: what they say, what they refuse, and what they ask."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heddle
from heddle.broker import Broker, keys
from heddle.broker.presence import HostReport, WorkerBeat
from heddle.broker.server import LocalServer
from heddle.cli.main import run
from heddle.client import Client
from heddle.errors import BrokerUnreachable, Conflict, NotFound
from heddle.launch.children import Ending
from heddle.launch.giving_up import Repeats, has_given_up
from heddle.launch.trainers import _is_seated
from tests.broker_kit import claim_next
from tests.fixtures import on_valkey
from tests.trainer_kit import submit
from tests.unit.test_local_runs import left

SPEC: dict[str, Any] = {"experiment": {"name": "on"}, "env": {"id": "CartPole-v1"}, "budget": {"env_steps": 1_000}}
Say = Callable[..., tuple[int, str, str]]

broker = on_valkey


@pytest.fixture
def client(broker: Broker, valkey_server: LocalServer) -> Client:
    return Client(broker, valkey_server.url)


@pytest.fixture
def say(
    valkey_server: LocalServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Say:
    """Runs a command; exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEDDLE_REDIS_URL", valkey_server.url)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def ended(broker: Broker, *, steps: int, checkpoint: str) -> str:
    """An experiment that is over, with what its trainer left."""
    experiment = submit(broker)
    result = json.dumps({"env_steps": steps, "wall_s": 12.0, "checkpoint": checkpoint})
    broker.conn.main.hset(keys.status(experiment), mapping={"state": "completed", "result": result})
    broker.conn.main.hset(keys.ctl(experiment), "command", "stop")
    return experiment


# ---- going on


def test_a_run_whose_budget_is_used_is_not_continued_with_the_same_one(client: Client, broker: Broker) -> None:
    before = ended(broker, steps=1_024, checkpoint="runs/x/checkpoints/a.safetensors")
    with pytest.raises(Conflict, match=r"used env_steps 1000 already.*--set budget.env_steps=2048"):
        client.submit(SPEC, resume=before)
    assert client.submit(SPEC, resume=before, overrides=["budget.env_steps=2048"]).created


def test_a_run_without_a_checkpoint_is_not_continued(
    client: Client, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    never = submit(broker)
    for before in (ended(broker, steps=0, checkpoint=""), never):
        with pytest.raises(NotFound, match=f"{before} left no checkpoint.*without --resume"):
            client.submit(SPEC, resume=before)
    left(tmp_path / "runs", never, env_steps=0)
    assert client.submit(SPEC, resume=never).created, "its checkpoints are here, whatever the broker knows"


def test_a_run_that_only_its_folder_remembers_is_continued_by_id_or_name_and_not_beyond_its_budget(
    client: Client, tmp_path: Path
) -> None:
    left(tmp_path / "elsewhere", "on-aaaaaa", env_steps=1_024)
    with pytest.raises(Conflict, match=r"on-aaaaaa has used env_steps 1000 already.*budget.env_steps=2048"):
        client.submit(SPEC, resume="on", directory=tmp_path / "elsewhere")
    made = client.submit(SPEC, resume="on", overrides=["budget.env_steps=2048"], directory=tmp_path / "elsewhere")
    assert made.status().resume_from == "on-aaaaaa"


def test_a_run_that_is_nowhere_is_refused_with_what_there_is_at_both_places(
    client: Client, broker: Broker, tmp_path: Path
) -> None:
    with pytest.raises(NotFound, match=r"no run 'nosuch' to resume: .*/runs/ has no run.*, the broker knows none$"):
        client.submit(SPEC, resume="nosuch", directory=tmp_path / "runs")
    left(tmp_path / "runs", "here-aaaaaa")
    there = submit(broker)
    with pytest.raises(NotFound, match=rf"/runs/ has here-aaaaaa, the broker knows {there}$"):
        client.submit(SPEC, resume="nosuch", directory=tmp_path / "runs")


def test_an_empty_broker_is_said_to_be_empty_and_when_it_began_where_it_keeps_nothing(say: Say) -> None:
    code, _, err = say("status", "nosuch")
    assert code == 4 and "submit one with: heddle enqueue exp.toml" in err
    why = "this broker has none (durability memory: all is lost when it ends, and it started "
    assert why in err
    code, out, _ = say("ls")
    assert code == 0 and out.startswith(f"no experiments: {why}")


def test_a_database_that_is_not_there_is_told_in_the_form_of_the_url_that_was_given(
    say: Say, valkey_server: LocalServer
) -> None:
    assert valkey_server.url.startswith("unix://")
    code, _, err = say("ls", "--redis-url", f"{valkey_server.url}?db=99")
    assert code == 2 and err.endswith("write unix:///PATH?db=0\n")


def test_an_experiment_is_named_by_position(say: Say, broker: Broker) -> None:
    one, other = submit(broker), say("enqueue", str(spec_file()), "--no-check", "--name", "other")[1].strip()
    for experiment in (one, other):
        broker.events.log(experiment, "trainer", "t1", "info", f"about {experiment}")
    for words in ((one,), ("--exp", one), (one, "--exp", one)):
        code, out, _ = say("logs", *words)
        assert code == 0 and f"about {one}" in out and f"about {other}" not in out
    assert say("why", one)[1].startswith(f"experiment {one} is")
    assert say("why", f"{one}/99")[0] == 4
    assert say("batches", one)[:2] == (0, "no batch was set aside\n")


def spec_file() -> Path:
    path = Path("exp.toml")
    path.write_text('[experiment]\nname = "x"\n[env]\nid = "CartPole-v1"\n[budget]\nenv_steps = 1000\n')
    return path


def test_the_way_on_from_a_run_that_is_over_can_be_typed(say: Say, broker: Broker) -> None:
    over = ended(broker, steps=10, checkpoint="x")
    code, _, err = say("resume", over)
    assert (code, f"heddle enqueue --resume {over}" in err) == (8, True)
    code, out, _ = say("stop", over)
    assert code == 0 and f"{over} is completed already" in out and f"heddle enqueue --resume {over}" in out
    active = submit(broker)
    assert "stops" in say("stop", active)[1]
    assert "is stopping already" in say("stop", active)[1]
    assert "cannot be undone" in say("resume", active)[2]


def test_one_command_goes_to_every_experiment_that_is_named(say: Say, broker: Broker) -> None:
    over = ended(broker, steps=10, checkpoint="x")
    one, other = submit(broker), say("enqueue", str(spec_file()), "--no-check", "--name", "other")[1].strip()
    for command, heard in (("pause", "pause"), ("resume", "run"), ("stop", "stop")):
        code, out, _ = say(command, one, other, "other")
        assert (code, [line.split()[0] for line in out.splitlines()]) == (0, [one, other])
        assert {broker.experiments.ctl(each).command for each in (one, other)} == {heard}
        code, out, err = say(command, "nobody", one)
        assert (code, out, "no experiment 'nobody'" in err) == (4, "", True)
    code, out, err = say("pause", over, over)
    assert (code, out, err.count(over) >= 1) == (8, "", True)
    for each in (one, other):
        broker.conn.main.hset(keys.status(each), "state", "stopped")
    assert say("wait", one, other)[:2] == (0, f"{one} is stopped\n{other} is stopped\n")
    assert say("wait", one, "nobody")[0] == 4


def test_what_one_experiment_refuses_does_not_keep_the_command_from_the_others(say: Say, broker: Broker) -> None:
    over, active = ended(broker, steps=10, checkpoint="x"), submit(broker)
    code, out, err = say("pause", over, active)
    assert (code, "pauses" in out, over in err) == (8, True, True)
    assert broker.experiments.ctl(active).command == "pause"


# ---- removing


def test_rm_of_what_is_over_does_not_ask(say: Say, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: pytest.fail("it asked"))
    for terminal in (True, False):
        monkeypatch.setattr("sys.stdin.isatty", lambda terminal=terminal: terminal, raising=False)
        over = ended(broker, steps=10, checkpoint="x")
        assert say("rm", over)[:2] == (0, f"removed {over}\n")


def test_rm_of_what_is_active_asks_on_a_terminal(say: Say, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    active, over = submit(broker, experiment={"name": "active"}), ended(broker, steps=10, checkpoint="x")
    broker.conn.main.hset(keys.status(active), "state", "running")
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "n")
    code, out, err = say("rm", over, active)
    assert code == 130 and out == "" and f"{active} is running: what it does now is lost" in err and over not in err
    assert [broker.experiments.status(one).state for one in (over, active)] == ["completed", "running"]
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "y")
    assert say("rm", over, active)[:2] == (0, f"removed {over}\nremoved {active}\n")


def test_rm_of_what_is_active_is_refused_without_a_terminal_unless_told(
    say: Say, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    for option in ("--yes", "-y", "--force"):
        active, over = submit(broker, experiment={"name": "active"}), ended(broker, steps=10, checkpoint="x")
        broker.conn.main.hset(keys.status(active), "state", "running")
        code, out, err = say("rm", over, active)
        assert (code, out, err.count("\n")) == (8, "", 1)
        assert f"{active} is running: end it first (heddle stop {active}), or remove it as it is with --force" in err
        assert broker.experiments.status(over).state == "completed", "nothing was removed"
        assert say("rm", option, over, active)[0] == 0


# ---- quarantine


def quarantined(broker: Broker) -> str:
    experiment = submit(broker)
    for number in range(5):
        lease = claim_next(broker, f"w{number}").lease
        while lease.shard != 0:
            lease = claim_next(broker, f"w{number}").lease
        broker.shards.release(lease, error="the arm fell off", barren=True)
    assert broker.shards.shards(experiment, 0)[0].state == "quarantined"
    return experiment


def test_a_quarantined_shard_is_released_by_number_or_with_all_of_its_experiment(say: Say, broker: Broker) -> None:
    experiment = quarantined(broker)
    code, out, _ = say("shards", experiment)
    assert code == 0 and "quarantined" in out and f"heddle shards release {experiment}/0" in out
    code, out, _ = say("shards", "release", f"{experiment}/0", "-o", "json")
    assert (code, json.loads(out)) == (0, {"schema": 1, "experiment": experiment, "released": [0]})
    code, _, err = say("shards", "release", f"{experiment}/0")
    assert code == 8 and "not quarantined, it is queued" in err
    code, _, err = say("shards", "release", experiment)
    assert code == 8 and f"no shard of {experiment} is quarantined" in err
    broker.conn.main.hset(keys.shard(experiment, 0, 1), "state", "quarantined")
    assert say("shards", "release", experiment)[:2] == (
        0,
        f"released shard 1 of {experiment}; see it with: heddle shards {experiment}\n",
    )
    assert say("shards", "release", f"{experiment}/99")[0] == 4
    assert say("shards", "release", f"{experiment}/x")[0] == 2
    assert say("shards", "-o", "json", experiment)[0] == 0


def test_why_is_asked_of_experiment_shard_and_worker(say: Say, broker: Broker) -> None:
    experiment = quarantined(broker)
    code, out, _ = say("why", "shard", f"{experiment}/0")
    assert code == 0 and "the arm fell off" in out and "what happened" in out
    code, out, _ = say("why", "experiment", experiment, "-o", "json")
    told = json.loads(out)
    assert code == 0 and told["state"] == "queued" and told["timeline"][0]["what"] == "submitted"
    assert say("why", "shard", experiment)[0] == 2
    assert say("why", "worker", "nobody")[0] == 4
    assert say("why", "experiment", "nobody")[0] == 4


# ---- small words


def test_a_negative_size_is_called_a_number_that_is_too_low(say: Say) -> None:
    code, _, err = say("workers", "scale", "-1")
    assert code == 2 and "-1 is not in the range" in err
    assert say("workers", "scale", "--nonsense")[0] == 2


def test_more_workers_than_there_are_cores_are_obeyed_with_a_word(say: Say, broker: Broker) -> None:
    pools = broker.pools
    assert "no supervisor is here" in say("workers", "scale", "3")[2]
    pools.supervisor_beat("default", "s1", 1, host=HostReport("box", 4))
    code, out, err = say("workers", "scale", "200")
    assert code == 0 and "shall have 200 workers" in out
    assert "warning: host box has 4 cores for 200 workers, 50.0 times as many" in err
    assert pools.pool("default").desired == 200
    assert say("workers", "scale", "4")[2] == ""
    assert say("workers", "scale", "--reset")[2] == ""


def test_the_living_workers_are_listed_before_the_dead_who_keep_host_and_pid(say: Say, broker: Broker) -> None:
    for worker in ("w1", "w2", "w3"):
        broker.pools.heartbeat(WorkerBeat(worker, host="box", pid=int(worker[1:]), supervisor="s1"))
    broker.pools.bury("w1", "it ended with signal SIGKILL")
    listed = json.loads(say("workers", "ls", "-o", "json")[1])["workers"]
    assert [one["worker"] for one in listed] == ["w2", "w3", "w1"]
    assert (listed[-1]["host"], listed[-1]["pid"]) == ("box", 1)
    assert (listed[-1]["supervisor"], listed[-1]["do"]) == ("s1", "its supervisor is gone as well")
    broker.pools.supervisor_beat("default", "s1", 3)
    out = say("workers", "ls")[1]
    assert "its supervisor keeps the pool at its size" in " ".join(out.split())


def test_python_is_told_of_python_and_the_command_line_of_its_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEDDLE_REDIS_URL", raising=False)
    with pytest.raises(BrokerUnreachable, match="pass url=") as caught:
        heddle.connect()
    assert "--redis-url" not in str(caught.value)
    assert run(["ls"]) == 5
    assert "--redis-url URL" in capsys.readouterr().err


def test_a_wait_that_is_over_tells_the_state_and_not_that_the_broker_is_away(say: Say, broker: Broker) -> None:
    active = submit(broker)
    for timeout in ("0s", "0.2s"):
        code, _, err = say("wait", active, "--timeout", timeout)
        assert code == 7 and f"{active} is queued, not over" in err


# ---- which experiment is meant


def test_a_name_of_several_runs_is_not_removed_by_guess(say: Say, client: Client, broker: Broker) -> None:
    first = client.submit(SPEC).id
    client.experiment(first).stop()
    broker.conn.main.hset(keys.status(first), "state", "stopped")
    second = client.submit(SPEC).id
    broker.conn.main.hset(keys.status(second), "state", "stopped")
    assert first != second
    code, _, err = say("rm", "--yes", "on")
    assert code == 8 and first in err and second in err
    assert {first, second} <= {one.experiment for one in client.experiments()}
    assert say("rm", "--yes", first)[0] == 0
    assert say("rm", "--yes", "on")[1].strip() == f"removed {second}"


def test_status_without_a_name_is_of_the_only_active_one_and_asks_where_there_are_several(
    say: Say, client: Client
) -> None:
    code, _, err = say("status")
    assert code == 4 and "heddle enqueue exp.toml" in err
    only = client.submit(SPEC).id
    assert only in say("status")[1]
    other = client.submit({**SPEC, "experiment": {"name": "other"}}).id
    code, _, err = say("status")
    assert code == 2 and only in err and other in err


def test_a_run_is_continued_by_its_id_alone_with_its_own_spec_changed_where_asked(say: Say, broker: Broker) -> None:
    before = ended(broker, steps=1_000, checkpoint="runs/x/checkpoints/a.safetensors")
    code, out, err = say("enqueue", "--no-check", "--resume", before, "--set", "budget.env_steps=5_000")
    assert code == 0, err
    spec = json.loads(broker.experiments.spec(out.strip()).json)
    assert (
        spec["budget"]["env_steps"] == 5_000 and spec["env"] == json.loads(broker.experiments.spec(before).json)["env"]
    )
    code, _, err = say("enqueue")
    assert code == 2 and "heddle enqueue exp.toml" in err


@pytest.mark.parametrize("key", [keys.ctl, keys.status, keys.seat, keys.spec, "waiting", "flow", "queued", "due"])
def test_an_experiment_whose_keys_somebody_damaged_hides_no_other(
    broker: Broker, say: Say, key: str | Callable[[str], str]
) -> None:
    # Given two experiments, and something else in the place of a key of the first
    hurt, sound = (submit(broker, experiment={"name": name}) for name in ("hurt", "sound"))
    name = getattr(keys, key)(hurt, 0) if isinstance(key, str) else key(hurt)
    broker.conn.main.delete(name)
    broker.conn.main.set(name, "x")
    # Then the list has the second one, the first is told in one line, and goes by `rm`
    code, out, err = say("ls")
    assert (code, err) == (0, "")
    assert sound in out
    code, out, err = say("status", hurt)
    assert "unexpected" not in err and err.count("\n") <= 1
    assert say("rm", "--yes", hurt)[0] in (0, 1, 4)
    assert not has_given_up(broker, hurt, "host", Path("runs"), Repeats(), Ending("trainer", 1, "why"))
    assert isinstance(_is_seated(broker, hurt), bool)


@pytest.mark.parametrize(("checkpoint", "said"), [("runs/a", "--resume"), ("", "it left no checkpoint")])
def test_stop_names_only_a_checkpoint_that_there_is(broker: Broker, say: Say, checkpoint: str, said: str) -> None:
    experiment = ended(broker, steps=10, checkpoint=checkpoint)
    code, out, err = say("stop", experiment)
    assert (code, err) == (0, "")
    assert said in out
