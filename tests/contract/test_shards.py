"""What the broker promises about shards: tickets, claims, leases, the fenced append, release and reaping."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from heddle.broker import Broker, keys
from heddle.broker.claiming import HEALTHY_BATCHES
from heddle.broker.faults import Damaged
from heddle.broker.shards import BATCH
from heddle.broker.types import Claim, Lease, Ticket
from heddle.errors import BatchesForgotten, BrokerFull, Conflict, Gone, LeaderLost, NotFound
from heddle.shard import ShardPlan
from tests.broker_kit import (
    LEADER,
    POOL,
    TTL_MS,
    Books,
    E,
    admit,
    append,
    claim_next,
    ctl,
    meta_of,
    payload,
    read_all,
    reap,
    run_out,
)


def states(broker: Broker) -> list[str]:
    return [shard.state for shard in broker.shards.shards(E, 0)]


def take_ticket(broker: Broker, worker: str = "w1") -> Ticket:
    ticket = broker.shards.read_ticket(POOL, worker, block_ms=0)
    assert ticket is not None
    return ticket


# ---- create and tickets


def test_creating_shards_again_touches_none_that_exists(any_broker: Broker) -> None:
    admit(any_broker, shards=2)
    lease = claim_next(any_broker).lease
    append(any_broker, lease, 1)
    plans = [ShardPlan(index, "train", 2 * index, 2) for index in range(3)]
    assert any_broker.shards.create(E, 0, plans, leader_epoch=LEADER) == 1
    assert states(any_broker) == ["leased", "queued", "queued"]
    assert any_broker.shards.shards(E, 0)[0].seq == 1


def test_a_look_at_many_shards_tells_on_the_way_that_the_broker_answers(any_broker: Broker) -> None:
    admit(any_broker, shards=1_100)
    heard: list[int] = []
    before_ms = any_broker.conn.now_ms()
    assert [state.shard for state in any_broker.shards.shards(E, 0, heard=heard.append)] == list(range(1_100))
    assert len(heard) == 2
    assert before_ms <= heard[0] <= heard[1] <= any_broker.conn.now_ms()


def test_only_the_newest_leader_creates_and_reaps(any_broker: Broker) -> None:
    admit(any_broker)
    run_out(any_broker, claim_next(any_broker).lease)
    with pytest.raises(LeaderLost):
        any_broker.shards.create(E, 0, [ShardPlan(9, "train", 0, 1)], leader_epoch=LEADER - 1)
    with pytest.raises(LeaderLost):
        any_broker.shards.reap(E, 0, leader_epoch=LEADER - 1)
    assert states(any_broker) == ["leased", "queued"]


def test_a_new_shard_is_queued_without_a_ticket(any_broker: Broker) -> None:
    admit(any_broker, shards=0)
    any_broker.shards.create(E, 0, [ShardPlan(0, "eval", 0, 3)], leader_epoch=LEADER)
    (waiting,) = any_broker.shards.tickets_of(E, 0)
    assert (waiting.shard, waiting.entry_id, waiting.in_stream, waiting.read_ms_ago) == (0, "", False, None)
    (state,) = any_broker.shards.shards(E, 0)
    assert (state.kind, state.num_envs, state.seq, state.attempts) == ("eval", 3, 0, 0)


def test_a_ticket_goes_to_one_worker(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    assert take_ticket(any_broker, "w1").shard == 0
    assert any_broker.shards.read_ticket(POOL, "w2", block_ms=0) is None


def test_peeking_shows_the_oldest_ticket_that_nobody_took_and_takes_nothing(any_broker: Broker) -> None:
    admit(any_broker, shards=2)
    for expected in (0, 0):
        seen = any_broker.shards.peek_ticket(POOL)
        assert seen is not None and seen.shard == expected and not seen.urgent
    take_ticket(any_broker)
    seen = any_broker.shards.peek_ticket(POOL)
    assert seen is not None and seen.shard == 1
    take_ticket(any_broker)
    assert any_broker.shards.peek_ticket(POOL) is None


def test_peeking_tells_of_an_urgent_ticket_close_behind_one_that_nobody_takes(any_broker: Broker) -> None:
    # Given a shard that waits for a worker with too few, before one of a dead worker
    admit(any_broker, shards=2)
    seen = any_broker.shards.peek_ticket(POOL)
    assert seen is not None and not seen.urgent
    any_broker.shards.queue_ticket(E, 0, 1, POOL, urgent=True)
    # Then whoever is in no need of shards knows that it has to take the first one, too
    seen = any_broker.shards.peek_ticket(POOL)
    assert seen is not None and (seen.shard, seen.urgent) == (0, True)
    # And once the urgent one is taken, that it has not
    any_broker.shards.read_tickets(POOL, "w1", count=2, block_ms=0)
    any_broker.shards.queue_ticket(E, 0, 0, POOL)
    seen = any_broker.shards.peek_ticket(POOL)
    assert seen is not None and (seen.shard, seen.urgent) == (0, False)


def test_several_tickets_are_read_and_claimed_together_and_each_by_itself(any_broker: Broker) -> None:
    # Given four tickets, of which another worker is quicker with one, and one has no shard any more
    admit(any_broker, shards=4)
    seen = any_broker.shards.peek_ticket(POOL)
    assert seen is not None and seen.waiting == 4
    tickets = any_broker.shards.read_tickets(POOL, "w1", count=8, block_ms=0)
    assert [ticket.shard for ticket in tickets] == [0, 1, 2, 3]
    any_broker.shards.claim(tickets[1], worker="w2", nonce="n2", ttl_ms=TTL_MS)
    any_broker.conn.main.delete(keys.shard(E, 0, 2))
    # When they are claimed together
    wanted = [(ticket, f"n{ticket.shard}", TTL_MS) for ticket in tickets]
    answers = any_broker.shards.claim_all(wanted, worker="w1")
    # Then each has the answer that it would have alone, and the same one when it is asked again
    assert [one if isinstance(one, str) else type(one) for one in answers] == [Claim, "HELD", "GONE", Claim]
    assert any_broker.shards.claim_all(wanted, worker="w1") == answers
    first = answers[0]
    assert isinstance(first, Claim) and append(any_broker, first.lease, 1).status == "OK"
    any_broker.shards.drop_tickets_read(tickets)
    assert any_broker.conn.main.xlen(keys.pool_tickets(POOL)) == 0


def test_one_claim_that_meets_another_kind_of_key_costs_the_others_of_its_trip_nothing(
    any_broker: Broker,
) -> None:
    admit(any_broker, shards=3)
    any_broker.conn.main.delete(keys.shard(E, 0, 1))
    any_broker.conn.main.set(keys.shard(E, 0, 1), "x")
    tickets = any_broker.shards.read_tickets(POOL, "w1", count=3, block_ms=0)
    answers = any_broker.shards.claim_all([(ticket, "n1", TTL_MS) for ticket in tickets], worker="w1")
    assert [type(one) for one in answers] == [Claim, Damaged, Claim]


def test_peeking_into_a_pool_that_never_was_finds_nothing(any_broker: Broker) -> None:
    assert any_broker.shards.peek_ticket("nowhere") is None


def test_a_new_ticket_replaces_the_one_before(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    old = take_ticket(any_broker)
    assert any_broker.shards.queue_ticket(E, 0, 0, POOL)
    new = take_ticket(any_broker)
    assert new.entry_id != old.entry_id
    assert any_broker.conn.main.xlen(keys.pool_tickets(POOL)) == 1
    assert any_broker.conn.main.xpending(keys.pool_tickets(POOL), keys.TICKET_GROUP)["pending"] == 1


def test_a_shard_that_does_not_wait_gets_no_ticket(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    claim_next(any_broker)
    assert not any_broker.shards.queue_ticket(E, 0, 0, POOL)
    assert any_broker.conn.main.xlen(keys.pool_tickets(POOL)) == 0


def test_a_ticket_that_was_read_and_not_finished_can_be_told(any_broker: Broker) -> None:
    admit(any_broker, shards=2)
    take_ticket(any_broker)
    read, unread = any_broker.shards.tickets_of(E, 0)
    assert read.in_stream and read.read_ms_ago is not None
    assert unread.in_stream and unread.read_ms_ago is None


def test_a_ticket_that_left_the_stream_can_be_told(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    any_broker.shards.drop_ticket(take_ticket(any_broker))
    (waiting,) = any_broker.shards.tickets_of(E, 0)
    assert waiting.entry_id and not waiting.in_stream


def test_of_more_tickets_than_fit_a_page_each_is_told_as_of_a_few(broker: Broker) -> None:
    # Given more tickets than are asked for one by one, of which one was read, one has gone and one was never issued
    count = BATCH + 20
    admit(broker, shards=count)
    read, gone = take_ticket(broker), take_ticket(broker, "w2")
    broker.shards.drop_ticket(gone)
    broker.conn.main.hset(keys.queued(E, 0), "7", "- 1")
    # When they are looked at
    told = {ticket.shard: ticket for ticket in broker.shards.tickets_of(E, 0)}
    # Then each is as it is, also where nobody ever read any
    assert sorted(told) == list(range(count))
    lacking = {shard for shard, ticket in told.items() if not ticket.in_stream}
    assert lacking == {gone.shard, 7}
    assert [shard for shard, ticket in told.items() if ticket.read_ms_ago is not None] == [read.shard]
    broker.conn.main.xgroup_destroy(keys.pool_tickets(POOL), keys.TICKET_GROUP)
    assert {ticket.read_ms_ago for ticket in broker.shards.tickets_of(E, 0)} == {None}


def test_dropping_tickets_takes_only_those_of_the_experiment(any_broker: Broker) -> None:
    admit(any_broker, shards=2)
    admit(any_broker, shards=1, experiment="other-1")
    assert any_broker.shards.drop_tickets(E, 0, POOL) == 2
    assert take_ticket(any_broker).experiment == "other-1"


@pytest.mark.parametrize("entry_id", ["99999999999999-0", "18446744073709551615-18446744073709551615", "$"])
def test_tickets_that_a_group_set_on_by_hand_has_passed_over_are_read_all_the_same(
    broker: Broker, entry_id: str
) -> None:
    # Given tickets of which one is being read, and a group that somebody has set behind them all
    admit(broker, shards=3)
    held = take_ticket(broker)
    broker.conn.main.xgroup_setid(keys.pool_tickets(POOL), keys.TICKET_GROUP, entry_id)
    broker.shards.queue_tickets(E, 0, [1], POOL)
    # When that is looked for, then it is found, and once
    assert broker.pools.tidy_tickets(POOL) == (0, True)
    assert {take_ticket(broker).shard for _ in range(3)} == {0, 1, 2}
    assert broker.pools.tidy_tickets(POOL) == (0, False)
    # And who reads one twice is told at the claim that another has it
    assert isinstance(broker.shards.claim(held, worker="w1", nonce="a", ttl_ms=TTL_MS), Claim)


def test_tickets_that_wait_or_are_being_read_are_not_passed_over(any_broker: Broker) -> None:
    assert any_broker.pools.tidy_tickets(POOL) == (0, False)
    admit(any_broker, shards=2)
    assert any_broker.pools.tidy_tickets(POOL) == (0, False)
    ticket = take_ticket(any_broker)
    assert any_broker.pools.tidy_tickets(POOL) == (0, False)
    any_broker.shards.drop_ticket(ticket)
    assert any_broker.pools.tidy_tickets(POOL) == (0, False)
    take_ticket(any_broker)
    assert any_broker.pools.tidy_tickets(POOL) == (0, False)
    assert any_broker.shards.read_ticket(POOL, "w2", block_ms=0) is None


def test_a_pool_that_lost_its_group_is_read_on(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    any_broker.conn.main.xgroup_create(keys.pool_tickets(POOL), keys.TICKET_GROUP, id="0", mkstream=True)
    any_broker.conn.main.xgroup_destroy(keys.pool_tickets(POOL), keys.TICKET_GROUP)
    assert take_ticket(any_broker).shard == 0


# ---- claim


def test_of_two_workers_one_gets_the_shard(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    ticket = take_ticket(any_broker)
    first = any_broker.shards.claim(ticket, worker="w1", nonce="a", ttl_ms=TTL_MS)
    assert isinstance(first, Claim)
    assert any_broker.shards.claim(ticket, worker="w2", nonce="b", ttl_ms=TTL_MS) == "HELD"
    assert any_broker.shards.claim(ticket, worker="w1", nonce="c", ttl_ms=TTL_MS) == "HELD"


def test_the_same_claim_gets_the_same_answer(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    ticket = take_ticket(any_broker)
    first = any_broker.shards.claim(ticket, worker="w1", nonce="a", ttl_ms=TTL_MS)
    assert any_broker.shards.claim(ticket, worker="w1", nonce="a", ttl_ms=TTL_MS) == first


def test_a_claim_creates_nothing(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    ticket = take_ticket(any_broker)
    before = set(any_broker.conn.main.keys())
    for stray in (Ticket(E, 0, 5, POOL, "1-1", 0), Ticket("removed-1", 0, 0, POOL, "1-1", 0)):
        assert any_broker.shards.claim(stray, worker="w1", nonce="a", ttl_ms=TTL_MS) == "GONE"
    ctl(any_broker, command="stop")
    assert any_broker.shards.claim(ticket, worker="w1", nonce="a", ttl_ms=TTL_MS) == "GONE"
    assert set(any_broker.conn.main.keys()) == before


def test_an_epoch_is_above_the_last_one_even_when_the_clock_went_back(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    ahead = any_broker.conn.now_ms() + 10**9
    any_broker.conn.main.hset(keys.shard(E, 0, 0), "epoch", ahead)
    assert claim_next(any_broker).lease.epoch == ahead + 1


def test_an_epoch_follows_the_servers_clock(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    before = any_broker.conn.now_ms()
    assert before <= claim_next(any_broker).lease.epoch <= any_broker.conn.now_ms()


def test_a_shard_whose_lease_is_over_is_claimed_only_after_it_was_reaped(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    ticket = take_ticket(any_broker)
    claim = any_broker.shards.claim(ticket, worker="w1", nonce="a", ttl_ms=TTL_MS)
    assert isinstance(claim, Claim)
    run_out(any_broker, claim.lease)
    assert any_broker.shards.claim(ticket, worker="w2", nonce="b", ttl_ms=TTL_MS) == "HELD"
    assert reap(any_broker) == [0]
    assert isinstance(any_broker.shards.claim(ticket, worker="w2", nonce="b", ttl_ms=TTL_MS), Claim)


def test_a_claim_tells_where_the_shard_stands(any_broker: Broker) -> None:
    admit(any_broker, shards=1, sync=1, policy=9, min_policy=3, eval_policy=4)
    lease = claim_next(any_broker).lease
    append(any_broker, lease, 1, given=8, snapshot=b"state after 1")
    any_broker.shards.release(lease)
    claim = claim_next(any_broker, "w2")
    assert (claim.seq, claim.given, claim.kind, claim.attempts, claim.sync) == (1, 8, "train", 2, True)
    assert (claim.command, claim.policy, claim.min_policy, claim.eval_policy) == ("run", 9, 3, 4)
    assert claim.snapshot is not None and any_broker.shards.snapshot(claim.snapshot) == b"state after 1"


@pytest.mark.parametrize("nonce", ["", "a b", "a:b", "x" * 65])
def test_a_nonce_that_could_not_be_part_of_a_key_is_refused(any_broker: Broker, nonce: str) -> None:
    with pytest.raises(ValueError, match="nonce"):
        any_broker.shards.claim(Ticket(E, 0, 0, POOL, "1-1", 0), worker="w1", nonce=nonce, ttl_ms=TTL_MS)


# ---- append


def test_batches_are_accepted_in_order_and_once(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    answers = [append(any_broker, lease, seq).status for seq in (1, 1, 2, 1, 2, 3)]
    assert answers == ["OK", "DUP", "OK", "DUP", "DUP", "OK"]
    assert [pointer.seq for pointer in read_all(any_broker)] == [1, 2, 3]
    Books(any_broker).check()


def test_a_pointer_tells_what_the_append_said(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    data = payload(lease, 1, 3000)
    meta = meta_of(data, steps=77, given=0, version=6)
    any_broker.shards.append(lease, seq=1, blob=memoryview(data), meta=meta, ttl_ms=TTL_MS)
    (pointer,) = read_all(any_broker)
    assert (pointer.shard, pointer.epoch, pointer.nonce, pointer.seq) == (0, lease.epoch, lease.nonce, 1)
    assert (pointer.kind, pointer.version_min, pointer.version_max) == ("train", 6, 6)
    assert (pointer.segments, pointer.steps, pointer.bytes, pointer.crc32) == (2, 77, 3000, meta.crc32)
    assert any_broker.experience.fetch([pointer]) == [data]


def test_an_accepted_blob_stays_and_a_refused_one_goes_by_itself(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    append(any_broker, lease, 1)
    append(any_broker, lease, 3)
    main = any_broker.conn.main
    assert main.ttl(keys.blob(E, 0, 0, lease.epoch, lease.nonce, 1)) == -1
    assert 0 < main.ttl(keys.blob(E, 0, 0, lease.epoch, lease.nonce, 3)) <= 60


def test_a_late_blob_never_spoils_an_accepted_one(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    append(any_broker, lease, 1)
    data = b"z" * 1000
    late = any_broker.shards.append(lease, seq=1, blob=data, meta=meta_of(data), ttl_ms=TTL_MS)
    assert late.status == "DUP"
    (pointer,) = read_all(any_broker)
    assert any_broker.experience.fetch([pointer]) == [payload(lease, 1)]
    assert any_broker.conn.main.ttl(pointer.blob_key) == -1


def test_seq_goes_on_across_owners(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    first = claim_next(any_broker).lease
    append(any_broker, first, 1)
    any_broker.shards.release(first)
    second = claim_next(any_broker, "w2").lease
    assert append(any_broker, second, 1).status == "GAP"  # it belongs to the owner before
    assert append(any_broker, second, 2).status == "OK"
    assert second.epoch > first.epoch


def test_who_lost_the_shard_can_never_append(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    append(any_broker, lease, 1)
    run_out(any_broker, lease)
    reap(any_broker)
    assert append(any_broker, lease, 2).status == "FENCED"
    claim_next(any_broker, "w2")
    assert append(any_broker, lease, 2).status == "FENCED"
    assert [pointer.seq for pointer in read_all(any_broker)] == [1]


def test_who_has_the_epoch_but_not_the_nonce_is_fenced(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    assert append(any_broker, Lease(E, 0, 0, lease.worker, lease.epoch, "other"), 1).status == "FENCED"
    assert append(any_broker, Lease(E, 0, 0, "other", lease.epoch, lease.nonce), 1).status == "FENCED"
    assert append(any_broker, lease, 1).status == "OK"


def test_fenced_tells_whether_that_batch_had_been_accepted(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    owners: list[Lease] = []
    for number in range(4):
        lease = claim_next(any_broker, f"w{number}").lease
        append(any_broker, lease, number + 1)
        any_broker.shards.release(lease)
        owners.append(lease)
    for number, lease in enumerate(owners):
        before, after = append(any_broker, lease, number + 1), append(any_broker, lease, number + 2)
        assert (before.status, before.accepted_before) == ("FENCED", True)
        assert (after.status, after.accepted_before) == ("FENCED", False)


def test_a_discarded_batch_is_counted_once_however_often_it_is_sent(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    append(any_broker, lease, 1)
    any_broker.shards.release(lease)
    for _ in range(3):
        append(any_broker, lease, 1)
        append(any_broker, lease, 2, steps=50)
    claim_next(any_broker, "w2")
    append(any_broker, lease, 2, steps=50)
    discarded = any_broker.experience.flow(E, 0).discarded
    assert (discarded.batches, discarded.steps) == (1, 50)


def test_a_fenced_append_deletes_nothing(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    append(any_broker, lease, 1)
    run_out(any_broker, lease)
    reap(any_broker)
    claim_next(any_broker, "w2")
    assert append(any_broker, lease, 1).status == "FENCED"
    Books(any_broker).check()


def test_a_batch_after_a_gap_is_refused_and_the_answer_tells_what_is_known(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    append(any_broker, lease, 1)
    reply = append(any_broker, lease, 4)
    assert (reply.status, reply.seq) == ("GAP", 1)
    assert any_broker.experience.flow(E, 0).discarded.batches == 1


def test_a_batch_that_was_refused_behind_a_gap_is_accepted_when_the_gap_is_closed_and_is_counted_in_both(
    any_broker: Broker,
) -> None:
    # As when a server lost the batch before, and a late copy of that comes in between
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    assert append(any_broker, lease, 2).status == "GAP"
    assert [append(any_broker, lease, seq).status for seq in (1, 2)] == ["OK", "OK"]
    flow = any_broker.experience.flow(E, 0)
    assert (flow.appended.batches, flow.discarded.batches) == (2, 1)
    Books(any_broker).check()


def test_a_synchronous_shard_gives_each_version_once_across_owners(any_broker: Broker) -> None:
    admit(any_broker, shards=1, sync=1)
    first = claim_next(any_broker).lease
    assert append(any_broker, first, 1, given=1).status == "OK"
    any_broker.shards.release(first)
    second = claim_next(any_broker, "w2").lease
    assert append(any_broker, second, 2, given=1).status == "GIVEN"
    assert append(any_broker, second, 2, given=2).status == "OK"
    Books(any_broker).check()


def test_the_bytes_of_a_given_batch_do_not_become_those_of_the_next(any_broker: Broker) -> None:
    admit(any_broker, shards=1, sync=1)
    lease = claim_next(any_broker).lease
    append(any_broker, lease, 1, given=1)
    stale = b"old" * 100
    any_broker.shards.append(lease, seq=2, blob=stale, meta=meta_of(stale, given=1), ttl_ms=TTL_MS)
    fresh = b"new" * 100
    reply = any_broker.shards.append(lease, seq=2, blob=fresh, meta=meta_of(fresh, given=2), ttl_ms=TTL_MS)
    assert reply.status == "OK"
    assert any_broker.experience.fetch(read_all(any_broker))[-1] == fresh


def test_without_sync_versions_may_repeat(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    assert [append(any_broker, lease, seq, given=1).status for seq in (1, 2)] == ["OK", "OK"]


def test_an_eval_shard_gives_a_version_with_its_last_batch(any_broker: Broker) -> None:
    admit(any_broker, shards=1, kind="eval")
    lease = claim_next(any_broker).lease
    assert append(any_broker, lease, 1, kind="eval").status == "OK"
    assert append(any_broker, lease, 2, kind="eval", given=5).status == "OK"
    assert append(any_broker, lease, 3, kind="eval", given=5).status == "GIVEN"
    any_broker.shards.release(lease)
    assert claim_next(any_broker, "w2").given == 5


def test_the_cap_refuses_and_an_ack_makes_room(any_broker: Broker) -> None:
    admit(any_broker, shards=1, max_entries=2)
    lease = claim_next(any_broker).lease
    replies = [append(any_broker, lease, seq) for seq in (1, 2, 3)]
    assert [reply.status for reply in replies] == ["OK", "OK", "FULL"]
    assert [reply.room_entries for reply in replies] == [1, 0, 0]
    Books(any_broker).check()
    any_broker.experience.ack(E, 0, 5, [(read_all(any_broker)[0], "trained")])
    assert append(any_broker, lease, 3, bare=True).status == "OK"
    Books(any_broker).check()


def test_the_cap_in_bytes_refuses(any_broker: Broker) -> None:
    admit(any_broker, shards=1, max_bytes=2500)
    lease = claim_next(any_broker).lease
    replies = [append(any_broker, lease, seq) for seq in (1, 2, 3)]
    assert [reply.status for reply in replies] == ["OK", "OK", "FULL"]
    assert replies[-1].room_bytes == 500


def test_a_batch_above_the_cap_passes_when_nothing_is_in_flight(any_broker: Broker) -> None:
    admit(any_broker, shards=1, max_bytes=100)
    lease = claim_next(any_broker).lease
    assert append(any_broker, lease, 1, size=5000).status == "OK"
    assert append(any_broker, lease, 2, size=5000).status == "FULL"


def test_a_batch_that_waits_for_room_is_counted_as_parked_until_it_does_not(any_broker: Broker) -> None:
    admit(any_broker, shards=2, max_entries=1)
    first, second = claim_next(any_broker, "w1").lease, claim_next(any_broker, "w2").lease
    append(any_broker, first, 1)
    for _ in range(2):
        append(any_broker, first, 2)
        append(any_broker, second, 1, size=2000)
    flow = any_broker.experience.flow(E, 0)
    assert (flow.parked, flow.waiting) == (3000, 2)
    Books(any_broker).check()
    any_broker.shards.release(first)
    flow = any_broker.experience.flow(E, 0)
    assert (flow.parked, flow.waiting) == (2000, 1)
    run_out(any_broker, second)
    reap(any_broker)
    flow = any_broker.experience.flow(E, 0)
    assert (flow.parked, flow.waiting) == (0, 0)


def test_room_goes_to_who_waits_longest(any_broker: Broker) -> None:
    admit(any_broker, shards=3, max_entries=1)
    leases = [claim_next(any_broker, f"w{number}").lease for number in range(3)]
    append(any_broker, leases[0], 1)
    assert append(any_broker, leases[2], 1).status == "FULL"
    assert append(any_broker, leases[1], 1).status == "FULL"
    any_broker.experience.ack(E, 0, 5, [(pointer, "trained") for pointer in read_all(any_broker)])
    assert append(any_broker, leases[0], 2).status == "FULL"
    assert append(any_broker, leases[1], 1, bare=True).status == "FULL"
    assert append(any_broker, leases[2], 1, bare=True).status == "OK"


def test_a_waiter_that_went_silent_does_not_hold_up_the_others(any_broker: Broker) -> None:
    admit(any_broker, shards=2, max_entries=1)
    first, second = claim_next(any_broker, "w1").lease, claim_next(any_broker, "w2").lease
    append(any_broker, first, 1)
    append(any_broker, second, 1)
    any_broker.experience.ack(E, 0, 5, [(pointer, "trained") for pointer in read_all(any_broker)])
    assert append(any_broker, first, 2).status == "FULL"
    silent = any_broker.conn.now_ms() - 2001
    any_broker.conn.main.hset(keys.shard(E, 0, 1), "refused", f"{silent}:1000")
    assert append(any_broker, first, 2).status == "OK"


def test_who_sends_the_script_alone_is_told_when_the_bytes_are_gone(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    assert append(any_broker, lease, 1, bare=True).status == "NOBLOB"
    assert append(any_broker, lease, 1).status == "OK"


def test_bytes_of_another_length_are_not_taken_for_the_batch(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    any_broker.conn.main.set(keys.blob(E, 0, 0, lease.epoch, lease.nonce, 1), b"torn")
    assert append(any_broker, lease, 1).status == "NOBLOB"
    assert append(any_broker, lease, 1).status == "OK"
    Books(any_broker).check()


def test_something_else_than_bytes_in_the_place_of_a_batch_that_waits_makes_way_for_it(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease, main = claim_next(any_broker).lease, any_broker.conn.main
    blob = keys.blob(E, 0, 0, lease.epoch, lease.nonce, 1)
    main.rpush(blob, "a", "list")
    assert append(any_broker, lease, 1).status == "NOBLOB"
    assert append(any_broker, lease, 1).status == "OK"
    assert main.type(blob) == b"string"
    Books(any_broker).check()


def test_a_batch_whose_length_is_not_what_its_meta_says_is_never_sent(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    with pytest.raises(ValueError, match="999 bytes"):
        any_broker.shards.append(lease, seq=1, blob=b"x" * 999, meta=meta_of(b"x" * 1000), ttl_ms=TTL_MS)


def test_a_snapshot_counts_only_with_its_batch_and_replaces_the_one_before(any_broker: Broker) -> None:
    admit(any_broker, shards=1, max_entries=2)
    lease = claim_next(any_broker).lease
    append(any_broker, lease, 1, snapshot=b"one")
    append(any_broker, lease, 2, snapshot=b"two")
    append(any_broker, lease, 3, snapshot=b"three")  # FULL
    main = any_broker.conn.main
    assert main.exists(keys.snapshot(E, 0, 0, lease.epoch, lease.nonce, 1)) == 0
    assert main.ttl(keys.snapshot(E, 0, 0, lease.epoch, lease.nonce, 2)) == -1
    assert main.ttl(keys.snapshot(E, 0, 0, lease.epoch, lease.nonce, 3)) > 0
    any_broker.shards.release(lease)
    claim = claim_next(any_broker, "w2")
    assert claim.snapshot is not None and any_broker.shards.snapshot(claim.snapshot) == b"two"


def test_every_answer_carries_command_and_versions(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    ctl(any_broker, command="pause", policy=12, eval_policy=4)
    for reply in (append(any_broker, lease, 1), append(any_broker, lease, 1), append(any_broker, lease, 5)):
        assert (reply.command, reply.policy, reply.eval_policy) == ("pause", 12, 4)


def test_a_claim_puts_its_lease_among_those_that_are_due(any_broker: Broker) -> None:
    """A leader would mend it a look later, so that no schedule shows it."""
    admit(any_broker, shards=1)
    before = any_broker.conn.now_ms()
    claim_next(any_broker, ttl_ms=1000)
    due = any_broker.shards.next_due_ms(E, 0)
    assert due is not None and before + 1000 <= due <= any_broker.conn.now_ms() + 1000


def test_an_append_renews_the_lease(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker, ttl_ms=1000).lease
    before = any_broker.shards.next_due_ms(E, 0)
    append(any_broker, lease, 1, ttl_ms=50_000)
    after = any_broker.shards.next_due_ms(E, 0)
    assert before is not None and after is not None and after - before > 40_000
    assert any_broker.conn.main.pttl(keys.lease(E, 0, 0)) > 40_000


def test_an_append_by_the_recorded_owner_revives_a_lease_that_ran_out(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    run_out(any_broker, lease)
    assert append(any_broker, lease, 1).status == "OK"
    assert reap(any_broker) == []


def test_nothing_is_written_for_an_experiment_that_was_removed(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    any_broker.conn.main.flushall()
    assert append(any_broker, lease, 1).status == "GONE"
    any_broker.shards.forget_blob(lease, 1)
    assert [renewal.status for renewal in any_broker.shards.renew(E, 0, [(lease, True)], ttl_ms=TTL_MS)] == ["GONE"]
    assert not any_broker.shards.release(lease)
    with pytest.raises(Gone):
        any_broker.shards.shards(E, 0)
    assert any_broker.shards.reap(E, 0, leader_epoch=LEADER) == []
    assert any_broker.conn.main.keys() == []


# ---- renew


def test_renewing_tells_of_each_lease_whether_it_is_kept(any_broker: Broker) -> None:
    admit(any_broker, shards=2, policy=3)
    kept, lost = claim_next(any_broker).lease, claim_next(any_broker).lease
    append(any_broker, kept, 1)
    any_broker.shards.release(lost)
    first, second = any_broker.shards.renew(E, 0, [(kept, True), (lost, False)], ttl_ms=TTL_MS)
    assert (first.shard, first.status, first.seq, first.policy, first.command) == (kept.shard, "OK", 1, 3, "run")
    assert (second.shard, second.status) == (lost.shard, "FENCED")


def test_renewing_revives_a_lease_that_ran_out_and_was_not_reaped(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    run_out(any_broker, lease)
    (renewal,) = any_broker.shards.renew(E, 0, [(lease, False)], ttl_ms=TTL_MS)
    assert renewal.status == "OK"
    assert reap(any_broker) == []
    assert any_broker.conn.main.hget(keys.lease(E, 0, 0), "worker") == b"w1"


def test_renewing_another_nonces_lease_is_fenced(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    stranger = Lease(E, 0, 0, lease.worker, lease.epoch, "other")
    (renewal,) = any_broker.shards.renew(E, 0, [(stranger, False)], ttl_ms=TTL_MS)
    assert renewal.status == "FENCED"


# ---- release and reap


def test_a_released_shard_waits_with_a_new_ticket(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    assert any_broker.shards.release(lease)
    assert not any_broker.shards.release(lease)
    ticket = take_ticket(any_broker, "w2")
    assert ticket.shard == 0 and not ticket.urgent
    assert any_broker.shards.next_due_ms(E, 0) is None


def test_a_shard_released_after_stop_is_stopped(any_broker: Broker) -> None:
    admit(any_broker, shards=2)
    one, other = claim_next(any_broker).lease, claim_next(any_broker).lease
    ctl(any_broker, command="stop")
    any_broker.shards.release(one)
    run_out(any_broker, other)
    assert [found.state for found in any_broker.shards.reap(E, 0, leader_epoch=LEADER)] == ["stopped"]
    assert states(any_broker) == ["stopped", "stopped"]
    assert any_broker.conn.main.xlen(keys.pool_tickets(POOL)) == 0


def test_what_the_broker_forgot_is_counted_once(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    for _ in range(2):
        any_broker.shards.release(lease, forgotten_batches=2, forgotten_steps=90)
    forgotten = any_broker.experience.flow(E, 0).forgotten
    assert (forgotten.batches, forgotten.steps) == (2, 90)


def test_a_release_tells_what_the_broker_forgot_before_it_gives_the_shard_back(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    for seq in (1, 2, 3):
        assert append(any_broker, lease, seq).status == "OK"
    any_broker.conn.main.hset(keys.shard(E, 0, 0), "seq", 1)  # a broker that came back without its last writes
    with pytest.raises(BatchesForgotten) as forgot:
        any_broker.shards.release(lease, accepted=3)
    assert forgot.value.seq == 1
    assert states(any_broker) == ["leased"]
    assert any_broker.shards.release(lease, forgotten_batches=2, forgotten_steps=128, accepted=1)
    forgotten = any_broker.experience.flow(E, 0).forgotten
    assert (states(any_broker), forgotten.batches, forgotten.steps) == (["queued"], 2, 128)


def test_a_batch_that_came_again_by_a_late_copy_is_not_counted_as_forgotten(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    assert append(any_broker, lease, 1).status == "OK"
    any_broker.conn.main.hset(keys.shard(E, 0, 0), "seq", 0)  # a broker that came back without its last writes
    any_broker.conn.main.delete(keys.accepted(E, 0))
    assert append(any_broker, lease, 1).status == "OK"  # sent before, it hung in a dead connection
    with pytest.raises(BatchesForgotten) as again:
        any_broker.shards.release(lease, forgotten_batches=1, forgotten_steps=64, accepted=0)
    assert again.value.seq == 1
    assert any_broker.shards.release(lease, accepted=1)
    assert any_broker.experience.flow(E, 0).forgotten.batches == 0


def test_what_a_broker_forgot_is_not_counted_before_the_claim_that_it_brought_back_is_released(
    any_broker: Broker,
) -> None:
    """Seed 95579: it went back to before a reap, of which the worker knew, and a late copy of its release came, too."""
    admit(any_broker, shards=1)
    claim = claim_next(any_broker)
    for seq in (1, 2):
        assert append(any_broker, claim.lease, seq).status == "OK"
    any_broker.conn.main.hset(keys.shard(E, 0, 0), "seq", 1)  # a broker that came back without its last writes
    any_broker.conn.main.hdel(keys.accepted(E, 0), f"0:{claim.lease.epoch}:{claim.lease.nonce}:2")
    assert not any_broker.shards.report_forgotten(claim, accepted=2, known=1, steps=64)
    assert any_broker.experience.flow(E, 0).forgotten.batches == 0
    assert append(any_broker, claim.lease, 2).status == "OK"  # sent before, it hung in a dead connection
    assert any_broker.shards.report_forgotten(claim, accepted=2, known=2, steps=0)
    assert any_broker.experience.flow(E, 0).forgotten.batches == 0


@pytest.mark.parametrize("next_owner", [False, True])
def test_what_was_accepted_under_a_claim_that_the_broker_forgot_can_be_counted_once(
    any_broker: Broker, next_owner: bool
) -> None:
    admit(any_broker, shards=1)
    before: Any = any_broker.conn.main.hgetall(keys.shard(E, 0, 0))
    claim = claim_next(any_broker)
    for seq in (1, 2):
        assert append(any_broker, claim.lease, seq).status == "OK"
    any_broker.conn.main.unlink(keys.shard(E, 0, 0))
    any_broker.conn.main.hset(keys.shard(E, 0, 0), mapping=before)  # a broker that came back without its last writes
    any_broker.shards.queue_ticket(E, 0, 0, POOL)
    if next_owner:
        claim_next(any_broker, "w2")
    assert append(any_broker, claim.lease, 3).status == "FENCED"
    with pytest.raises(BatchesForgotten) as forgot:
        any_broker.shards.report_forgotten(claim, accepted=2, known=2, steps=0)
    assert forgot.value.seq == 0
    for _ in range(2):
        any_broker.shards.report_forgotten(claim, accepted=2, known=0, steps=128)
    forgotten = any_broker.experience.flow(E, 0).forgotten
    assert (forgotten.batches, forgotten.steps) == (2, 128)


def test_nothing_is_counted_as_forgotten_of_a_claim_that_the_broker_remembers(any_broker: Broker) -> None:
    admit(any_broker, shards=2)
    lost, reported = claim_next(any_broker), claim_next(any_broker)
    for claim in (lost, reported):
        assert append(any_broker, claim.lease, 1).status == "OK"
    any_broker.shards.release(reported.lease, forgotten_batches=1, forgotten_steps=64)  # after GAP, reply lost
    run_out(any_broker, lost.lease)
    reap(any_broker)
    for owner in range(12):
        any_broker.shards.report_forgotten(lost, accepted=1, known=1, steps=0)
        any_broker.shards.queue_ticket(E, 0, 0, POOL)
        any_broker.conn.main.hdel(keys.queued(E, 0), "1")
        ticket = next(t for _ in range(2) if (t := take_ticket(any_broker)).shard == 0)
        later = any_broker.shards.claim(ticket, worker="w2", nonce=f"n{owner}", ttl_ms=TTL_MS)
        assert isinstance(later, Claim)
        any_broker.shards.release(later.lease)
    any_broker.shards.report_forgotten(reported, accepted=2, known=2, steps=0)
    any_broker.shards.report_forgotten(
        replace(lost, lease=replace(lost.lease, experiment="x")), accepted=1, known=0, steps=9
    )
    assert any_broker.experience.flow(E, 0).forgotten.batches == 1


def test_a_living_lease_is_not_reaped(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    claim_next(any_broker)
    any_broker.conn.main.zadd(keys.due(E, 0), {"0": 1})
    assert reap(any_broker) == []
    assert states(any_broker) == ["leased"]


def test_of_two_coordinators_one_reaps(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    run_out(any_broker, claim_next(any_broker).lease)
    assert reap(any_broker) == [0]
    assert reap(any_broker) == []
    assert take_ticket(any_broker, "w2").urgent
    assert any_broker.shards.read_ticket(POOL, "w2", block_ms=0) is None


def test_reaping_is_bounded(any_broker: Broker) -> None:
    admit(any_broker, shards=3)
    for _ in range(3):
        run_out(any_broker, claim_next(any_broker).lease)
    assert len(any_broker.shards.reap(E, 0, leader_epoch=LEADER, limit=2)) == 2
    assert len(reap(any_broker)) == 1


def die_while(broker: Broker, *, stepping: bool, batches: int = 0) -> str:
    """One owner that dies; the shard's state afterwards."""
    claim = claim_next(broker)
    for seq in range(claim.seq + 1, claim.seq + 1 + batches):
        append(broker, claim.lease, seq)
    broker.shards.renew(E, 0, [(claim.lease, stepping)], ttl_ms=TTL_MS)
    run_out(broker, claim.lease)
    (found,) = broker.shards.reap(E, 0, leader_epoch=LEADER)
    return found.state


