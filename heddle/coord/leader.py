"""One term of leadership: admits experiments, has each active one looked after, and shares out the pools.

It keeps nothing that the broker does not hold: the next leader starts from the same facts.
Every method raises LeaderLost as soon as another leads, and BrokerError when the broker cannot be asked.
"""

import logging
from collections.abc import Callable

from heddle.broker import Broker
from heddle.broker.durability import lacking
from heddle.broker.faults import Damaged
from heddle.broker.plane_sweep import sweep
from heddle.broker.records import ENDED, QueueEntry, Status, StoredSpec
from heddle.coord import planner
from heddle.coord.admit import plan_shards, read_spec
from heddle.coord.healing import Healer
from heddle.coord.shares import PoolShares
from heddle.coord.steward import PARTITION, Steward
from heddle.coord.telling import Teller
from heddle.coord.watch import Step, Watched, longest_gap_ms, longest_pause_ms, watch
from heddle.errors import (
    BrokerAmiss,
    BrokerError,
    BrokerFull,
    Denied,
    Gone,
    HeddleError,
    LeaderLost,
    NotFound,
)
from heddle.spec import ExperimentSpec

log = logging.getLogger("heddle.coordinator")

TIDY_EVERY_MS = 30_000
TTL_MS = 10_000
"""Of the leases of an experiment whose spec was not read: the default."""


