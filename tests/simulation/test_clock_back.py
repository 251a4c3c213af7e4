"""A server whose clock is set back, as no real one here can be made to do: scripts that look at how old things are."""

from heddle.broker.scripts import script
from tests.simulation.database import Database
from tests.simulation.lua import Engine
from tests.simulation.server import SimServer

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
