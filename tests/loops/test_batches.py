"""Dead batches by hand: look at them, keep their bytes, throw them away, and have them trained after all, once."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.batch import encode
from heddle.broker import Broker, keys
from heddle.broker.server import LocalServer
from heddle.cli.main import run
from heddle.consumers.marks import Mark
from tests.fixtures import on_valkey
from tests.helpers import eventually
from tests.loops.desk import Desk
from tests.trainer_kit import Fleet, InThread, saved, seen_in, submit

Heddle = Callable[..., str]

broker = on_valkey


@pytest.fixture
def heddle(valkey_server: LocalServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Heddle:
    """Runs a command; what it printed."""
    monkeypatch.setenv("HEDDLE_REDIS_URL", valkey_server.url)

    def call(*argv: str, code: int = 0) -> str:
        capsys.readouterr()
        assert run(argv) == code, capsys.readouterr()
        done = capsys.readouterr()
        assert "Traceback" not in done.err
        return done.out + done.err

    return call


@pytest.fixture
def fleet(broker: Broker) -> Iterator[Fleet]:
    fleet = Fleet(
        broker, submit(broker, rollout={"sync": False, "max_policy_lag": 1_000}, trainer={"batch_steps": 16})
    ).claim_all()
    fleet.broker.conn.main.hset(keys.ctl(fleet.experiment), "policy", "1")
    yield fleet
    fleet.check_balance()


def buried(broker: Broker, fleet: Fleet, reason: str = "a fault that is mended by now") -> str:
    """A good batch of shard 0 that a trainer set aside; its id among the dead."""
    fleet.give(0, 1)
    desk = Desk(broker, fleet)
    desk.poll()
    desk.ledger.bury(desk.loaded[0].pointer, reason)
    assert desk.ledger.flush()
    broker.seats.release_seat(fleet.experiment, desk.epoch)
    return broker.dead.ls(fleet.experiment)[0].id


def spoiled(broker: Broker, fleet: Fleet, data: bytes) -> str:
    """A batch of shard 0 that cannot be used, set aside; its id among the dead."""
    fleet.give(0, 1, data=data, steps=8)
    desk = Desk(broker, fleet)
    assert desk.poll() == []
    broker.seats.release_seat(fleet.experiment, desk.epoch)
    return broker.dead.ls(fleet.experiment)[0].id


def test_ls_names_each_with_its_reason(broker: Broker, fleet: Fleet, heddle: Heddle) -> None:
    assert "no batch was set aside" in heddle("batches", "ls", fleet.experiment)
    first = spoiled(broker, fleet, b"not a batch at all")
    second = buried(broker, fleet)
    lines = heddle("batches", "ls", fleet.experiment).splitlines()
    assert lines[0].split()[:3] == ["ID", "AGE", "SHARD"]
    assert lines[1].startswith(second)
    assert lines[1].endswith("a fault that is mended by now")
    assert lines[2].startswith(first)
    assert "not a whole Arrow stream" in lines[2]
    told = json.loads(heddle("batches", "ls", fleet.experiment, "-o", "json"))["batches"]
    assert [one["id"] for one in told] == [second, first]
    assert told[1]["pointer"]["seq"] == 1
    assert "written by no worker" not in heddle("status", fleet.experiment)


def test_show_has_the_columns_of_what_decodes_and_the_bytes_of_what_does_not(
    broker: Broker, fleet: Fleet, heddle: Heddle, tmp_path: Path
) -> None:
    bad = spoiled(broker, fleet, b"not a batch at all" * 10)
    shown = heddle("batches", "show", fleet.experiment, bad)
    assert "00000000  6e 6f 74 20 61 20 62 61 74 63 68" in shown
    assert "not a batch at a" in shown
    assert re.search("usable now +no: not a whole Arrow stream", shown)
    good = buried(broker, fleet)
    shown = heddle("batches", "show", fleet.experiment, good)
    assert re.search("usable now +yes", shown)
    assert "float32[2, 5, 4] 0.0, 2.0" in shown
    told = json.loads(heddle("batches", "show", fleet.experiment, good, "-o", "json"))
    assert (told["usable"], told["columns"]["version"]) == (True, "int64[2] 1, 1")
    heddle("batches", "show", fleet.experiment, bad, "--save", str(tmp_path / "bad.arrow"))
    assert (tmp_path / "bad.arrow").read_bytes() == b"not a batch at all" * 10
    heddle("batches", "show", fleet.experiment, bad, "--save", str(tmp_path / "no" / "bad.arrow"), code=2)


@pytest.mark.parametrize("dead_id", ["1-1", "nonsense", "99999999999999999999-0", "", "--", "+"])
def test_what_is_not_there_is_said_in_one_line(fleet: Fleet, heddle: Heddle, dead_id: str) -> None:
    for verb in ("show", "drop"):
        said = heddle("batches", verb, fleet.experiment, "--", dead_id, code=4)
        assert len(said.strip().splitlines()) == 1
        assert "heddle batches ls" in said
    assert "has no dead batch" in heddle("batches", "replay", fleet.experiment, "--", dead_id, code=8)
    heddle("batches", "show", "nobody", "1-1", code=4)
    heddle("batches", "drop", fleet.experiment, code=2)


def test_drop_throws_bytes_away_and_keeps_the_count(broker: Broker, fleet: Fleet, heddle: Heddle) -> None:
    dead_id = buried(broker, fleet)
    spoiled(broker, fleet, b"not a batch at all")
    assert heddle("batches", "drop", fleet.experiment, dead_id) == "dropped 1\n"
    assert heddle("batches", "drop", fleet.experiment, "--all") == "dropped 1\n"
    raw: Any = broker.conn.main
    assert raw.hget(keys.flow(fleet.experiment, 0), "dead_bytes") == b"0"
    assert not raw.keys(f"{keys.blobs(fleet.experiment, 0)}*")
    assert fleet.flow().dead.batches == 2


def test_a_batch_that_is_offered_again_is_trained_once_whoever_dies(
    broker: Broker, fleet: Fleet, heddle: Heddle, valkey_server: LocalServer, tmp_path: Path
) -> None:
    # Given a good batch that was set aside, and later batches of its shard
    dead_id = buried(broker, fleet)
    home = tmp_path / "home"
    trainer = InThread(valkey_server.url, fleet.experiment, home)
    try:
        fleet.give(0, fleet.version())
        fleet.give(1, fleet.version())
        eventually(lambda: fleet.flow().trained.batches == 2)
        # When it is offered again, with a batch beside it
        assert heddle("batches", "replay", fleet.experiment, dead_id) == f"{dead_id} is offered again\n"
        assert fleet.flow().dead.batches == 0
        fleet.give(0, fleet.version())
        # Then both are trained, and the shard's own order goes on as if nothing were
        eventually(lambda: fleet.flow().trained.batches == 4)
        trainer.leave()
        trainer = InThread(valkey_server.url, fleet.experiment, home)
        fleet.give(0, fleet.version())
        fleet.give(1, fleet.version())
        eventually(lambda: fleet.flow().trained.batches == 6)
        assert sorted(seen_in(saved(home))) == [(0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2)]
        assert fleet.flow().entries == 0
        assert "has no dead batch" in heddle("batches", "replay", fleet.experiment, dead_id, code=8)
    finally:
        trainer.end()


def test_a_replay_that_a_checkpoint_covers_is_acked_unseen(broker: Broker, fleet: Fleet, heddle: Heddle) -> None:
    # Given a replay that was trained and saved, and whose ack never came
    heddle("batches", "replay", fleet.experiment, buried(broker, fleet))
    first = Desk(broker, fleet, marks={0: _mark(fleet, 1)})
    assert first.poll() == [(-1, 1)]
    first.ledger.hold([item.pointer for item in first.loaded], "trained")
    marks = first.ledger.marks()
    broker.seats.release_seat(fleet.experiment, first.epoch)
    # Then the next trainer, with those marks, does not see it again
    fleet.give(0, 1)
    second = Desk(broker, fleet, marks=marks)
    assert second.poll() == [(0, 2)]
    second.train()
    assert (fleet.flow().trained.batches, fleet.flow().entries) == (2, 0)
    # And the one offered after it is another one
    heddle("batches", "replay", fleet.experiment, buried_now(broker, fleet, second))
    assert second.poll() == [(-1, 1)]
    second.train()


def _mark(fleet: Fleet, seq: int) -> Mark:
    lease = fleet.claims[0].lease
    return Mark(lease.epoch, lease.nonce, seq)


def buried_now(broker: Broker, fleet: Fleet, desk: Desk) -> str:
    fleet.give(0, 1)
    desk.poll()
    desk.ledger.bury(desk.loaded[0].pointer, "once more")
    assert desk.ledger.flush()
    return broker.dead.ls(fleet.experiment)[0].id


def test_what_cannot_be_used_stays_with_its_reason(broker: Broker, fleet: Fleet, heddle: Heddle) -> None:
    nan = fleet.segments(0, 1)
    nan.arrays["reward"][:] = np.nan
    unusable = spoiled(broker, fleet, bytes(encode(fleet.setting.layout, nan)))
    assert "reward is not a finite number" in heddle("batches", "replay", fleet.experiment, unusable, code=8)
    raw: Any = broker.conn.main
    old = buried(broker, fleet)
    raw.hset(keys.ctl(fleet.experiment), "policy", "5000")
    assert "too far behind 5000" in heddle("batches", "replay", fleet.experiment, old, code=8)
    raw.hset(keys.ctl(fleet.experiment), "policy", "1")
    raw.hset(keys.ctl(fleet.experiment), "max_entries", "1")
    fleet.give(1, 1)
    assert "no room" in heddle("batches", "replay", fleet.experiment, old, code=8)
    raw.hset(keys.ctl(fleet.experiment), "max_entries", "100")
    raw.hset(keys.ctl(fleet.experiment), "command", "stop")
    assert "stopping" in heddle("batches", "replay", fleet.experiment, old, code=8)
    raw.hset(keys.ctl(fleet.experiment), "command", "run")
    raw.delete(broker.dead.find(fleet.experiment, old).kept)
    assert "not kept" in heddle("batches", "replay", fleet.experiment, old, code=8)
    assert "not kept" in heddle("batches", "show", fleet.experiment, old)
    raw.xadd(keys.experience(fleet.experiment, 0), {"hello": "world"})
    Desk(broker, fleet).poll()
    foreign = broker.dead.ls(fleet.experiment)[0]
    assert "no pointer" in heddle("batches", "replay", fleet.experiment, foreign.id, code=8)
    assert "entry hello" in heddle("batches", "show", fleet.experiment, foreign.id)
    assert "besides, written by no worker 1" in heddle("status", fleet.experiment)
    assert len(broker.dead.ls(fleet.experiment)) == 3


@pytest.mark.parametrize("file", ["x" * 300, ".", "/", "/dev/null", "no/such/folder/file"])
def test_a_file_that_cannot_be_written_is_said_in_one_line(
    broker: Broker, fleet: Fleet, heddle: Heddle, file: str
) -> None:
    broker.conn.main.hset(keys.ctl(fleet.experiment), "policy", "0")
    seat = broker.seats.claim_seat(fleet.experiment, "t", ttl_ms=60_000)
    assert seat is not None
    broker.policies.publish(fleet.experiment, seat, 1, b"weights", update=0)
    assert "cannot write" in heddle("policy", "pull", fleet.experiment, file, code=2)
    assert Path("/dev/null").is_char_device()


def test_a_synchronous_experiment_takes_nothing_back(broker: Broker, heddle: Heddle) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    dead_id = buried(broker, fleet)
    assert "is synchronous" in heddle("batches", "replay", fleet.experiment, "--all", code=8)
    assert [batch.id for batch in broker.dead.ls(fleet.experiment)] == [dead_id]


def test_rm_takes_the_dead_along(broker: Broker, fleet: Fleet, heddle: Heddle) -> None:
    buried(broker, fleet)
    blob = keys.blob(fleet.experiment, 0, 0, 1, "x", 1)
    raw: Any = broker.conn.main
    raw.set(blob, b"bytes")
    raw.xadd(keys.experience(fleet.experiment, 0), {"blob": blob})
    Desk(broker, fleet).poll()
    assert broker.dead.data(broker.dead.ls(fleet.experiment)[0]) == b"bytes"
    fleet.check_balance()
    other = Fleet(broker, submit(broker, experiment={"name": "other"}))
    heddle("rm", "--force", fleet.experiment)
    assert not [key for key in raw.scan_iter(f"*{fleet.experiment}*") if b"heddle:log" not in key]
    fleet.experiment = other.experiment
