"""The simulated server beside real ones: the same commands and the same scripts, the replies compared."""

import inspect
import random
from typing import Any

import pytest
import redis

from heddle.broker.calls import Client
from heddle.broker.scripts import names, script
from heddle.consumers.curve_file import CurveFile
from tests.simulation.disk import NoCurveFile
from tests.simulation.lua import Engine
from tests.simulation.replies import blurred, told
from tests.simulation.server import COMMANDS, NEEDS_MEMORY, READS, SimServer

ENGINE = Engine()
KEYS = [b"k1", b"k2", b"k3"]
NAMES = [b"a", b"b", b"c", b"7"]
ROUNDS, LENGTH = 40, 60


def plain(rng: random.Random) -> list[bytes]:
    """A command on strings, hashes and sorted sets."""
    key, name, value = rng.choice(KEYS), rng.choice(NAMES), rng.choice([b"1", b"x", b"-3", b"2.5"])
    return rng.choice(
        [
            [b"SET", key, value], [b"SET", key, value, b"PX", b"60000", b"NX"], [b"GET", key], [b"STRLEN", key],
            [b"SET", key, value, b"XX", b"KEEPTTL"], [b"PEXPIRE", key, b"%d" % rng.randrange(20_000, 10**7), b"GT"],
            [b"GETRANGE", key, b"0", rng.choice([b"-1", b"1", b"9"])], [b"EXISTS", key, b"k1"], [b"UNLINK", key],
            [b"DEL", key, b"k2"], [b"PERSIST", key], [b"PEXPIRE", key, b"60000"], [b"RENAME", key, rng.choice(KEYS)],
            [b"HSET", key, name, value], [b"HSET", key, name, value, b"z", b"9"], [b"HSETNX", key, name, value],
            [b"HGET", key, name], [b"HMGET", key, name, b"z", b"none"], [b"HDEL", key, name, b"z"], [b"HVALS", key],
            [b"HINCRBY", key, name, rng.choice([b"3", b"-2", b"x"])], [b"ZADD", key, b"1.5", name],
            [b"ZADD", key, b"NX", b"7", name], [b"ZADD", key, b"1700000000000", name], [b"ZREM", key, name],
            [b"ZCARD", key], [b"ZSCORE", key, name], [b"ZRANK", key, name], [b"ZRANGE", key, b"0", b"-1"],
            [b"ZRANGE", key, b"0", b"0", b"WITHSCORES"], [b"ZREVRANGE", key, b"0", b"-1"],
            [b"ZRANGEBYSCORE", key, b"-inf", b"(7", b"WITHSCORES", b"LIMIT", b"0", b"2"],
            [b"ZREMRANGEBYSCORE", key, b"-inf", b"1.5"], [b"PTTL", key],
        ]
    )  # fmt: skip


def stream(rng: random.Random) -> list[bytes]:
    """A command on one stream, its groups and consumers."""
    made, group, who = b"%d-%d" % (rng.randint(1, 30), rng.randint(0, 1)), rng.choice([b"g1", b"g2"]), rng.choice(NAMES)
    return rng.choice(
        [
            [b"XADD", b"s", made, b"f", b"1", b"g", b"2"], [b"XADD", b"s", made, b"f", b"3"], [b"XDEL", b"s", made],
            [b"XLEN", b"s"], [b"XRANGE", b"s", b"-", b"+"], [b"XRANGE", b"s", made, made],
            [b"XRANGE", b"s", b"(" + made, b"+", b"COUNT", b"2"], [b"XREVRANGE", b"s", b"+", made, b"COUNT", b"3"],
            [b"XREAD", b"COUNT", b"2", b"STREAMS", b"s", made], [b"XGROUP", b"CREATE", b"s", group, b"0", b"MKSTREAM"],
            [b"XGROUP", b"CREATE", b"s", group, b"$"], [b"XGROUP", b"DESTROY", b"s", group],
            [b"XGROUP", b"DELCONSUMER", b"s", group, who], [b"XACK", b"s", group, made],
            [b"XREADGROUP", b"GROUP", group, who, b"COUNT", b"2", b"STREAMS", b"s", b">"],
            [b"XREADGROUP", b"GROUP", group, who, b"COUNT", b"9", b"STREAMS", b"s", b">"],
            [b"XAUTOCLAIM", b"s", group, who, b"0", b"0-0", b"COUNT", b"2"],
            [b"XAUTOCLAIM", b"s", group, who, b"0", made, b"COUNT", b"3", b"JUSTID"],
            [b"XPENDING", b"s", group, b"-", b"+", b"5"],
        ]
    )  # fmt: skip


class Both:
    """A real and a simulated server."""

    def __init__(self, raw: "redis.Redis") -> None:
        self.raw = raw
        self.raw.flushall()
        self.sim = SimServer(lambda: 1_700_000_000_000.0, ENGINE, keeps_log=False)

    def ask(self, command: list[bytes]) -> Any:
        """The real server's reply as it comes; an error is a reply."""
        pool = self.raw.connection_pool
        one = pool.get_connection()
        try:
            one.send_command(*command)  # type: ignore[no-untyped-call]
            return one.read_response()
        except redis.ResponseError as error:
            return error
        finally:
            pool.release(one)

    def check(self, command: list[bytes], so_far: list[list[bytes]]) -> None:
        real = self.ask(command)
        simulated = self.sim.execute(command)
        assert blurred(command, simulated) == blurred(command, real), f"{command} after {so_far[-12:]}"

    def check_oom(self, command: list[bytes], name: str) -> None:
        """Both refuse for want of memory, or neither does."""
        real = self.ask(command)
        simulated = self.sim.execute(command)
        refused = ["OutOfMemory" in str(told(reply)) for reply in (real, simulated)]
        assert refused[0] == refused[1], (name, real, simulated)


