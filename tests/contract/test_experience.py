"""What the broker promises about experience: reading, taking over, settling, setting aside, taps and counters."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from heddle.broker import Broker, keys
from heddle.broker.experience import Experience
from heddle.broker.experience_types import Pointer
from heddle.broker.types import Lease
from heddle.errors import Gone, LeaderLost, SeatLost
from tests.broker_kit import LEADER, SEAT, Books, E, admit, append, claim_next, ctl, payload, read_all

TRAINER = keys.TRAINER_GROUP


def filled(broker: Broker, batches: int = 4, **sizes: Any) -> Lease:
    """One shard that gave so many batches."""
    admit(broker, shards=1)
    lease = claim_next(broker).lease
    for seq in range(1, batches + 1):
        assert append(broker, lease, seq, **sizes).status == "OK"
    return lease


def seqs(pointers: list[Pointer]) -> list[int]:
    return [pointer.seq for pointer in pointers]


# ---- read and take over


def test_each_entry_goes_to_one_reader_of_a_group(any_broker: Broker) -> None:
    filled(any_broker)
    read = any_broker.experience.read
    assert seqs(read(E, 0, TRAINER, "a", count=3, block_ms=0)) == [1, 2, 3]
    assert seqs(read(E, 0, TRAINER, "b", count=3, block_ms=0)) == [4]
    assert read(E, 0, TRAINER, "a", count=3, block_ms=0) == []


def test_reading_waits_and_comes_back_with_nothing(broker: Broker) -> None:
    admit(broker)
    before = broker.conn.now_ms()
    assert broker.experience.read(E, 0, TRAINER, "a", count=3, block_ms=50) == []
    assert broker.conn.now_ms() - before >= 45


def test_taking_over_gives_all_that_anyone_was_given_and_did_not_settle(any_broker: Broker) -> None:
    filled(any_broker)
    pointers = read_all(any_broker, "dead trainer")
    any_broker.experience.ack(E, 0, SEAT, [(pointers[1], "trained")])
    assert seqs(any_broker.experience.take_over(E, 0, TRAINER, "heir")) == [1, 3, 4]
    assert (
        any_broker.conn.main.xpending_range(keys.experience(E, 0), TRAINER, "-", "+", 10, consumername="dead trainer")
        == []
    )


def test_taking_over_does_not_raise_the_delivery_counts(any_broker: Broker) -> None:
    filled(any_broker, 1)
    read_all(any_broker)
    for _ in range(3):
        any_broker.experience.take_over(E, 0, TRAINER, "heir")
    (entry,) = any_broker.conn.main.xpending_range(keys.experience(E, 0), TRAINER, "-", "+", 10)
    assert entry["times_delivered"] == 1


def test_taking_over_more_than_one_scan_finds_all(any_broker: Broker) -> None:
    admit(any_broker, shards=1, max_entries=1000)
    lease = claim_next(any_broker).lease
    for seq in range(1, 251):
        append(any_broker, lease, seq, size=10)
    read_all(any_broker)
    assert seqs(any_broker.experience.take_over(E, 0, TRAINER, "heir")) == list(range(1, 251))


def test_what_was_deleted_leaves_the_group_when_it_is_taken_over(any_broker: Broker) -> None:
    filled(any_broker)
    any_broker.experience.ensure_group(E, 0, "tap")
    any_broker.experience.read(E, 0, "tap", "t", count=10, block_ms=0)
    any_broker.experience.ack(E, 0, SEAT, [(pointer, "trained") for pointer in read_all(any_broker)[:3]])
    assert seqs(any_broker.experience.take_over(E, 0, "tap", "t2")) == [4]
    assert any_broker.conn.main.xpending(keys.experience(E, 0), "tap")["pending"] == 1


def test_a_group_that_the_server_lost_is_made_again_from_the_start(any_broker: Broker) -> None:
    filled(any_broker)
    any_broker.conn.main.xgroup_destroy(keys.experience(E, 0), TRAINER)
    assert read_all(any_broker) == []
    assert seqs(read_all(any_broker)) == [1, 2, 3, 4]
    any_broker.conn.main.xgroup_destroy(keys.experience(E, 0), TRAINER)
    assert any_broker.experience.take_over(E, 0, TRAINER, "heir") == []
    assert seqs(read_all(any_broker)) == [1, 2, 3, 4]


def test_reading_a_removed_experiment_makes_no_key(broker: Broker) -> None:
    filled(broker)
    broker.conn.main.flushall()
    with pytest.raises(Gone):
        read_all(broker)
    with pytest.raises(Gone):
        broker.experience.take_over(E, 0, TRAINER, "heir")
    with pytest.raises(Gone):
        broker.experience.ensure_group(E, 0)
    assert broker.conn.main.keys() == []


def test_consumers_of_ended_seats_are_forgotten_once_they_hold_nothing(broker: Broker, raw: redis.Redis) -> None:
    filled(broker)
    for consumer in ("seat-1", "seat-2"):
        broker.experience.read(E, 0, TRAINER, consumer, count=2, block_ms=0)
    assert broker.experience.tidy(E, 0, idle_ms=0) == 0
    broker.experience.take_over(E, 0, TRAINER, "seat-3")
    assert broker.experience.tidy(E, 0) == 0  # they were here a moment ago
    assert broker.experience.tidy(E, 0, idle_ms=0) == 2
    left: Any = raw.xinfo_consumers(keys.experience(E, 0), TRAINER)
    assert [(consumer["name"], consumer["pending"]) for consumer in left] == [(b"seat-3", 4)]
    assert broker.experience.tidy("removed", 0, idle_ms=0) == 0


def test_an_entry_that_no_append_wrote_is_passed_over(any_broker: Broker) -> None:
    filled(any_broker, 1)
    any_broker.conn.main.xadd(keys.experience(E, 0), {"hello": "world"})
    assert seqs(read_all(any_broker)) == [1]
    assert any_broker.conn.main.xlen(keys.experience(E, 0)) == 1


def test_fetching_keeps_the_order_and_tells_what_is_gone(any_broker: Broker) -> None:
    lease = filled(any_broker)
    pointers = read_all(any_broker)
    any_broker.conn.main.unlink(pointers[1].blob_key)
    assert any_broker.experience.fetch(pointers[::-1]) == [
        payload(lease, 4),
        payload(lease, 3),
        None,
        payload(lease, 1),
    ]


# ---- settle


def test_an_ack_deletes_entry_and_bytes_and_counts_them_once(any_broker: Broker) -> None:
    filled(any_broker, steps=10)
    pointers = read_all(any_broker)
    settled: Any = list(zip(pointers, ("trained", "stale", "dropped", "evaluated"), strict=True))
    assert any_broker.experience.ack(E, 0, SEAT, settled[:2]) == 2
    assert any_broker.experience.ack(E, 0, SEAT, settled) == 2
    flow = any_broker.experience.flow(E, 0)
    for amount in (flow.trained, flow.stale, flow.dropped, flow.evaluated):
        assert (amount.batches, amount.steps) == (1, 10)
    assert (flow.entries, flow.bytes, flow.steps, flow.appended.steps) == (0, 0, 0, 40)
    assert any_broker.experience.fetch(pointers) == [None] * 4
    assert any_broker.conn.main.xpending(keys.experience(E, 0), TRAINER)["pending"] == 0


def test_an_id_that_the_server_gave_out_again_settles_nothing_of_the_batch_that_has_it_now(any_broker: Broker) -> None:
    # Given a batch that the server forgot, and another one that got its id, for the server's clock had stepped back
    filled(any_broker, batches=2, steps=10)
    first, other = read_all(any_broker)
    accepted: Any = keys.flow(E, 0).removesuffix("flow") + "accepted"
    names = {value: name for name, value in any_broker.conn.main.hgetall(accepted).items()}
    any_broker.conn.main.hdel(accepted, names[first.entry_id.encode()])
    forgotten = replace(first, entry_id=other.entry_id)
    # When the trainer settles the one that it knew, in any way, then the other one is left alone
    assert any_broker.experience.ack(E, 0, SEAT, [(forgotten, "trained")]) == 0
    assert not any_broker.experience.set_aside(E, 0, SEAT, forgotten, "cannot be read")
    assert any_broker.experience.flow(E, 0).dead.batches == 0
    # and is settled by its own name
    assert any_broker.experience.fetch([other]) != [None]
    assert any_broker.experience.ack(E, 0, SEAT, [(other, "trained")]) == 1
    assert any_broker.experience.flow(E, 0).trained.batches == 1


def test_what_comes_after_the_trainer_has_left_for_good_is_turned_away_and_counted(any_broker: Broker) -> None:
    lease = filled(any_broker, batches=1, steps=10)
    ctl(any_broker, command="stop", outcome="stopped")
    assert append(any_broker, lease, 1, steps=10).status == "DUP"
    reply = append(any_broker, lease, 2, steps=10)
    assert (reply.status, reply.command, reply.seq) == ("GIVEN", "stop", 1)
    assert append(any_broker, lease, 2, steps=10).status == "GIVEN"
    flow = any_broker.experience.flow(E, 0)
    assert (flow.entries, flow.appended.batches, flow.discarded.batches) == (1, 1, 1)


def test_acks_of_more_than_one_script_call_settle_all(any_broker: Broker) -> None:
    admit(any_broker, shards=1, max_entries=1000)
    lease = claim_next(any_broker).lease
    for seq in range(1, 521):
        append(any_broker, lease, seq, size=10)
    assert any_broker.experience.ack(E, 0, SEAT, [(pointer, "trained") for pointer in read_all(any_broker)]) == 520
    Books(any_broker).check()


def test_who_lost_the_seat_settles_nothing(any_broker: Broker) -> None:
    filled(any_broker)
    pointers = read_all(any_broker)
    ctl(any_broker, seat_epoch=SEAT + 1)
    calls: list[Callable[[], object]] = [
        lambda: any_broker.experience.ack(E, 0, SEAT, [(pointers[0], "trained")]),
        lambda: any_broker.experience.set_aside(E, 0, SEAT, pointers[0], "bad"),
        lambda: any_broker.experience.set_loading(E, 0, SEAT, ["1-1"]),
        lambda: any_broker.experience.roll_back(E, 0, SEAT, batches=1, steps=1, trained=0),
    ]
    for call in calls:
        with pytest.raises(SeatLost):
            call()
    flow = any_broker.experience.flow(E, 0)
    assert flow.entries == 4 and flow.trained.batches == flow.dead.batches == flow.rolled_back.batches == 0
    assert any_broker.experience.loading(E, 0) == {}


def test_what_is_set_aside_is_kept_with_its_reason(any_broker: Broker) -> None:
    lease = filled(any_broker)
    pointer = read_all(any_broker)[0]
    assert any_broker.experience.set_aside(E, 0, SEAT, pointer, "checksum differs", keep_blob=True)
    assert not any_broker.experience.set_aside(E, 0, SEAT, pointer, "checksum differs", keep_blob=True)
    assert any_broker.experience.dead(E, 0) == [(pointer, "checksum differs")]
    assert any_broker.experience.fetch([pointer]) == [payload(lease, 1)]
    Books(any_broker).check()


def test_what_is_set_aside_without_its_bytes_leaves_none(any_broker: Broker) -> None:
    filled(any_broker)
    pointer = read_all(any_broker)[0]
    any_broker.experience.set_aside(E, 0, SEAT, pointer, "bad", keep_blob=False)
    assert any_broker.experience.fetch([pointer]) == [None]


@pytest.mark.parametrize(
    ("entries", "size", "left"), [(2, 1 << 20, [3, 4]), (100, 2500, [3, 4]), (100, 10, [1, 2, 3, 4])]
)
def test_what_is_set_aside_is_capped_and_the_oldest_makes_room(
    any_broker: Broker, entries: int, size: int, left: list[int]
) -> None:
    filled(any_broker)
    experience = Experience(any_broker.conn, dead_entries=entries, dead_bytes=size)
    pointers = read_all(any_broker)
    for pointer in pointers:
        experience.set_aside(E, 0, SEAT, pointer, "bad")
    kept = [pointer for pointer, _ in experience.dead(E, 0)]
    assert sorted(seqs(kept)) == left
    bytes_left = sum(len(blob) for blob in experience.fetch(pointers) if blob is not None)
    assert bytes_left <= size
    assert int(any_broker.conn.main.hget(keys.flow(E, 0), "dead_bytes") or 0) == bytes_left
    assert any_broker.experience.flow(E, 0).dead.batches == 4


def test_what_is_being_loaded_is_named_until_the_next_names(any_broker: Broker) -> None:
    filled(any_broker)
    ids = [pointer.entry_id for pointer in read_all(any_broker)]
    any_broker.experience.set_loading(E, 0, SEAT, ids[:2])
    assert any_broker.experience.loading(E, 0) == {ids[0]: False, ids[1]: False}
    any_broker.experience.set_loading(E, 0, SEAT, ids[2:3], alone=True)
    assert any_broker.experience.loading(E, 0) == {ids[2]: True}
    any_broker.experience.set_loading(E, 0, SEAT, [])
    assert any_broker.experience.loading(E, 0) == {}


def test_a_seat_rolls_back_once(any_broker: Broker) -> None:
    filled(any_broker, steps=10)
    any_broker.experience.ack(E, 0, SEAT, [(pointer, "trained") for pointer in read_all(any_broker)])
    for _ in range(2):
        any_broker.experience.roll_back(E, 0, SEAT, batches=3, steps=30, trained=4)
    flow = any_broker.experience.flow(E, 0)
    assert (flow.trained.batches, flow.trained.steps) == (1, 10)
    assert (flow.rolled_back.batches, flow.rolled_back.steps, flow.rolled_back_by) == (3, 30, SEAT)
    Books(any_broker).check()


def test_what_a_broker_that_went_back_does_not_count_as_trained_is_not_rolled_back(any_broker: Broker) -> None:
    filled(any_broker, steps=10)
    any_broker.experience.ack(E, 0, SEAT, [(read_all(any_broker)[0], "trained")])
    assert not any_broker.experience.roll_back(E, 0, SEAT, batches=3, steps=30, trained=4)
    flow = any_broker.experience.flow(E, 0)
    assert (flow.trained.batches, flow.rolled_back.batches, flow.rolled_back_by) == (1, 0, 0)


def test_what_was_rolled_back_and_is_in_a_checkpoint_after_all_comes_back(any_broker: Broker) -> None:
    filled(any_broker, steps=10)
    any_broker.experience.ack(E, 0, SEAT, [(pointer, "trained") for pointer in read_all(any_broker)])
    any_broker.experience.roll_back(E, 0, SEAT, batches=3, steps=30, trained=4)
    ctl(any_broker, seat_epoch=SEAT + 1)
    any_broker.experience.roll_back(E, 0, SEAT + 1, batches=-2, steps=-20, trained=1)
    flow = any_broker.experience.flow(E, 0)
    assert (flow.trained.batches, flow.rolled_back.batches, flow.rolled_back.steps) == (3, 1, 10)
    Books(any_broker).check()


def test_settling_works_out_of_memory(broker: Broker, full_memory: Callable[[], None]) -> None:
    filled(broker)
    pointers = read_all(broker)
    full_memory()
    broker.experience.set_loading(E, 0, SEAT, [pointers[0].entry_id])
    assert broker.experience.loading(E, 0) == {pointers[0].entry_id: False}
    assert broker.experience.take_over(E, 0, TRAINER, "heir") == pointers
    assert broker.experience.ack(E, 0, SEAT, [(pointers[0], "trained"), (pointers[1], "stale")]) == 2
    assert broker.experience.set_aside(E, 0, SEAT, pointers[2], "bad")
    broker.experience.roll_back(E, 0, SEAT, batches=1, steps=64, trained=1)
    broker.experience.set_loading(E, 0, SEAT, [])
    Books(broker).check()
    broker.experience.ensure_group(E, 0)  # a trainer that begins now is what frees memory
    broker.conn.main.xgroup_destroy(keys.experience(E, 0), TRAINER)
    broker.experience.ensure_group(E, 0)
    assert len(read_all(broker)) == 1


# ---- taps


def test_a_tap_reads_beside_the_trainer_and_misses_only_what_was_deleted(any_broker: Broker) -> None:
    lease = filled(any_broker)
    any_broker.experience.ensure_group(E, 0, "tap", start="$")
    append(any_broker, lease, 5)
    append(any_broker, lease, 6)
    pointers = read_all(any_broker)
    any_broker.experience.ack(E, 0, SEAT, [(pointers[4], "trained")])
    seen = read_all(any_broker, "t", "tap")
    assert seqs(seen) == [6]
    any_broker.experience.ack_tap(E, 0, "tap", [pointer.entry_id for pointer in seen])
    any_broker.experience.ack_tap(E, 0, "tap", [])
    assert any_broker.experience.take_over(E, 0, "tap", "t") == []
    assert any_broker.experience.flow(E, 0).entries == 5
    Books(any_broker).check()


def test_a_tap_does_not_delete_entries_that_it_does_not_understand(any_broker: Broker) -> None:
    filled(any_broker, 1)
    any_broker.experience.ensure_group(E, 0, "tap")
    any_broker.conn.main.xadd(keys.experience(E, 0), {"hello": "world"})
    assert seqs(read_all(any_broker, "t", "tap")) == [1]
    assert any_broker.conn.main.xlen(keys.experience(E, 0)) == 2


def test_a_tap_can_be_removed_and_the_trainer_cannot(any_broker: Broker) -> None:
    filled(any_broker)
    any_broker.experience.ensure_group(E, 0, "tap")
    for _ in range(2):
        any_broker.experience.remove_tap(E, 0, "tap")
    with pytest.raises(ValueError, match="trainer"):
        any_broker.experience.remove_tap(E, 0, TRAINER)
    any_broker.conn.main.flushall()
    any_broker.experience.remove_tap(E, 0, "tap")


def test_numbers_beyond_32_bits_and_large_counters_stay_exact(broker: Broker, raw: redis.Redis) -> None:
    filled(broker, 1)
    raw.hset(keys.flow(E, 0), mapping={"appended_steps": 10**15, "steps": 10**15})
    lease = Lease(E, 0, 0, "w1", broker.shards.shards(E, 0)[0].epoch, "nw1")
    append(broker, lease, 2, steps=7)
    assert raw.hget(keys.flow(E, 0), "appended_steps") == str(10**15 + 7).encode()
    broker.experience.ack(E, 0, SEAT, [(read_all(broker)[1], "trained")])
    assert raw.hget(keys.flow(E, 0), "steps") == str(10**15).encode()


# ---- what somebody took out of the stream by hand


def _trim(broker: Broker) -> None:
    broker.conn.main.xtrim(keys.experience(E, 0), maxlen=1, approximate=False)


def test_room_comes_back_of_batches_that_somebody_took_out_of_the_stream(any_broker: Broker) -> None:
    filled(any_broker, batches=4)
    _trim(any_broker)
    assert any_broker.experience.flow(E, 0).entries == 4, "nobody has seen it"
    assert any_broker.experience.recount(E, 0, leader_epoch=LEADER) == 3
    flow = any_broker.experience.flow(E, 0)
    assert (flow.entries, flow.dropped.batches, flow.dropped.steps) == (1, 3, 3 * 64)
    Books(any_broker).check()
    assert len(any_broker.conn.main.keys("*:blob:*")) == 1
    assert seqs(read_all(any_broker)) == [4]


def test_what_a_trainer_has_in_hand_counts_as_trained_though_somebody_took_it_out_of_the_stream(
    any_broker: Broker,
) -> None:
    filled(any_broker, batches=4)
    in_hand = read_all(any_broker)
    _trim(any_broker)
    assert any_broker.experience.recount(E, 0, leader_epoch=LEADER) == 0
    for _ in range(2):
        any_broker.experience.ack(E, 0, SEAT, [(pointer, "trained") for pointer in in_hand])
        flow = any_broker.experience.flow(E, 0)
        assert (flow.entries, flow.trained.batches, flow.dropped.batches) == (0, 4, 0)
        Books(any_broker).check()


def test_the_next_trainer_leaves_to_be_counted_what_was_taken_out_of_the_stream_and_out_of_a_dead_ones_hands(
    any_broker: Broker,
) -> None:
    filled(any_broker, batches=4)
    read_all(any_broker, "dead trainer")
    _trim(any_broker)
    assert seqs(any_broker.experience.take_over(E, 0, TRAINER, "heir")) == [4]
    assert any_broker.experience.recount(E, 0, leader_epoch=LEADER) == 3
    Books(any_broker).check()


def test_what_is_set_aside_though_somebody_took_it_out_of_the_stream_gives_its_room_back(any_broker: Broker) -> None:
    filled(any_broker, batches=2)
    (pointer, _) = read_all(any_broker)
    _trim(any_broker)
    assert any_broker.experience.set_aside(E, 0, SEAT, pointer, "checksum differs")
    assert not any_broker.experience.set_aside(E, 0, SEAT, pointer, "checksum differs")
    assert any_broker.experience.flow(E, 0).dead.batches == 1
    Books(any_broker).check()


def test_only_who_leads_counts_anew(any_broker: Broker) -> None:
    filled(any_broker, batches=2)
    ctl(any_broker, leader_epoch=LEADER)
    _trim(any_broker)
    with pytest.raises(LeaderLost):
        any_broker.experience.recount(E, 0, leader_epoch=LEADER - 1)
    with pytest.raises(Gone):
        any_broker.experience.recount("nothing", 0, leader_epoch=LEADER)
    assert any_broker.experience.flow(E, 0).entries == 2
