"""Which runs left checkpoints here, and what the commands say of them."""

import json
import os
from pathlib import Path

import pytest

from heddle.checkpoint import Checkpoint, mark_best, save
from heddle.cli.evaluate import find_checkpoint
from heddle.cli.main import run
from heddle.errors import NotFound, UsageError
from heddle.launch.local_runs import find_run, glance, named_near, runs_in


def left(directory: Path, name: str, *, age_s: int = 0, **changes: object) -> Path:
    """A run that left one checkpoint, so long ago; its folder."""
    values: dict[str, object] = {
        "experiment": name,
        "spec_json": "{}",
        "spec_sha256": "ab" * 32,
        "spaces": {},
        "seat_epoch": 3,
        "update": 7,
        "policy_version": 8,
        "env_steps": 1_792,
        "best_return": 99.5,
    }
    folder = directory / name
    path = save(folder / "checkpoints", Checkpoint(**(values | changes)))  # type: ignore[arg-type]
    written_s = 1_700_000_000 - age_s
    os.utime(path, (written_s, written_s))
    return folder


def test_runs_are_listed_newest_first_with_how_far_they_came(tmp_path: Path) -> None:
    left(tmp_path, "old-aaaaaa", age_s=50)
    folder = left(tmp_path, "new-bbbbbb", env_steps=4_096, best_return=None)
    (tmp_path / "empty-cccccc" / "checkpoints").mkdir(parents=True)
    (tmp_path / "a-file").touch()
    found = runs_in(tmp_path)
    assert [one.id for one in found] == ["new-bbbbbb", "old-aaaaaa"]
    assert (found[0].folder, found[0].facts["env_steps"], found[0].best_return) == (folder, 4_096, None)
    assert found[1].best_return == 99.5
    assert runs_in(tmp_path / "nowhere") == []


def test_a_run_is_found_by_id_and_by_name_the_newest_first(tmp_path: Path) -> None:
    left(tmp_path, "pole-aaaaaa", age_s=50)
    left(tmp_path, "pole-bbbbbb")
    by_name, by_id = find_run(tmp_path, "pole"), find_run(tmp_path, "pole-aaaaaa")
    assert by_name is not None and by_name.id == "pole-bbbbbb"
    assert by_id is not None and by_id.id == "pole-aaaaaa"
    assert find_run(tmp_path, "pol") is None


def test_a_torn_file_tells_nothing_and_harms_nothing(tmp_path: Path) -> None:
    folder = left(tmp_path, "torn-aaaaaa")
    path = next((folder / "checkpoints").iterdir())
    whole = path.read_bytes()
    for data in (b"", b"abc", whole[:40], b"\xff" * 64, b"\x02" + b"\0" * 7 + b"{}"):
        path.write_bytes(data)
        assert glance(path) == {}
        assert [one.facts for one in runs_in(tmp_path)] == [{}]
    path.write_bytes(whole)
    assert glance(path)["update"] == 7


def test_what_is_near_is_named_else_the_first_few() -> None:
    known = [f"pole-{number}" for number in range(9)]
    assert named_near("pole-3x", known).startswith("pole-3")
    assert named_near("zzz", known) == "pole-0, pole-1, pole-2, pole-3, pole-4 and 4 more"
    assert named_near("zzz", []) == ""


# ---- eval


def test_eval_of_a_folder_of_several_runs_lists_them_and_asks_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    left(Path("runs"), "one-aaaaaa", age_s=50)
    left(Path("runs"), "two-bbbbbb", env_steps=12_345)
    assert run(["eval", "runs/"]) == UsageError.exit_code
    out, err = capsys.readouterr()
    *table, last = err.splitlines()
    assert out == "" and [line.split()[0] for line in table] == ["RUN", "runs/two-bbbbbb", "runs/one-aaaaaa"]
    assert "12,345" in table[1] and "99.5" in table[1]
    assert last == "heddle: runs holds 2 runs, say which, e.g.: runs/two-bbbbbb"


def test_a_run_is_evaluated_by_its_folder_id_or_name_with_its_best_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = left(Path("runs"), "one-aaaaaa")
    newest = next((folder / "checkpoints").iterdir())
    assert find_checkpoint(Path("runs")) == newest, "the only one"
    best = mark_best(folder / "checkpoints", newest)
    for named in ("runs", "runs/one-aaaaaa", "one-aaaaaa", "one", "runs/one-aaaaaa/checkpoints"):
        assert find_checkpoint(Path(named)) == best
    with pytest.raises(NotFound, match="no checkpoint onee: here are: runs/one-aaaaaa"):
        find_checkpoint(Path("onee"))
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(NotFound, match="no checkpoint in elsewhere"):
        find_checkpoint(Path("elsewhere"))


# ---- without a broker


def test_where_no_broker_is_known_the_runs_that_need_none_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEDDLE_REDIS_URL", raising=False)
    assert run(["ls"]) == 5
    assert "runs/" not in capsys.readouterr().err
    left(Path("runs"), "one-aaaaaa")
    assert run(["status", "one-aaaaaa"]) == 5
    assert "heddle plot runs/one-aaaaaa, heddle eval runs/one-aaaaaa" in capsys.readouterr().err


def test_the_facts_are_plain_json(tmp_path: Path) -> None:
    left(tmp_path, "one-aaaaaa")
    assert json.loads(json.dumps(runs_in(tmp_path)[0].facts))["env_steps"] == 1_792
