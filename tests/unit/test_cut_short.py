"""What a killed run leaves, and where the same run goes on."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from heddle import checkpoint as files
from heddle.cli.doctor import _cut_short as examined
from heddle.client import find_url
from heddle.consumers.curve_file import ENDED, CurveFile
from heddle.errors import BrokerUnreachable, Conflict
from heddle.launch.cut_short import MOST_FOLDERS, CutShort, cut_short, folder_for, remembered, remove
from tests.unit.test_checkpoint import made


def dead(_: Path) -> bool:
    return False


def left(parent: Path, name: str, sha256: str, experiment: str = "a-1") -> CutShort:
    """A run whose launcher was killed."""
    folder = parent / name
    folder.mkdir(parents=True)
    run = CutShort(folder, experiment, sha256, "heddle run a.toml", parent / "runs" / experiment)
    with remembered(run):
        pass
    return run


def test_the_same_spec_goes_on_in_its_folder_whatever_else_was_cut_short(tmp_path: Path) -> None:
    left(tmp_path, "run", "aa")
    left(tmp_path, "run-2", "bb")
    assert folder_for(tmp_path, "bb", dead) == tmp_path / "run-2"
    assert folder_for(tmp_path, "aa", dead) == tmp_path / "run"


def test_another_spec_never_takes_the_folder_of_a_run_that_was_cut_short(tmp_path: Path) -> None:
    left(tmp_path, "run", "aa")
    (tmp_path / "run-2").mkdir()
    assert folder_for(tmp_path, "cc", dead) == tmp_path / "run-2", "killed before it had an experiment"
    assert folder_for(tmp_path, "cc", lambda folder: folder.name == "run-2") == tmp_path / "run-3"
    with pytest.raises(Conflict):
        folder_for(tmp_path, "cc", lambda _: True)
    assert MOST_FOLDERS > 10


def test_a_run_that_goes_on_was_not_cut_short_even_while_its_server_is_away(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    run = CutShort(folder, "a-1", "aa", "heddle run a.toml", tmp_path)
    with remembered(run):
        program = f"""
