"""Seats and the leader's lease: one holder at a time, by an epoch that only rises, also when the memory is full."""

import pytest

from heddle.broker import Broker, keys
from heddle.broker.coordinators import HIGHEST_EPOCH
from heddle.broker.counts import count
from heddle.broker.records import text
from heddle.broker.scripts import WHOLE
from heddle.errors import Gone, LeaderLost
from heddle.shard import ShardPlan
from tests.broker_kit import POOL, admit
from tests.contract.specs import all_keys, out_of_memory, submitted
from tests.helpers import eventually


def claimed(broker: Broker, experiment: str, trainer: str, ttl_ms: int = 30_000) -> int:
    epoch = broker.seats.claim_seat(experiment, trainer, ttl_ms=ttl_ms)
    assert epoch is not None
    return epoch


# ---- the trainer's seat


def test_a_seat_is_given_once_and_tells_who_holds_it(any_broker: Broker) -> None:
    broker = any_broker
    experiment = submitted(broker)
    assert broker.seats.holder(experiment) is None
    epoch = claimed(broker, experiment, "t1")
    assert abs(epoch - broker.conn.now_ms()) < 5_000
    assert broker.seats.claim_seat(experiment, "t2") is None
    holder = broker.seats.holder(experiment)
    assert holder is not None
    assert (holder.trainer, holder.epoch) == ("t1", epoch)
    assert 0 < holder.left_ms <= 30_000


def test_the_fence_is_raised_by_the_claim_itself(any_broker: Broker) -> None:
    experiment = submitted(any_broker)
    epoch = claimed(any_broker, experiment, "t1")
    assert any_broker.experiments.ctl(experiment).seat_epoch == epoch


def test_a_claim_whose_reply_was_lost_is_answered_the_same_again(any_broker: Broker) -> None:
    experiment = submitted(any_broker)
    assert claimed(any_broker, experiment, "t1") == claimed(any_broker, experiment, "t1")


def test_when_the_ttl_is_over_the_next_trainer_sits_with_a_higher_epoch(broker: Broker) -> None:
    experiment = submitted(broker)
    first = claimed(broker, experiment, "t1", ttl_ms=1)
    second = eventually(lambda: broker.seats.claim_seat(experiment, "t2", ttl_ms=30_000))
    assert second is not None and second > first
    assert not broker.seats.renew_seat(experiment, "t1", first)
    assert not broker.seats.release_seat(experiment, first)
    holder = broker.seats.holder(experiment)
    assert holder is not None and holder.trainer == "t2"


def test_a_seat_is_above_every_epoch_that_its_claimer_knows_of(any_broker: Broker) -> None:
    experiment = submitted(any_broker)
    ahead = any_broker.conn.now_ms() + 3_600_000
    assert any_broker.seats.claim_seat(experiment, "t1", above=ahead) == ahead + 1
    assert any_broker.seats.release_seat(experiment, ahead + 1)
    assert claimed(any_broker, experiment, "t2") > ahead + 1


def test_a_seat_whose_ttl_passed_is_kept_by_a_renewal_when_nobody_took_it(broker: Broker) -> None:
    experiment = submitted(broker)
    epoch = claimed(broker, experiment, "t1", ttl_ms=1)
    eventually(lambda: broker.seats.holder(experiment) is None)
    assert broker.seats.renew_seat(experiment, "t1", epoch, ttl_ms=30_000)
    assert broker.seats.claim_seat(experiment, "t2") is None


def test_a_released_seat_is_free_at_once_and_no_late_call_of_its_holder_counts(any_broker: Broker) -> None:
    broker = any_broker
    experiment = submitted(broker)
    epoch = claimed(broker, experiment, "t1")
    assert broker.seats.release_seat(experiment, epoch)
    assert not broker.seats.release_seat(experiment, epoch)
    assert not broker.seats.renew_seat(experiment, "t1", epoch)
    assert claimed(broker, experiment, "t2") > epoch


