"""The broker goes away in every way there is and comes back: every process goes on by itself, the very same ones.

Times are measured from the first PING that is answered. HEDDLE_SOAK=1 lets every absence last longer than any timeout.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from heddle.broker import keys
from heddle.clock import SystemClock
from tests.chaos.breakable import PASSWORD, Server
from tests.chaos.crew import Crew, crew_on
from tests.chaos.planes import PLANES, SOAK
from tests.helpers import eventually

AWAY_S = 8.0 if SOAK else 1.2
LIMIT_S = 5.0
MOST_WARNINGS = 8
"""Lines of trouble of one process and its children for one outage: one for each thing that it could not do."""
clock = SystemClock()
pytestmark = [pytest.mark.alone, pytest.mark.timeout(180)]


@pytest.fixture(scope="module", params=PLANES if SOAK else PLANES[:1])
def way(request: pytest.FixtureRequest) -> str:
    """The plane. By default shared memory, where a batch waits in a buffer while the broker is away; sieges kill it
    over both."""
    return str(request.param)


@pytest.fixture(scope="module")
def server(way: str) -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def crew(server: Server, way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    with crew_on(server, tmp_path_factory.mktemp("crew"), plane=way) as working:
        yield working


# ---- what happens to it


def is_killed(server: Server) -> None:
    server.node.kill()
    clock.sleep(AWAY_S)
    server.node.start()


def loads_for_a_while(server: Server) -> None:
    with server.admin() as admin:
        pipe = admin.pipeline(transaction=False)
        for _ in range(8192):  # between two looks at its sockets it loads 1024 commands
            pipe.set("heddle:filler", "", ex=600)
        pipe.execute()
    server.node.kill()
    server.node.options = ("--key-load-delay", "150")
    server.node.start()
    server.node.options = ()
    eventually(lambda: "oading" in trouble(server), what="it loads")


def freezes_beyond_every_timeout(server: Server) -> None:
    server.freeze()
    clock.sleep(7.0)
    server.thaw()


def lets_nobody_in_with_the_old_password(server: Server) -> None:
    with server.admin() as admin:
        admin.config_set("requirepass", "second-word")
        admin.client_kill_filter(_type="normal", skipme=True)
        clock.sleep(AWAY_S)
        admin.config_set("requirepass", PASSWORD)


def throws_everybody_out(server: Server) -> None:
    with server.admin() as admin:
        for _ in range(5):
            admin.client_kill_filter(_type="normal", skipme=True)
            admin.client_kill_filter(_type="pubsub", skipme=True)
            clock.sleep(AWAY_S / 10)


def forgets_its_scripts(server: Server) -> None:
    with server.admin() as admin:
        admin.script_flush()


def loses_every_group(server: Server) -> None:
    with server.admin() as admin:
        for stream in (*admin.keys("heddle:*:experience"), keys.pool_tickets("default"), keys.QUEUE):
            for group in admin.xinfo_groups(stream):
                admin.xgroup_destroy(stream, group["name"])


def is_busy_with_an_endless_script(server: Server) -> None:
    with server.admin() as killer, server.admin() as caller:
        killer.config_set("busy-reply-threshold", 100)
        thread = threading.Thread(target=lambda: run_for_ever(caller))
        thread.start()
        clock.sleep(AWAY_S)
        killer.script_kill()
        thread.join()


def cannot_write_its_disk(server: Server) -> None:
    server.fill_disk()
    eventually(lambda: "MISCONF" in trouble(server), what="it cannot write")
    clock.sleep(AWAY_S)
    server.free_disk()


def misses_its_replicas(server: Server) -> None:
    with server.admin() as admin:
        admin.config_set("min-replicas-to-write", 1)
        clock.sleep(AWAY_S)
        admin.config_set("min-replicas-to-write", 0)


def is_demoted_and_another_takes_its_place(server: Server) -> None:
    server.follow()
    server.promote()
    server.demote_old()
    clock.sleep(AWAY_S)
    server.retire_old()


def dies_and_a_replica_takes_its_place(server: Server) -> None:
    server.follow()
    server.node.kill()
    clock.sleep(AWAY_S)
    server.promote()
    server.retire_old()


def run_for_ever(client: Any) -> None:
    with contextlib.suppress(redis.ResponseError):
        client.eval("while true do end", 0)


def trouble(server: Server) -> str:
    """What it answers to PING instead of PONG."""
    try:
        with server.admin() as admin:
            admin.ping()
    except redis.RedisError as error:
        return str(error)
    return ""


OUTAGES: tuple[Callable[[Server], None], ...] = (
    is_killed,
    loads_for_a_while,
    freezes_beyond_every_timeout,
    lets_nobody_in_with_the_old_password,
    throws_everybody_out,
    forgets_its_scripts,
    loses_every_group,
    is_busy_with_an_endless_script,
    cannot_write_its_disk,
    misses_its_replicas,
    is_demoted_and_another_takes_its_place,
    dies_and_a_replica_takes_its_place,
)


@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.__name__)
def test_every_process_works_again_within_5_s_when_the_broker(
    crew: Crew, server: Server, outage: Callable[[Server], None], record_property: Callable[[str, object], None]
) -> None:
    before, said, used, began = crew.pids(), crew.warnings(), crew.cpu_s(), clock.monotonic()
    outage(server)
    lasted_s = clock.monotonic() - began
    spent = crew.cpu_s()
    server.wait_until_well()
    times = crew.await_progress(crew.seen(), timeout_s=30.0)
    record_property("seconds", times)
    print(outage.__name__, {role: round(seconds, 2) for role, seconds in times.items()})
    assert max(times.values()) < LIMIT_S, times
    assert crew.pids() == before, f"somebody ended: {crew.tails()}"
    for pid, seconds in spent.items():
        assert seconds - used[pid] < 0.5 + 0.4 * lasted_s, (
            f"{before[pid]} spins: {seconds - used[pid]:.1f} s of {lasted_s:.1f}"
        )
    for name, lines in crew.warnings().items():
        assert len(lines) - len(said[name]) <= MOST_WARNINGS, lines[len(said[name]) :]
    crew.check_books()


@pytest.mark.parametrize("how", ["restarted without data", "flushed"])
def test_an_emptied_broker_ends_what_it_forgot_with_a_clear_word_and_everybody_else_takes_new_work(
    crew: Crew, server: Server, how: str
) -> None:
    # Given a crew at work
    roles = crew.pids()
    stay = {pid for pid, role in roles.items() if role not in ("trainer crew", "enqueue", "tap_process")}
    old = crew.experiment
    # When the broker forgets everything
    if how == "flushed":
        with server.admin() as admin:
            admin.flushall()
    else:
        server.node.kill()
        server.forget_everything()
        server.node.start()
    server.wait_until_well()
    # Then whoever needs the experiment ends and says why
    for name in ("follower", "tap"):
        actor = crew.actors[name]
        eventually(lambda actor=actor: actor.process.poll() is not None, timeout_s=10, what=f"{name} ends")  # type: ignore[misc]
        assert (actor.process.returncode, f"no experiment '{old}'" in actor.output()) == (4, True), actor.output()[
            -500:
        ]
        assert "Traceback" not in actor.output()
    eventually(lambda: "trainer crew" not in crew.pids().values(), timeout_s=10, what="its trainer ends")
    # And nobody makes any of it anew, while everybody else goes on with the next experiment
    with server.admin() as admin:
        assert not admin.keys(f"heddle:{{{old}*")
        if how == "restarted without data" or SOAK:
            crew.begin()
            crew.play(30.0)
        assert not admin.keys(f"heddle:{{{old}*")
    assert stay <= set(crew.pids())
