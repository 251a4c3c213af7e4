"""What the broker promises about snapshots of shards: told at a claim, dropped when nobody may begin there."""

from typing import Any

import pytest

from heddle.broker import Broker, keys
from heddle.broker.types import Lease
from heddle.errors import BrokerFull, LeaderLost
from tests.broker_kit import LEADER, TTL_MS, E, admit, append, claim_next, ctl, meta_of, payload, reap, run_out


def _held(broker: Broker) -> list[str]:
    """Names of every snapshot there is."""
    return [key.decode() for key in broker.conn.main.scan_iter(match="*:snapshot:*")]


def _key(lease: Lease, seq: int) -> str:
    return keys.snapshot(lease.experiment, lease.partition, lease.shard, lease.epoch, lease.nonce, seq)


def _begun(broker: Broker, **fields: Any) -> Lease:
    """A shard with one accepted batch and its snapshot."""
    admit(broker, shards=1, **fields)
    lease = claim_next(broker).lease
    append(broker, lease, 1, snapshot=b"state after 1")
    assert _held(broker) == [_key(lease, 1)]
    return lease


def test_a_claim_tells_how_many_owners_ended_without_a_batch(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    told = []
    for worker in ("w1", "w2", "w3", "w4"):
        claim = claim_next(any_broker, worker)
        told.append(claim.deaths)
        if worker == "w3":
            append(any_broker, claim.lease, claim.seq + 1)
        any_broker.shards.renew(E, 0, [(claim.lease, True)], ttl_ms=TTL_MS)
        run_out(any_broker, claim.lease)
        reap(any_broker)
    assert told == [0, 1, 2, 0]


def test_a_claim_tells_the_batch_of_its_snapshot_even_when_that_is_not_the_last(any_broker: Broker) -> None:
    lease = _begun(any_broker)
    append(any_broker, lease, 2)
    any_broker.shards.release(lease)
    claim = claim_next(any_broker, "w2")
    assert (claim.seq, claim.snapshot) == (2, _key(lease, 1))
    assert keys.snapshot_seq(claim.snapshot or "", E, 0, 0) == 1
    assert any_broker.shards.shards(E, 0)[0].snapshot_seq == 1


def test_why_there_is_no_snapshot_is_kept_and_forgotten_with_the_next_one(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    data = payload(lease, 1)
    any_broker.shards.append(lease, seq=1, blob=data, meta=meta_of(data), ttl_ms=TTL_MS, no_snapshot="a lock")
    append(any_broker, lease, 2)
    assert any_broker.shards.shards(E, 0)[0].no_snapshot == "a lock"
    any_broker.shards.release(lease)
    claim = claim_next(any_broker, "w2")
    assert claim.no_snapshot == "a lock"
    append(any_broker, claim.lease, 3, snapshot=b"state")
    assert any_broker.shards.shards(E, 0)[0].no_snapshot == ""


def test_a_shard_given_back_in_good_order_keeps_its_snapshot(any_broker: Broker) -> None:
    lease = _begun(any_broker)
    any_broker.shards.release(lease)
    assert claim_next(any_broker, "w2").snapshot == _key(lease, 1)


def test_a_reaped_shard_keeps_its_snapshot(any_broker: Broker) -> None:
    lease = _begun(any_broker)
    run_out(any_broker, lease)
    reap(any_broker)
    assert claim_next(any_broker, "w2").snapshot == _key(lease, 1)


@pytest.mark.parametrize("barren", [False, True])
def test_nobody_continues_from_what_ended_in_an_error(any_broker: Broker, barren: bool) -> None:
    lease = _begun(any_broker)
    any_broker.shards.release(lease, error="the arm fell off", barren=barren)
    assert _held(any_broker) == []
    assert claim_next(any_broker, "w2").snapshot is None


def test_the_snapshot_of_a_stopped_shard_is_deleted(any_broker: Broker) -> None:
    lease = _begun(any_broker)
    ctl(any_broker, command="stop")
    any_broker.shards.release(lease)
    assert _held(any_broker) == []


def test_the_snapshot_of_a_shard_that_is_reaped_for_good_is_deleted(any_broker: Broker) -> None:
    lease = _begun(any_broker)
    ctl(any_broker, command="stop")
    run_out(any_broker, lease)
    reap(any_broker)
    assert _held(any_broker) == []
    assert any_broker.shards.shards(E, 0)[0].snapshot_seq == 0


def test_the_snapshot_of_a_quarantined_shard_is_deleted(any_broker: Broker) -> None:
    lease = _begun(any_broker)
    any_broker.shards.release(lease)
    again = claim_next(any_broker, "w2").lease
    any_broker.shards.renew(E, 0, [(again, True)], ttl_ms=TTL_MS)
    run_out(any_broker, again)
    any_broker.shards.reap(E, 0, leader_epoch=10**9, barren_deaths=1)
    assert any_broker.shards.shards(E, 0)[0].state == "quarantined"
    assert _held(any_broker) == []


def _with_snapshots(broker: Broker, shards: int = 3) -> None:
    """An experiment whose shards wait for their next owner; all but shard 1 have a snapshot."""
    admit(broker, shards=shards)
    for shard in range(shards):
        lease = claim_next(broker, f"w{shard}").lease
        if shard != 1:
            append(broker, lease, 1, snapshot=b"state")
        broker.shards.release(lease)
    assert len(_held(broker)) == shards - 1


def _end(broker: Broker) -> None:
    assert broker.experiments.set_status(E, "completed", leader_epoch=LEADER) == "completed"


def test_dropping_the_snapshots_of_an_ended_experiment_leaves_none_and_may_be_repeated(any_broker: Broker) -> None:
    _with_snapshots(any_broker)
    _end(any_broker)
    assert any_broker.experiments.status(E).leaves_snapshots
    for experiment in (E, E, "unknown-1a2b"):
        assert not any_broker.shards.drop_snapshots(experiment, 0, leader_epoch=LEADER)
    assert _held(any_broker) == []
    assert [shard.snapshot_seq for shard in any_broker.shards.shards(E, 0)] == [0, 0, 0]
    assert not any_broker.experiments.status(E).leaves_snapshots


def test_no_snapshot_is_dropped_before_the_end_or_where_the_broker_went_back_before_it(any_broker: Broker) -> None:
    _with_snapshots(any_broker)
    assert not any_broker.shards.drop_snapshots(E, 0, leader_epoch=LEADER)
    own = [keys.ctl(E), keys.status(E), *(keys.shard(E, 0, shard) for shard in range(3))]
    assert any_broker.conn.script("snapshots_drop", own, [LEADER, 0]) == [b"KEPT"], "asked while it was over"
    ctl(any_broker, snapshots_from=0)
    assert any_broker.conn.script("snapshots_drop", own, [LEADER, 0]) == [b"KEPT"], "nothing but the state says so"
    assert len(_held(any_broker)) == 2


def test_snapshots_are_dropped_a_batch_at_a_time_and_the_next_leader_goes_on_where_one_died(
    any_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heddle.broker.shards.BATCH", 2)
    _with_snapshots(any_broker, shards=5)
    _end(any_broker)
    assert any_broker.shards.drop_snapshots(E, 0, leader_epoch=LEADER)
    assert [shard.snapshot_seq for shard in any_broker.shards.shards(E, 0)] == [0, 0, 1, 1, 1]
    ctl(any_broker, leader_epoch=LEADER + 1)  # another took over, and wrote
    with pytest.raises(LeaderLost):
        any_broker.shards.drop_snapshots(E, 0, leader_epoch=LEADER)
    assert len(_held(any_broker)) == 3
    assert any_broker.shards.drop_snapshots(E, 0, leader_epoch=LEADER + 1)
    assert not any_broker.shards.drop_snapshots(E, 0, leader_epoch=LEADER + 1)
    assert _held(any_broker) == []


def test_a_batch_of_shards_that_is_dropped_twice_is_no_harm_to_the_next_one(
    any_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heddle.broker.shards.BATCH", 2)
    _with_snapshots(any_broker, shards=4)
    _end(any_broker)
    own = [keys.ctl(E), keys.status(E), *(keys.shard(E, 0, shard) for shard in range(2))]
    assert any_broker.conn.script("snapshots_drop", own, [LEADER, 0]) == [b"OK", 1]
    assert any_broker.conn.script("snapshots_drop", own, [LEADER, 0]) == [b"KEPT"]
    assert not any_broker.shards.drop_snapshots(E, 0, leader_epoch=LEADER)
    assert _held(any_broker) == []


def test_snapshots_are_dropped_without_memory_and_past_a_shard_that_somebody_replaced(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, full_memory: Any
) -> None:
    monkeypatch.setattr("heddle.broker.shards.BATCH", 2)
    _with_snapshots(broker)
    _end(broker)
    broker.conn.main.delete(keys.shard(E, 0, 1))
    broker.conn.main.rpush(keys.shard(E, 0, 1), "a", "list")
    full_memory()
    assert broker.shards.drop_snapshots(E, 0, leader_epoch=LEADER)
    assert not broker.shards.drop_snapshots(E, 0, leader_epoch=LEADER)
    assert _held(broker) == []


@pytest.mark.parametrize("said", ["1e3", "0x10", "1e999", "x", ""])
def test_a_number_that_somebody_made_none_ends_the_dropping_of_snapshots(any_broker: Broker, said: str) -> None:
    _with_snapshots(any_broker)
    _end(any_broker)
    # Where it is done none are left
    ctl(any_broker, snapshots_from=said)
    assert not any_broker.shards.drop_snapshots(E, 0, leader_epoch=LEADER)
    assert _held(any_broker) == []
    # How many shards there are nobody knows: so it is over, and the rest is left to rm
    ctl(any_broker, snapshots_from=0, shards=said)
    assert not any_broker.shards.drop_snapshots(E, 0, leader_epoch=LEADER)
    assert not any_broker.experiments.status(E).leaves_snapshots


def test_an_end_is_written_whatever_somebody_made_of_the_numbers_it_goes_by(any_broker: Broker) -> None:
    _with_snapshots(any_broker)
    ctl(any_broker, command="stop", outcome="completed", shards="1e3")
    any_broker.conn.main.hset(keys.flow(E, 0), "entries", "1e3")
    asked = any_broker.experiments.set_status(E, "completed", leader_epoch=LEADER, decided_on=("completed", 0))
    assert asked == "completed"
    assert not any_broker.experiments.status(E).leaves_snapshots


def test_a_snapshot_whose_batch_waits_for_room_lives_as_long_as_the_batch(any_broker: Broker) -> None:
    lease = _begun(any_broker, max_entries=1)
    append(any_broker, lease, 2, snapshot=b"state after 2")
    main = any_broker.conn.main
    main.pexpire(_key(lease, 2), 500)
    data = payload(lease, 2)
    meta = meta_of(data)
    any_broker.shards.append(lease, seq=2, blob=None, meta=meta, ttl_ms=TTL_MS, resend_snapshot=True)
    assert main.pttl(_key(lease, 2)) > 500


def test_a_batch_whose_snapshot_is_gone_is_asked_for_again(any_broker: Broker) -> None:
    lease = _begun(any_broker, max_entries=1)
    append(any_broker, lease, 2, snapshot=b"state after 2")
    any_broker.conn.main.delete(_key(lease, 2))
    ctl(any_broker, max_entries=9)
    data = payload(lease, 2)
    reply = any_broker.shards.append(lease, seq=2, blob=None, meta=meta_of(data), ttl_ms=TTL_MS, resend_snapshot=True)
    assert reply.status == "NOBLOB"
    assert append(any_broker, lease, 2, snapshot=b"state after 2").status == "OK"
    assert any_broker.shards.shards(E, 0)[0].snapshot_seq == 2


def test_something_else_than_bytes_in_a_snapshots_place_is_a_lost_snapshot(any_broker: Broker) -> None:
    key, main = _key(_begun(any_broker), 1), any_broker.conn.main
    assert any_broker.shards.snapshot(key) == b"state after 1"
    main.delete(key)
    main.rpush(key, "a", "list")
    assert any_broker.shards.snapshot(key) is None


def test_out_of_memory_a_stored_batch_moves_on_without_its_snapshot(broker: Broker, full_memory: Any) -> None:
    lease = _begun(broker, max_entries=1)
    append(broker, lease, 2)  # FULL: its bytes are stored
    ctl(broker, max_entries=9)
    full_memory()
    with pytest.raises(BrokerFull):
        append(broker, lease, 2, snapshot=b"state after 2")
    assert append(broker, lease, 2).status == "OK"
    broker.shards.release(lease)
    assert broker.shards.shards(E, 0)[0].snapshot_seq == 1


def test_what_a_thawed_owner_sends_never_becomes_the_snapshot(any_broker: Broker) -> None:
    zombie = _begun(any_broker)
    run_out(any_broker, zombie)
    reap(any_broker)
    heir = claim_next(any_broker, "w2").lease
    assert append(any_broker, zombie, 2, snapshot=b"the zombie's").status == "FENCED"
    assert any_broker.shards.shards(E, 0)[0].snapshot_seq == 1
    assert append(any_broker, heir, 2, snapshot=b"the heir's").status == "OK"
    any_broker.shards.release(heir)
    claim = claim_next(any_broker, "w3")
    assert any_broker.shards.snapshot(claim.snapshot or "") == b"the heir's"
    assert any_broker.conn.main.ttl(_key(zombie, 2)) > 0