def test_a_shard_whose_owners_keep_dying_of_it_is_quarantined_with_a_reason(any_broker: Broker) -> None:
    admit(any_broker, shards=1, barren_deaths=3)
    assert [die_while(any_broker, stepping=True) for _ in range(3)] == ["queued", "queued", "quarantined"]
    (state,) = any_broker.shards.shards(E, 0)
    assert state.deaths == 3 and "died" in state.last_error
    assert any_broker.shards.read_ticket(POOL, "w1", block_ms=0) is None


def test_deaths_while_another_shard_was_stepped_do_not_count(any_broker: Broker) -> None:
    admit(any_broker, shards=1, barren_deaths=2)
    assert [die_while(any_broker, stepping=False) for _ in range(3)] == ["queued"] * 3
    assert any_broker.shards.shards(E, 0)[0].deaths == 0


def test_a_death_after_a_batch_does_not_count_and_a_batch_forgives_those_before(any_broker: Broker) -> None:
    admit(any_broker, shards=1, barren_deaths=2)
    die_while(any_broker, stepping=True)
    assert die_while(any_broker, stepping=True, batches=1) == "queued"
    assert any_broker.shards.shards(E, 0)[0].deaths == 0


def test_a_worker_that_gives_a_broken_shard_back_counts_and_names_the_error(any_broker: Broker) -> None:
    admit(any_broker, shards=1, barren_deaths=2)
    for _ in range(2):
        lease = claim_next(any_broker).lease
        any_broker.shards.release(lease, error="EnvError: no display", barren=True)
    (state,) = any_broker.shards.shards(E, 0)
    assert (state.state, state.last_error) == ("quarantined", "EnvError: no display")


