"""The reader and the ledger on a real server: in order, each once, none left behind, each counted for what it was."""

import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from heddle.broker import Broker, keys
from heddle.consumers.marks import Mark
from heddle.consumers.prefetch import Prefetch
from heddle.errors import SeatLost
from tests.helpers import eventually
from tests.loops.desk import Desk
from tests.trainer_kit import Fleet, submit

GROUP = keys.TRAINER_GROUP


@pytest.fixture
def fleet(broker: Broker) -> Iterator[Fleet]:
    fleet = Fleet(broker, submit(broker, rollout={"sync": False})).claim_all()
    yield fleet
    fleet.check_balance()


def test_batches_come_decoded_and_in_order_and_are_counted_once(broker: Broker, fleet: Fleet) -> None:
    for _ in range(3):
        fleet.give(0, 1)
        fleet.give(1, 1)
    desk = Desk(broker, fleet)
    assert desk.poll() == fleet.gave
    assert desk.loaded[0].segments.arrays["obs"][0, 0, 1] == 1
    desk.train()
    desk.ledger.flush()
    flow = fleet.flow()
    assert (flow.trained.batches, flow.trained.steps, flow.entries, flow.bytes) == (6, 48, 0, 0)
    assert desk.ledger.marks()[0].seq == 3


def test_bytes_that_were_fetched_ahead_are_read_in_their_turn_and_counted_once(
    broker: Broker, fleet: Fleet, raw: Any
) -> None:
    # Given a batch that was read, and four behind it whose bytes were fetched while the first one was trained
    desk = Desk(broker, fleet)
    peek = broker.experience.peek
    prefetch = desk.reader.shelf.prefetch = Prefetch(
        lambda after, count: peek(fleet.experiment, 0, after, count=count),
        broker.experience.fetch_views,
        most_bytes=1 << 20,
    )
    fleet.give(0, 1)
    assert desk.poll() == [(0, 1)]
    desk.train()
    for _ in range(2):
        fleet.give(0, 1)
        fleet.give(1, 1)
    lying = raw.xlen(keys.experience(fleet.experiment, 0))
    with desk.reader.fetching_ahead():
        eventually(lambda: len(prefetch._kept) == 4)
    assert raw.xpending(keys.experience(fleet.experiment, 0), GROUP)["pending"] == 0 == lying - 4
    # When they are read, they come in order, from here
    raw.delete(*raw.keys(f"{keys.tag(fleet.experiment, 0)}:blob:*"))
    assert sorted(desk.poll()) == [(0, 2), (0, 3), (1, 1), (1, 2)]
    assert (prefetch.used, prefetch.held_bytes) == (4, 0)
    desk.train()
    desk.ledger.flush()
    assert (fleet.flow().trained.batches, fleet.flow().entries, fleet.flow().dropped.batches) == (5, 0, 0)
    prefetch.close()


def test_what_waits_for_a_manifest_is_not_acked(broker: Broker, fleet: Fleet) -> None:
    fleet.give(0, 1)
    desk = Desk(broker, fleet)
    desk.poll()
    desk.ledger.hold([item.pointer for item in desk.loaded], "trained")
    assert desk.ledger.flush()
    assert (fleet.flow().entries, desk.ledger.num_held) == (1, 1)


def test_a_batch_that_another_reader_was_given_is_taken_over(broker: Broker, fleet: Fleet) -> None:
    fleet.give(0, 1)
    fleet.give(0, 1)
    broker.experience.read(fleet.experiment, 0, GROUP, "zombie", count=1, block_ms=0)
    desk = Desk(broker, fleet)
    assert desk.poll() == [(0, 1), (0, 2)]


def test_a_batch_stranded_while_reading_goes_on_is_found_at_the_hole(broker: Broker, fleet: Fleet) -> None:
    desk = Desk(broker, fleet)
    fleet.give(0, 1)
    assert desk.poll() == [(0, 1)]
    fleet.give(0, 1)
    broker.experience.read(fleet.experiment, 0, GROUP, "zombie", count=1, block_ms=0)
    fleet.give(0, 1)
    fleet.give(1, 1)
    assert sorted(desk.poll()) == [(0, 2), (0, 3), (1, 1)]
    assert desk.reader.losses.missing == 0


def test_a_batch_that_the_broker_forgot_blocks_nobody(broker: Broker, fleet: Fleet, raw: Any) -> None:
    desk = Desk(broker, fleet)
    fleet.give(0, 1)
    assert desk.poll() == [(0, 1)]
    fleet.give(0, 1)
    (entry, _), *_ = raw.xrevrange(keys.experience(fleet.experiment, 0), count=1)
    raw.xdel(keys.experience(fleet.experiment, 0), entry)
    raw.hincrby(keys.flow(fleet.experiment, 0), "entries", -1)
    raw.hincrby(keys.flow(fleet.experiment, 0), "appended", -1)
    raw.hincrby(keys.flow(fleet.experiment, 0), "steps", -8)
    raw.hincrby(keys.flow(fleet.experiment, 0), "appended_steps", -8)
    fleet.give(0, 1)
    assert desk.poll() == [(0, 3)]
    assert desk.reader.losses.missing == 1


