"""The recorder on a broker: each step once whatever kills it, what it missed is counted, and how it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from heddle.broker import Broker, keys
from heddle.broker.server import LocalServer
from heddle.cli.main import run
from heddle.cli.progress import CLEAR
from heddle.clock import SystemClock
from heddle.consumers.data.store import MANIFEST, Manifest, read_manifest
from tests.fixtures import on_valkey
from tests.helpers import eventually
from tests.trainer_kit import STEPS, Fleet, submit
from tests.unit.test_progress_line import on_a_terminal

WIDE: dict[str, Any] = {"rollout": {"sync": False, "max_policy_lag": 4}, "limits": {"max_entries": 1_000}}
"""Nobody trains, so everything stays in the stream."""

broker = on_valkey


def start(url: str, experiment: str, folder: Path, *options: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "heddle", "record-experience", experiment, "--to", str(folder), *options]
    return subprocess.Popen(argv, env={**os.environ, "HEDDLE_REDIS_URL": url}, stderr=subprocess.PIPE)


def manifest(folder: Path) -> Manifest | None:
    return read_manifest(folder) if (folder / MANIFEST).exists() else None


def counted(folder: Path) -> dict[tuple[int, int, int], int]:
    """Recorded steps of each (shard, seq, env), as the fleet wrote them into its observations."""
    found: dict[tuple[int, int, int], int] = {}
    for path in sorted((folder / "data").glob("*.parquet")):
        table = pq.read_table(path, partitioning=None)
        for obs, env in zip(table["obs"].to_pylist(), table["env"].to_pylist(), strict=True):
            key = (int(obs[0]), int(obs[1]), env)
            found[key] = found.get(key, 0) + 1
    return found


def expected(fleet: Fleet) -> dict[tuple[int, int, int], int]:
    return {(shard, seq, env): STEPS for shard, seq in fleet.gave for env in (0, 1)}


def end(broker: Broker, experiment: str) -> None:
    broker.conn.main.hset(keys.status(experiment), "state", "completed")


def test_each_step_is_recorded_once_although_the_recorder_is_killed_again_and_again(
    broker: Broker, valkey_server: LocalServer, tmp_path: Path
) -> None:
    experiment = submit(broker, **WIDE)
    fleet, folder, clock = Fleet(broker, experiment).claim_all(), tmp_path / "to", SystemClock()
    for turn in range(int(os.environ.get("HEDDLE_SOAK", "0")) * 10 or 2):
        process = start(valkey_server.url, experiment, folder)
        before = found.commits if (found := manifest(folder)) else 0
        for number in range(12):
            for shard in fleet.claims:
                fleet.give(shard, 1, returns=(1.0,) if number % 3 == 0 else ())
            clock.sleep(0.02)
        eventually(lambda: (now := manifest(folder)) and now.commits > before, timeout_s=30, what="a commit")  # noqa: B023
        clock.sleep(0.1 * turn)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
    end(broker, experiment)
    last = start(valkey_server.url, experiment, folder)
    assert last.wait(60) == 0, last.stderr and last.stderr.read()
    told = manifest(folder)
    assert told is not None and told.done and told.state.missed == 0
    assert counted(folder) == expected(fleet)
    assert list((folder / "open").iterdir()) == []
    assert f"tap-{told.tap}" not in [
        group["name"].decode() for group in broker.conn.main.xinfo_groups(keys.experience(experiment, 0))
    ]


def test_a_batch_that_is_recorded_and_then_replayed_is_recorded_once_and_one_that_never_came_is_recorded_then(
    broker: Broker, valkey_server: LocalServer, tmp_path: Path
) -> None:
    # Given a batch that the trainer set aside before anybody recorded, and one that is recorded
    experiment = submit(broker, **WIDE)
    fleet, folder = Fleet(broker, experiment).claim_all(), tmp_path / "to"
    epoch = broker.seats.claim_seat(experiment, "t", ttl_ms=60_000)
    assert epoch is not None

    def set_aside() -> None:
        (pointer,) = broker.experience.read(experiment, 0, keys.TRAINER_GROUP, "t", count=9, block_ms=0)
        assert broker.experience.set_aside(experiment, 0, epoch, pointer, "the code had a fault")

    fleet.give(0, 1)
    set_aside()
    process = start(valkey_server.url, experiment, folder)
    eventually(lambda: manifest(folder), timeout_s=30, what="the recorder is here")
    fleet.give(0, 1)
    eventually(lambda: (now := manifest(folder)) and now.state.seq(0) == 2, timeout_s=30, what="it is recorded")
    set_aside()
    # When both are offered to the trainer again, and one of them twice, with the recorder killed in between
    for batch in broker.dead.ls(experiment):
        broker.dead.replay(experiment, batch)
    eventually(lambda: (now := manifest(folder)) and now.state.repeated == 1, timeout_s=30, what="one is a repeat")
    process.kill()
    process.wait()
    pointers = broker.experience.read(experiment, 0, keys.TRAINER_GROUP, "t", count=9, block_ms=0)
    for pointer in pointers:
        broker.experience.set_aside(experiment, 0, epoch, pointer, "it has another")
    for batch in broker.dead.ls(experiment):
        broker.dead.replay(experiment, batch)
    end(broker, experiment)
    last = start(valkey_server.url, experiment, folder)
    assert last.wait(60) == 0, last.stderr and last.stderr.read()
    # Then each step is recorded once
    told = manifest(folder)
    assert told is not None and told.done
    assert (len(pointers), told.state.repeated) == (2, 3)
    assert counted(folder) == expected(fleet)


@pytest.fixture
def say(valkey_server: LocalServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("HEDDLE_REDIS_URL", valkey_server.url)

    def call(*arguments: str) -> tuple[int, dict[str, Any], str]:
        code = run([*arguments, "-o", "json"])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else {}, err

    return call


def test_what_the_trainer_settled_before_the_recorder_came_is_missed_counted_and_told(
    broker: Broker, tmp_path: Path, say: Any
) -> None:
    experiment = submit(broker)
    fleet = Fleet(broker, experiment).claim_all()
    folder = str(tmp_path / "to")
    for shard in fleet.claims:
        fleet.give(shard, 1)
    assert say("record-experience", experiment, "--to", folder, "--no-follow")[1]["missed"] == 0
    other = str(tmp_path / "late")
    page: Any = broker.conn.main.xrange(keys.experience(experiment, 0))
    for entry, fields in page:
        if fields[b"shard"] == b"0":
            broker.conn.main.xdel(keys.experience(experiment, 0), entry)
    for shard in fleet.claims:
        fleet.give(shard, 2)
    code, told, err = say("record-experience", experiment, "--to", other, "--no-follow")
    assert (code, told["missed"]) == (0, 1) and "begin to record before the run" in err
    assert set(counted(tmp_path / "late")) == {key for key in expected(fleet) if key[:2] != (0, 1)}


def test_a_terminal_is_told_how_far_recording_is_and_what_was_missed_stands_alone(
    broker: Broker, valkey_server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an experiment whose first batch the trainer was done with
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEDDLE_REDIS_URL", valkey_server.url)
    experiment = submit(broker, **WIDE)
    fleet = Fleet(broker, experiment).claim_all()
    for shard in fleet.claims:
        fleet.give(shard, 1)
    page: Any = broker.conn.main.xrange(keys.experience(experiment, 0), count=1)
    broker.conn.main.xdel(keys.experience(experiment, 0), page[0][0])
    for shard in fleet.claims:
        fleet.give(shard, 2)
    # When somebody records it at a terminal until it is over
    terminal = on_a_terminal(monkeypatch)
    line = r"recording into to: \d+ whole episodes, [\d,]+ steps, "

    def end_it() -> None:
        eventually(lambda: re.search(line, terminal.getvalue()), timeout_s=60)
        end(broker, experiment)

    ending = threading.Thread(target=end_it)
    ending.start()
    assert run(["record-experience", experiment, "--to", "to"]) == 0
    ending.join()
    # Then a line said how far it is, and is gone; what was missed was said in a line of its own
    said = terminal.getvalue()
    assert re.search(line, said) and said.endswith(CLEAR)
    assert re.search(r"(^|\n|\x1b\[K)the trainer was done with batches", said)


def test_batches_that_never_came_before_the_end_are_missed_too(broker: Broker, tmp_path: Path, say: Any) -> None:
    experiment = submit(broker)
    fleet = Fleet(broker, experiment).claim_all()
    for shard in fleet.claims:
        fleet.give(shard, 1)
    broker.conn.main.xtrim(keys.experience(experiment, 0), maxlen=0, approximate=False)
    end(broker, experiment)
    code, told, _ = say("record-experience", experiment, "--to", str(tmp_path / "to"))
    assert (code, told["missed"], told["steps"]) == (0, len(fleet.claims), 0)


def test_recording_ends_at_so_many_episodes_or_bytes_and_stays_ended(broker: Broker, tmp_path: Path, say: Any) -> None:
    experiment = submit(broker, **WIDE)
    fleet = Fleet(broker, experiment).claim_all()
    for _ in range(10):
        fleet.give(0, 1, returns=(1.0, 2.0))
    folder = str(tmp_path / "to")
    code, told, _ = say("record-experience", experiment, "--to", folder, "--episodes", "5")
    assert code == 0 and told["episodes"] >= 5 and told["done"]
    again = say("record-experience", experiment, "--to", folder)[1]
    assert again == told
    small = say("record-experience", experiment, "--to", str(tmp_path / "small"), "--max-bytes", "1KiB")[1]
    assert small["done"] and small["bytes"] >= 1024


def test_a_folder_of_another_experiment_and_an_unknown_experiment_are_refused(
    broker: Broker, tmp_path: Path, say: Any
) -> None:
    one, other = submit(broker, experiment={"name": "one"}), submit(broker, experiment={"name": "other"})
    folder = str(tmp_path / "to")
    assert say("record-experience", one, "--to", folder, "--no-follow")[0] == 0
    code, _, err = say("record-experience", other, "--to", folder)
    assert code == 8 and f"holds experience of {one}, not of {other}" in err
    assert say("record-experience", "nobody", "--to", folder)[0] == 4
    assert say("record-experience", one, "--to", folder, "--max-bytes", "lots")[0] == 2


def test_a_worker_that_died_leaves_a_cut_episode_of_its_own_epoch(broker: Broker, tmp_path: Path, say: Any) -> None:
    experiment = submit(broker, **WIDE)
    fleet = Fleet(broker, experiment).claim_all()
    fleet.give(0, 1)
    fleet.release_all()
    heir = Fleet(broker, experiment, worker="heir").claim_all()
    heir.give(0, 1, returns=(1.0,))
    assert say("record-experience", experiment, "--to", str(tmp_path / "to"), "--no-follow")[0] == 0
    table = pq.read_table(tmp_path / "to" / "data")
    ends = [(row["env"], row["end"]) for row in table.select(["env", "end"]).to_pylist() if row["end"]]
    assert sorted(ends) == [(0, "cut"), (0, "cut"), (0, "terminated"), (1, "cut"), (1, "cut")]
    assert len(set(table["epoch"].to_pylist())) == 2
    provenance = json.loads(table.schema.metadata[b"heddle"])
    assert (provenance["experiment"], provenance["env"]) == (experiment, "CartPole-v1")
    assert provenance["spec"]["rollout"]["steps"] == STEPS
