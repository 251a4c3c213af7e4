"""What `heddle run` keeps and says of the run that its own server's folder remembers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.broker import Broker, keys
from heddle.broker.server import LocalServer
from heddle.cli.earlier import keep_what_goes_on
from heddle.client import Client
from heddle.consumers.curve_file import CurveFile
from heddle.launch.cut_short import CutShort, remembered
from tests.fixtures import on_valkey
from tests.trainer_kit import submit

broker = on_valkey


@pytest.fixture
def looked(
    broker: Broker, valkey_server: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[[CutShort], tuple[str, list[str]]]:
    """Begins a run of the same spec in that folder; what it says, and which experiments stay."""
    client = Client(broker, valkey_server.url)

    def look(run: CutShort) -> tuple[str, list[str]]:
        keep_what_goes_on(client, run.folder, run.sha256, to_stderr=False)
        return capsys.readouterr().out, [status.experiment for status in client.experiments()]

    return look


def killed(broker: Broker, folder: Path) -> CutShort:
    """A run whose every process was killed, and beside it another one that nobody goes on with."""
    made = submit(broker)
    run = CutShort(folder, made, broker.experiments.spec(made).sha256, "heddle run a.toml", folder / made)
    with remembered(run):
        pass
    submit(broker, experiment={"name": "other"})
    return run


def over(broker: Broker, experiment: str) -> None:
    """Its coordinator wrote down how it ended."""
    fields = {"state": "completed", "reason": "used env_steps 64"}
    broker.conn.main.hset(keys.status(experiment), mapping=fields)  # type: ignore[arg-type]
    broker.conn.main.hset(keys.ctl(experiment), "command", "stop")


def test_a_run_that_was_cut_short_stays_and_nothing_is_said(
    broker: Broker, looked: Callable[[CutShort], tuple[str, list[str]]], tmp_path: Path
) -> None:
    run = killed(broker, tmp_path)
    assert looked(run) == ("", [run.experiment])


def test_a_run_that_ended_is_named_with_its_end_before_another_begins_in_its_place(
    broker: Broker, looked: Callable[[CutShort], tuple[str, list[str]]], tmp_path: Path
) -> None:
    run = killed(broker, tmp_path)
    over(broker, run.experiment)
    said = f"note    {run.experiment} ended: completed: used env_steps 64; its results are in {run.directory}"
    assert looked(run) == (f"{said}; this run begins anew\n", [])
    # nor is a run whose broker lost all of it passed over: its trainer wrote it down
    CurveFile(run.directory, "{}").end("completed", "used env_steps 64", {})
    assert looked(run) == (f"{said}; this run begins anew\n", [])


def test_a_run_of_which_the_broker_forgot_that_it_ended_goes_on_to_its_end(
    broker: Broker, looked: Callable[[CutShort], tuple[str, list[str]]], tmp_path: Path
) -> None:
    run = killed(broker, tmp_path)
    CurveFile(run.directory, "{}").end("completed", "used env_steps 64", {})
    assert looked(run) == ("", [run.experiment])
