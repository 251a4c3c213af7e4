"""Homes of children: each is removed with the folder around it, whoever makes and removes others meanwhile."""

import os
import resource
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from heddle.producers.isolation.home import SWEPT_AT_ONCE, Home, sweep


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


@contextmanager
def files_more(count: int) -> Iterator[None]:
    """No more than so many files can be opened beside those that are."""
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_where_no_more_files_can_be_opened_there_is_an_error_and_no_folder_is_left(temporary: Path) -> None:
    Home().remove()  # so that nothing is swept any more
    with files_more(0), pytest.raises(OSError, match="Too many open files"):
        Home()
    assert [path for base in temporary.iterdir() for path in base.iterdir()] == []


def test_more_homes_of_the_dead_than_files_can_be_opened_are_all_swept(temporary: Path) -> None:
    # Given many homes whose workers are gone
    for number in range(2 * SWEPT_AT_ONCE):
        (temporary / f"env-{number}" / "work").mkdir(parents=True)
        (temporary / f"env-{number}" / "lock").touch()
    # When they are swept by a process that may have few files open
    with files_more(SWEPT_AT_ONCE + 16):
        swept = sweep(temporary)
    # Then none is left
    assert swept == 2 * SWEPT_AT_ONCE
    assert list(temporary.iterdir()) == []