@pytest.mark.parametrize("kind", ["plain", "stream"])
def test_commands_are_answered_as_by_a_real_server(raw: Client, kind: str) -> None:
    for seed in range(ROUNDS):
        rng, both, so_far = random.Random(f"{kind} {seed}"), Both(raw), list[list[bytes]]()
        for _ in range(LENGTH):
            command = (plain if kind == "plain" else stream)(rng)
            both.check(command, so_far)
            so_far.append(command)


def test_idle_0_claims_also_what_a_clock_that_was_set_back_shows_as_delivered_in_the_future(raw: Client) -> None:
    for idle, claims in ((b"0", True), (b"1", False)):
        both = Both(raw)
        for command in (
            [b"XADD", b"s", b"1-0", b"f", b"1"],
            [b"XGROUP", b"CREATE", b"s", b"g", b"0"],
            [b"XREADGROUP", b"GROUP", b"g", b"a", b"STREAMS", b"s", b">"],
        ):
            both.check(command, [])
        both.ask([b"RESTORE", b"s", b"0", _delivered_later(both.ask([b"DUMP", b"s"]), raw), b"REPLACE"])
        both.sim.clock = lambda: 1_700_000_000_000.0 - 3_600_000.0
        command = [b"XAUTOCLAIM", b"s", b"g", b"b", idle, b"0-0", b"JUSTID"]
        both.check(command, [])
        assert bool(both.ask([b"XPENDING", b"s", b"g", b"-", b"+", b"5", b"b"])) == claims


def _delivered_later(dump: bytes, raw: Client) -> bytes:
    """A stream as DUMP gives it, with the one pending entry delivered in an hour."""
    seconds = raw.time()[0]
    for at in range(len(dump) - 18):  # 8 bytes of milliseconds, the number of deliveries behind them
        then = int.from_bytes(dump[at : at + 8], "little")
        if abs(then - 1000 * seconds) < 60_000 and dump[at - 16 : at] == (1).to_bytes(8, "big") + bytes(8):
            body = dump[:at] + (then + 3_600_000).to_bytes(8, "little") + dump[at + 8 : -8]
            return body + _crc64(body).to_bytes(8, "little")
    raise AssertionError("no pending entry in the dump")


def _crc64(data: bytes) -> int:
    """The checksum of a dump: Jones, reflected."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
    return crc


def test_commands_write_and_need_memory_as_a_real_server_says(raw: Client) -> None:
    for name in sorted(COMMANDS):
        facts: Any = raw.execute_command("COMMAND", "INFO", name)
        if name in (b"XGROUP", b"XINFO"):
            continue  # a container: its subcommands have flags of their own
        flags = {word.decode() if isinstance(word, bytes) else word for word in _flags(facts, name)}
        assert (name not in READS) == ("write" in flags), name
        assert (name in NEEDS_MEMORY) == ("denyoom" in flags), name


def _flags(facts: Any, name: bytes) -> Any:
    found: Any = facts.get(name.decode().lower()) if isinstance(facts, dict) else facts[0]
    return found["flags"] if isinstance(found, dict) else found[2]


def test_scripts_are_refused_without_memory_where_a_real_server_refuses_them(raw: Client) -> None:
    """On keys that are not there most scripts write nothing; what matters is which of them an OOM stops."""
    both = Both(raw)
    for name in names():
        source, keys = script(name).source, [b"{t}:%d" % number for number in range(1, 10)]
        raw.hset("{t}:1", mapping={"command": "run", "seat_epoch": "5", "leader_epoch": "5", "id": "5", "epoch": "5"})
        both.sim.execute([b"HSET", b"{t}:1", b"command", b"run", b"seat_epoch", b"5", b"leader_epoch", b"5"])
        both.sim.execute([b"HSET", b"{t}:1", b"id", b"5", b"epoch", b"5"])
        sha = both.sim.execute([b"SCRIPT", b"LOAD", source.encode()])
        raw.script_load(source)
        raw.config_set("maxmemory", 1)
        both.sim.full = True
        command = [b"EVALSHA", sha, b"7", *keys[:7], *[b"5"] * 18]
        both.check_oom(command, name)
        raw.config_set("maxmemory", 0)
        both.sim.full = False
        raw.flushall()
        both.sim.db.data.clear()
        both.sim.db.expires.clear()


def test_the_double_of_the_curves_file_takes_what_the_real_one_takes() -> None:
    for name, real in inspect.getmembers(CurveFile, inspect.isfunction):
        if not name.startswith("_") and name != "trouble":  # its own, where a disk fails
            assert _taken(getattr(NoCurveFile, name)) == _taken(real), name


def _taken(function: Any) -> list[tuple[str, Any]]:
    return [(one.name, one.kind) for one in inspect.signature(function).parameters.values()]
