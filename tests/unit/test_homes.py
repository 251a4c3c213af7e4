"""Homes of children: each is removed with the folder around it, whoever makes and removes others meanwhile."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from heddle.producers.isolation.home import Home


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for temporary files, empty at first."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_the_last_home_leaves_nothing_of_ours_behind(temporary: Path) -> None:
    first, second = Home(), Home()
    (first.work / "file").touch()
    first.remove()
    assert not first.path.exists() and second.work.is_dir()
    second.remove()
    second.remove()
    assert list(temporary.iterdir()) == []


def test_homes_can_be_made_while_others_take_the_folder_around_them_along(temporary: Path) -> None:
    def come_and_go(_: int) -> bool:
        home = Home()
        there = home.work.is_dir()
        home.remove()
        return there

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(come_and_go, range(400)))
    assert list(temporary.iterdir()) == []


def test_without_a_folder_for_temporary_files_there_is_an_error_and_no_end_of_trying(temporary: Path) -> None:
    temporary.rmdir()
    with pytest.raises(FileNotFoundError):
        Home()