from pathlib import Path
from heddle.launch.cut_short import cut_short
print(len(cut_short(Path({str(tmp_path)!r}), lambda folder: False)))
"""
        seen = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert seen.stdout.strip() == "0"
    assert cut_short(tmp_path, dead) == [run]
    assert cut_short(tmp_path, lambda folder: True) == []


def test_where_it_stands_is_told_from_its_newest_whole_checkpoint_in_that_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = left(tmp_path, "run", "aa", "cartpole-7f3a")
    assert "cut short at no update yet" in str(run)
    files.save(run.directory / "checkpoints", made(update=7))
    assert "update 7 (1,792 steps); go on: heddle run a.toml (drop it: rm -r " in str(run)
    for update, told in ((8, "1 newer checkpoint"), (9, "2 newer checkpoints")):
        torn = files.save(run.directory / "checkpoints", made(update=update))
        torn.write_bytes(torn.read_bytes()[:50])
        assert f"update 7 (1,792 steps; {told} cannot be loaded); go on: heddle run a.toml (" in str(run)
    assert not caplog.records, "a screen has one line for it, and none before its table"


def test_where_no_checkpoint_can_be_loaded_it_is_not_said_to_have_none(tmp_path: Path) -> None:
    run = left(tmp_path, "run", "aa")
    torn = files.save(run.directory / "checkpoints", made(update=8))
    torn.write_bytes(torn.read_bytes()[:50])
    told = str(run)
    assert f"at an unknown update, for no checkpoint can be loaded ({torn} is not a whole checkpoint: " in told
    assert "; go on: heddle run a.toml" in told


def ended(run: CutShort, state: str, reason: str) -> None:
    """It was trained to its end, and its trainer wrote that down."""
    curve = CurveFile(run.directory, "{}")
    curve.add(24, {"return": 9.5})
    files.save(run.directory / "checkpoints", made(update=24))
    curve.end(state, reason, {})


def test_a_run_that_was_killed_behind_its_end_tells_how_it_ended_and_what_shows_it(tmp_path: Path) -> None:
    # Given a run that ended, and was killed before it could say so
    run = left(tmp_path, "run", "aa", "cartpole-7f3a")
    ended(run, "completed", "used env_steps 3000")
    # Then it is not said to be cut short, nor by doctor to be amiss, and its server's data are where they were
    at, drop = run.directory, f"(drop the rest of its server: rm -r {run.folder})"
    told = f"cartpole-7f3a ended: completed: used env_steps 3000; its results are in {at}"
    assert str(run) == f"{told}; look: heddle plot {at}, heddle eval {at} {drop}"
    (finding,) = examined(tmp_path)
    assert (finding.level, finding.says, finding.do) == ("ok", told, f"heddle plot {at}, heddle eval {at} {drop}")
    assert folder_for(tmp_path, "aa", dead) == run.folder
    # And once a trainer goes on with it, for its broker forgot that it ended, it can be cut short again
    CurveFile(run.directory, "{}").close()
    assert "cartpole-7f3a was cut short at update 24" in str(run)
    (finding,) = examined(tmp_path)
    assert finding.level == "warn" and finding.do.startswith("heddle run a.toml")


def test_a_run_that_was_killed_behind_a_stop_tells_how_to_go_on_from_there(tmp_path: Path) -> None:
    run = left(tmp_path, "run", "aa", "cartpole-7f3a")
    ended(run, "stopped", "stopped by command")
    assert "cartpole-7f3a ended: stopped: stopped by command; its results are in " in str(run)
    assert f"; go on: heddle run a.toml --resume cartpole-7f3a (drop the rest of its server: rm -r {run.folder})" in (
        str(run)
    )


def test_a_run_that_went_on_from_another_one_goes_on_from_itself_when_it_was_stopped(tmp_path: Path) -> None:
    run = replace(left(tmp_path, "run", "aa", "cartpole-7f3a"), command="heddle run a.toml --resume old-1 --name 'a b'")
    ended(run, "stopped", "stopped by command")
    assert "; go on: heddle run a.toml --name 'a b' --resume cartpole-7f3a (drop" in str(run)


def test_a_run_that_ended_without_results_names_no_command_for_them(tmp_path: Path) -> None:
    run = left(tmp_path, "run", "aa")
    CurveFile(run.directory, "{}").end("failed", "cannot start\ntraining", {})
    assert str(run).startswith(f"a-1 ended: failed: cannot start training; its results are in {run.directory} (drop ")


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"state": "completed"}', "\xff"])
def test_an_end_that_cannot_be_read_is_none(tmp_path: Path, content: str) -> None:
    run = left(tmp_path, "run", "aa")
    run.directory.mkdir(parents=True)
    (run.directory / ENDED).write_text(content, encoding="latin-1")
    assert "a-1 was cut short at no update yet" in str(run)


def test_without_a_broker_every_command_names_what_was_cut_short_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEDDLE_REDIS_URL", raising=False)
    left(Path(".heddle"), "run", "aa")
    (tmp_path / ".heddle" / "appendonlydir").mkdir()
    with pytest.raises(BrokerUnreachable) as caught:
        find_url()
    assert "a-1 was cut short at no update yet; go on: heddle run a.toml (drop it: rm -r .heddle/run)" in str(
        caught.value
    )
    assert "`heddle up` goes on with the experiments" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"experiment": 1}', "null"])
def test_a_note_that_cannot_be_read_is_no_run(tmp_path: Path, content: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(content)
    assert cut_short(tmp_path, dead) == []


def test_a_folder_is_removed_in_one_step_and_so_is_what_a_killed_removal_left(tmp_path: Path) -> None:
    left(tmp_path, "run", "aa")
    (tmp_path / ".gone-run-17").mkdir()
    (tmp_path / ".gone-run-17" / "half").touch()
    remove(tmp_path / "run")
    remove(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