def stuck(broker: Broker, env: int | None, *, error: str | None = "it hangs") -> str:
    """An owner gives a batch, and the shard back with an environment that gave nothing; the state it is in then."""
    claim = claim_next(broker)
    assert append(broker, claim.lease, claim.seq + 1).status == "OK"
    broker.shards.release(claim.lease, error=error, stuck_env=env)
    return broker.shards.shards(E, 0)[0].state


def test_a_shard_with_an_environment_that_gives_nothing_is_quarantined_although_others_give(any_broker: Broker) -> None:
    admit(any_broker, shards=1, barren_deaths=3)
    assert [stuck(any_broker, 1), stuck(any_broker, 1), stuck(any_broker, None, error=None)] == ["queued"] * 3
    assert stuck(any_broker, 1) == "quarantined"
    assert any_broker.shards.shards(E, 0)[0].last_error == "it hangs"
    any_broker.shards.lift_quarantine(E, 0, 0)
    any_broker.shards.queue_tickets(E, 0, [0], POOL)
    assert stuck(any_broker, 1) == "queued"


def test_only_the_same_environment_in_a_row_counts_as_stuck(any_broker: Broker) -> None:
    admit(any_broker, shards=1, barren_deaths=2)
    assert [stuck(any_broker, env) for env in (0, 1, 0, None, 0)] == ["queued"] * 5
    assert stuck(any_broker, 0) == "quarantined"


