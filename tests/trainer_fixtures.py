"""Fixtures of tests that start trainers, taken as those of `fixtures.py` are; apart from them, for these load torch."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle.broker.server import LocalServer
from tests.trainer_kit import InThread, trainers


@pytest.fixture
def in_home(tmp_path: Path) -> Path:
    """Folder for the checkpoints of the one experiment of a test; taken as `home`."""
    return tmp_path / "home"


@pytest.fixture
def training(redis_server: LocalServer, home: Path) -> Iterator[Callable[..., InThread]]:
    """Starts trainers in threads, with checkpoints in `home`, and ends them."""
    with trainers(redis_server.url, home) as begin:
        yield begin
