"""A trainer that stands still, a full memory, a full disk: nothing grows, nothing dies, nothing is lost.

HEDDLE_SOAK=1 keeps each up for two minutes.
"""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from heddle.broker import keys
from heddle.clock import SystemClock
from tests.chaos.breakable import Server
from tests.chaos.crew import Crew, crew_on
from tests.e2e.shell import heddle, heddle_json
from tests.helpers import eventually

SOAK = bool(os.environ.get("HEDDLE_SOAK"))
FOR_S = 120.0 if SOAK else 5.0
TTL_S = 0.8
CAP_BYTES = 64 << 10
LIMIT_S = 10.0
SHARDS = 2
clock = SystemClock()
pytestmark = [pytest.mark.alone, pytest.mark.timeout(600 if SOAK else 180)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def crew(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """One for all of these tests: what one of them did to it must not show in the next."""
    with crew_on(server, tmp_path_factory.mktemp("crew"), ttl_s=TTL_S, max_bytes=CAP_BYTES) as working:
        yield working
        flow = working.stop_experiment()
        assert flow.entries == flow.bytes == flow.parked == 0
        assert flow.trained == flow.appended, flow


def owners(crew: Crew) -> list[tuple[str, int]]:
    """Who plays each shard, under which epoch."""
    return [(shard.worker, shard.epoch) for shard in crew.broker.shards.shards(crew.experiment, 0)]


def check_leases(crew: Crew, admin: Any) -> None:
    """Every lease lives."""
    for shard in range(SHARDS):
        assert admin.pttl(keys.lease(crew.experiment, 0, shard)) > 0, (
            f"the lease of shard {shard} is over: {crew.tails()}"
        )


def says(crew: Crew, *words: str) -> Any:
    """What `heddle status` says of the experiment; every one of `words` must be in it."""
    status = heddle_json("status", crew.experiment, cwd=crew.folder, url=crew.server.url)
    missing = [word for word in words if word not in str(status)]
    assert not missing, f"{missing} not in {status}"
    return status


def check_nothing_was_lost(crew: Crew) -> None:
    """All that was ever answered was accepted, is trained or will be, and is still known."""
    crew.check_books()
    flow = crew.broker.experience.flow(crew.experiment, 0)
    ends = (flow.stale, flow.dead, flow.dropped, flow.rolled_back, flow.discarded, flow.forgotten)
    assert not any(end.batches for end in ends), flow


# ---- the trainer


def test_while_the_trainer_stands_still_memory_is_bounded_and_leases_live_and_then_everything_flows_again(
    crew: Crew, server: Server
) -> None:
    # Given a crew at work
    with server.admin() as admin:
        before, pids, memory = owners(crew), crew.pids(), int(admin.info("memory")["used_memory"])
        trainer, host = crew.pid("trainer crew"), crew.actors["host"].process.pid
        # When its trainer is frozen for many times the TTL of a lease, and whoever would replace it as well
        for pid in (host, trainer):
            os.kill(pid, signal.SIGSTOP)
        until = clock.monotonic() + FOR_S
        most, longest, entries = 0, 0, 0
        while clock.monotonic() < until:
            blobs = [admin.strlen(key) for key in admin.keys(f"{keys.tag(crew.experiment, 0)}:blob:*")]
            longest = max([longest, *blobs])
            flow = crew.broker.experience.flow(crew.experiment, 0)
            # Then what is stored stays below the cap and two batches for each shard, whoever counts
            bound = CAP_BYTES + 2 * SHARDS * longest
            assert max(flow.bytes + flow.parked, sum(blobs)) <= bound
            # And nothing is trimmed, no lease is over, and the server's own memory grows no further
            assert flow.entries >= entries
            entries = flow.entries
            check_leases(crew, admin)
            most = max(most, int(admin.info("memory")["used_memory"]) - memory)
            clock.sleep(0.1)
        assert flow.bytes > CAP_BYTES - 2 * longest, "it became full"
        assert most < 2 * bound + (1 << 20), most
        print(f"frozen for {FOR_S:g} s: {flow.bytes + flow.parked} bytes of a cap of {CAP_BYTES}, memory +{most}")
        assert says(crew, "stalled")["why"]
        # And once it goes on everything flows again, in the same hands
        for pid in (trainer, host):
            os.kill(pid, signal.SIGCONT)
    crew.await_progress(crew.seen(), LIMIT_S)
    assert owners(crew) == before
    assert crew.pids() == pids
    check_nothing_was_lost(crew)


# ---- the memory


def test_an_experiment_that_is_submitted_just_before_the_memory_is_full_begins_when_it_is_not(
    crew: Crew, server: Server
) -> None:
    # Given a coordinator that is away for a moment, and a memory that fills up meanwhile
    pids = crew.pids()
    coordinator = crew.actors["coordinator"].process.pid
    os.kill(coordinator, signal.SIGSTOP)
    heddle("enqueue", "exp.toml", "--no-check", "--name", "late", cwd=crew.folder, url=server.url)
    with server.admin() as admin:
        admin.config_set("maxmemory", 1)
        os.kill(coordinator, signal.SIGCONT)
        said = heddle("enqueue", "exp.toml", "--no-check", "--name", "later", cwd=crew.folder, url=server.url, code=5)
        assert "refused to store anything for now" in said.stderr and "Traceback" not in said.stderr
        clock.sleep(1.0)
        assert status_of(crew, "late") in ("queued", "waiting")
        # When there is room again
        admin.config_set("maxmemory", 0)
        began = clock.monotonic()
    # Then it begins: workers have its shards, and once its trainer is up they are played
    late = crew.broker.experiments.resolve("late")
    eventually(lambda: states(crew, late) == ["leased"] * SHARDS, timeout_s=LIMIT_S, what="its shards are held")
    print(f"begun after {clock.monotonic() - began:.1f} s")
    eventually(lambda: crew.broker.experience.flow(late, 0).trained.batches, timeout_s=60, what="it is trained")
    heddle("stop", "late", cwd=crew.folder, url=server.url)
    eventually(lambda: crew.pids() == pids, timeout_s=30, what="its trainer ends")


def states(crew: Crew, experiment: str = "") -> list[str]:
    return [shard.state for shard in crew.broker.shards.shards(experiment or crew.experiment, 0)]


def publications_refused(crew: Crew) -> int:
    """How many trainers have said so: each says it once."""
    lines = crew.actors["host"].output().splitlines()
    return sum("WARNING heddle.trainer cannot publish" in line and "restarting" not in line for line in lines)


def seat_epoch(crew: Crew) -> int:
    return crew.broker.experiments.ctl(crew.experiment).seat_epoch


def status_of(crew: Crew, name: str) -> str:
    return str(heddle_json("status", name, cwd=crew.folder, url=crew.server.url)["state"])


# ---- the disk


def test_a_full_disk_is_named_and_nothing_is_lost_once_there_is_space(crew: Crew, server: Server) -> None:
    # Given a crew at work
    before, pids = owners(crew), crew.pids()
    # When the server cannot write its disk for many times the TTL of a lease
    server.fill_disk()
    eventually(lambda: bool(crew.broker.conn.blocked()), what="it cannot write")
    until = clock.monotonic() + FOR_S
    eventually(lambda: "cannot write its disk" in crew.actors["follower"].output(), what="who follows it is told")
    says(crew, "cannot write its disk")
    clock.sleep(max(0.0, until - clock.monotonic()))
    # And then can
    server.free_disk()
    server.wait_until_well()
    # Then everything goes on in the same hands, and nothing was lost
    times = crew.await_progress(crew.seen(), LIMIT_S)
    print("space again:", {role: round(seconds, 2) for role, seconds in times.items()})
    assert owners(crew) == before
    assert crew.pids() == pids
    check_nothing_was_lost(crew)


def test_a_strict_server_that_its_full_disk_kills_loses_nothing_once_somebody_starts_it_with_space(
    crew: Crew, server: Server
) -> None:
    # Given a crew on a server that syncs every write, and ends when it cannot
    pids, process = crew.pids(), server.node.process
    with server.admin() as admin:
        admin.config_set("appendfsync", "always")
    server.fill_disk()
    eventually(lambda: process is not None and process.poll() is not None, what="it ends")
    clock.sleep(1.0)
    # When it is started again with space
    server.node.start()
    server.wait_until_well()
    # Then everything goes on, and nothing was lost
    times = crew.await_progress(crew.seen(), LIMIT_S)
    print("started with space:", {role: round(seconds, 2) for role, seconds in times.items()})
    assert crew.pids() == pids
    check_nothing_was_lost(crew)


# ---- the memory, and everybody dies


def test_while_the_memory_is_full_leases_seat_and_lead_live_and_everything_that_died_is_replaced_and_then_goes_on(
    crew: Crew, server: Server
) -> None:
    with server.admin() as admin:
        # Given a crew at work when the memory is full from one moment to the next
        before, seat, pids = owners(crew), seat_epoch(crew), crew.pids()
        admin.config_set("maxmemory", 1)
        full_at = clock.monotonic()
        # Then renewals, heartbeats, lead and acks go on
        since = crew.seen()
        eventually(
            lambda: crew.broker.experience.flow(crew.experiment, 0).entries == 0, what="all is trained and acked"
        )
        while clock.monotonic() < full_at + max(FOR_S, 4 * TTL_S):
            check_leases(crew, admin)
            clock.sleep(0.1)
        now = crew.seen()
        assert owners(crew) == before and seat_epoch(crew) == seat and crew.pids() == pids
        assert now.seqs == crew.seen().seqs and now.beats[0] > since.now_ms + 2_000
        assert now.until_ms > since.until_ms + 2_000 and now.supervisor_ms > since.now_ms + 2_000
        says(crew, "the broker is out of memory")
        # When a worker, the trainer and the coordinator die
        refused = publications_refused(crew)
        os.kill(crew.pid("worker --pool"), signal.SIGKILL)
        os.kill(crew.pid("trainer crew"), signal.SIGKILL)
        crew.actors["coordinator"].process.kill()
        crew.start_coordinator()
        # Then others take their places while it is still full: shard freed, seat and lead claimed
        eventually(lambda: "queued" in states(crew), timeout_s=20, what="the dead worker's shard is free")
        eventually(lambda: seat_epoch(crew) > seat, timeout_s=30, what="another trainer has the seat")
        eventually(lambda: publications_refused(crew) > refused, timeout_s=60, what="it has a policy to publish")
        leader = now.until_ms
        eventually(lambda: crew.seen().until_ms > leader + 6_000, timeout_s=20, what="another coordinator leads")
        assert "leased" in states(crew), "the other worker keeps its shard"
        # When there is room again
        admin.config_set("maxmemory", 0)
    # Then all goes on, and nothing was lost
    times = crew.await_progress(crew.seen(), LIMIT_S)
    print("room again:", {role: round(seconds, 2) for role, seconds in times.items()})
    check_nothing_was_lost(crew)
