"""Batches through the shared memory of one host: the same experience, the same rules, and nothing left behind."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.broker import Broker, keys
from heddle.consumers.reader import Loaded
from heddle.consumers.tap import Tap
from heddle.errors import Conflict
from heddle.plane import Host, Plane
from heddle.producers.envs import check_env
from tests.fixtures import coordinated, on_url
from tests.helpers import eventually
from tests.plane_kit import HERE, Consumer, columns, files, plane_at
from tests.worker_kit import COUNTING, Running, submit, workers

Start = Callable[..., Running]
SHARED = {"rollout": {"plane": "shm"}}

url = coordinated
broker = on_url


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "memory"


@pytest.fixture
def start(url: str, root: Path) -> Iterator[Start]:
    """Starts workers in threads, and ends them."""
    with workers(url) as begin:
        yield lambda name="w1", *, host=HERE, at=root, **options: begin(name, plane=plane_at(at, host), **options)


def experiment_of(broker: Broker, plane: str = "shm", **sections: dict[str, Any]) -> str:
    return submit(broker, **{"rollout": {"plane": plane}, **sections})


def gather(consumer: Consumer, batches: int, *, train: bool = True) -> list[Any]:
    """So many batches, acked as they come."""
    found: list[Any] = []

    def enough() -> bool:
        loaded = consumer.poll()
        found.extend((item.pointer, columns(item)) for item in loaded)
        if train:
            consumer.train(loaded)
        return len(found) >= batches

    eventually(enough, timeout_s=60.0, what=f"{batches} batches; got {len(found)}")
    return found


def test_batches_lie_in_shared_memory_until_they_are_acked_and_never_pass_the_server(
    broker: Broker, start: Start, root: Path
) -> None:
    # Given a consumer and a worker that see the same memory
    experiment = experiment_of(broker)
    consumer = Consumer(broker, experiment, plane_at(root))
    consumer.publish()
    worker = start()
    # When both have worked for a while
    eventually(lambda: gather(consumer, 4) and consumer.flow().mapped >= 20, timeout_s=60.0, what="mapped batches")
    # Then pointers lead into memory, and there is a file for each entry in flight, with its bytes, and for no other
    worker.end()
    eventually(lambda: not gather_all(consumer), what="an empty stream")
    flow = consumer.flow()
    assert flow.appended.batches == flow.trained.batches
    assert flow.mapped > 0
    assert files(root) == []
    assert list(broker.conn.main.scan_iter("*:blob:*")) == []


def gather_all(consumer: Consumer) -> int:
    consumer.train(consumer.poll())
    return int(consumer.flow().entries)


def test_experience_through_memory_is_bit_for_bit_that_through_the_server(
    broker: Broker, start: Start, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: dict[str, dict[tuple[int, int], Any]] = {}
    for name, plane in (("redis", "redis"), ("copied", "shm"), ("in-place", "shm")):
        if name == "in-place":  # as large batches are played
            monkeypatch.setattr("heddle.plane.ring.REUSED_FROM", 0)
            monkeypatch.setattr("heddle.producers.packing.IN_PLACE_FROM", 0)
        experiment = experiment_of(broker, plane, experiment={"name": name, "seed": 5})
        consumer = Consumer(broker, experiment, plane_at(root))
        consumer.publish()
        worker = start(name)
        found = gather(consumer, 30)
        assert (consumer.flow().mapped > 0) == (plane == "shm")
        played[name] = {(pointer.shard, pointer.seq): arrays for pointer, arrays in found}
        broker.experiments.set_command(experiment, "stop")
        worker.end()
    common = set.intersection(*(set(one) for one in played.values()))
    assert len(common) >= 10
    for key in common:
        for column, array in played["redis"][key].items():
            for name in ("copied", "in-place"):
                np.testing.assert_array_equal(array, played[name][key][column], err_msg=f"{name} {key} {column}")


def test_arrays_are_views_of_the_file_and_outlive_its_end(broker: Broker, start: Start, root: Path) -> None:
    consumer = Consumer(broker, experiment_of(broker), plane_at(root))
    consumer.publish()
    start()
    item = mapped_one(consumer)
    obs = item.segments.arrays["obs"]
    assert not obs.flags.writeable
    assert not obs.flags.owndata
    before = np.array(obs)
    consumer.train([item])
    assert consumer.shelf.view(item.pointer) is None
    gather(consumer, 20)  # the worker plays on, and uses its memory again
    np.testing.assert_array_equal(obs, before)


def mapped_one(consumer: Consumer) -> Loaded:
    """A batch that lies in shared memory, not settled; what came through the server before it is."""
    found: list[Loaded] = []

    def look() -> bool:
        loaded = consumer.poll()
        found.extend(one for one in loaded if one.pointer.location == "shm")
        consumer.train([one for one in loaded if one.pointer.location != "shm"])
        return bool(found)

    eventually(look, timeout_s=60.0, what="a batch in shared memory")
    return found[0]


@pytest.mark.parametrize("where", ["another host", "another boot", "another folder"])
def test_a_consumer_elsewhere_gets_the_bytes_through_the_server(
    broker: Broker, start: Start, root: Path, tmp_path: Path, where: str
) -> None:
    consumer = Consumer(broker, experiment_of(broker), plane_at(tmp_path / "theirs"))
    consumer.publish()
    host = {"another host": Host("there", "boot-9"), "another boot": Host("here", "boot-2")}.get(where, HERE)
    start(host=host)
    gather(consumer, 10)
    assert consumer.flow().mapped == 0
    assert consumer.flow().dropped.batches == 0
    assert files(root) == []


def test_after_a_reboot_what_was_in_memory_is_dropped_with_its_reason_and_playing_goes_on(
    broker: Broker, start: Start, root: Path
) -> None:
    # Given batches in flight, in memory
    experiment = experiment_of(broker, limits={"max_entries": 16})
    consumer = Consumer(broker, experiment, plane_at(root))
    consumer.publish()
    worker = start()
    eventually(lambda: consumer.flow().entries == 16, what="a full stream")
    worker.end()
    in_flight = consumer.flow().entries
    mapped = consumer.flow().mapped
    assert mapped > 0
    # When the host is started again: another boot, an empty folder
    broker.seats.release_seat(experiment, consumer.epoch)
    rebooted = plane_at(root, Host("here", "boot-2"))
    again = Consumer(broker, experiment, rebooted, name="t2")
    assert files(root) == []
    loaded = again.poll()
    again.train(loaded)
    # Then what lay there is dropped, counted and explained; nothing is poison, nothing hangs
    flow = again.flow()
    assert (flow.dropped.batches, flow.dead.batches) == (mapped, 0)
    assert len(loaded) == in_flight - mapped
    assert again.reader.losses.because == {"it lay in the shared memory of here, which was started again since": mapped}
    told = [event.message for event in broker.events.read(experiment) if "cannot be read" in event.message]
    assert len(told) == 1
    # ... and playing goes on
    start("w2", host=Host("here", "boot-2"))
    found = gather(again, 20)
    assert any(pointer.place for pointer, _ in found)
    flow = again.flow()
    ends = (flow.trained, flow.stale, flow.dead, flow.dropped, flow.evaluated, flow.rolled_back)
    assert flow.appended.batches == sum(end.batches for end in ends) + flow.entries


def test_a_batch_set_aside_as_dead_can_be_looked_at_from_anywhere(broker: Broker, start: Start, root: Path) -> None:
    experiment = experiment_of(broker)
    consumer = Consumer(broker, experiment, plane_at(root))
    consumer.publish()
    start()
    item = mapped_one(consumer)
    view = consumer.shelf.view(item.pointer)
    assert view is not None
    data = bytes(view)
    consumer.ledger.bury(item.pointer, "for the test")
    assert consumer.ledger.flush()
    (dead,) = broker.dead.ls(experiment)
    assert broker.dead.data(dead) == data
    assert dead.pointer is not None
    assert dead.pointer.location == "redis"
    assert consumer.shelf.view(item.pointer) is None
    assert consumer.flow().dead.batches == 1


def test_without_room_batches_go_through_the_server(
    broker: Broker, start: Start, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heddle.plane.ring._left_free", lambda total: total)
    consumer = Consumer(broker, experiment_of(broker), plane_at(root))
    consumer.publish()
    start()
    gather(consumer, 10)
    assert consumer.flow().mapped == 0
    assert files(root) == []


def test_a_dead_workers_batch_that_nobody_accepted_and_its_buffers_are_known_as_nobodys(
    broker: Broker, start: Start, root: Path
) -> None:
    experiment = experiment_of(broker, env={"id": COUNTING, "kwargs": {"step_s": 0.01}})
    consumer = Consumer(broker, experiment, plane_at(root))
    consumer.publish()
    start()
    pointer = mapped_one(consumer).pointer
    known = (pointer.shard, pointer.epoch, pointer.nonce, pointer.seq)
    other = (pointer.shard, pointer.epoch - 1, pointer.nonce, 1)
    mine = (pointer.shard, pointer.epoch, pointer.nonce, 10_000_000)  # its owner may still append it
    assert broker.planes.forgotten(experiment, 0, [known, other, mine]) == [other]
    assert broker.planes.forgotten("nobody", 0, [known]) == [known]


@pytest.fixture
def however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `auto` shares, whatever its size."""
    monkeypatch.setattr("heddle.spec.sharing.LEAST_SHARED", 0)


