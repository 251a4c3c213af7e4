"""The steward: looks after one experiment at a time, asks the planner, does what it says.

It never decides and never knows which experiments there are: the leader goes through them.
Every method raises LeaderLost as soon as another leads, and BrokerError when the broker cannot be asked.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from heddle.broker import Broker
from heddle.broker.faults import Damaged, Odd
from heddle.broker.records import ENDED
from heddle.broker.types import Ctl, ShardState
from heddle.coord import planner
from heddle.coord.shares import PoolShares
from heddle.coord.telling import Teller
from heddle.coord.troubles import Troubles
from heddle.coord.watch import TICKETS_EVERY_MS, Watched, longest_gap_ms
from heddle.errors import BrokerAmiss, Conflict, LeaderLost
from heddle.shard import ShardPlan

log = logging.getLogger("heddle.coordinator")

REAP_LIMIT = 500
MOST_REAPS = 40
"""Times in one round that so many are reaped: between two rounds lies a look at every shard."""
RETRY_REAP_MS = 50
BECAUSE = {
    "due": "its lease is over, and somebody put the end of that off or dropped it",
    "lease": "somebody made its lease one without an end; it ends in a TTL unless it is renewed",
}
"""Why a lease was mended, for people."""
SILENT = "it does not renew its seat: it ended, is frozen or is cut off"
PARTITION = 0


class Steward:
    """Acts for the holder of the lead.

    Args:
        epoch: of its leadership; every write carries it.
        born_ms: server time of the first answer that this process ever got.
        heard: told the server's time whenever the broker answered in the middle of something long.
    """

    def __init__(
        self,
        broker: Broker,
        epoch: int,
        *,
        born_ms: int,
        tell: Teller,
        pools: PoolShares,
        heard: Callable[[int], None],
    ) -> None:
        self._broker = broker
        self._epoch = epoch
        self._born_ms = born_ms
        self._tell = tell
        self._pools = pools
        self._heard = heard

    def look_after(self, watched: Watched, now_ms: int) -> bool:
        """Reap, issue tickets and act on the planner's word; True when the experiment is over.

        Raises:
            Damaged, Gone: what is wrong with this experiment alone.
        """
        ctl = self._broker.experiments.ctl(watched.experiment)
        if ctl.damaged:
            raise Damaged(ctl.damaged)
        self._reap(watched, now_ms)
        if now_ms - watched.tickets_ms >= TICKETS_EVERY_MS:
            try:
                self._issue_tickets(watched, ctl, now_ms)
            except BrokerAmiss as error:
                self._tell.amiss(error, now_ms)
            watched.tickets_ms = now_ms
        return watched.must_look(now_ms, ctl) and self._look(watched, now_ms)

    def _reap(self, watched: Watched, now_ms: int) -> None:
        shards = self._broker.shards
        watched.saw_due(shards.first_due(watched.experiment, PARTITION), now_ms)
        if watched.next_due_ms is None or watched.next_due_ms > now_ms:
            return
        for _ in range(MOST_REAPS):
            is_early = now_ms < watched.reaps_from_ms
            if is_early or not planner.may_reap(
                now_ms - watched.contact_since_ms, now_ms - self._born_ms, watched.ttl_ms
            ):
                watched.next_due_ms = None
                return
            reaped = shards.reap(
                watched.experiment,
                PARTITION,
                leader_epoch=self._epoch,
                limit=REAP_LIMIT,
                barren_deaths=watched.barren_deaths,
                asked_ms=now_ms,
                within_ms=longest_gap_ms(watched.ttl_ms),
            )
            watched.reaped([shard.state for shard in reaped], now_ms)
            self._tell.reaped(watched.experiment, reaped)
            if len(reaped) < REAP_LIMIT:
                break
            now_ms = self._broker.conn.now_ms()
            self._heard(now_ms)  # a thousand workers' shards take seconds: that is no silence of the broker
        watched.saw_due(shards.first_due(watched.experiment, PARTITION), now_ms)
        if watched.next_due_ms is not None:
            # A lease that is due but was kept (its key still lives for a moment) must not make this loop spin.
            watched.next_due_ms = max(watched.next_due_ms, now_ms + RETRY_REAP_MS)

    def _issue_tickets(self, watched: Watched, ctl: Ctl, now_ms: int) -> None:
        queued = [
            planner.QueuedFact(ticket.shard, ticket.in_stream, now_ms - ticket.since_ms, ticket.read_ms_ago)
            for ticket in self._broker.shards.tickets_of(watched.experiment, PARTITION)
        ]
        lost = planner.tickets_to_issue(ctl.command, queued)
        issued = self._broker.shards.queue_tickets(watched.experiment, PARTITION, lost, watched.pool)
        if issued:
            self._tell.note(watched.experiment, "issued", tickets=issued, first=lost[0])

    def _look(self, watched: Watched, now_ms: int) -> bool:
        experiment = watched.experiment
        status = self._broker.experiments.status(experiment)
        if status.damaged:
            raise Damaged(status.damaged)
        ctl = self._broker.experiments.ctl(experiment)
        odd: list[int] = []
        states = self._broker.shards.shards(experiment, PARTITION, heard=self._heard, odd=odd.append)
        if len(states) < len(watched.plans):  # the broker forgot them: it was killed right after they were made
            known = {state.shard for state in states}
            self.create_shards(experiment, [p for p in watched.plans if p.index not in known], watched.pool, now_ms)
            self._tell.note(experiment, "created", shards=len(watched.plans) - len(states))
            states = self._broker.shards.shards(experiment, PARTITION, heard=self._heard)
        if odd:  # behind that: what is missing is made anew whatever else is damaged
            raise Odd(f"numbers of shards that are none: {odd[:5]}")
        self._mend_dues(watched, states, now_ms)
        self._recount(watched, states, now_ms)
        holder = self._broker.seats.holder(experiment)
        is_seat_held = holder is not None
        watched.looked(now_ms, ctl, shards=len(states), is_seat_held=is_seat_held)
        facts = planner.ExperimentFacts(
            state=status.state,
            reason=status.reason,
            command=ctl.command,
            outcome=ctl.outcome,
            outcome_reason=ctl.reason,
            active=ctl.active,
            active_eval=ctl.active_eval,
            on_quarantine=watched.on_quarantine,
            shards=tuple(planner.ShardFact(s.shard, s.kind, s.state, s.last_error) for s in states),
            seat_held=is_seat_held,
            seat_epoch=ctl.seat_epoch,
            seat_free_ms=watched.seat_free_ms(now_ms),
            in_flight=self._broker.experience.flow(experiment, PARTITION).entries if ctl.command == "stop" else 0,
        )
        watched.quarantined = self._tell.quarantines(experiment, watched.quarantined, states)
        self._tell_troubles(watched, ctl, states, holder.trainer if holder is not None else "", now_ms)
        return self._do(watched, planner.plan_experiment(facts), facts) or status.ended

    def _tell_troubles(
        self, watched: Watched, ctl: Ctl, states: Sequence[ShardState], trainer: str, now_ms: int
    ) -> None:
        """Say who holds it up and cannot, or does not know it. `trainer`: who sits; "" for nobody."""
        if ctl.command != "run":
            watched.troubles = Troubles()
            return
        experiment, contact_ms = watched.experiment, now_ms - watched.contact_since_ms
        if watched.troubles.is_missed(ctl.seat_epoch, is_held=bool(trainer), contact_ms=contact_ms):
            last = self._broker.seats.last(experiment)
            if not last.left_ms and not last.gone_ms:  # who left said so, or its host
                self._tell.note(experiment, "misses", trainer=last.trainer, because=SILENT)
        waiting = [state.shard for state in states if state.parked_bytes]
        if watched.troubles.is_full(bool(waiting and trainer), now_ms):
            flow = self._broker.experience.flow(experiment, PARTITION)
            if flow.entries >= ctl.max_entries or flow.bytes + flow.parked > ctl.max_bytes:  # else the server is full
                facts = {"batches": flow.entries, "waiting_shards": len(waiting), "trainer": trainer}
                self._tell.note(experiment, "full", **facts, because="its trainer does not keep up")

    def _mend_dues(self, watched: Watched, states: Sequence[ShardState], now_ms: int) -> None:
        strays = watched.strays(states, now_ms)
        for shard, what in self._broker.damages.mend_dues(
            watched.experiment, strays, leader_epoch=self._epoch, ttl_ms=watched.ttl_ms
        ):
            self._tell.note(watched.experiment, "mended", shard=shard, because=BECAUSE[what])

    def _recount(self, watched: Watched, states: Sequence[ShardState], now_ms: int) -> None:
        accepted_ms = max((state.accepted_ms for state in states), default=0)
        waits_for_room = any(state.parked_bytes for state in states)
        if not planner.is_stuck(waits_for_room, now_ms - max(accepted_ms, watched.recounted_ms)):
            return
        watched.recounted_ms = now_ms
        gone = self._broker.experience.recount(watched.experiment, PARTITION, leader_epoch=self._epoch)
        if gone:
            because = "somebody took them out of the stream; their room is free again"
            self._tell.note(watched.experiment, "dropped", batches=gone, because=because)

    def _do(self, watched: Watched, actions: Iterable[planner.Action], facts: planner.ExperimentFacts) -> bool:
        """True when that ended the experiment."""
        is_over = False
        for action in actions:
            watched.is_dirty = True
            if isinstance(action, planner.SetActive):
                active, active_eval = action.active, action.active_eval
                self._broker.experiments.set_active(
                    watched.experiment, leader_epoch=self._epoch, active=active, active_eval=active_eval
                )
                watched.active = active + active_eval
                self._pools.is_stale = True
                self._tell.note(watched.experiment, "counted", active=active, active_eval=active_eval)
            elif isinstance(action, planner.SetStatus):
                is_over = self._go_into(watched.experiment, action, facts)
                watched.counts_in_quota = action.state in ("running", "paused")
            else:
                self._stop(watched.experiment)
        return is_over

    def _go_into(self, experiment: str, action: planner.SetStatus, facts: planner.ExperimentFacts) -> bool:
        """Write a state; True for an end, if what it was decided on still held."""
        told, decided_on = action.state == facts.outcome, None
        if action.state in ENDED:
            decided_on = (facts.outcome, facts.in_flight)
        now = self.set_status(experiment, action.state, action.reason, is_told=told, decided_on=decided_on)
        if action.state in ENDED and now not in ENDED:
            log.info("not ended yet, what that was decided on has changed experiment=%s", experiment)
        return now in ENDED

    def _stop(self, experiment: str) -> None:
        try:
            self._broker.experiments.set_command(experiment, "stop", leader_epoch=self._epoch)
        except LeaderLost:
            raise
        except Conflict as error:  # somebody else stopped it first: that is what was wanted
            log.debug("left command experiment=%s reason=%s", experiment, error)

    def create_shards(self, experiment: str, plans: Sequence[ShardPlan], pool: str, now_ms: int) -> None:
        """Make shards that wait for a worker, each with its ticket; those that are there already stay as they are."""
        self._broker.shards.create(experiment, PARTITION, plans, leader_epoch=self._epoch)
        try:
            self._broker.shards.queue_tickets(experiment, PARTITION, [plan.index for plan in plans], pool)
        except BrokerAmiss as error:  # of the pool's tickets; they are issued once there can be any
            self._tell.amiss(error, now_ms)

    def set_status(
        self,
        experiment: str,
        state: planner.State,
        reason: str,
        *,
        is_told: bool = False,
        decided_on: tuple[str, int] | None = None,
    ) -> str:
        """Write a state; the one it has now. `is_told`: the trainer has told the same in the experiment's log."""
        now = self._broker.experiments.set_status(
            experiment, state, leader_epoch=self._epoch, reason=reason, decided_on=decided_on
        )
        if now == state and is_told:
            log.info("%s experiment=%s reason=%r", state, experiment, reason)
        elif now == state:
            self._tell.note(experiment, state, reason=reason)
        return now
