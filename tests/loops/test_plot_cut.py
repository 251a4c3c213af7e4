"""`plot` of an experiment of whose measurements the broker has let go of the oldest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heddle.broker import Broker, metrics
from heddle.broker.server import LocalServer
from heddle.cli.main import run
from heddle.consumers.curve_file import CurveFile
from tests.fixtures import on_valkey
from tests.trainer_kit import submit

broker = on_valkey

Plot = Callable[[], tuple[str, dict[str, Any]]]


@pytest.fixture
def cut(
    broker: Broker,
    valkey_server: LocalServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> tuple[CurveFile, Plot]:
    """The file of an experiment of 300 updates, most of which the broker let go of; what `plot` says: text, JSON."""
    monkeypatch.setattr(metrics, "MOST_BYTES", 20_000)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEDDLE_REDIS_URL", valkey_server.url)
    experiment = submit(broker)
    seat = broker.seats.claim_seat(experiment, "t1")
    file = CurveFile(tmp_path / "elsewhere" / experiment, "{}")
    for update in range(1, 301):
        told = {f"n{number}": update / 7 for number in range(40)} | {"return": float(update)}
        file.add(update, told, entry=broker.events.metrics_add(experiment, update, told, seat_epoch=seat))

    def plot() -> tuple[str, dict[str, Any]]:
        assert run(["plot", experiment, "--x", "updates"]) == 0
        shown = capsys.readouterr().out
        assert run(["plot", experiment, "--x", "updates", "-o", "json"]) == 0
        return shown, json.loads(capsys.readouterr().out)["curves"][0]

    return file, plot


def test_plot_says_that_a_curve_begins_late_and_where_all_of_it_is(cut: tuple[CurveFile, Plot]) -> None:
    shown, curve = cut[1]()
    points = curve["points"]
    assert points[-1] == [300, 300] and curve["cut"] == 300 - len(points) > 0
    assert f"begins at update {int(points[0][0])}: the broker has let go of {curve['cut']} measurements" in shown
    assert "heddle plot runs/" in shown


def test_plot_takes_the_beginning_from_the_folder_of_the_run_where_that_is_here(
    cut: tuple[CurveFile, Plot], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").rename(tmp_path / "runs")
    shown, curve = cut[1]()
    assert curve["points"] == [[update, update] for update in range(1, 301)]
    assert curve["cut"] == 0 and "let go" not in shown
