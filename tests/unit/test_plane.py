"""Shared memory of one host: who sees the same, when a buffer is used again, and what a crash leaves."""

import gc
import os
import re
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from heddle.broker import Broker, keys
from heddle.broker.plane_sweep import drop_broker, drop_experiment, sweep, sweep_home
from heddle.clock import SystemClock
from heddle.errors import PlaneError
from heddle.plane import Home, Host, Ring, batch_of, file_of, open_plane, why_missing
from heddle.plane.home import KEPT_FROM
from heddle.plane.host import SHM
from heddle.plane.mapping import Mapping
from heddle.plane.pages import enlarge, large_page, writable
from heddle.plane.ring import ENLARGED_AFTER, LOCK, REUSED_FROM
from tests.broker_kit import E, admit, claim_next, fake_broker, meta_of, payload
from tests.plane_kit import HERE, files

LATER_S = 10.0**6


class Later:
    """A clock of another day."""

    def __init__(self, ahead_s: float = LATER_S) -> None:
        self._ahead_s = ahead_s

    def wall(self) -> float:
        return SystemClock().wall() + self._ahead_s

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "memory"


@pytest.fixture
def broker() -> Broker:
    return fake_broker()


def home_at(root: Path, broker: str = "b1", experiment: str = E) -> Home:
    return Home(open_plane(root, HERE), broker, experiment)


def test_two_processes_have_the_same_token_exactly_where_they_see_the_same_folder_in_the_same_boot(root: Path) -> None:
    first = open_plane(root, HERE)
    assert open_plane(root, HERE) == first
    assert open_plane(root, Host("renamed", HERE.boot)) == first  # a container with a name of its own
    other = open_plane(root.with_name("other"), HERE)
    assert other.token != first.token
    assert open_plane(root, Host("here", "boot-2")).token != first.token


def test_what_an_earlier_boot_left_is_removed(root: Path) -> None:
    ring = Ring(home_at(root))
    slot = ring.take(100)
    slot.offer(file_of(0, 1, "n", 1))
    assert files(root)
    open_plane(root, Host("here", "boot-2"))
    assert files(root) == []


def test_a_folder_that_somebody_else_put_there_is_not_used(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    root.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PlaneError, match="not a folder of this user's"):
        open_plane(root, HERE)


def test_the_folder_is_nobody_elses_to_read(root: Path) -> None:
    root.mkdir(mode=0o777)
    home = home_at(root)
    home.make()
    for folder in (root, home.folder.parent, home.folder):
        assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["..", "", ".hidden", "a/b", "x" * 200])
def test_a_name_that_leads_elsewhere_is_refused(root: Path, name: str) -> None:
    with pytest.raises(PlaneError, match="names no folder"):
        home_at(root, experiment=name)


def test_the_name_of_a_file_is_its_batchs_identity() -> None:
    assert batch_of(file_of(3, 1796020446752, "a_b-9", 17)) == (3, 1796020446752, "a_b-9", 17)
    for other in ("plane", "3.4.n", "3.4.n.5.6", "-1.4.n.5", "3.4.../x.5"):
        assert batch_of(other) is None


def test_why_a_file_is_not_there_is_told_apart() -> None:
    mine = "gpu7/boot-2/abc"
    told = {
        "gpu7/boot-2/abc": "is not there any more",
        "gpu7/boot-1/abc": "which was started again since",
        "gpu8/boot-7/abc": "lies in the shared memory of gpu8, and this is gpu7",
        "web1/boot-2/xyz": "another user's or container's",
    }
    for place, why in told.items():
        assert why in why_missing(place, mine)
    assert "this process has none" in why_missing("gpu8/boot-7/abc", "")


def test_a_buffer_is_used_again_only_once_its_batch_is_settled_and_nobody_looks_at_it(root: Path) -> None:
    home = home_at(root)
    ring = Ring(home)
    slot = ring.take(REUSED_FROM)
    slot.view()[:5] = b"first"
    name = file_of(0, 1, "n", 1)
    slot.offer(name)
    slot.close()
    assert ring.take(REUSED_FROM) is not slot  # offered
    view = home.view(name, REUSED_FROM)
    assert view is not None
    home.remove(name)
    assert ring.take(REUSED_FROM) is not slot  # settled, and somebody looks at it
    assert bytes(view[:5]) == b"first"
    del view
    gc.collect()
    assert ring.take(REUSED_FROM) is slot
    ring.close()
    assert files(root) == []


def test_a_small_buffer_is_used_once_and_its_batch_stays(root: Path) -> None:
    home = home_at(root)
    ring = Ring(home)
    slot = ring.take(100)
    slot.offer(file_of(0, 1, "n", 1))
    slot.close()
    assert slot.is_gone
    assert home.names() == [file_of(0, 1, "n", 1)]
    assert home.view(file_of(0, 1, "n", 1), 100) is not None