class Leader:
    """Holds the lead under one epoch.

    Attributes:
        contact_since_ms: server ms since when this process has been in touch with the broker without a gap; its
            owner moves it before every round.

    Args:
        broker: of the loop's own thread.
        coordinator: id of this process.
        epoch: of its leadership; every write carries it.
        born_ms: server time of the first answer that this process ever got.
    """

    def __init__(
        self, broker: Broker, coordinator: str, epoch: int, *, contact_since_ms: int, born_ms: int = 0
    ) -> None:
        self._broker = broker
        self._coordinator = coordinator
        self._epoch = epoch
        self.contact_since_ms = contact_since_ms
        self._watched: dict[str, Watched] = {}
        self._listed: set[str] = set()
        self._ended: dict[str, None] = {}  # whose snapshots may be left, in the order of their turns
        self._tell = Teller(broker, coordinator)
        self._pools = PoolShares(broker, epoch, self._tell)
        self._healer = Healer(broker, self._tell, epoch)
        self._steward = Steward(broker, epoch, born_ms=born_ms, tell=self._tell, pools=self._pools, heard=self._heard)
        self._tidy_ms = 0

    @property
    def experiments(self) -> tuple[str, ...]:
        """Ids of the experiments it looks after."""
        return tuple(self._watched)

    def take_over(self, now_ms: int) -> None:
        """Find the experiments that another leader had admitted, or that the broker took back from their end."""
        self._tidy_ms = now_ms
        found = self._known(now_ms)
        self._listed = {status.experiment for status in found}
        for status in found:
            is_over = status.state in ENDED and status.command == "stop"  # of a damaged one that may not be written yet
            if is_over and status.leaves_snapshots:  # who wrote its end died behind it
                self._ended[status.experiment] = None
            if is_over or status.state == "queued" or status.experiment in self._watched:
                continue
            try:
                self._resume(status.experiment, now_ms)
            except (NotFound, Gone):
                continue  # removed meanwhile
            except Damaged as error:
                self._healer.heal(status.experiment, error, ttl_ms=TTL_MS)
            except HeddleError:
                raise
            except Exception as error:  # noqa: BLE001  keys that nobody of ours wrote
                self._tell.stuck(status.experiment, error)

    def _known(self, now_ms: int) -> list[Status]:
        """Every experiment; where something else is in the place of their list, that is made anew."""
        try:
            return self._broker.experiments.ls()
        except BrokerAmiss as error:
            self._tell.amiss(error, now_ms)
            self._relist()
            return self._broker.experiments.ls()

    def tick(self, now_ms: int) -> None:
        """One round over everything."""
        self._tell.next_round()
        for watched in self._watched.values():  # before any is looked after: on the way later times are heard
            watched.touch(now_ms)
        for watched in list(self._watched.values()):
            self._guarded(watched, max(now_ms, watched.last_ms))
        self._drop_some()
        self._pools.share(self._watched.values(), now_ms)
        if now_ms - self._tidy_ms >= TIDY_EVERY_MS:
            self.take_over(now_ms)  # what an earlier leader admitted as one of its last acts, unseen by this one
            deleted = self._tidied(self._broker.experiments.queue_tidy, now_ms) + self._pools.tidy(now_ms)
            deleted += self._tidied(lambda: sweep(self._broker.planes), now_ms)
            deleted += sum(self._broker.experience.tidy(experiment, PARTITION) for experiment in self._watched)
            if deleted:
                self._tell.note(None, "tidied", consumers=deleted)
            if not (self._listed and self._listed.issuperset(self._watched)):
                self._relist()

    def _drop_some(self) -> None:
        """Snapshots of an experiment that has ended: those of some shards a round, and in turns: no other one waits."""
        if not self._ended:
            return
        experiment = next(iter(self._ended))
        try:
            is_left = self._broker.shards.drop_snapshots(experiment, PARTITION, leader_epoch=self._epoch)
        except (Gone, Damaged) as error:
            log.info("leaves snapshots to rm experiment=%s because %s", experiment, error)
            is_left = False
        del self._ended[experiment]
        if is_left:
            self._ended[experiment] = None

    def _tidied(self, tidy: Callable[[], int], now_ms: int) -> int:
        try:
            return tidy()
        except BrokerAmiss as error:
            self._tell.amiss(error, now_ms)
            return 0

    def _relist(self) -> None:
        """Put what goes on back into the list of all experiments, which somebody may have removed."""
        for experiment in self._broker.experiments.unlisted(self._watched):
            self._tell.note(experiment, "listed", because="somebody took it from the list of experiments")

    def _heard(self, now_ms: int) -> None:
        """The broker answered in the middle of something long: who works for seconds is not out of touch."""
        for watched in self._watched.values():
            watched.touch(now_ms)

    def amiss(self, error: BrokerAmiss, now_ms: int) -> None:
        """The queue cannot be read; nothing else waits for that."""
        self._tell.amiss(error, now_ms)

    def in_touch_since(self, floor_ms: int) -> None:
        """Before `floor_ms` nobody could renew a lease, though no gap shows: contact with everybody begins there."""
        for watched in self._watched.values():
            watched.contact_since_ms = max(watched.contact_since_ms, floor_ms)

    def answered_late(self, now_ms: int, waited_ms: float) -> None:
        """The answer of `now_ms` took so long: where that is a gap, a clock that was set back meanwhile hid it."""
        for watched in self._watched.values():
            if waited_ms > longest_gap_ms(watched.ttl_ms):
                watched.contact_since_ms = now_ms

    def clock_was_set(self, step: Step, now_ms: int) -> None:
        """The broker's clock was set before it showed `now_ms`."""
        for watched in self._watched.values():
            watched.clock_was_set(step, now_ms)
        self._tell.clock_was_set(step.by_ms, now_ms)

    def wait(self, now_ms: int) -> None:
        """Sleep until something is due or an experiment is submitted, and admit those that are."""
        ttls = {watched.ttl_ms for watched in self._watched.values()}
        due = [watched.next_due_ms for watched in self._watched.values() if watched.next_due_ms is not None]
        block_ms = min([planner.sleep_ms(now_ms, min(due, default=None)), *map(longest_pause_ms, ttls)])
        if self._ended or any(not one.counts_in_quota or one.is_dirty for one in self._watched.values()):
            block_ms = min(block_ms, 50)
        for entry in self._broker.experiments.queue_read(self._coordinator, block_ms=block_ms):
            try:
                if self._admit(entry, now_ms):
                    self._broker.experiments.queue_ack(entry)
            except BrokerFull as error:  # not acked, so it is read again
                self._tell.full(error)
            except (NotFound, Gone):  # removed meanwhile
                self._broker.experiments.queue_ack(entry)
            except (BrokerError, LeaderLost, Denied):
                raise
            except Exception as error:  # noqa: BLE001  of this entry alone, and it would come back for ever
                self._turn_away(entry, error)

    # ---- admission

    def _admit(self, entry: QueueEntry, now_ms: int) -> bool:
        """True when its state tells what became of it: before that the queue must not forget it."""
        stored = self._broker.experiments.spec(entry.experiment)
        status = self._broker.experiments.status(entry.experiment)
        if status.ended:
            return True
        if entry.experiment in self._watched:
            return status.state != "queued"
        spec = read_spec(stored)
        reason = spec if isinstance(spec, str) else lacking(spec.limits.durability, self._broker.conn.kept())
        if isinstance(spec, str) or (reason and status.command != "stop"):
            self._refuse(entry.experiment, reason)
        elif status.command != "stop":
            return self._make_shards(stored, spec, now_ms)
        elif self._broker.shards.shards(entry.experiment, PARTITION):
            # An admission that was cut short, by an outage or for want of memory: workers may have begun.
            return self._guarded(self._watch(stored, spec, now_ms), now_ms)
        else:
            self._steward.set_status(entry.experiment, "stopped", "stopped before it was admitted")
        return True

    def _turn_away(self, entry: QueueEntry, error: Exception) -> None:
        self._tell.stuck(entry.experiment, error)
        try:
            self._refuse(entry.experiment, f"it cannot be admitted: {type(error).__name__}: {error}")
        except (BrokerError, LeaderLost, Denied):
            raise
        except Exception as more:  # noqa: BLE001  the same keys again, or they were removed
            log.warning("left without a state experiment=%s error=%s", entry.experiment, more)
        self._broker.experiments.queue_ack(entry)

    def _resume(self, experiment: str, now_ms: int) -> None:
        """Look after an experiment that an earlier leader admitted. Raises NotFound, Gone."""
        stored = self._broker.experiments.spec(experiment)
        spec = read_spec(stored)
        if isinstance(spec, str):
            self._refuse(experiment, spec)
        else:
            self._watch(stored, spec, now_ms)

    def _make_shards(self, stored: StoredSpec, spec: ExperimentSpec, now_ms: int) -> bool:
        plans = plan_shards(spec)
        self._steward.create_shards(stored.experiment, plans, stored.pool, now_ms)
        self._tell.note(stored.experiment, "admitted", pool=stored.pool, shards=len(plans))
        return self._guarded(self._watch(stored, spec, now_ms), now_ms)

    def _watch(self, stored: StoredSpec, spec: ExperimentSpec, now_ms: int) -> Watched:
        watched = watch(stored, spec, contact_since_ms=self.contact_since_ms, now_ms=now_ms)
        self._watched[stored.experiment] = watched
        return watched

    def _refuse(self, experiment: str, reason: str) -> None:
        self._steward.set_status(experiment, "failed", reason)
        self._ended[experiment] = None

    # ---- one experiment

    def _guarded(self, watched: Watched, now_ms: int) -> bool:
        """Look after one experiment; what is wrong with it alone does not stop the others. True when all was done."""
        try:
            if self._steward.look_after(watched, now_ms):
                self._forget(watched)
            watched.is_broken = False
            return True
        except Gone:
            self._forget(watched)
            self._tell.note(None, "forgot", removed=watched.experiment)
            return True
        except BrokerFull as error:
            self._tell.full(error)
        except BrokerAmiss as error:  # others may do without it
            self._tell.amiss(error, now_ms)
        except Damaged as error:
            return self._healed(watched, error)
        except HeddleError:
            raise
        except Exception as error:  # noqa: BLE001  keys that nobody of ours wrote: name them, go on with the rest
            if not watched.is_broken:
                self._tell.stuck(watched.experiment, error)
            watched.is_broken = True
        return False

    def _healed(self, watched: Watched, error: Damaged) -> bool:
        try:
            if not self._healer.heal(watched.experiment, error, ttl_ms=watched.ttl_ms, plans=watched.plans):
                self._forget(watched)
        except BrokerFull as full:
            self._tell.full(full)
            return False
        return True

    def _forget(self, watched: Watched) -> None:
        """The experiment is over: take its tickets out of the pool, so no worker reads them in vain."""
        self._broker.shards.drop_tickets(watched.experiment, PARTITION, watched.pool)
        self._watched.pop(watched.experiment, None)
        self._ended[watched.experiment] = None
        self._pools.is_stale = True