def test_what_the_marks_cover_is_acked_unseen(broker: Broker, fleet: Fleet) -> None:
    fleet.give(0, 1)
    fleet.give(0, 1)
    lease = fleet.claims[0].lease
    desk = Desk(broker, fleet, marks={0: Mark(lease.epoch, lease.nonce, 1)})
    assert desk.poll() == [(0, 2)]
    assert fleet.flow().trained.batches == 1


@pytest.mark.parametrize("damage", ["bytes", "checksum", "steps", "kind of shard"])
def test_a_batch_that_cannot_be_used_is_set_aside_with_its_reason(
    broker: Broker, fleet: Fleet, raw: Any, damage: str
) -> None:
    desk = Desk(broker, fleet, plans=fleet.setting.plans[1:] if damage == "kind of shard" else None)
    if damage == "bytes":
        fleet.give(0, 1, data=b"\x00" * 100, steps=8)
    elif damage == "steps":
        fleet.give(0, 1, steps=7)
    else:
        fleet.give(0, 1)
    if damage == "checksum":
        (blob,) = raw.keys(f"{keys.tag(fleet.experiment, 0)}:blob:*")
        data = bytearray(raw.get(blob))
        data[len(data) // 2] ^= 255
        raw.set(blob, bytes(data))
        assert zlib.crc32(data)
    fleet.give(0, 1)
    if damage == "kind of shard":
        assert desk.poll() == []
    else:
        assert desk.poll() == [(0, 2)]
    assert fleet.flow().dead.batches == desk.reader.losses.dead
    (_, reason), *_ = broker.experience.dead(fleet.experiment, 0)
    assert reason
    assert desk.ledger.excused == {1: {0}}


def test_a_batch_without_bytes_is_dropped_and_its_shard_excused(broker: Broker, fleet: Fleet, raw: Any) -> None:
    fleet.give(0, 1)
    fleet.give(1, 1)
    raw.delete(*raw.keys(f"{keys.tag(fleet.experiment, 0)}:blob:0:*"))
    desk = Desk(broker, fleet)
    assert desk.poll() == [(1, 1)]
    assert fleet.flow().dropped.batches == 1
    assert desk.ledger.excused == {1: {0}}


def test_what_a_trainer_died_of_is_tried_alone_and_then_set_aside(broker: Broker, fleet: Fleet) -> None:
    fleet.give(0, 1)
    fleet.give(1, 1)
    first = Desk(broker, fleet)
    first.poll()
    first.reader.loading([item.pointer for item in first.loaded])
    broker.seats.release_seat(fleet.experiment, first.epoch)
    # It died; the next one tries each of the two alone, and dies of the first.
    second = Desk(broker, fleet, name="second")
    second.reader._probe = lambda loaded: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        second.poll()
    broker.seats.release_seat(fleet.experiment, second.epoch)
    third = Desk(broker, fleet, name="third")
    assert third.poll() == [(1, 1)]
    assert fleet.flow().dead.batches == 1


def test_a_suspect_that_survives_is_used_like_any_other(broker: Broker, fleet: Fleet) -> None:
    fleet.give(0, 1)
    first = Desk(broker, fleet)
    first.poll()
    first.reader.loading([item.pointer for item in first.loaded])
    broker.seats.release_seat(fleet.experiment, first.epoch)
    second = Desk(broker, fleet, name="second")
    assert second.poll() == [(0, 1)]
    assert [item.pointer.seq for item in second.probed] == [1]
    assert broker.experience.loading(fleet.experiment, 0) == {}


def test_what_trainers_held_that_died_of_something_else_is_no_suspect_however_often(
    broker: Broker, fleet: Fleet
) -> None:
    fleet.give(0, 1)
    fleet.give(1, 1)
    # Given six trainers in a row that were given both, and died while they loaded nothing
    for number in range(6):
        died = Desk(broker, fleet, name=f"died-{number}")
        assert died.poll() == [(0, 1), (1, 1)]
        broker.seats.release_seat(fleet.experiment, died.epoch)
    # When the next one has them, then it tries neither alone, and trains both
    heir = Desk(broker, fleet, name="heir")
    assert heir.poll() == [(0, 1), (1, 1)]
    assert heir.probed == []
    heir.train()
    assert (fleet.flow().trained.batches, fleet.flow().dead.batches) == (2, 0)


def test_a_reader_without_the_seat_cannot_ack(broker: Broker, fleet: Fleet) -> None:
    fleet.give(0, 1)
    first = Desk(broker, fleet)
    first.poll()
    broker.seats.release_seat(fleet.experiment, first.epoch)
    second = Desk(broker, fleet, name="second")
    with pytest.raises(SeatLost):
        first.train()
    assert fleet.flow().entries == 1
    assert second.poll() == [(0, 1)]


def test_a_group_that_the_server_lost_is_made_anew(broker: Broker, fleet: Fleet, raw: Any) -> None:
    desk = Desk(broker, fleet)
    raw.xgroup_destroy(keys.experience(fleet.experiment, 0), GROUP)
    fleet.give(0, 1)
    for _ in range(2):
        desk.poll()
        desk.train()
    assert fleet.flow().trained.batches == 1


def test_settling_works_when_the_memory_is_full(broker: Broker, fleet: Fleet, raw: Any) -> None:
    fleet.give(0, 1)
    fleet.give(1, 1)
    desk = Desk(broker, fleet)
    raw.config_set("maxmemory", 1)
    assert desk.poll() == [(0, 1), (1, 1)]
    desk.train()
    assert fleet.flow().entries == 0
