"""What a leading coordinator remembers of one experiment between two looks: a cache, never a truth.

It never talks to the broker: all of it can be lost and is read again by the next leader.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from heddle.broker.records import LATEST_MS, StoredSpec
from heddle.broker.shards import FIRST_DUE
from heddle.broker.types import Ctl, ShardState
from heddle.coord.troubles import Troubles
from heddle.shard import ShardPlan, plan_shards
from heddle.spec import ExperimentSpec

LOOK_EVERY_MS = (1_000, 30_000)
"""Shards are counted at least this often in case a change shows nowhere else; what does show is looked at when seen."""
LOOK_MS_PER_SHARD = 20
"""The more shards, the rarer: looking takes some 0.1 ms a shard, so this keeps it below a percent of the time."""
LOOK_EVERY_STOPPING_MS = 200
"""While an experiment ends people wait for it."""
MANY_SHARDS = 1_000
"""From here on a look lasts so long that one after every reap would keep the next reap waiting."""
BUSY_MS = 2_000
"""So long after a reap more shards of the same fleet may follow."""
TICKETS_EVERY_MS = 1_000
MOST_LACKING = 6
"""A lease may end by this part of its TTL too early: half a TTL is left beyond the third in which it is renewed."""
STEP_MS = 100
"""By less a clock that runs by itself may be off between two looks."""
LEAST_GAP_MS = 1_000
"""Rounds are up to half a second apart: a shorter silence is no gap, unless the TTL is short."""


@dataclass(frozen=True, slots=True)
class Step:
    """The broker's clock was set.

    Attributes:
        by_ms: so far on, or back where it is negative, as near as can be told.
        most_ms: at most so far, either way.
        silent_ms: so long may the broker have been silent, which a clock that is set back hides.
    """

    by_ms: float
    most_ms: float
    silent_ms: float = 0.0


@dataclass(slots=True)
class Watched:
    """One admitted experiment.

    Attributes:
        experiment, pool, ttl_ms, barren_deaths, on_quarantine, plans: from its spec.
        contact_since_ms: since when this coordinator has been in touch with the broker without a gap.
        last_ms: when it was last in touch.
        seen: what of ctl made the last look necessary.
        looked_ms, tickets_ms: when its shards and its tickets were last looked at.
        next_due_ms: earliest deadline of a lease, None when there is no lease, or nothing is to be done about it.
        dues, dues_ms: deadlines of the leases that are over first, by shard, as seen last, and when; long ago at first.
        free_since_ms: since when the seat has been seen free after a stop, or its trainer has told the end.
        shards, active: all of them, and those that count, train and eval.
        counts_in_quota: it is neither stopping nor over.
        is_dirty: its shards are to be looked at in the next round.
        quarantined: shards that were in quarantine at the last look.
        reaps_from_ms: nothing is reaped before: the broker's clock was set, and leases end sooner than was promised.
        recounted_ms: when its experience was last counted anew. reaped_ms: when a shard was last reaped.
        troubles: of which was told.
        is_broken: the last round failed over something that only this experiment has.
    """

    experiment: str
    pool: str
    ttl_ms: int
    barren_deaths: int
    on_quarantine: Literal["continue", "fail"]
    plans: tuple[ShardPlan, ...]
    contact_since_ms: int
    last_ms: int
    seen: tuple[object, ...] = ()
    looked_ms: int = 0
    tickets_ms: int = 0
    next_due_ms: int | None = None
    dues: Mapping[str, int] = field(default_factory=dict)
    dues_ms: int = -LATEST_MS
    free_since_ms: int | None = None
    shards: int = 0
    active: int = 0
    counts_in_quota: bool = True
    is_dirty: bool = True
    is_broken: bool = False
    quarantined: frozenset[int] = frozenset()
    reaps_from_ms: int = 0
    recounted_ms: int = 0
    reaped_ms: int = -LATEST_MS
    troubles: Troubles = field(default_factory=Troubles)

    def touch(self, now_ms: int) -> None:
        """Note that the broker answered at `now_ms`; a long gap before it means contact begins anew."""
        self.contact_since_ms = contact_since(self.contact_since_ms, self.last_ms, now_ms, self.ttl_ms)
        self.last_ms = now_ms

    def clock_was_set(self, step: Step, now_ms: int) -> None:
        """The broker's clock was set, and shows `now_ms`: reaping waits as long as that took from leases.

        Steps soon after each other add up, so that whoever renews every third of the TTL is in time. Those that come
        to a gap, or hide one, are one: contact begins anew.
        """
        self.reaps_from_ms = max(self.reaps_from_ms, now_ms) + math.ceil(step.most_ms)
        if max(self.reaps_from_ms - now_ms, step.silent_ms) > longest_gap_ms(self.ttl_ms):
            self.contact_since_ms = self.reaps_from_ms = now_ms

    def saw_due(self, dues: Mapping[str, int], now_ms: int) -> None:
        """Note the first deadlines of leases, by shard.

        One that changed was set since the last look: it lies a TTL behind that, at least. Where it does not, the
        broker's clock was behind since, however right it is now, and what was renewed then may end at once. Not where
        it lacks little against the TTL: then most of a lease is left, and a renewal comes in time though it is late.
        """
        seen = self.dues
        seen_to_ms = max(seen.values()) if len(seen) >= FIRST_DUE else LATEST_MS
        changed = [
            due_ms
            for shard, due_ms in dues.items()
            # One that is new may have been there before, behind those that were seen.
            if (seen[shard] != due_ms if shard in seen else due_ms < seen_to_ms)
        ]
        lacks_ms = self.dues_ms + self.ttl_ms - min(changed, default=LATEST_MS)
        if lacks_ms > self.ttl_ms // MOST_LACKING:
            self.contact_since_ms = now_ms
        self.dues, self.dues_ms, self.next_due_ms = dues, now_ms, min(dues.values(), default=None)

    def strays(self, shards: Iterable[ShardState], now_ms: int) -> list[int]:
        """Shards whose lease is over or has no end, and that are not given up within a TTL by what was seen this round.

        Somebody wrote another deadline by hand, or dropped it; or made the lease one without an end, so that it is
        there however long its deadline is over. Who stands behind many of other dead workers is no stray.
        """
        over = [str(one.shard) for one in shards if one.state == "leased" and not one.lease_ms]
        is_behind = len(self.dues) >= FIRST_DUE and max(self.dues.values()) <= now_ms
        unseen_ms = now_ms + 1 if is_behind else LATEST_MS
        dues = ((shard, self.dues.get(shard, unseen_ms)) for shard in over)
        return [int(shard) for shard, due_ms in dues if not now_ms < due_ms <= now_ms + self.ttl_ms]

    def must_look(self, now_ms: int, ctl: Ctl) -> bool:
        """True when something was seen to change, or the last look is old."""
        least, most = LOOK_EVERY_MS
        every = min(most, max(least, self.shards * LOOK_MS_PER_SHARD))
        if ctl.command == "stop":
            every = max(LOOK_EVERY_STOPPING_MS, every // 10)
        if self.shards >= MANY_SHARDS and now_ms - self.reaped_ms < BUSY_MS:
            every *= 2  # a look of seconds would keep what died with those that were just reaped waiting
        return self.is_dirty or self.seen != _telling(ctl) or now_ms - self.looked_ms >= every

    def reaped(self, states: Sequence[str], now_ms: int) -> None:
        """Note what became of dead owners' shards; of many shards, those that wait for a worker call for no look."""
        if states:
            self.reaped_ms = now_ms
        told = states if self.shards < MANY_SHARDS else [state for state in states if state != "queued"]
        self.is_dirty = self.is_dirty or bool(told)

    def looked(self, now_ms: int, ctl: Ctl, *, shards: int, is_seat_held: bool) -> None:
        """Note a look and what ctl said before it."""
        self.seen = _telling(ctl)
        self.looked_ms = now_ms
        self.is_dirty = False
        self.shards = shards
        self.active = ctl.active + ctl.active_eval
        self.counts_in_quota = ctl.command != "stop"
        if ctl.command != "stop" or (is_seat_held and not ctl.outcome):
            self.free_since_ms = None
        elif self.free_since_ms is None:
            self.free_since_ms = now_ms

    def seat_free_ms(self, now_ms: int) -> int:
        """How long the seat has been free since the stop."""
        return 0 if self.free_since_ms is None else now_ms - self.free_since_ms