def test_how_each_trainer_ended_that_another_one_followed_is_counted(any_broker: Broker) -> None:
    # Given three that left, failed and were seen dead, and a fourth that sits
    experiment = submitted(any_broker)
    for number, how in enumerate(("left", "failed", "died")):
        epoch = any_broker.seats.claim_seat(experiment, f"t{number}")
        assert epoch is not None and any_broker.seats.release_seat(experiment, epoch, how=how)
    assert any_broker.seats.claim_seat(experiment, "t3", ttl_ms=1)
    # When its time runs out and a fifth one follows
    eventually(lambda: any_broker.seats.claim_seat(experiment, "t4"), what="the seat is free")
    # Then each is there, the one that sits not among them, and asking again for the same seat is no other trainer
    assert any_broker.seats.claim_seat(experiment, "t4")
    glance = any_broker.overview.experiments({experiment: None})[experiment]
    assert (glance.seats, glance.followed) == (5, {"left": 1, "failed": 1, "died": 1, "silent": 1})


def test_epochs_rise_when_the_servers_clock_went_back(any_broker: Broker) -> None:
    broker = any_broker
    experiment = submitted(broker)
    ahead = broker.conn.now_ms() + 10**9
    broker.conn.main.hset(keys.ctl(experiment), "seat_epoch", str(ahead))
    assert claimed(broker, experiment, "t1") == ahead + 1


def test_a_seat_of_a_removed_experiment_is_gone_and_leaves_no_key(any_broker: Broker) -> None:
    broker = any_broker
    experiment = submitted(broker)
    epoch = claimed(broker, experiment, "t1")
    broker.experiments.remove(experiment)
    before = all_keys(broker)
    with pytest.raises(Gone):
        broker.seats.claim_seat(experiment, "t2")
    with pytest.raises(Gone):
        broker.seats.renew_seat(experiment, "t1", epoch)
    assert not broker.seats.release_seat(experiment, epoch)
    assert all_keys(broker) == before


def test_a_seat_is_claimed_renewed_revived_and_released_when_the_memory_is_full(broker: Broker) -> None:
    experiment = submitted(broker)
    with out_of_memory(broker):
        epoch = claimed(broker, experiment, "t1")
        assert broker.seats.renew_seat(experiment, "t1", epoch)
        broker.conn.main.delete(keys.seat(experiment))
        assert broker.seats.renew_seat(experiment, "t1", epoch)
        assert broker.seats.release_seat(experiment, epoch)
        assert claimed(broker, experiment, "t2") > epoch


# ---- the leader


def test_one_coordinator_leads_and_the_next_takes_over_when_its_lease_is_over(broker: Broker) -> None:
    assert broker.coordinators.leader() is None
    first = broker.coordinators.claim_leader("c1", ttl_ms=3_000)
    assert first is not None
    assert broker.coordinators.claim_leader("c2") is None
    assert broker.coordinators.claim_leader("c1") == first
    leader = broker.coordinators.leader()
    assert leader is not None and (leader.coordinator, leader.epoch) == ("c1", first)
    assert 0 < leader.left_ms <= 3_000
    assert broker.coordinators.renew_leader("c1", first, ttl_ms=1)
    second = eventually(lambda: broker.coordinators.claim_leader("c2"))
    assert second is not None and second > first
    assert not broker.coordinators.renew_leader("c1", first)
    assert not broker.coordinators.release_leader("c1", first)


def test_a_lease_that_ran_out_is_kept_by_a_renewal_when_nobody_took_it(broker: Broker) -> None:
    epoch = broker.coordinators.claim_leader("c1", ttl_ms=1)
    assert epoch is not None
    assert broker.coordinators.renew_leader("c1", epoch, ttl_ms=30_000)
    assert broker.coordinators.claim_leader("c2") is None