def test_what_was_never_offered_or_is_given_up_leaves_no_file(root: Path) -> None:
    ring = Ring(home_at(root))
    ring.take(100).close()
    offered = ring.take(100)
    offered.offer(file_of(0, 1, "n", 1))
    offered.discard()
    ring.close()
    assert files(root) == []


def test_a_batch_that_is_offered_again_under_a_number_takes_the_place_of_the_one_turned_away(root: Path) -> None:
    home = home_at(root)
    ring = Ring(home)
    for text in (b"one", b"two"):
        slot = ring.take(3)
        slot.view()[:] = text
        slot.offer(file_of(0, 1, "n", 1))
        slot.close()
    view = home.view(file_of(0, 1, "n", 1), 3)
    assert view is not None
    assert bytes(view) == b"two"


def test_a_file_with_fewer_bytes_than_announced_is_none(root: Path) -> None:
    home = home_at(root)
    slot = Ring(home).take(10)
    slot.offer(file_of(0, 1, "n", 1))
    assert home.view(file_of(0, 1, "n", 1), 11) is None
    assert home.view(file_of(0, 1, "n", 2), 1) is None


def test_more_views_than_a_process_may_hold_open_are_copies(root: Path) -> None:
    home = home_at(root)
    home._most = 2
    slot = Ring(home).take(3)
    slot.view()[:] = b"abc"
    slot.offer(file_of(0, 1, "n", 1))
    views = [home.view(file_of(0, 1, "n", 1), 3) for _ in range(4)]
    assert all(view is not None and bytes(view) == b"abc" for view in views)
    assert [type(view.obj).__name__ for view in views if view is not None] == ["ndarray", "ndarray", "bytes", "bytes"]
    del views[:2]
    gc.collect()
    assert home._mapped == 0


def test_where_nothing_limits_open_files_batches_are_mapped_and_buffers_used_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    both = Reused(root)
    for _ in range(3):
        assert type(both.read(b"one").obj).__name__ == "ndarray"
    assert both.ring._made == 1


class Reused:
    """A worker's ring and a reader of the same home; large buffers, each played in again once it is settled."""

    def __init__(self, root: Path, size: int = KEPT_FROM) -> None:
        self.home, self.ring, self.seq, self.size = home_at(root), Ring(home_at(root)), 0, size

    def offer(self, text: bytes) -> str:
        self.seq += 1
        slot = self.ring.take(self.size)
        slot.view()[: len(text)] = text
        slot.offer(name := file_of(0, 1, "n", self.seq))
        slot.close()
        return name

    def read(self, text: bytes) -> memoryview:
        """A batch that was offered, looked at, and settled."""
        view = self.home.view(name := self.offer(text), self.size)
        assert view is not None
        assert bytes(view[: len(text)]) == text
        self.home.remove(name)
        return view

    def held(self) -> list[tuple[int, int]]:
        """Files that the reader keeps mapped."""
        return list(self.home._kept)


