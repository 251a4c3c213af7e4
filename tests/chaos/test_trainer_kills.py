"""Trainer processes that are killed or frozen at the worst moments.

Each accepted batch enters saved state at most once, none is lost, and whoever lost the seat changes nothing any more.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.broker import Broker, open_broker
from heddle.broker.server import LocalServer, restart, start_server
from heddle.quick_exit import STUCK_CODE
from tests.chaos.trainers import Batch, check_each_once, give_all, go_on, hang, hangs, lost_with, version_after
from tests.fixtures import on_valkey
from tests.helpers import eventually
from tests.trainer_fixtures import in_home
from tests.trainer_kit import Fleet, saved, seen_in, start_process, submit

Process = subprocess.Popen[bytes]
Start = Callable[[str], Process]

broker = on_valkey
home = in_home


@pytest.fixture
def hooks(tmp_path: Path) -> Path:
    folder = tmp_path / "hooks"
    folder.mkdir()
    return folder


@pytest.fixture
def start(valkey_server: LocalServer, home: Path) -> Iterator[Start]:
    """Starts trainer processes, and ends them."""
    running: list[Process] = []

    def begin(experiment: str) -> Process:
        running.append(start_process(valkey_server.url, experiment, home, ttl_ms=1_000))
        return running[-1]

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def fleet(broker: Broker, hooks: Path, plane: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr("heddle.plane.ring.REUSED_FROM", 0)  # as buffers of large batches are
    with fleet_on(broker, plane, hooks) as made:
        yield made


@contextmanager
def fleet_on(broker: Broker, plane: str, hooks: Path, **trainer: Any) -> Iterator[Fleet]:
    trainer = {"kwargs": {"hooks": str(hooks)}, **trainer}
    made = Fleet(broker, submit(broker, trainer=trainer, rollout={"plane": plane})).claim_all()
    try:
        yield made
    finally:
        made.end()


@pytest.mark.parametrize("where", ["update", "state"])
def test_killed_in_an_update_or_while_it_saves_nothing_is_lost_or_trained_twice(
    fleet: Fleet, start: Start, home: Path, hooks: Path, where: str
) -> None:
    # Given a trainer that has trained once, and hangs the next time
    first = start(fleet.experiment)
    version = version_after(fleet, 0)
    give_all(fleet, version)
    version = version_after(fleet, version)
    eventually(lambda: fleet.flow().trained.batches == 2)
    hang(hooks, where)
    give_all(fleet, version)
    hangs(hooks, where)
    # When it is killed there, and another one comes
    first.kill()
    first.wait()
    go_on(hooks)
    before = fleet.broker.policies.latest(fleet.experiment)
    start(fleet.experiment)
    version = version_after(fleet, before)
    give_all(fleet, version)
    version_after(fleet, version)
    # Then all three rounds are in, once
    check_each_once(fleet, home)
    assert fleet.flow().dead.batches == 0


def test_killed_between_checkpoint_and_ack_nothing_is_trained_twice(
    fleet: Fleet, start: Start, home: Path, hooks: Path, broker: Broker
) -> None:
    # Given a trainer that writes its checkpoint while the broker takes no writes, so that it cannot ack
    first = start(fleet.experiment)
    version = version_after(fleet, 0)
    eventually(lambda: saved(home) is not None, what="the first checkpoint, of nothing")
    hang(hooks, "state")
    give_all(fleet, version)
    hangs(hooks, "state")
    broker.conn.main.execute_command("CLIENT", "PAUSE", "20000", "WRITE")
    go_on(hooks)
    eventually(lambda: len(seen_in(saved(home))) == 2, what="the checkpoint")
    # When it is killed
    first.kill()
    first.wait()
    broker.conn.main.execute_command("CLIENT", "UNPAUSE")
    assert fleet.flow().trained.batches == 0
    # Then the next one acks what the checkpoint covers without training it again
    before = broker.policies.latest(fleet.experiment)
    start(fleet.experiment)
    version = version_after(fleet, before)
    give_all(fleet, version)
    version_after(fleet, version)
    check_each_once(fleet, home)


def test_frozen_past_its_seat_and_woken_a_trainer_neither_acks_nor_publishes(
    fleet: Fleet, start: Start, home: Path, hooks: Path, broker: Broker
) -> None:
    # Given a trainer frozen in the middle of an update for longer than its seat lasts
    first = start(fleet.experiment)
    version = version_after(fleet, 0)
    hang(hooks, "update")
    give_all(fleet, version)
    hangs(hooks, "update")
    first.send_signal(signal.SIGSTOP)
    go_on(hooks)
    # and another that took the seat and trained the same batches
    start(fleet.experiment)
    version = version_after(fleet, version)
    give_all(fleet, version)
    version = version_after(fleet, version)
    check_each_once(fleet, home)
    flow, latest = fleet.flow(), broker.policies.latest(fleet.experiment)
    # When the first one wakes up
    first.send_signal(signal.SIGCONT)
    # Then it ends with the code of a lost seat, and has changed nothing
    assert first.wait(timeout=15) == 8
    assert (fleet.flow(), broker.policies.latest(fleet.experiment)) == (flow, latest)
    give_all(fleet, version)
    version_after(fleet, version)
    check_each_once(fleet, home)


def test_a_batch_that_kills_its_trainer_twice_is_set_aside_and_the_others_are_trained(
    fleet: Fleet, start: Start, home: Path, hooks: Path
) -> None:
    (hooks / "die-1-1").touch()
    first = start(fleet.experiment)
    version = version_after(fleet, 0)
    give_all(fleet, version)
    assert first.wait(timeout=30) == -signal.SIGKILL
    # The next one tries each of the two alone, and dies of the one that is poison.
    assert start(fleet.experiment).wait(timeout=30) == -signal.SIGKILL
    before = fleet.broker.policies.latest(fleet.experiment)
    start(fleet.experiment)
    version = version_after(fleet, before)
    give_all(fleet, version)
    version_after(fleet, version)
    eventually(lambda: fleet.flow().entries == 0, timeout_s=20.0)
    assert seen_in(saved(home)) == [(0, 1), (0, 2), (1, 2)]
    ((pointer, reason),) = fleet.broker.experience.dead(fleet.experiment, 0)
    assert (pointer.shard, pointer.seq) == (1, 1)
    assert "died of it twice" in reason
    fleet.check_balance()


def test_what_a_version_that_was_never_saved_has_played_is_stale_and_what_made_it_is_trained_again(
    fleet: Fleet, start: Start, home: Path, hooks: Path
) -> None:
    # Given a trainer that has published a version, hangs before it saves it, and has workers that play it already
    first = start(fleet.experiment)
    version = version_after(fleet, 0)
    eventually(lambda: saved(home) is not None, what="the first checkpoint, of nothing")
    hang(hooks, "state")
    versions = give_all(fleet, version)
    hangs(hooks, "state")
    version = version_after(fleet, version)
    versions |= give_all(fleet, version)
    # When it is killed there
    first.kill()
    first.wait()
    go_on(hooks)
    unsaved = lost_with(fleet, home, versions)
    start(fleet.experiment)
    version = version_after(fleet, version)
    give_all(fleet, version)
    version_after(fleet, version)
    # Then what was played by it is stale, and all else is trained
    assert unsaved == {(0, 2), (1, 2)}
    check_each_once(fleet, home, unsaved=unsaved)


def test_killed_at_any_moment_again_and_again_each_batch_is_trained_once(
    fleet: Fleet, start: Start, home: Path
) -> None:
    rng = np.random.default_rng(7)
    process = start(fleet.experiment)
    version = version_after(fleet, 0)
    eventually(lambda: saved(home) is not None, what="the first checkpoint, of nothing")
    versions: dict[Batch, int] = {}
    unsaved: set[Batch] = set()
    for _ in range(4):
        for _ in range(int(rng.integers(1, 4))):
            versions |= give_all(fleet, version)
            version = version_after(fleet, version)
        versions |= give_all(fleet, version)
        process.kill()  # somewhere between reading and acking
        process.wait()
        unsaved |= lost_with(fleet, home, versions)
        before = fleet.broker.policies.latest(fleet.experiment)
        process = start(fleet.experiment)
        version = version_after(fleet, before)
    give_all(fleet, version)
    version_after(fleet, version)
    check_each_once(fleet, home, unsaved=unsaved, killed=4)


def test_a_terminated_trainer_saves_acks_and_leaves_the_seat(fleet: Fleet, start: Start, home: Path) -> None:
    process = start(fleet.experiment)
    version = version_after(fleet, 0)
    give_all(fleet, version)
    version_after(fleet, version)
    process.terminate()
    assert process.wait(timeout=15) == 0
    assert fleet.broker.seats.holder(fleet.experiment) is None
    check_each_once(fleet, home)


def test_a_trainer_outlives_a_restart_of_the_broker(tmp_path: Path, hooks: Path, plane: str) -> None:
    home = tmp_path / "home"
    with (
        start_server(tmp_path / "server") as server,
        open_broker(server.url, role="test") as broker,
        fleet_on(broker, plane, hooks) as fleet,
    ):
        process = start_process(server.url, fleet.experiment, home)
        try:
            version = version_after(fleet, 0)
            give_all(fleet, version)
            version = version_after(fleet, version)
            eventually(lambda: fleet.flow().entries == 0)
            os.kill(server.pid, signal.SIGKILL)
            eventually(lambda: not server.is_running())
            with restart(server):
                eventually(lambda: broker.policies.latest(fleet.experiment) == version, timeout_s=10.0)
                give_all(fleet, version)
                version_after(fleet, version)
                check_each_once(fleet, home)
                assert process.poll() is None
        finally:
            process.kill()
            process.communicate()


def test_a_learner_that_hangs_ends_its_process_and_the_next_trainer_goes_on(
    broker: Broker, start: Start, home: Path, hooks: Path
) -> None:
    fleet = Fleet(broker, submit(broker, trainer={"update_timeout": 2.0, "kwargs": {"hooks": str(hooks)}})).claim_all()
    first = start(fleet.experiment)
    version = version_after(fleet, 0)
    give_all(fleet, version)
    version = version_after(fleet, version)
    hang(hooks, "update")
    give_all(fleet, version)
    hangs(hooks, "update")
    assert first.wait(timeout=30.0) == STUCK_CODE
    said = [event.message for event in broker.events.read(fleet.experiment)]
    assert any("the learner hangs: update 2 lasted longer than 2 s (trainer.update_timeout)" in one for one in said)
    assert broker.seats.holder(fleet.experiment) is None, "it left its seat"
    go_on(hooks)
    start(fleet.experiment)
    version = version_after(fleet, version)
    give_all(fleet, version)
    version_after(fleet, version)
    check_each_once(fleet, home)


@pytest.mark.parametrize(
    ("what", "changes"),
    [("the learner", {}), ("the policy", {"policy": {"id": "tests.trainer_kit:hanging_policy"}})],
)
def test_what_hangs_while_it_is_made_does_not_keep_the_seat_either(
    broker: Broker, start: Start, hooks: Path, what: str, changes: dict[str, Any]
) -> None:
    hang(hooks, "make")
    trainer = {"update_timeout": 1.0, "kwargs": {"hooks": str(hooks)}}
    experiment = submit(broker, trainer=trainer, **changes)
    assert start(experiment).wait(timeout=60.0) == STUCK_CODE
    said = [event.message for event in broker.events.read(experiment)]
    assert any(f"hangs: making {what} lasted longer than 1 s (trainer.update_timeout)" in one for one in said), said
    assert broker.seats.holder(experiment) is None, "it left its seat"
