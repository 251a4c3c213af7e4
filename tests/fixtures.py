"""Fixtures that some files of tests want and others do not: a file takes one by giving it a name, `broker = on_valkey`.

What every file has is in `conftest.py`.
"""

from collections.abc import Callable, Iterator

import pytest

from heddle.broker import Broker, open_broker
from heddle.broker.server import LocalServer
from tests.worker_kit import Running, coordinating, fresh, workers


@pytest.fixture
def on_valkey(valkey_server: LocalServer) -> Iterator[Broker]:
    """A broker on the server that is always there: for tests that do not depend on the kind."""
    with open_broker(valkey_server.url, role="test") as connected:
        yield connected


@pytest.fixture
def coordinated(valkey_server: LocalServer) -> Iterator[str]:
    """The address of that server, with a coordinator on it; taken as `url`."""
    with coordinating(valkey_server.url):
        yield valkey_server.url


@pytest.fixture
def on_url(url: str) -> Iterator[Broker]:
    """A broker at `url`, whatever the file takes that for."""
    with fresh(url) as connected:
        yield connected


@pytest.fixture
def with_worker(valkey_server: LocalServer) -> Iterator[Broker]:
    """A broker with a coordinator and a worker on it."""
    with coordinating(valkey_server.url), fresh(valkey_server.url) as connected:
        worker = Running(valkey_server.url, "w1")
        yield connected
        worker.end(30.0)


@pytest.fixture
def starting(url: str) -> Iterator[Callable[..., Running]]:
    """Starts workers at `url` in threads, and ends those that still run."""
    with workers(url) as begin:
        yield begin
