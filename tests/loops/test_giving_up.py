"""A trainer that fails in the same way for ever: held off, and given up with its reason; one that gets on is not."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from heddle.broker import Broker, keys
from heddle.broker.server import LocalServer
from heddle.coord.leader import Leader
from heddle.launch import process
from heddle.launch.children import Ending
from heddle.launch.giving_up import Repeats, give_up, has_given_up
from heddle.launch.trainers import TrainerHost
from heddle.stop import StopFlag
from tests.helpers import eventually
from tests.trainer_kit import Fleet, submit

BROKEN = "import sys, time; print(time.time()); sys.exit('RuntimeError: CUDA error 700 at 0x7f%d' % time.time_ns())"

CRASHING = """
import os, sys, time
from heddle.broker import open_broker
from heddle.consumers.seat import trainer_id
with open_broker(os.environ["HEDDLE_REDIS_URL"], role="trainer") as broker:
    while broker.seats.claim_seat(sys.argv[2], trainer_id(), ttl_ms=1500) is None:
        time.sleep(0.02)
    os.kill(os.getpid(), 11)
"""


def failed(code: int = 1, said: str = "RuntimeError: no such kernel", *, of_memory: bool = False) -> Ending:
    return Ending("trainer", code, f"trainer ended with exit code {code}: 12:00 started | {said}", of_memory)


@pytest.mark.parametrize(
    ("endings", "counts"),
    [
        ([(failed(said="at 0x7f12: 3 of 4"), 0), (failed(said="at 0x9a00: 5 of 6"), 0)], [1, 2]),
        ([(failed(), 0), (failed(said="another"), 0), (failed(), 0)], [1, 1, 1]),
        ([(failed(), 0), (failed(), 5)], [1, 1]),
        ([(failed(), 0), (failed(code=-9), 0), (failed(), 0)], [1, 0, 1]),
        ([(failed(code=-11), 0), (failed(code=-11, said="found suspects"), 0), (failed(code=-11), 5)], [1, 2, 1]),
        ([(failed(code=-11), 0), (failed(code=-6), 0), (failed(), 0)], [1, 1, 1]),
        ([(failed(code=-9, of_memory=True), 0), (failed(code=-9, said="update 3", of_memory=True), 0)], [1, 2]),
        ([(failed(code=-9, of_memory=True), 0), (failed(code=-9), 0)], [1, 0]),
    ],
    ids=[
        "numbers apart they say the same",
        "another reason",
        "something was trained",
        "killed from outside",
        "crashed, whatever it said before",
        "crashed in another way",
        "killed by the system for want of memory",
        "killed by the system, then by somebody",
    ],
)
def test_failures_count_that_say_the_same_with_nothing_trained_between(
    endings: list[tuple[Ending, int]], counts: list[int]
) -> None:
    repeats = Repeats()
    assert [repeats.note(ending, (trained, 0)) for ending, trained in endings] == counts


@pytest.mark.parametrize(
    ("code", "reason"),
    [(BROKEN, "RuntimeError: CUDA error 700"), (CRASHING, "ended with signal SIGSEGV")],
    ids=["raises", "crashes and leaves its seat taken"],
)
def test_an_experiment_fails_with_the_reason_once_its_trainer_failed_so_often(
    code: str,
    reason: str,
    redis_server: LocalServer,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "broken.py").write_text(code)
    monkeypatch.setattr(process, "HEDDLE", (sys.executable, str(tmp_path / "broken.py")))
    experiment = submit(broker, faults={"trainer_failures": 3})
    stop = StopFlag()
    host = TrainerHost(redis_server.url, directory=tmp_path, stop=stop, connect=lambda: broker)
    thread = Thread(target=host.run)
    thread.start()
    try:
        status = eventually(lambda: _over(broker, experiment), timeout_s=60, what="it fails")
    finally:
        stop.request("the test ends")
        thread.join()
    assert "failed 3 times in a row in the same way and trained nothing (faults.trainer_failures)" in status
    assert reason in status


def test_the_batches_that_a_trainer_died_with_each_time_are_named(broker: Broker, tmp_path: Path) -> None:
    fleet = Fleet(broker, submit(broker, rollout={"sync": False}, limits={"max_entries": 100})).claim_all()
    for _ in range(4):
        fleet.give(0, 1)
        fleet.give(1, 1)
    epoch = broker.seats.claim_seat(fleet.experiment, "t", ttl_ms=60_000)
    assert epoch is not None
    read = broker.experience.read(fleet.experiment, 0, "trainer", "t", count=10, block_ms=0)
    broker.experience.set_loading(fleet.experiment, 0, epoch, [*(one.entry_id for one in read), "1-1"])
    broker.seats.release_seat(fleet.experiment, epoch)
    assert give_up(broker, fleet.experiment, "host", tmp_path, count=3, why="signal SIGSEGV")
    reason = broker.experiments.ctl(fleet.experiment).reason
    assert f"in hand, none of which does it alone: shard 0 seq 1 ({read[0].entry_id}), shard 1 seq 1" in reason
    assert reason.endswith("and 2 more")


def test_the_seat_of_a_trainer_that_died_here_is_free_at_once_and_no_others(broker: Broker, tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    here, experiment = os.uname().nodename, submit(broker)
    free = partial(has_given_up, broker, experiment, "host", tmp_path, Repeats(), failed(code=-9))
    for name, is_free in ((f"{here}-{child.pid}-ab", True), (f"{here}-{os.getpid()}-ab", False)):
        assert broker.seats.claim_seat(experiment, name, ttl_ms=60_000) is not None
        assert not free()
        assert (broker.seats.holder(experiment) is None) == is_free


def test_an_experiment_whose_checkpoints_cannot_be_read_is_given_up_as_others_are(
    broker: Broker, tmp_path: Path
) -> None:
    # Given a trainer that fails because a file stands where the folder of its checkpoints should be
    experiment, repeats = submit(broker, faults={"trainer_failures": 2}), Repeats()
    (tmp_path / experiment).mkdir()
    (tmp_path / experiment / "checkpoints").write_text("in the way")
    ending = failed(said="CheckpointError: cannot read checkpoints: Not a directory")
    # When it does so once too often
    told = [has_given_up(broker, experiment, "host", tmp_path, repeats, ending) for _ in range(2)]
    # Then the experiment has failed for that reason
    assert told == [False, True]
    assert _over(broker, experiment).endswith("Not a directory")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda raw, name: raw.hset(keys.spec(name), "json", '{"env": 3}'), "env"),
        (lambda raw, name: (raw.delete(keys.flow(name, 0)), raw.set(keys.flow(name, 0), "x")), "WRONGTYPE"),
    ],
    ids=["a spec that is none", "a key of another kind"],
)
def test_what_keeps_a_failing_trainer_from_being_given_up_for_good_is_told_without_a_traceback(
    damage: Any, said: str, broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = submit(broker, faults={"trainer_failures": 1})
    damage(broker.conn.main, experiment)
    assert not has_given_up(broker, experiment, "host", tmp_path, Repeats(), failed())
    (record,) = [one for one in caplog.records if "cannot give up" in one.message]
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert experiment in record.message and said in record.message


def test_a_coordinator_writes_down_that_it_failed(broker: Broker, tmp_path: Path) -> None:
    experiment = submit(broker)
    epoch = broker.coordinators.claim_leader("c1")
    assert epoch is not None
    leader = Leader(broker, "c1", epoch, contact_since_ms=0)
    leader.wait(broker.conn.now_ms())
    assert give_up(broker, experiment, "host", tmp_path, count=10, why="it broke")
    leader.tick(broker.conn.now_ms())
    status = broker.experiments.status(experiment)
    assert (status.state, status.reason.endswith("it broke")) == ("failed", True)


def _over(broker: Broker, experiment: str) -> str:
    ctl = broker.experiments.ctl(experiment)
    return ctl.reason if ctl.outcome == "failed" else ""


def test_one_that_ended_with_batches_back_in_flight_gets_a_trainer_and_one_that_is_settled_none(
    redis_server: LocalServer, broker: Broker, tmp_path: Path
) -> None:
    # Given an experiment whose trainer told its end, and whose broker then came back with a batch that had been acked
    fleet = Fleet(broker, submit(broker, rollout={"sync": False}, limits={"max_entries": 100})).claim_all()
    fleet.give(0, 1)
    epoch = broker.seats.claim_seat(fleet.experiment, "t", ttl_ms=60_000)
    assert epoch is not None
    broker.experiments.finish(fleet.experiment, epoch, "completed", "the budget is used", {})
    broker.seats.release_seat(fleet.experiment, epoch)
    host = TrainerHost(redis_server.url, directory=tmp_path, stop=StopFlag())
    assert list(host.missing(broker)) == [fleet.experiment]
    # When the next one has settled it
    epoch = broker.seats.claim_seat(fleet.experiment, "t2", ttl_ms=60_000)
    assert epoch is not None
    (batch,) = broker.experience.read(fleet.experiment, 0, "trainer", "t2", count=10, block_ms=0)
    broker.experience.ack(fleet.experiment, 0, epoch, [(batch, "stale")])
    broker.seats.release_seat(fleet.experiment, epoch)
    # Then there is nothing left to do
    assert not host.missing(broker)