def fail_after(broker: Broker, batches: int, *, early: bool = False, error: str | None = "it slipped") -> str:
    """An owner gives so many batches, and the shard back; the state it is in then."""
    lease, seq = (claim := claim_next(broker)).lease, claim.seq
    for one in range(seq + 1, seq + batches + 1):
        assert append(broker, lease, one).status == "OK"
    broker.shards.release(lease, error=error, early=early)
    return broker.shards.shards(E, 0)[0].state


def test_a_shard_that_fails_again_and_again_although_it_gives_batches_is_quarantined(any_broker: Broker) -> None:
    admit(any_broker, shards=1, env_failures=3, max_entries=1_000)
    few, enough = 2, HEALTHY_BATCHES
    assert [fail_after(any_broker, few), fail_after(any_broker, few)] == ["queued"] * 2
    assert fail_after(any_broker, few, error=None) == "queued", "who gives it back whole says nothing of it"
    assert fail_after(any_broker, enough) == "queued", "those before are forgiven"
    assert any_broker.shards.shards(E, 0)[0].failures == 1
    assert fail_after(any_broker, enough, early=True) == "queued", "no episode was finished: nothing is forgiven"
    assert fail_after(any_broker, few) == "quarantined"
    (state,) = any_broker.shards.shards(E, 0)
    assert (state.failures, state.deaths, state.last_error) == (3, 0, "it slipped")
    any_broker.shards.lift_quarantine(E, 0, 0)
    any_broker.shards.queue_tickets(E, 0, [0], POOL)
    assert fail_after(any_broker, few) == "queued", "whoever lifts a quarantine forgives"


