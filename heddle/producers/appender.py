"""The appender: delivers played batches from a thread of its own, while the next ones are being played.

It never drops a batch without saying so, never reorders a shard's batches, and has at most one of a
shard's batches unanswered; every other one of that shard waits behind it.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from heddle.broker.faults import Damaged
from heddle.broker.types import AppendReply, Lease
from heddle.clock import Clock, SystemClock
from heddle.errors import BrokerBlocked, BrokerError, BrokerFull, BrokerUnreachable, Gone, PlaneError
from heddle.lease import retry_delay_s
from heddle.producers.holdings import Key, key_of
from heddle.producers.parcel import ENDS_THE_LEASE, FINAL, Append, Outcome, Parcel

log = logging.getLogger("heddle.appender")

FULL_FIRST_S, FULL_LAST_S = 0.02, 0.5
OOM_FIRST_S, OOM_LAST_S = 0.05, 5.0


@dataclass(slots=True)
class Tally:
    """Refusals that the appender waited out."""

    full: int = 0
    full_s: float = 0.0
    out_of_memory: int = 0
    resent: int = 0
    answers: dict[str, int] = field(default_factory=dict)


class Appender:
    """Delivers parcels, one connection, one round trip each.

    Args:
        append: the broker's append.
        number: the seq that a shard's next batch gets; None when the lease is over: it is not sent then.
        stepping: says whether a shard is being stepped at this moment; None where the broker knows.
        on_outcome: told the fate of each parcel, from the appender's thread, with the broker's reply
            (None when it was never asked).
        on_heard: told every other reply (FULL, NOBLOB), for what it says of command and policy.
        on_failure: told an error that nobody expects; the appender then ends.
        on_damage: told that the broker has something else in the place of a key that a batch belongs into; it and what
            waits behind it are given up then.
    """

    def __init__(
        self,
        append: Append,
        *,
        number: Callable[[Lease], int | None],
        stepping: Callable[[Lease], bool | None],
        on_outcome: Callable[[Parcel, Outcome, AppendReply | None], None],
        on_heard: Callable[[Parcel, AppendReply], None],
        on_failure: Callable[[BaseException], None],
        on_damage: Callable[[Parcel, Damaged], None],
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._append = append
        self._number = number
        self._stepping = stepping
        self._on_outcome = on_outcome
        self._on_heard = on_heard
        self._on_failure = on_failure
        self._on_damage = on_damage
        self._clock = clock or SystemClock()
        self._rng = rng or np.random.default_rng()
        self._changed = threading.Condition()
        self._queues: dict[Key, deque[Parcel]] = {}
        self._sending: Parcel | None = None
        self._ending = False
        self._failures = 0
        self._told = False
        self._not_before = 0.0
        self.tally = Tally()
        self._thread = threading.Thread(target=self._run, name="appender", daemon=True)

    def start(self) -> "Appender":
        """Start the thread that delivers."""
        self._thread.start()
        return self

    def hand_over(self, parcel: Parcel) -> None:
        """Take a batch; returns at once. A shard's batches are delivered in the order they are handed over."""
        parcel.since = self._clock.monotonic()
        with self._changed:
            self._queues.setdefault(key_of(parcel.lease), deque()).append(parcel)
            self._changed.notify_all()

    def forget(self, lease: Lease) -> list[Parcel]:
        """Drop what waits for this lease, for it is lost; the one being sent gets its answer. Returns the dropped."""
        with self._changed:
            queue = self._queues.get(key_of(lease), deque())
            dropped = [p for p in queue if p is not self._sending and p.lease == lease]
            for parcel in dropped:
                queue.remove(parcel)
                parcel.let_go(Outcome.UNSENT)
            self._changed.notify_all()
        return dropped

    def nudge(self, experiment: str | None) -> None:
        """There is news of this experiment, so there may be room: ask for what was refused soon, not when its turn is.

        None means all experiments.

        An update frees room some milliseconds after its policy is announced; a batch that slept on would grow old.
        A policy that could be published also tells that a broker without memory has some again.
        """
        with self._changed:
            soon = self._clock.monotonic() + FULL_FIRST_S * self._rng.random()
            for queue in self._queues.values():
                if queue and queue[0].refusals and experiment in (None, queue[0].lease.experiment):
                    queue[0].refusals, queue[0].due = 1, min(queue[0].due, soon)
            self._changed.notify_all()

    def outstanding(self) -> int:
        """Batches handed over and not answered."""
        with self._changed:
            return sum(len(queue) for queue in self._queues.values())

    @property
    def is_sending(self) -> bool:
        """True while a batch is on its way to the broker."""
        return self._sending is not None

    def stop(self, timeout_s: float = 2.0) -> int:
        """End the thread; returns how many batches were left undelivered."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return self.outstanding()

    def _run(self) -> None:
        try:
            while (parcel := self._next()) is not None:
                self._deliver(parcel)
        except Exception as error:  # noqa: BLE001  top of a thread: the worker must end, not wait for ever
            log.exception("appender failed")
            self._on_failure(error)

    def _next(self) -> Parcel | None:
        """Wait for a parcel that is due; None when the appender ends."""
        with self._changed:
            while not self._ending:
                heads = [queue[0] for queue in self._queues.values() if queue]
                now = self._clock.monotonic()
                first = min(heads, key=lambda p: max(p.due, p.since), default=None)
                ready_at = max(first.due, self._not_before) if first else None
                if first is not None and ready_at is not None and ready_at <= now:
                    self._sending = first
                    return first
                self._changed.wait(None if ready_at is None else ready_at - now)
            return None

    def _deliver(self, parcel: Parcel) -> None:
        parcel.seq = parcel.seq or self._number(parcel.lease)
        if parcel.seq is None:
            self._finish(parcel, Outcome.UNSENT, None)
            return
        place = self._offer(parcel)
        held_ms = round(1000 * (self._clock.monotonic() - parcel.since))
        try:
            reply = self._append(
                parcel.lease,
                seq=parcel.seq,
                blob=parcel.blob if parcel.send_blob and not place else None,
                meta=replace(parcel.meta, held_ms=held_ms),
                ttl_ms=parcel.ttl_ms,
                snapshot=parcel.snapshot if parcel.send_blob else None,
                stepping_next=self._stepping(parcel.lease),
                resend_snapshot=parcel.snapshot is not None,
                no_snapshot=parcel.no_snapshot,
                place=place,
            )
        except (BrokerUnreachable, BrokerFull) as error:
            self._keep(parcel, error)
            return
        except Gone:
            self._finish(parcel, Outcome.GONE, None)
            return
        except Damaged as error:
            self._on_damage(parcel, error)
            self._finish(parcel, Outcome.FENCED, None)
            return
        if self._told:
            log.info("delivering again shard=%s", parcel.lease.named)
            self.nudge(None)
        self._failures, self._told = 0, False
        self.tally.answers[reply.status] = self.tally.answers.get(reply.status, 0) + 1
        if reply.status in FINAL:
            self._finish(parcel, FINAL[reply.status], reply)
        else:
            self._refused(parcel, reply)

    def _offer(self, parcel: Parcel) -> str:
        try:
            return parcel.offer()
        except PlaneError as error:
            log.warning("sending a batch to the broker after all shard=%s error=%s", parcel.lease.named, error)
            parcel.leave_slot()
            return ""

    def _keep(self, parcel: Parcel, error: BrokerError) -> None:
        """It may have been accepted: the same seq again answers DUP then. One line for an outage, however long."""
        if not self._told:
            log.warning("cannot deliver, keeping seq=%s of shard=%s error=%s", parcel.seq, parcel.lease.named, error)
        self._told = True
        if isinstance(error, BrokerFull) and not isinstance(error, BrokerBlocked):
            self.tally.out_of_memory += 1
            parcel.snapshot = None  # the batch is worth more, and may be stored already
            self._again(parcel, OOM_FIRST_S, OOM_LAST_S)
        else:
            self._failures += 1
            with self._changed:
                parcel.send_blob = True
                self._sending = None
                self._not_before = self._clock.monotonic() + retry_delay_s(self._failures, self._rng.random())

    def _refused(self, parcel: Parcel, reply: AppendReply) -> None:
        if reply.status == "FULL":
            self.tally.full += 1
            parcel.send_blob = False
            if parcel.slot is not None and parcel.slot.token != reply.plane:
                parcel.leave_slot()  # whoever reads now could not map it
            self._again(parcel, FULL_FIRST_S, FULL_LAST_S)
        elif reply.status == "NOBLOB":
            self.tally.resent += 1
            parcel.send_blob = True
            with self._changed:
                self._sending = None
        else:
            raise ValueError(f"append answered {reply.status!r}, which this version does not know")
        self._on_heard(parcel, reply)

    def _again(self, parcel: Parcel, first_s: float, last_s: float) -> None:
        parcel.refusals += 1
        with self._changed:
            self._sending = None
            delay_s = retry_delay_s(parcel.refusals, self._rng.random(), first_s=first_s, last_s=last_s)
            parcel.due = self._clock.monotonic() + delay_s

    def _finish(self, parcel: Parcel, outcome: Outcome, reply: AppendReply | None) -> None:
        behind: list[Parcel] = []
        with self._changed:
            self._sending = None
            queue = self._queues[key_of(parcel.lease)]
            queue.remove(parcel)
            if outcome in ENDS_THE_LEASE:
                behind = [p for p in queue if p.lease == parcel.lease]
                for one in behind:
                    queue.remove(one)
            if not queue:
                del self._queues[key_of(parcel.lease)]
        if parcel.refusals:
            self.tally.full_s += self._clock.monotonic() - parcel.since
        parcel.let_go(outcome)
        self._on_outcome(parcel, outcome, reply)
        for one in behind:
            one.let_go(Outcome.UNSENT)
            self._on_outcome(one, Outcome.UNSENT, None)