def test_a_leader_that_leaves_is_followed_at_once_and_cannot_come_back_by_a_late_renewal(any_broker: Broker) -> None:
    coordinators = any_broker.coordinators
    first = coordinators.claim_leader("c1")
    assert first is not None
    assert coordinators.release_leader("c1", first)
    assert coordinators.leader() is None
    assert not coordinators.renew_leader("c1", first)
    second = coordinators.claim_leader("c2")
    assert second is not None and second > first


def test_a_lease_far_in_the_future_does_not_keep_others_out_for_ever(any_broker: Broker) -> None:
    # The clock of the server was set back by days.
    broker = any_broker
    first = broker.coordinators.claim_leader("c1")
    assert first is not None
    broker.conn.main.hset(keys.COORDINATOR, "until", str(broker.conn.now_ms() + 10**9))
    second = broker.coordinators.claim_leader("c2")
    assert second is not None and second > first


def test_a_leader_whose_epoch_was_fenced_goes_on_under_a_higher_one(any_broker: Broker) -> None:
    coordinators = any_broker.coordinators
    first = coordinators.claim_leader("c1")
    assert first is not None
    assert coordinators.claim_leader("c2", above=first + 10) is None
    second = coordinators.claim_leader("c1", above=first + 10**6)
    assert second is not None and second > first + 10**6
    assert coordinators.claim_leader("c1", above=first) == second
    assert not coordinators.renew_leader("c1", first)
    assert coordinators.renew_leader("c1", second)


def test_an_epoch_above_which_there_is_none_is_begun_anew_and_mended_where_it_fences(any_broker: Broker) -> None:
    # Given a leader, and the highest whole number that a script knows in the place of all epochs
    coordinators, raw, experiment = any_broker.coordinators, any_broker.conn.main, admit(any_broker)
    first = coordinators.claim_leader("c1")
    assert first is not None
    raw.hset(keys.COORDINATOR, mapping={"epoch": 2**53, "until": 1})
    raw.hset(keys.ctl(experiment), "leader_epoch", 2**53)
    # When another leads, and mends what fences it
    second = coordinators.claim_leader("c2")
    assert second is not None and first <= second <= HIGHEST_EPOCH
    with pytest.raises(LeaderLost):
        any_broker.experiments.set_active(experiment, leader_epoch=second, active=1, active_eval=0)
    assert coordinators.mend_fence(keys.ctl(experiment), second) == str(2**53)
    # Then it decides, those before it do not, and there is nothing left to mend
    any_broker.experiments.set_active(experiment, leader_epoch=second, active=1, active_eval=0)
    with pytest.raises(LeaderLost):
        any_broker.experiments.set_active(experiment, leader_epoch=5, active=1, active_eval=0)
    assert coordinators.mend_fence(keys.ctl(experiment), 5) == ""
    assert coordinators.fence(keys.ctl(experiment)) == second


ODD = ["nan", "inf", "-inf", "x", "", "-5", "1.5", "1e15", "0x10", " 7", "9007199254740993", "9" * 400]


@pytest.mark.parametrize("said", [*ODD, "0", "7", "007", "9007199254740992"])
def test_a_number_made_none_by_hand_counts_alike_in_scripts_and_in_python(broker: Broker, said: str) -> None:
    shown = "return string.format('%.0f', whole(ARGV[1]))"
    told = text(broker.conn.main.eval(WHOLE + shown, 0, said))
    assert told == str(count(said)) == ("0" if said in ODD else str(int(said)))


