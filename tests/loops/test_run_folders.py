"""The folder that `heddle run` has its server in, where others of its kind begin at the same moment."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.broker.server import LocalServer, start_server
from heddle.cli.running import Order, _with_server
from heddle.client import load_source
from heddle.errors import Conflict
from heddle.launch.cut_short import CutShort, remembered
from heddle.stop import StopFlag

FOLDER = Path(".heddle")
SPEC = {"experiment": {"name": "one"}, "env": {"id": "CartPole-v1"}, "budget": {"env_steps": 1_000}}


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Order:
    monkeypatch.chdir(tmp_path)
    return Order(load_source(SPEC), None, None, None, Path("runs"))


@pytest.fixture
def quicker(order: Order) -> Iterator[LocalServer]:
    """The server of another run, which is about to be up: it holds its folder, and nothing tells of it yet."""
    with start_server(FOLDER / "run") as server:
        (FOLDER / "run" / "server.json").unlink()
        yield server


def test_who_loses_the_race_for_a_folder_takes_the_next_one(order: Order, quicker: LocalServer) -> None:
    local = _with_server(order, None, StopFlag())
    try:
        assert local.server is not None
        assert local.server.settings.folder.name == "run-2"
        assert quicker.is_running()
    finally:
        local.end()
    assert not (FOLDER / "run-2").exists()


def test_who_would_go_on_with_a_run_and_finds_its_folder_taken_does_not_begin_anew_elsewhere(
    order: Order, quicker: LocalServer
) -> None:
    run = CutShort(FOLDER / "run", "one-1", order.loaded.spec.sha256(), "heddle run one.toml", Path("runs/one-1"))
    with remembered(run):
        pass
    with pytest.raises(Conflict, match="a server already runs in"):
        _with_server(order, None, StopFlag())
    assert not (FOLDER / "run-2").exists()
