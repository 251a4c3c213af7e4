"""What a run that was killed as a whole held is free at once, and nothing that lives, or may live, loses anything."""

import os
import socket
import subprocess
import sys

import pytest

from heddle.broker import Broker
from heddle.broker.presence import WorkerBeat
from heddle.launch.left_behind import free, is_dead_here
from heddle.producers.identity import process_name
from tests.broker_kit import POOL, E, admit, append, claim_next
from tests.helpers import eventually

HERE = socket.gethostname()


@pytest.fixture(scope="module")
def dead() -> int:
    """The pid of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def hold(broker: Broker, pid: int, *, host: str = HERE) -> tuple[int, int]:
    """A shard, the seat and the lead, all held by processes of that pid; epochs of seat and lead."""
    admit(broker, shards=1)
    broker.pools.heartbeat(WorkerBeat("w1", pool=POOL, host=host, pid=pid))
    seat = broker.seats.claim_seat(E, f"{host}-{pid}-ab12", ttl_ms=60_000)
    lead = broker.coordinators.claim_leader(f"{host}-{pid}-00ff", ttl_ms=60_000)
    assert seat is not None and lead is not None
    return seat, lead


def test_what_dead_processes_of_this_host_held_is_free_at_once_and_they_can_write_no_more(
    broker: Broker, dead: int
) -> None:
    seat, lead = hold(broker, dead)
    lease = claim_next(broker, ttl_ms=60_000).lease
    freed = free(broker, POOL)
    assert set(freed) == {f"shard {lease.shard} of {E}", f"the seat of {E}", "the lead"}
    assert append(broker, lease, 1).status == "FENCED"
    assert not broker.coordinators.renew_leader(f"{HERE}-{dead}-00ff", lead)
    assert claim_next(broker, "w2").lease.epoch > lease.epoch
    assert not broker.seats.renew_seat(E, f"{HERE}-{dead}-ab12", seat)
    assert free(broker, POOL) == []


@pytest.mark.parametrize("who", ["a process that lives", "a process of another host"])
def test_who_lives_or_may_live_keeps_what_it_holds(broker: Broker, dead: int, who: str) -> None:
    pid, host = (os.getpid(), HERE) if who == "a process that lives" else (dead, "elsewhere")
    hold(broker, pid, host=host)
    lease = claim_next(broker, ttl_ms=60_000).lease
    assert free(broker, POOL) == []
    assert append(broker, lease, 1).status == "OK"


def test_a_dead_supervisor_has_no_part_of_the_pool_any_more_and_a_living_one_keeps_its_own(
    broker: Broker, dead: int
) -> None:
    ours, living, elsewhere = (
        process_name(HERE, dead, b"1234"),
        process_name(HERE, os.getpid(), b"1234"),
        process_name("elsewhere", dead, b"1234"),
    )
    for supervisor in (ours, living, elsewhere):
        broker.pools.supervisor_beat(POOL, supervisor, 2)
    assert free(broker, POOL) == [f"the part of supervisor {ours}"]
    assert broker.pools.supervisors(POOL) == sorted([living, elsewhere])
    assert broker.pools.wanted(POOL) == 4


def test_a_dead_worker_is_shown_as_such_however_long_it_was_silent(broker: Broker, dead: int) -> None:
    broker.pools.heartbeat(WorkerBeat("w1", pool=POOL, host=HERE, pid=dead), ttl_ms=1)
    eventually(lambda: not broker.pools.workers(POOL)[0].alive)
    free(broker, POOL)
    assert broker.pools.workers(POOL)[0].died


def test_a_host_is_known_by_what_it_is_called_in_names_as_well(monkeypatch: pytest.MonkeyPatch, dead: int) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "GPU_7.lab.example")
    assert is_dead_here("GPU_7.lab.example", dead)
    assert is_dead_here("gpu-7", dead)
    assert not is_dead_here("gpu-8", dead)


def test_a_process_that_waits_to_be_buried_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.read()  # until it has ended
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead_here(HERE, process.pid)
    finally:
        process.wait()
    assert is_dead_here(HERE, process.pid)
    assert not is_dead_here(HERE, os.getpid())
    assert not is_dead_here(HERE, 0)