@pytest.mark.parametrize(("failures", "state"), [(1, "quarantined"), (0, "queued")])
def test_one_failure_may_be_one_too_many_and_none_may_be(any_broker: Broker, failures: int, state: str) -> None:
    admit(any_broker, shards=1, env_failures=failures)
    assert fail_after(any_broker, 1) == state


def test_a_failure_after_stop_ends_the_shard_as_any_release_does(any_broker: Broker) -> None:
    admit(any_broker, shards=1, env_failures=2)
    lease = claim_next(any_broker).lease
    ctl(any_broker, command="stop")
    any_broker.shards.release(lease, error="it slipped")
    assert states(any_broker) == ["stopped"]


def crash(broker: Broker, claims: list[Claim], *, crashed: bool = True) -> list[tuple[str, int]]:
    """Each gives a batch, and none is stepped any more when their worker ends. State and failures of all shards."""
    for claim in claims:
        assert append(broker, claim.lease, claim.seq + 1).status == "OK"
    broker.shards.release_worker("w1", error="it ended with SIGSEGV", crashed=crashed)
    return [(state.state, state.failures) for state in broker.shards.shards(E, 0)]


def test_a_worker_that_crashes_on_the_only_shard_it_holds_is_a_failure_of_it(any_broker: Broker) -> None:
    admit(any_broker, shards=1, env_failures=2)
    assert crash(any_broker, [claim_next(any_broker)]) == [("queued", 1)]
    assert not (claim := claim_next(any_broker)).suspect
    assert crash(any_broker, [claim]) == [("quarantined", 2)]
    assert "SIGSEGV" in any_broker.shards.shards(E, 0)[0].last_error


