"""Which batches make the next train batch."""

from dataclasses import dataclass

import pytest

from heddle.consumers.quorum import Decision, Facts, Rules, decide, decide_remainder, rules_of
from heddle.spec import load_spec

SYNC = Rules(sync=True, max_lag=None, batch_steps=1, timeout_s=30.0, min_steps=2, usual_steps=40)
ASYNC = Rules(sync=False, max_lag=2, batch_steps=20, timeout_s=30.0, min_steps=2, usual_steps=20)


@dataclass(frozen=True, slots=True)
class Batch:
    """A pointer, as far as the quorum looks at it."""

    shard: int
    given: int
    steps: int = 10

    @property
    def version_min(self) -> int:
        return self.given


def facts(
    *batches: Batch,
    version: int = 5,
    same: tuple[int, ...] = (),
    active: int = 4,
    excused: dict[int, set[int]] | None = None,
    waited_s: float = 0.0,
    high_water: bool = False,
) -> Facts[Batch]:
    return Facts(
        version=version,
        same=frozenset({version, *same}),
        batches=batches,
        active=active,
        excused=excused or {},
        waited_s=waited_s,
        high_water=high_water,
    )


def each(*shards: int, version: int = 5) -> list[Batch]:
    return [Batch(shard, version) for shard in shards]


def test_sync_trains_once_every_active_shard_gave_the_version() -> None:
    assert decide(SYNC, facts(*each(0, 1, 2))).why == "wait"
    decision = decide(SYNC, facts(*each(0, 3, 1, 2)))
    assert decision == Decision(tuple(each(0, 3, 1, 2)), (), "quorum")


def test_sync_excuses_shards_whose_batch_of_this_version_is_not_coming() -> None:
    assert decide(SYNC, facts(*each(0, 1, 2), excused={5: {3}})).why == "quorum"
    assert decide(SYNC, facts(*each(0, 1, 2), excused={4: {3}})).why == "wait"
    assert decide(SYNC, facts(*each(0, 1, 2), excused={5: {2}})).why == "wait"  # excused once, counted once


def test_sync_does_not_wait_for_a_quarantined_shard() -> None:
    assert decide(SYNC, facts(*each(0, 1, 2), active=3)).why == "quorum"


def test_sync_sets_older_versions_aside_as_stale() -> None:
    decision = decide(SYNC, facts(*each(2, version=4), *each(0, 1)))
    assert decision.stale == tuple(each(2, version=4))
    assert decision.train == ()


def test_sync_after_a_resume_takes_batches_of_equal_weights_on_top() -> None:
    before = each(0, 1, 2, 3, version=3)
    assert decide(SYNC, facts(*before, same=(3,))).why == "wait"  # every shard is playing version 5 now
    decision = decide(SYNC, facts(*before, *each(0, 1, 2, 3), same=(3,)))
    assert decision.train == (*before, *each(0, 1, 2, 3))
    assert decision.stale == ()


def test_sync_trains_on_what_is_there_after_the_time_out() -> None:
    assert decide(SYNC, facts(*each(0), waited_s=29.9)).train == ()
    assert decide(SYNC, facts(*each(0), waited_s=30.0)) == Decision(tuple(each(0)), (), "timeout")
    assert decide(SYNC, facts(waited_s=99.0)).why == "wait"


def test_sync_goes_to_the_next_version_when_everything_of_this_one_was_set_aside() -> None:
    assert decide(SYNC, facts(excused={5: {0, 1, 2, 3}})).why == "void"
    assert decide(SYNC, facts(Batch(0, 5, steps=1), excused={5: {1, 2, 3}})).why == "void"  # below min_steps


def test_nothing_is_trained_while_no_shard_counts() -> None:
    assert decide(SYNC, facts(active=0)).why == "wait"
    assert decide(SYNC, facts(*each(0), active=0)).why == "wait"


def test_high_water_forces_an_update_on_what_is_there() -> None:
    assert decide(SYNC, facts(*each(0), high_water=True)).why == "high water"
    assert decide(ASYNC, facts(*each(0), high_water=True)) == Decision(tuple(each(0)), (), "high water")
    assert decide(ASYNC, facts(high_water=True)).train == ()


def test_async_takes_batches_in_order_until_they_hold_enough_steps() -> None:
    assert decide(ASYNC, facts(*each(0))).why == "wait"
    assert decide(ASYNC, facts(*each(2, 0, 1))).train == tuple(each(2, 0))


@pytest.mark.parametrize(("version", "stale"), [(5, False), (4, False), (3, False), (2, True), (9, False)])
def test_async_sets_aside_what_is_more_than_max_policy_lag_behind(version: int, stale: bool) -> None:
    decision = decide(ASYNC, facts(Batch(0, version)))
    assert bool(decision.stale) is stale


def test_async_counts_versions_of_equal_weights_as_current() -> None:
    assert decide(ASYNC, facts(Batch(0, 1), same=(1,))).stale == ()


def test_a_remainder_worth_half_an_update_is_trained_and_a_smaller_one_is_counted() -> None:
    assert decide_remainder(SYNC, facts(*each(0, 1))).why == "flush"
    small = decide_remainder(SYNC, facts(*each(2, version=1), *each(0)))
    assert small == Decision((), (*each(2, version=1), *each(0)), "wait")
    assert decide_remainder(ASYNC, facts()).stale == ()


def test_rules_come_from_the_spec() -> None:
    text = """
    experiment = { name = "x" }
    env = { id = "CartPole-v1", num_envs = 6 }
    rollout = { steps = 16, max_policy_lag = 3 }
    trainer = { batch_steps = 100 }
    budget = { env_steps = 1000 }
    """
    rules = rules_of(load_spec(text).spec, min_steps=4)
    assert (rules.sync, rules.max_lag, rules.batch_steps, rules.min_steps, rules.usual_steps) == (False, 3, 100, 4, 100)


def test_a_remainder_of_several_updates_is_trained_an_update_at_a_time() -> None:
    rest = (*each(0), *each(1), *each(2), *each(0), *each(1))
    first = decide_remainder(ASYNC, facts(*rest))
    assert sum(batch.steps for batch in first.train) == ASYNC.batch_steps
    assert first.stale == ()
