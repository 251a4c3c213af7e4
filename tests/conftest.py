"""Servers for tests: every kind there is, one process each for the whole run, empty at the start of each test.

Valkey comes with the package and must be there. Redis is the one on PATH: without it its tests are skipped,
and fail where HEDDLE_ALL_SERVERS is set, as in CI.
"""

import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from heddle.broker import Broker, open_broker
from heddle.broker.binary import FLOOR, ServerBinary, examine, server_binary
from heddle.broker.server import LocalServer, start_server
from tests.broker_kit import fake_broker

signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""Tests may run below `nohup`, and what they start would ignore a closed terminal as that asks for."""

KINDS = ("redis", "valkey")
MEMORY = 512 << 20


UNSTEADY = 2
"""Most tests of a run that may fail once and pass when they are run again, where that is asked for at all."""


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the tests that failed once and passed then: each is a race to be mended."""
    for report in terminalreporter.stats.get("rerun", []):
        lines = str(report.longrepr).splitlines()
        terminalreporter.write_line(f"UNSTEADY {report.nodeid}: {lines[-1]}")
        for line in [line for line in lines if line.startswith("E ")][:40]:  # what failed, not only where
            terminalreporter.write_line(f"  {line}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """More than a few of them fail the run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and len(reporter.stats.get("rerun", [])) > UNSTEADY:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-redis", action="store_true", help="skip tests on the redis-server on PATH")


def _binary(kind: str) -> ServerBinary | None:
    if kind == "valkey":
        return server_binary(os.devnull)
    path = shutil.which("redis-server")
    found = examine(Path(path)) if path else None
    return found if found is not None and found.kind == kind and found.version >= FLOOR[kind] else None


@pytest.fixture(scope="session")
def server_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], LocalServer]]:
    """Gives the running server of a kind, started at its first use."""
    running: dict[str, LocalServer] = {}

    def give(kind: str) -> LocalServer:
        if kind == "redis" and request.config.getoption("--no-redis"):
            pytest.skip("--no-redis")
        if kind not in running:
            binary = _binary(kind)
            if binary is None and os.environ.get("HEDDLE_ALL_SERVERS"):
                pytest.fail("no redis-server 7.0 or newer on PATH, and HEDDLE_ALL_SERVERS is set")
            if binary is None:
                pytest.skip("no redis-server 7.0 or newer on PATH")
            folder = tmp_path_factory.mktemp(kind)
            running[kind] = start_server(folder, durability="memory", maxmemory=MEMORY, binary=binary)
        return running[kind]

    yield give
    for server in running.values():
        server.stop()


def _emptied(server: LocalServer) -> LocalServer:
    client = redis.Redis.from_url(server.url)
    client.config_set("maxmemory", MEMORY)
    client.flushall()
    client.close()
    return server


@pytest.fixture(params=KINDS)
def redis_server(request: pytest.FixtureRequest, server_of: Callable[[str], LocalServer]) -> LocalServer:
    """Each real server in turn, empty."""
    return _emptied(server_of(request.param))


@pytest.fixture
def valkey_server(server_of: Callable[[str], LocalServer]) -> LocalServer:
    """The server that is always there, empty: for tests that do not depend on the kind."""
    return _emptied(server_of("valkey"))


@pytest.fixture
def broker(redis_server: LocalServer) -> Iterator[Broker]:
    """A broker on each real server in turn."""
    with open_broker(redis_server.url, role="test") as connected:
        yield connected


@pytest.fixture(params=[*KINDS, "fake"])
def any_broker(request: pytest.FixtureRequest, server_of: Callable[[str], LocalServer]) -> Iterator[Broker]:
    """A broker on each real server and on fakeredis: for what needs no memory limit, restart or blocking read."""
    if request.param == "fake":
        yield fake_broker()
        return
    with open_broker(_emptied(server_of(request.param)).url, role="test") as connected:
        yield connected


@pytest.fixture
def raw(broker: Broker) -> redis.Redis:
    """A plain client beside `broker`, for looking and for breaking things."""
    return broker.conn.main


@pytest.fixture
def full_memory(broker: Broker) -> Callable[[], None]:
    """Makes the server refuse everything that needs memory, until the next test."""

    def fill() -> None:
        broker.conn.main.config_set("maxmemory", 1)

    return fill


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A command that a test calls in this process sends logs to standard error, for that test alone."""
    logger = logging.getLogger("heddle")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def pytest_configure() -> None:
    """A shell that runs the tests in its background has them ignore SIGINT, which every process they start inherits."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