def test_a_worker_that_is_killed_proves_nothing_about_what_it_holds(any_broker: Broker) -> None:
    admit(any_broker, shards=1, env_failures=1)
    assert crash(any_broker, [claim_next(any_broker)], crashed=False) == [("queued", 0)]
    assert not claim_next(any_broker).suspect


def test_a_crash_with_several_shards_makes_suspects_of_them_and_the_next_one_is_of_the_one_that_was_stepped(
    any_broker: Broker,
) -> None:
    # Given a worker that crashed with two shards, which had both given batches, and nobody knows which one it was
    admit(any_broker, shards=2, env_failures=1)
    assert crash(any_broker, [claim_next(any_broker), claim_next(any_broker)]) == [("queued", 0)] * 2
    # When whoever has them next says which one it steps, and crashes
    claims = [claim_next(any_broker), claim_next(any_broker)]
    assert all(claim.suspect for claim in claims)
    guilty = claims[0].lease.shard
    for claim in claims:
        append(any_broker, claim.lease, claim.seq + 1)
    any_broker.shards.renew(E, 0, [(claims[1].lease, False), (claims[0].lease, True)], ttl_ms=TTL_MS)
    any_broker.shards.release_worker("w1", error="it ended with SIGSEGV", crashed=True)
    # Then it is that one's failure alone
    found = {state.shard: (state.state, state.failures) for state in any_broker.shards.shards(E, 0)}
    assert found == {guilty: ("quarantined", 1), 1 - guilty: ("queued", 0)}