def contact_since(since_ms: int, last_ms: int, now_ms: int, ttl_ms: int) -> int:
    """Since when contact has been unbroken, by the broker's clock, so that a frozen host counts as a gap, too.

    A gap below a third of the TTL is none: whoever was cut off with us still had time to renew. With a short TTL it
    is two thirds: that long lasts a lease that was renewed every third. The same holds for a clock that went back.
    """
    return now_ms if abs(now_ms - last_ms) > longest_gap_ms(ttl_ms) else min(since_ms, now_ms)


def step_between(least_ms: float, most_ms: float, its_ms: float) -> Step | None:
    """How the broker's clock was set between two looks at it: less or more time passed there than here; None where it
    was not. Clocks a fifth apart are no step, and no answer is one, however late it comes.

    Args:
        least_ms, most_ms: at least and at most so long were those looks apart by our clock: from the first answer to
            the second question, and from the first question to the second answer.
        its_ms: the same by the broker's clock.
    """
    by_ms = its_ms - 0.5 * (least_ms + most_ms)
    if its_ms - 1.25 * most_ms > STEP_MS:
        return Step(by_ms, most_ms=its_ms - 0.8 * least_ms)
    if 0.8 * least_ms - its_ms > STEP_MS:
        return Step(by_ms, most_ms=1.25 * most_ms - its_ms, silent_ms=1.25 * most_ms)
    return None


def longest_gap_ms(ttl_ms: int) -> int:
    """The longest silence of the broker that left its owners the time to renew."""
    return max(ttl_ms // 3, min(LEAST_GAP_MS, 2 * ttl_ms // 3))


def longest_pause_ms(ttl_ms: int) -> int:
    """How far apart rounds may be with such a TTL, so that none of them is taken for a gap."""
    return max(1, ttl_ms // 3)


def watch(stored: StoredSpec, spec: ExperimentSpec, *, contact_since_ms: int, now_ms: int) -> Watched:
    """Begin to watch an experiment."""
    return Watched(
        experiment=stored.experiment,
        pool=stored.pool,
        ttl_ms=round(spec.faults.lease_ttl * 1000),
        barren_deaths=spec.faults.barren_deaths,
        on_quarantine=spec.faults.on_quarantine,
        plans=plan_shards(spec),
        contact_since_ms=contact_since_ms,
        last_ms=now_ms,
    )


def _telling(ctl: Ctl) -> tuple[object, ...]:
    """What of ctl calls for a look when it changes; policy versions do not."""
    return (ctl.command, ctl.outcome, ctl.rev, ctl.lifts, ctl.active, ctl.active_eval, ctl.seat_epoch)
