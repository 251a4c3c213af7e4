"""Weights of a host: fetched once, never believed, bounded, and nobody waits for somebody who is dead or frozen."""

import fcntl
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.clock import SystemClock
from heddle.errors import BrokerUnreachable
from heddle.plane import weights as module
from heddle.plane.weights import FOLDER, HostWeights, remove_unused
from tests.helpers import eventually

DATA = b"weights" * 1000
SHA = hashlib.sha256(DATA).hexdigest()


def never() -> bytes:
    raise AssertionError("it was there already")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


@pytest.fixture
def weights(root: Path) -> Iterator[HostWeights]:
    opened = HostWeights(root).open()
    yield opened
    opened.close()


def test_what_one_fetched_another_one_reads_and_only_this_user_can(root: Path, weights: HostWeights) -> None:
    other = HostWeights(root).open()
    assert weights.get(SHA, lambda: DATA) == DATA
    assert other.get(SHA, never) == DATA
    assert (root / FOLDER).stat().st_mode & 0o777 == 0o700
    assert (root / FOLDER / SHA).stat().st_mode & 0o777 == 0o600
    other.close()


def test_of_many_that_want_the_same_at_once_one_fetches(root: Path) -> None:
    calls: list[int] = []
    asked: list[int] = []
    got: list[bytes | None] = []
    begin = threading.Barrier(8)

    def fetch() -> bytes:
        calls.append(1)
        eventually(lambda: len(asked) == 8, what="everybody wants it")
        return DATA

    def want() -> None:
        mine = HostWeights(root).open()
        begin.wait()
        asked.append(1)
        got.append(mine.get(SHA, fetch))

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert got == [DATA] * 8
    assert len(calls) == 1


@pytest.mark.parametrize("found", [b"", DATA[:100], b"poison!" * 1000])
def test_a_torn_or_poisoned_file_is_never_used_and_is_replaced(root: Path, weights: HostWeights, found: bytes) -> None:
    (root / FOLDER / SHA).write_bytes(found)
    assert weights.get(SHA, lambda: DATA) == DATA
    assert (root / FOLDER / SHA).read_bytes() == DATA


def test_a_link_to_somewhere_else_is_not_followed(root: Path, weights: HostWeights) -> None:
    elsewhere = root / "elsewhere"
    elsewhere.write_bytes(DATA)
    (root / FOLDER / SHA).symlink_to(elsewhere)
    assert weights.get(SHA, lambda: b"fetched") == b"fetched"


def test_what_was_fetched_and_is_something_else_is_passed_on_and_not_kept(root: Path, weights: HostWeights) -> None:
    assert weights.get(SHA, lambda: b"other") == b"other"
    assert weights.get(SHA, lambda: None) is None
    assert not (root / FOLDER / SHA).exists()


HOLDER = """
import sys
from pathlib import Path
from heddle.plane.weights import HostWeights
def fetch():
    print("fetching", flush=True)
    sys.stdin.read()
HostWeights(Path(sys.argv[1])).open().get(sys.argv[2], fetch)
"""


def test_a_fetcher_that_is_killed_keeps_nobody_waiting(root: Path, weights: HostWeights) -> None:
    # Given a process that is fetching, and another that waits for it
    argv = [sys.executable, "-c", HOLDER, str(root), SHA]
    fetcher = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert fetcher.stdin is not None and fetcher.stdout is not None
    assert fetcher.stdout.readline() == "fetching\n"
    got: list[bytes | None] = []
    waiter = threading.Thread(target=lambda: got.append(weights.get(SHA, lambda: DATA)))
    clock = SystemClock()
    # When the first is killed, then the other one fetches for itself, long before it gives up waiting
    began = clock.monotonic()
    waiter.start()
    fetcher.kill()
    fetcher.communicate()
    waiter.join(20)
    assert got == [DATA]
    assert clock.monotonic() - began < 20


def test_a_fetcher_that_is_frozen_is_waited_for_only_so_long(
    root: Path, weights: HostWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.2)
    lock = os.open(root / FOLDER / f"{SHA}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert weights.get(SHA, lambda: DATA) == DATA
    assert HostWeights(root).open().get(SHA, never) == DATA
    os.close(lock)


def test_after_a_fetch_that_failed_the_next_one_fetches(weights: HostWeights) -> None:
    def fail() -> bytes:
        raise BrokerUnreachable("away")

    with pytest.raises(BrokerUnreachable):
        weights.get(SHA, fail)
    assert weights.get(SHA, lambda: DATA) == DATA


def test_only_so_many_are_kept_the_newest_ones_and_nothing_unfinished(
    root: Path, weights: HostWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OLD_S", -1.0)
    (root / FOLDER / "left.tmp").write_bytes(b"by somebody who died")
    made = [os.urandom(1000) for _ in range(12)]
    for number, data in enumerate(made):
        sha = hashlib.sha256(data).hexdigest()
        weights.get(sha, lambda data=data: data)  # type: ignore[misc]
        os.utime(root / FOLDER / sha, (number, number))
    kept = {path.name for path in (root / FOLDER).iterdir() if len(path.name) == 64}
    assert kept == {hashlib.sha256(data).hexdigest() for data in made[-module.MOST_FILES :]}
    assert not (root / FOLDER / "left.tmp").exists()


def test_what_would_be_too_much_is_not_kept_and_used_all_the_same(
    root: Path, weights: HostWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", len(DATA) - 1)
    assert weights.get(SHA, lambda: DATA) == DATA
    assert not (root / FOLDER / SHA).exists()


def test_the_last_user_leaves_nothing_and_what_dead_ones_left_is_swept_once_it_is_old(root: Path) -> None:
    first, last = HostWeights(root).open(), HostWeights(root).open()
    first.get(SHA, lambda: DATA)
    first.close()
    assert (root / FOLDER / SHA).exists()
    assert not remove_unused(root, older_s=0.0, now_s=SystemClock().wall()), "somebody uses them"
    last.close()
    assert not (root / FOLDER).exists()
    # Given a process that was killed
    argv = [sys.executable, "-c", HOLDER, str(root), SHA]
    killed = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    killed.stdout.readline()
    killed.kill()
    killed.communicate()
    # When it is swept, then what is young stays
    assert not remove_unused(root, now_s=SystemClock().wall())
    assert remove_unused(root, now_s=SystemClock().wall() + 2 * module.OLD_S)
    assert not (root / FOLDER).exists()


def test_a_folder_that_others_can_enter_is_not_used(root: Path) -> None:
    (root / FOLDER).mkdir(mode=0o755)
    (root / FOLDER).chmod(0o755)
    with pytest.raises(PermissionError, match="not a folder of this user's alone"):
        HostWeights(root).open()


def test_a_folder_that_went_away_costs_a_fetch_and_nothing_else(root: Path, weights: HostWeights) -> None:
    weights.get(SHA, lambda: DATA)
    for path in (root / FOLDER).iterdir():
        path.unlink()
    (root / FOLDER).rmdir()
    assert weights.get(SHA, lambda: DATA) == DATA
    eventually(lambda: not (root / FOLDER).exists())