@pytest.mark.parametrize("said", ODD)
def test_an_epoch_made_none_by_hand_takes_the_lead_from_nobody(any_broker: Broker, said: str) -> None:
    # Given a leader, and every epoch of leaders made no number
    broker, raw = any_broker, any_broker.conn.main
    experiment, epoch = admit(broker), broker.coordinators.claim_leader("c1")
    assert epoch is not None
    raw.hset(keys.COORDINATOR, "epoch", said)

    def spoil() -> None:
        raw.hset(keys.ctl(experiment), "leader_epoch", said)
        raw.hset(keys.pool(POOL), "leader_epoch", said)

    # Then each of its decisions stands
    spoil()
    assert (broker.experiments.ctl(experiment).leader_epoch, broker.pools.pool(POOL).leader_epoch) == (0, 0)
    assert broker.shards.reap(experiment, 0, leader_epoch=epoch) == []
    assert broker.shards.create(experiment, 0, [ShardPlan(0, "train", 0, 2)], leader_epoch=epoch) == 0
    spoil()
    broker.experiments.set_active(experiment, leader_epoch=epoch, active=1, active_eval=0)
    spoil()
    assert broker.damages.mend(experiment, [], leader_epoch=epoch, ttl_ms=1_000) == 0
    broker.pools.set_quota(POOL, leader_epoch=epoch, floor=1, ceil=1, below=0, live=1)
    broker.experiments.set_command(experiment, "pause", leader_epoch=epoch)
    assert broker.experiments.set_status(experiment, "paused", leader_epoch=epoch) == "paused"
    # And its own lease is begun anew, by itself or the next one, above every epoch before
    assert broker.coordinators.leader() is not None
    assert not broker.coordinators.renew_leader("c1", epoch)
    again = broker.coordinators.claim_leader("c1")
    assert again is not None and again >= epoch
    # And one before it is fenced
    with pytest.raises(LeaderLost):
        broker.experiments.set_active(experiment, leader_epoch=5, active=1, active_eval=0)
    with pytest.raises(LeaderLost):
        broker.pools.set_quota(POOL, leader_epoch=5, floor=1, ceil=1, below=0, live=1)


@pytest.mark.parametrize("said", ODD)
def test_a_lease_of_the_lead_until_no_time_is_over(any_broker: Broker, said: str) -> None:
    first = any_broker.coordinators.claim_leader("c1")
    any_broker.conn.main.hset(keys.COORDINATOR, "until", said)
    second = any_broker.coordinators.claim_leader("c2")
    assert first is not None and second is not None and second > first


def test_leading_works_when_the_memory_is_full(broker: Broker) -> None:
    with out_of_memory(broker):
        epoch = broker.coordinators.claim_leader("c1")
        assert epoch is not None
        assert broker.coordinators.renew_leader("c1", epoch)
        assert broker.coordinators.release_leader("c1", epoch)
        assert broker.coordinators.claim_leader("c2") is not None


# ---- who sat last, for people


def test_who_sits_and_what_it_does_is_known_after_its_seat_is_gone(any_broker: Broker) -> None:
    broker = any_broker
    experiment = submitted(broker)
    assert broker.seats.last(experiment).trainer == ""
    epoch = claimed(broker, experiment, "t1")
    assert broker.seats.renew_seat(experiment, "t1", epoch, ttl_ms=1, doing="update", doing_ms=1_500)
    eventually(lambda: broker.seats.holder(experiment) is None)
    last = broker.seats.last(experiment)
    assert (last.trainer, last.left_ms, last.gone_ms, last.doing, last.doing_ms) == ("t1", 0, 0, "update", 1_500)
    assert abs(last.seen_ms - broker.conn.now_ms()) < 5_000


def test_a_trainer_that_left_by_itself_is_told_from_one_that_vanished(any_broker: Broker) -> None:
    broker = any_broker
    experiment = submitted(broker)
    broker.seats.release_seat(experiment, claimed(broker, experiment, "t1"))
    assert broker.seats.last(experiment).gone_ms > 0
    claimed(broker, experiment, "t2")
    last = broker.seats.last(experiment)
    assert (last.trainer, last.gone_ms) == ("t2", 0)


def test_rm_leaves_nothing_of_who_sat_last(broker: Broker) -> None:
    experiment = submitted(broker)
    claimed(broker, experiment, "t1")
    broker.experiments.remove(experiment, force=True)
    assert not [key for key in all_keys(broker) if experiment in key]
    assert not broker.seats.release_seat(experiment, 1)
    assert not [key for key in all_keys(broker) if experiment in key], "a late word of the trainer brings nothing back"
