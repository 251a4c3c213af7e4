"""The data of a run's own server: gone once it is known what became of the run, kept whatever else ends it."""

from pathlib import Path

import pytest

from heddle.broker.server import is_running
from heddle.launch.cut_short import CutShort, cut_short, remembered
from heddle.launch.local import Local, Setup
from heddle.stop import StopFlag


def ended(folder: Path, *, remembers: bool, settled: bool) -> bool:
    """Whether the data are still there after the services ended."""
    local = Local(Setup(url=None, folder=folder), stop=StopFlag())
    local.start_server()
    if remembers:
        with remembered(CutShort(folder, "a-1", "aa", "heddle run a.toml", folder.parent / "runs")):
            pass
    local.settled = settled
    local.end()
    assert not is_running(folder)
    return folder.exists()


@pytest.mark.parametrize(
    ("remembers", "settled", "stays"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_data_are_removed_only_once_an_outcome_is_known(
    remembers: bool, settled: bool, stays: bool, tmp_path: Path
) -> None:
    folder = tmp_path / ".heddle" / "run"
    assert ended(folder, remembers=remembers, settled=settled) is stays
    assert [run.experiment for run in cut_short(folder.parent, is_running)] == (["a-1"] if stays else [])


def test_a_run_that_goes_on_and_cannot_start_keeps_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / ".heddle" / "run"
    assert ended(folder, remembers=True, settled=False)
    again = Local(Setup(url=None, folder=folder), stop=StopFlag())
    again.start_server()
    again.end()  # as an error before its experiment was looked for has it
    assert (folder / "run.json").is_file()