def test_a_suspect_that_gives_batches_for_a_while_is_none_any_more(any_broker: Broker) -> None:
    admit(any_broker, shards=2, env_failures=1, max_entries=1_000)
    crash(any_broker, [claim_next(any_broker), claim_next(any_broker)])
    claim = claim_next(any_broker)
    for seq in range(claim.seq + 1, claim.seq + 1 + HEALTHY_BATCHES):
        append(any_broker, claim.lease, seq)
    any_broker.shards.release(claim.lease)
    claims = [claim_next(any_broker), claim_next(any_broker)]
    assert {one.lease.shard: one.suspect for one in claims} == {claim.lease.shard: False, 1 - claim.lease.shard: True}


def test_what_an_append_that_found_no_room_says_of_a_suspect_does_not_blame_it_for_its_neighbour(
    any_broker: Broker,
) -> None:
    # Given two suspects, each of which is marked before it is stepped
    admit(any_broker, shards=2, env_failures=1, max_entries=5)
    crash(any_broker, [claim_next(any_broker), claim_next(any_broker)])
    one, other = (claim_next(any_broker, nonce=nonce) for nonce in "ab")
    for claim in (one, other):
        assert append(any_broker, claim.lease, claim.seq + 1).status == "OK"
    any_broker.shards.renew(E, 0, [(one.lease, True)], ttl_ms=TTL_MS)
    # When the turn of the first is over, the stream is full, and the second crashes in its turn
    assert append(any_broker, other.lease, other.seq + 2).status == "OK"
    data = payload(one.lease, one.seq + 2)
    sent = any_broker.shards.append(
        one.lease, seq=one.seq + 2, blob=data, meta=meta_of(data), ttl_ms=TTL_MS, stepping_next=None
    )
    assert sent.status == "FULL"
    any_broker.shards.renew(E, 0, [(one.lease, False), (other.lease, True)], ttl_ms=TTL_MS)
    any_broker.shards.release_worker("w1", error="it ended with SIGSEGV", crashed=True)
    # Then the first is none the worse
    found = {state.shard: (state.state, state.failures) for state in any_broker.shards.shards(E, 0)}
    assert found == {one.lease.shard: ("queued", 0), other.lease.shard: ("quarantined", 1)}


def test_a_renewal_that_was_overtaken_by_a_mark_says_nothing_of_what_is_stepped(any_broker: Broker) -> None:
    # Given a worker whose keeper saw it step the first shard, and which has marked the second one since
    admit(any_broker, shards=2, barren_deaths=1)
    one, other = (claim_next(any_broker, nonce=nonce).lease for nonce in "ab")
    any_broker.shards.renew(E, 0, [(one, True)], ttl_ms=TTL_MS, mark=1)
    any_broker.shards.renew(E, 0, [(one, False), (other, True)], ttl_ms=TTL_MS, mark=2)
    # When what the keeper saw comes late, and the worker crashes
    late = any_broker.shards.renew(E, 0, [(one, True), (other, False)], ttl_ms=TTL_MS, mark=1)
    assert [renewal.status for renewal in late] == ["OK", "OK"]
    assert {state.shard: state.stepping for state in any_broker.shards.shards(E, 0)} == {
        one.shard: False,
        other.shard: True,
    }
    any_broker.shards.release_worker("w1", error="it ended with SIGSEGV", crashed=True)
    # Then it is the second one's death
    assert {state.shard: state.deaths for state in any_broker.shards.shards(E, 0)} == {one.shard: 0, other.shard: 1}