@pytest.mark.usefixtures("however_small")
def test_a_tap_on_the_same_host_reads_batches_where_they_lie(broker: Broker, start: Start, root: Path) -> None:
    experiment = experiment_of(broker, "auto")
    consumer = Consumer(broker, experiment, plane_at(root))
    consumer.publish()
    tap = Tap(broker, experiment, "near", describe=check_env, plane=plane_at(root))
    start()
    seen: dict[tuple[int, int], Any] = {}

    def shared_by_both() -> bool:
        for batch in tap.poll(block_ms=50):
            seen[batch.shard, batch.seq] = {name: np.array(array) for name, array in batch.arrays.items()}
        return any(
            (item.pointer.shard, item.pointer.seq) in seen
            for item in trained(consumer)
            if item.pointer.location == "shm"
        )

    eventually(shared_by_both, timeout_s=60.0, what="a batch that both mapped")
    assert tap.refused == 0


def trained(consumer: Consumer) -> list[Any]:
    loaded = consumer.poll()
    consumer.train(loaded)
    return loaded


@pytest.mark.usefixtures("however_small")
def test_while_a_tap_elsewhere_reads_producers_give_their_bytes_to_the_server(
    broker: Broker, start: Start, root: Path, tmp_path: Path
) -> None:
    # Given batches in shared memory
    experiment = experiment_of(broker, "auto")
    consumer = Consumer(broker, experiment, plane_at(root))
    consumer.publish()
    start()
    eventually(lambda: trained(consumer) and consumer.flow().mapped > 0, timeout_s=60.0, what="mapped batches")
    # When a tap comes that cannot map them
    tap = Tap(broker, experiment, "far", describe=check_env, plane=plane_at(tmp_path / "far", Host("far", "boot-7")))
    got = 0

    def enough() -> bool:
        nonlocal got
        got += len(tap.poll(block_ms=50))
        trained(consumer)
        return got >= 10

    # Then it is given batches, by way of the server
    eventually(enough, timeout_s=60.0, what="batches at the far tap")
    mapped = consumer.flow().mapped
    gather(consumer, 10)
    assert consumer.flow().mapped == mapped
    assert consumer.flow().dropped.batches == 0