def test_a_buffer_that_is_used_again_is_mapped_once_and_shows_each_batch(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counted(path: str) -> Mapping:
        made.append(path)
        return Mapping(path)

    monkeypatch.setattr("heddle.plane.home.Mapping", counted)
    both = Reused(root)
    for number in range(20):
        both.read(b"batch %d" % number)
    assert len(made) == 1
    assert both.ring._made == 1


def test_a_batch_that_is_looked_at_stays_as_it_is_while_its_worker_plays_on_and_its_file_is_free_afterwards(
    root: Path,
) -> None:
    both = Reused(root)
    first = both.read(b"first")
    part = np.frombuffer(first, np.uint8)[1:5]
    del first
    for number in range(5):
        both.read(b"later %d" % number)
    assert bytes(part) == b"irst"
    assert both.ring._made == 2
    del part
    both.read(b"again")
    assert both.ring._made == 2
    assert both.home._mapped == 0


def test_a_reader_holds_no_memory_that_its_worker_has_left(root: Path) -> None:
    both = Reused(root)
    view = both.read(b"last")
    both.ring.close()
    both.home.tidy()
    assert bytes(view[:4]) == b"last"
    assert both.held(), "somebody looks at it"
    del view
    assert both.held() == []
    after = Reused(root)
    after.read(b"one")
    assert after.held()
    after.ring.close()
    after.home.tidy()
    assert after.held() == []
    assert not [one for one in Path("/proc/self/fd").iterdir() if str(root) in os.path.realpath(one)]


def test_no_more_files_stay_mapped_than_are_allowed_and_the_oldest_makes_room(root: Path) -> None:
    readers, home = [Ring(home_at(root)) for _ in range(4)], home_at(root)
    home._most_kept = 2
    for number, ring in enumerate(readers):
        slot = ring.take(KEPT_FROM)
        slot.offer(name := file_of(number, 1, "n", 1))
        slot.close()
        assert home.view(name, KEPT_FROM) is not None
        assert len(home._kept) == min(number + 1, 2)
    views = [home.view(file_of(number, 1, "n", 1), KEPT_FROM) for number in range(4)]
    assert all(view is not None for view in views)
    assert len(home._kept) == 2
    views.clear()
    assert (home._mapped, len(home._kept)) == (0, 2)


def test_a_view_that_dies_while_the_home_is_busy_frees_its_file_as_soon_as_it_is_not(root: Path) -> None:
    both = Reused(root)
    view = both.read(b"first")
    with both.home._changed:  # as when memory is collected in the middle of another view
        del view
        assert both.ring.take(KEPT_FROM) is not both.ring._slots[0]
    both.home.tidy()
    assert both.ring._slots[0].is_free()


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder in memory, where there is one."""
    with tempfile.TemporaryDirectory(dir=str(SHM) if SHM.is_dir() else None) as folder:
        yield Path(folder) / "memory"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_view_that_dies_in_a_fork_is_still_looked_at_by_its_parent(root: Path) -> None:
    # Given a reader that looks at a batch, and a fork of it in which the view is collected
    home, ring = home_at(root), Ring(home_at(root))
    slot = ring.take(KEPT_FROM)
    slot.offer("0-1-n-1")
    view = home.view("0-1-n-1", KEPT_FROM)
    pid = os.fork()
    if pid == 0:
        del view
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    # When the batch is settled, then its buffer is not written to while it is looked at
    slot.close()
    home.remove("0-1-n-1")
    assert not slot.is_free()
    del view
    assert slot.is_free()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_batch_that_a_fork_looked_at_itself_is_let_go_and_what_its_parent_looks_at_is_not(root: Path) -> None:
    # Given a reader that looks at one batch, and a fork of it that looks at that one and at another, and lives on
    home, ring = home_at(root), Ring(home_at(root))
    parents, forks = ring.take(KEPT_FROM), ring.take(KEPT_FROM)
    parents.offer("0-1-n-1")
    forks.offer("0-1-n-2")
    view = home.view("0-1-n-1", KEPT_FROM)
    looked, over = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        for name in ("0-1-n-1", "0-1-n-2"):
            assert home.view(name, KEPT_FROM) is not None
        gc.collect()
        os.write(looked[1], b"x")
        os.close(over[1])
        os.read(over[0], 1)
        os._exit(0)
    try:
        os.close(looked[1])
        assert os.read(looked[0], 1)
        # When both are settled, then only the one at which nobody looks is written to again
        for slot, name in ((parents, "0-1-n-1"), (forks, "0-1-n-2")):
            slot.close()
            home.remove(name)
        assert (parents.is_free(), forks.is_free()) == (False, True)
        del view
        assert parents.is_free()
    finally:
        for number in (looked[0], *over):
            os.close(number)
        os.waitpid(pid, 0)


def test_a_buffer_in_large_pages_has_the_same_bytes_for_whoever_writes_and_reads(in_memory: Path) -> None:
    file = in_memory.with_name("buffer")
    size = 2 * (large_page() or KEPT_FROM) + 5000
    file.write_bytes(bytes(size))
    number = os.open(file, os.O_RDWR)
    memory = writable(number, size)
    os.close(number)
    assert (len(memory), memory.format, memory.readonly) == (size, "B", False)
    data = np.random.default_rng(1).integers(0, 256, size, np.uint8).tobytes()
    memory[:] = data
    assert file.read_bytes() == data
    is_large = enlarge(memory)
    assert bytes(memory) == data == file.read_bytes()
    memory[-3:] = b"end"
    assert file.read_bytes() == data[:-3] + b"end"
    maps = Path("/proc/self/smaps")
    if is_large:
        own = maps.read_text().partition(str(file))[2]
        assert int(re.findall(r"ShmemPmdMapped: +(\d+) kB", own)[0]) * 1024 == 2 * large_page()
    part = np.frombuffer(memory, np.uint8)[100:200]
    del memory
    assert part.tobytes() == data[100:200], "it is there as long as somebody looks at it"
    del part
    if maps.exists():
        assert str(file) not in maps.read_text()


def test_a_buffer_that_is_used_again_and_again_is_enlarged_once_and_serves_on(
    in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enlarged: list[int] = []

    def counted(memory: memoryview) -> bool:
        enlarged.append(len(memory))
        return enlarge(memory)

    monkeypatch.setattr("heddle.plane.ring.enlarge", counted)
    both = Reused(in_memory, size=3 * KEPT_FROM + 1)
    for number in range(3 * ENLARGED_AFTER):
        both.read(b"batch %d" % number)
    assert enlarged == [3 * KEPT_FROM + 1]
    assert both.ring._made == 1


def shared(broker: Broker, root: Path) -> tuple[Home, str, str, str]:
    """A home with a batch that was accepted, one of the present owner's, and one that a dead owner left."""
    admit(broker)
    claim = claim_next(broker)
    lease = claim.lease
    home = home_at(root, broker.planes.identity())
    ring = Ring(home)
    names = []
    for epoch, seq in ((lease.epoch, 1), (lease.epoch, 2), (lease.epoch - 1, 7)):
        slot = ring.take(1000)
        slot.offer(file_of(lease.shard, epoch, lease.nonce, seq))
        slot.close()
        names.append(file_of(lease.shard, epoch, lease.nonce, seq))
    data = payload(lease, 1)
    reply = broker.shards.append(lease, seq=1, blob=None, meta=meta_of(data), ttl_ms=60_000, place=home.token)
    assert reply.status == "OK"
    ring.close()
    return home, names[0], names[1], names[2]


def test_a_sweep_takes_what_nobody_refers_to_and_nobody_may_append_and_nothing_else(broker: Broker, root: Path) -> None:
    home, accepted, present, dead = shared(broker, root)
    assert sweep(broker.planes, root=root) == 0, "what was made just now may be in the making"
    assert home.names() == sorted([accepted, present, dead])
    assert sweep(broker.planes, root=root, clock=Later()) == 1
    assert home.names() == sorted([accepted, present])
    broker.conn.main.hset(keys.shard(E, 0, 0), "state", "queued")  # its owner was reaped
    assert sweep(broker.planes, root=root, clock=Later()) == 1
    assert home.names() == [accepted]
    pointer = broker.experience.read(E, 0, keys.TRAINER_GROUP, "t", count=9, block_ms=0)[0]
    broker.experience.ack(E, 0, 5, [(pointer, "trained")])
    assert sweep(broker.planes, root=root, clock=Later()) == 1
    assert files(root) == []


def test_a_sweep_takes_all_of_an_experiment_that_was_removed(broker: Broker, root: Path) -> None:
    shared(broker, root)
    broker.conn.main.delete(keys.ctl(E))
    assert sweep(broker.planes, root=root, clock=Later()) == 3
    assert files(root) == []


def test_a_sweep_leaves_another_brokers_files_for_a_day_unless_a_worker_lives_there(broker: Broker, root: Path) -> None:
    home = home_at(root, "another")
    ring = Ring(home)
    slot = ring.take(10)
    slot.offer(file_of(0, 1, "n", 1))
    assert sweep(broker.planes, root=root, clock=Later()) == 0, "its worker lives"
    ring.close()
    assert sweep(broker.planes, root=root, clock=Later(3_600.0)) == 0, "it may come back"
    assert sweep(broker.planes, root=root, clock=Later()) == 1
    assert not home.folder.parent.exists()


def test_the_buffers_of_a_dead_worker_go_and_a_living_ones_stay(broker: Broker, root: Path) -> None:
    home = home_at(root, broker.planes.identity())
    living, dead = Ring(home), Ring(home)
    living.take(10)
    dead.take(10)
    dead._lock.close()  # as the kernel does when a process dies
    sweep_home(broker.planes, E, home, clock=Later())
    assert not dead.folder.exists()
    assert (living.folder / LOCK).exists()


def test_removing_an_experiment_or_its_broker_leaves_no_file_of_it(broker: Broker, root: Path) -> None:
    own = broker.planes.identity()
    for experiment in ("one-1", "two-2"):
        Ring(home_at(root, own, experiment)).take(10).offer(file_of(0, 1, "n", 1))
    Ring(home_at(root, "another", "one-1")).take(10).offer(file_of(0, 1, "n", 1))
    drop_experiment(broker.planes, "one-1", root=root)
    assert not (root / own / "one-1").exists()
    assert (root / own / "two-2").exists()
    drop_broker(broker.planes, root=root)
    assert not (root / own).exists()
    assert (root / "another" / "one-1").exists()


def test_a_broker_keeps_its_name_and_one_that_lost_its_data_is_another(broker: Broker) -> None:
    assert broker.planes.known_identity() == ""
    first = broker.planes.identity()
    assert broker.planes.identity() == first
    broker.conn.main.flushall()
    assert broker.planes.identity() != first
