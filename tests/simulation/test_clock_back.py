"""A server whose clock is set back, as no real one here can be made to do: scripts that look at how old things are."""

from heddle.broker.scripts import script
from tests.simulation.database import Database
from tests.simulation.lua import Engine
from tests.simulation.server import SimServer
from tests.simulation.watch import Watcher

CTL, STREAM = b"heddle:{e-1.0}:ctl", b"heddle:{e-1.0}:experience"


def test_what_seems_to_be_read_in_the_future_is_taken_over_too() -> None:
    now_ms = [1_700_000_000_000.0]
    server = SimServer(lambda: now_ms[0], Engine())
    server.execute([b"HSET", CTL, b"command", b"run"])
    server.execute([b"XGROUP", b"CREATE", STREAM, b"trainer", b"0", b"MKSTREAM"])
    server.execute([b"XADD", STREAM, b"*", b"shard", b"0"])
    server.execute([b"XREADGROUP", b"GROUP", b"trainer", b"frozen", b"STREAMS", STREAM, b">"])
    now_ms[0] -= 5_000.0
    take_over = script("take_over")
    server.execute([b"SCRIPT", b"LOAD", take_over.source.encode()])
    reply = server.execute([b"EVALSHA", take_over.sha.encode(), b"2", CTL, STREAM, b"trainer", b"heir"])
    assert reply[0] == b"OK" and len(reply) == 2, reply


def test_a_key_that_went_while_the_clock_was_ahead_does_not_last_when_it_is_back() -> None:
    db = Database()
    db.now_ms = 1_000
    db.data[b"seat"], db.expires[b"seat"] = {b"trainer": b"a"}, 2_000
    db.now_ms = 2_500  # it leaps
    assert db.raw(b"seat") is None
    db.now_ms = 1_100  # and is back
    assert db.lasts(b"seat", 2_000) <= 0
    db.data[b"seat"], db.expires[b"seat"] = {b"trainer": b"b"}, 2_100
    assert db.lasts(b"seat", 2_100) == 1_000


def test_a_key_that_a_read_saw_lapse_is_not_there_again_after_a_restart_with_the_clock_set_back() -> None:
    """A real server writes that it deleted it; seed 77562 gave the seat back to the one whose time had been over."""
    now_ms = [1_000.0]
    server = SimServer(lambda: now_ms[0], Engine())
    server.execute([b"SET", b"seat", b"a", b"PX", b"1000"])
    now_ms[0] = 2_500.0
    assert server.execute([b"PTTL", b"seat"]) == -2
    server.come_back(server.written)
    now_ms[0] = 1_100.0
    assert server.execute([b"SET", b"seat", b"b", b"PX", b"1000", b"NX"]) is not None
    server.come_back(server.written)
    assert server.execute([b"GET", b"seat"]) == b"b"
    server.come_back(1)
    assert server.execute([b"GET", b"seat"]) is None  # what a write that is kept came after, is kept as well


def test_the_watcher_asks_a_server_that_came_back_who_waits_for_room() -> None:
    """Seed 80008: it knew who had waited before the loss, and called a turn that was kept broken."""
    server, waiting = SimServer(lambda: 1_000.0, Engine()), b"heddle:{e-1.0}:waiting"
    watcher = Watcher(server, "e-1")
    server.execute([b"ZADD", waiting, b"7", b"0"])
    server.come_back(server.written)
    watcher.came_back(server.written)
    assert watcher.waits == {b"0": 7.0}