def test_a_tap_elsewhere_is_told_where_batches_are_that_all_lie_in_memory(
    broker: Broker, root: Path, tmp_path: Path
) -> None:
    experiment = experiment_of(broker, "shm")
    Consumer(broker, experiment, plane_at(root))
    with pytest.raises(Conflict, match=r"lies in the shared memory of here, and this is far.*rollout.plane"):
        Tap(broker, experiment, "far", describe=check_env, plane=plane_at(tmp_path / "far", Host("far", "boot-7")))


def test_an_experiment_of_small_batches_offers_nobody_shared_memory(
    broker: Broker, start: Start, root: Path, tmp_path: Path
) -> None:
    experiment = submit(broker)  # as the spec's defaults are
    consumer = Consumer(broker, experiment, plane_at(root))
    consumer.publish()
    tap = Tap(broker, experiment, "far", describe=check_env, plane=plane_at(tmp_path / "far", Host("far", "boot-7")))
    start()
    gather(consumer, 10)
    assert tap.poll()
    ctl = broker.conn.main.hgetall(keys.ctl(experiment, 0))
    assert not {b"plane", b"far"} & set(ctl)
    assert broker.planes.known_identity() == ""
    assert not root.exists()


@pytest.mark.usefixtures("however_small")
def test_what_would_lie_on_a_disk_lies_in_the_server_unless_the_spec_wants_it_there(
    broker: Broker, start: Start, root: Path
) -> None:
    def on_disk() -> Plane:
        return replace(plane_at(root)(), on_disk=True)

    for plane, mapped in (("auto", False), ("shm", True)):
        experiment = experiment_of(broker, plane, experiment={"name": plane})
        consumer = Consumer(broker, experiment, on_disk)
        consumer.publish()
        worker = start(plane)
        gather(consumer, 10)
        assert (consumer.flow().mapped > 0) == mapped
        assert ("disk" in consumer.shelf.trouble) != mapped
        worker.end()


def test_memory_that_somebody_emptied_costs_what_was_in_flight_and_nobodys_life(
    broker: Broker, start: Start, root: Path
) -> None:
    # Given batches in flight, in memory, one of them in a reader's hands
    experiment = experiment_of(broker)
    consumer = Consumer(broker, experiment, plane_at(root))
    consumer.publish()
    start()
    item = mapped_one(consumer)
    before = np.array(item.segments.arrays["obs"])
    # When somebody removes all of it, as systemd does when a user logs out
    eventually(lambda: emptied(root), what="its files go, although workers write others meanwhile")
    # Then what is mapped stays, and what comes later goes through the server
    later = eventually_from_the_server(consumer)
    np.testing.assert_array_equal(item.segments.arrays["obs"], before)
    consumer.train([item])
    flow = consumer.flow()
    assert later
    assert flow.dropped.batches == consumer.reader.losses.dropped
    assert flow.dead.batches == 0


def emptied(root: Path) -> bool:
    """Remove what lies there now; True once nothing came in between."""
    shutil.rmtree(root, ignore_errors=True)
    return not root.exists()


def eventually_from_the_server(consumer: Consumer) -> list[Loaded]:
    """Batches that came through the server in the end; those before them are trained."""
    found: list[Loaded] = []

    def look() -> bool:
        loaded = consumer.poll()
        consumer.train(loaded)
        found.extend(one for one in loaded if one.pointer.location == "redis")
        return len(found) >= 10

    eventually(look, timeout_s=60.0, what=f"batches through the server; {consumer.flow()}")
    return found