def test_the_newest_mark_stands_also_where_it_says_the_same_again(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    told = []
    for mark, said in ((1, True), (1, False), (2, False), (1, True), (2, True), (3, True), (2, False)):
        any_broker.shards.renew(E, 0, [(lease, said)], ttl_ms=TTL_MS, mark=mark)
        told.append(any_broker.shards.shards(E, 0)[0].stepping)
    assert told == [True, False, False, False, True, True, True]


def test_whoever_claims_a_shard_counts_its_marks_anew(any_broker: Broker) -> None:
    admit(any_broker, shards=1, barren_deaths=1)
    any_broker.shards.renew(E, 0, [(claim_next(any_broker).lease, True)], ttl_ms=TTL_MS, mark=7)
    any_broker.shards.release_worker("w1", error=None)
    any_broker.shards.lift_quarantine(E, 0, 0)
    any_broker.shards.queue_tickets(E, 0, [0], POOL)
    any_broker.shards.renew(E, 0, [(claim_next(any_broker, "w2").lease, True)], ttl_ms=TTL_MS, mark=1)
    assert any_broker.shards.shards(E, 0)[0].stepping


def test_no_end_of_its_worker_is_blamed_on_a_shard_in_children_after_a_batch_or_while_others_live_there(
    any_broker: Broker,
) -> None:
    admit(any_broker, shards=2, barren_deaths=1, env_failures=1, in_children=1)
    # When its worker crashes or ends, in company before a batch, and alone or in company after one
    for shards, batches in ((1, 0), (2, 0), (1, 1), (2, 1)):
        claims = [claim_next(any_broker, nonce=str(n)) for n in range(shards)]
        for claim in claims:
            assert not claim.suspect
            for seq in range(claim.seq + 1, claim.seq + 1 + batches):
                assert append(any_broker, claim.lease, seq).status == "OK"
            any_broker.shards.renew(E, 0, [(claim.lease, batches > 0)], ttl_ms=TTL_MS, mark=1)
        freed = any_broker.shards.release_worker("w1", error="it ended with SIGSEGV", crashed=True)
        assert [one.stepping for one in freed] == [False] * shards
    claim = claim_next(any_broker)
    run_out(any_broker, claim.lease)
    assert reap(any_broker) == [claim.lease.shard]
    found = [(one.state, one.deaths, one.failures, one.last_error) for one in any_broker.shards.shards(E, 0)]
    assert found == [("queued", 0, 0, "")] * 2
    # and what its owner says of it counts as ever
    any_broker.shards.release(claim_next(any_broker).lease, error="it slipped", barren=True)
    assert "quarantined" in states(any_broker)


def test_a_shard_in_children_whose_owners_die_of_it_alone_before_a_batch_is_quarantined(any_broker: Broker) -> None:
    # Given a shard that its owners say they step, which with children means that no other one's live there
    admit(any_broker, shards=1, barren_deaths=2, in_children=1)
    assert die_while(any_broker, stepping=True) == "queued"
    any_broker.shards.renew(E, 0, [((claim := claim_next(any_broker)).lease, True)], ttl_ms=TTL_MS)
    # When another one of them dies, and its supervisor tells why in words for both kinds
    (freed,) = any_broker.shards.release_worker("w1", error="inline words", in_children="words for children")
    # Then it is set aside with the right ones
    assert (freed.shard, freed.stepping, freed.in_children) == (claim.lease.shard, True, True)
    (found,) = any_broker.shards.shards(E, 0)
    assert (found.state, found.deaths, found.last_error) == ("quarantined", 2, "words for children")


def test_deaths_in_company_are_told_to_the_next_owner_until_a_batch_or_a_lifted_quarantine(any_broker: Broker) -> None:
    admit(any_broker, shards=1, barren_deaths=1, in_children=1)
    told = []

    def next_owner() -> Claim:
        told.append((claim := claim_next(any_broker)).company)
        return claim

    for batches in (0, 0, 1, 0):
        claim = next_owner()
        for seq in range(claim.seq + 1, claim.seq + 1 + batches):
            append(any_broker, claim.lease, seq)
        any_broker.shards.release_worker("w1")
    any_broker.shards.renew(E, 0, [(next_owner().lease, True)], ttl_ms=TTL_MS)
    any_broker.shards.release_worker("w1")
    any_broker.shards.lift_quarantine(E, 0, 0)
    any_broker.shards.queue_tickets(E, 0, [0], POOL)
    next_owner()
    assert told == [0, 1, 2, 0, 1, 0]


def test_inline_shards_count_no_deaths_in_company(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    claim_next(any_broker)
    any_broker.shards.release_worker("w1")
    assert claim_next(any_broker).company == 0


def test_an_accepted_append_leaves_what_was_said_of_stepping_where_it_is_told_to(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    for seq, said, expected in ((1, True, True), (2, None, True), (3, False, False), (4, None, False)):
        data = payload(lease, seq)
        any_broker.shards.append(lease, seq=seq, blob=data, meta=meta_of(data), ttl_ms=TTL_MS, stepping_next=said)
        assert any_broker.shards.shards(E, 0)[0].stepping is expected


def test_a_quarantine_counts_in_the_totals_however_it_came_and_who_lifts_it_suspects_nobody(any_broker: Broker) -> None:
    admit(any_broker, shards=1, env_failures=1)
    assert fail_after(any_broker, 1) == "quarantined"
    assert any_broker.conn.main.hget(keys.flow(E, 0), "quarantined") in ("1", b"1")
    any_broker.shards.lift_quarantine(E, 0, 0)
    any_broker.shards.queue_tickets(E, 0, [0], POOL)
    assert not claim_next(any_broker, nonce="z").suspect


def test_a_supervisor_frees_all_shards_of_a_dead_child_at_once(any_broker: Broker) -> None:
    admit(any_broker, shards=3)
    mine = [claim_next(any_broker, "dead").lease, claim_next(any_broker, "dead").lease]
    claim_next(any_broker, "alive")
    freed = any_broker.shards.release_worker("dead")
    assert [(found.shard, found.state, found.experiment) for found in freed] == [(0, "queued", E), (1, "queued", E)]
    assert states(any_broker) == ["queued", "queued", "leased"]
    assert append(any_broker, mine[0], 1).status == "FENCED"
    assert take_ticket(any_broker, "w2").urgent
    assert any_broker.shards.release_worker("dead") == []


@pytest.mark.parametrize("how", ["release", "reap"])
def test_however_many_bytes_are_parked_the_end_of_an_ownership_takes_them_off(any_broker: Broker, how: str) -> None:
    admit(any_broker, shards=1)
    lease = claim_next(any_broker).lease
    for key in (keys.shard(E, 0, 0), keys.flow(E, 0)):
        any_broker.conn.main.hset(key, "parked", 10**15)  # above what Lua writes without an exponent by itself
    if how == "release":
        assert any_broker.shards.release(lease)
    else:
        run_out(any_broker, lease)
        assert reap(any_broker) == [0]
    assert any_broker.experience.flow(E, 0).parked == 0


# ---- out of memory


def test_renew_release_and_reap_work_out_of_memory(broker: Broker, full_memory: Callable[[], None]) -> None:
    admit(broker, shards=3)
    kept, given_back, over = (claim_next(broker).lease for _ in range(3))
    run_out(broker, over)
    run_out(broker, kept)
    broker.conn.main.zrem(keys.due(E, 0), "0")
    full_memory()
    (renewal,) = broker.shards.renew(E, 0, [(kept, True)], ttl_ms=TTL_MS)
    assert renewal.status == "OK"
    assert broker.shards.release(given_back)
    assert reap(broker) == [2]
    assert states(broker) == ["leased", "queued", "queued"]
    assert {ticket.in_stream for ticket in broker.shards.tickets_of(E, 0)} == {False}


def test_out_of_memory_a_ticket_that_came_to_nothing_can_still_be_dropped(
    broker: Broker, raw: redis.Redis, full_memory: Callable[[], None]
) -> None:
    admit(broker, shards=1)
    ticket = take_ticket(broker)
    full_memory()
    broker.shards.drop_ticket(ticket)
    broker.shards.drop_ticket(ticket)
    assert raw.xlen(keys.pool_tickets(POOL)) == 0
    pending: Any = raw.xpending(keys.pool_tickets(POOL), keys.TICKET_GROUP)
    assert pending["pending"] == 0


def test_out_of_memory_nothing_new_is_claimed_and_bytes_are_refused_aloud(
    broker: Broker, full_memory: Callable[[], None]
) -> None:
    admit(broker, shards=2)
    lease = claim_next(broker).lease
    ticket = take_ticket(broker)
    full_memory()
    with pytest.raises(BrokerFull):
        broker.shards.claim(ticket, worker="w1", nonce="a", ttl_ms=TTL_MS)
    with pytest.raises(BrokerFull):
        append(broker, lease, 1)
    assert broker.experience.flow(E, 0).entries == 0


def test_out_of_memory_what_is_stored_already_can_still_be_accepted(
    broker: Broker, raw: redis.Redis, full_memory: Callable[[], None]
) -> None:
    admit(broker, shards=1)
    lease = claim_next(broker).lease
    raw.set(keys.blob(E, 0, 0, lease.epoch, lease.nonce, 1), payload(lease, 1), px=60_000)
    full_memory()
    assert append(broker, lease, 1, bare=True).status == "OK"
    assert append(broker, lease, 1).status == "DUP"
    broker.shards.release(lease)
    assert append(broker, lease, 2).status == "FENCED"
    assert broker.experience.flow(E, 0).discarded.batches == 1


# ---- lifting a quarantine


def quarantined(broker: Broker) -> None:
    """Shard 0 after as many barren deaths as the experiment allows."""
    for number in range(3):
        lease = claim_next(broker, f"w{number}").lease
        broker.shards.release(lease, error="the arm fell off", barren=True)
    assert broker.shards.shards(E, 0)[0].state == "quarantined"


def test_a_lifted_quarantine_queues_the_shard_with_a_ticket_and_forgets_its_deaths(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    quarantined(any_broker)
    any_broker.shards.lift_quarantine(E, 0, 0)
    (shard,) = any_broker.shards.shards(E, 0)
    assert (shard.state, shard.deaths, shard.last_error) == ("queued", 0, "the arm fell off")
    assert any_broker.experiments.ctl(E).lifts == 1, "the leader sees it without looking at every shard"
    assert claim_next(any_broker, "w9").lease.shard == 0


def test_only_a_quarantined_shard_is_released_and_the_refusal_says_what_it_is(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    with pytest.raises(Conflict, match="it is queued"):
        any_broker.shards.lift_quarantine(E, 0, 0)
    claim_next(any_broker, "w1")
    with pytest.raises(Conflict, match="it is played by w1"):
        any_broker.shards.lift_quarantine(E, 0, 0)
    with pytest.raises(NotFound, match="no shard 7"):
        any_broker.shards.lift_quarantine(E, 0, 7)
    with pytest.raises(Gone):
        any_broker.shards.lift_quarantine("nobody-0000", 0, 0)


@pytest.mark.parametrize("state", ["completed", "stopped", "failed"])
def test_nothing_is_released_in_an_experiment_that_is_over(any_broker: Broker, state: str) -> None:
    admit(any_broker, shards=1)
    quarantined(any_broker)
    any_broker.conn.main.hset(keys.status(E), "state", state)
    with pytest.raises(Conflict, match=f"is {state}.*exp.toml --resume {E}"):
        any_broker.shards.lift_quarantine(E, 0, 0)


def test_nothing_is_released_in_an_experiment_that_was_told_to_stop(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    quarantined(any_broker)
    ctl(any_broker, command="stop")
    with pytest.raises(Conflict, match="stopping"):
        any_broker.shards.lift_quarantine(E, 0, 0)


def test_a_quarantine_is_lifted_when_the_memory_is_full(broker: Broker, full_memory: Callable[[], None]) -> None:
    admit(broker, shards=1)
    quarantined(broker)
    full_memory()
    broker.shards.lift_quarantine(E, 0, 0)
    assert broker.shards.shards(E, 0)[0].state == "queued"


def test_a_shard_tells_when_it_changed_hands_and_when_its_last_batch_came(any_broker: Broker) -> None:
    admit(any_broker, shards=1)
    before = any_broker.conn.now_ms()
    (fresh,) = any_broker.shards.shards(E, 0)
    lease = claim_next(any_broker).lease
    (claimed,) = any_broker.shards.shards(E, 0)
    assert append(any_broker, lease, 1).status == "OK"
    (played,) = any_broker.shards.shards(E, 0)
    any_broker.shards.release(lease)
    (released,) = any_broker.shards.shards(E, 0)
    assert 0 < fresh.since_ms <= claimed.since_ms <= played.accepted_ms <= released.since_ms
    assert claimed.since_ms >= before - 1_000
    assert (fresh.accepted_ms, claimed.accepted_ms) == (0, 0)
    assert (released.worker, released.last_worker) == ("", "w1")
