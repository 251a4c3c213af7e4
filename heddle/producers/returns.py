"""Returns: how a worker gives shards back, gently, for a reason, or in a hurry.

It never plays; what is given back is written down at the desk only once the broker knows.
"""

import logging
import threading
from dataclasses import replace

from heddle.broker import Broker
from heddle.broker.faults import Damaged
from heddle.errors import BatchesForgotten, BrokerError, EnvError, HeddleError
from heddle.producers.appender import Appender
from heddle.producers.damaged import DamagedExperiments
from heddle.producers.desk import Desk
from heddle.producers.holdings import Holding, first_to_leave
from heddle.producers.mishap import PlayError
from heddle.producers.quota import surplus
from heddle.producers.report import failure_of

log = logging.getLogger("heddle.worker")

REASON_CHARS = 500
HURRY_S = 0.8


def reason_of(error: EnvError) -> str:
    """Why an environment or policy failed, in one bounded line."""
    reason = "; ".join(problem.reason for problem in error.problems) or str(error)
    return " ".join(reason.split())[:REASON_CHARS]


def _is_early(error: EnvError | None) -> bool:
    """It failed in the midst of an environment's first episode: batches alone do not tell that from a rare failure."""
    return isinstance(error, PlayError) and error.early


class Returns:
    """Gives shards back for one worker."""

    def __init__(
        self, broker: Broker, desk: Desk, appender: Appender, damaged: DamagedExperiments, *, worker: str
    ) -> None:
        self._broker = broker
        self._damaged = damaged
        self._desk = desk
        self._appender = appender
        self._worker = worker

    def release(self, holding: Holding) -> bool:
        """Give a shard back; False while the broker is away: it stays, unplayed, and is released in a later round."""
        try:
            barren = holding.error is not None and holding.barren
            owned = self._give_back(
                holding, error=holding.error, barren=barren, early=holding.early, stuck_env=holding.stuck_env
            )
        except BrokerError as error:
            log.info("cannot release yet shard=%s error=%s", holding.lease.named, error)
            return False
        except Damaged as error:
            self._damaged.met(holding.lease.experiment, error)
            return True
        if owned:
            log.info("released shard=%s seq=%d", holding.lease.named, holding.accepted)
            if holding.why:
                level = "warning" if holding.error else "debug"
                told = f"released shard={holding.lease.shard} epoch={holding.lease.epoch} seq={holding.accepted}"
                self._desk.notes.add(holding.lease.experiment, f"{told} because {holding.why}", level=level)
            self._desk.drop(holding.key)
        else:
            log.info("already taken shard=%s seq=%d", holding.lease.named, holding.accepted)
            self._desk.lose(holding.lease)
        return True

    def _give_back(
        self, holding: Holding, *, error: str | None, barren: bool, early: bool, stuck_env: int | None = None
    ) -> bool:
        """Whether it was still this worker's; what the broker forgot is counted as the broker has it by then."""
        while True:
            batches, steps = holding.forgotten
            try:
                return self._broker.shards.release(
                    holding.lease,
                    error=error,
                    barren=barren,
                    forgotten_batches=batches,
                    forgotten_steps=steps,
                    accepted=holding.known,
                    stuck_env=stuck_env,
                    early=early,
                )
            except BatchesForgotten as forgot:
                self._desk.note_forgotten(holding, forgot.seq)

    def report_taken(self) -> bool:
        """Have counted what the broker forgot of shards that it took away; False when it could not be told."""
        taken = self._desk.take_taken()
        while taken:
            holding = taken[-1]
            try:
                counted = self._broker.shards.report_forgotten(
                    holding.claim, accepted=holding.accepted, known=holding.known, steps=holding.forgotten[1]
                )
                if not counted and not self._give_back(holding, error=None, barren=False, early=False):
                    continue  # taken in between
            except BatchesForgotten as forgot:
                self._desk.note_forgotten(holding, forgot.seq)
                continue
            except BrokerError as error:
                log.info("cannot report yet shard=%s error=%s", holding.lease.named, error)
                self._desk.keep_taken(taken)
                return False
            except Damaged as error:  # its counts are lost anyway
                log.info("cannot report shard=%s error=%s", holding.lease.named, error)
            taken.pop()
        return True

    def release_ready(self) -> bool:
        """Release every shard that leaves and has nothing outstanding; False when the broker could not be told."""
        return all(self.release(holding) for holding in self._desk.ready_to_release())

    def heed_quota(self, chance: float) -> None:
        """Once a heartbeat: let a shard leave when this worker has one above its quota and another too few.

        Args:
            chance: uniform in [0, 1).
        """
        desk = self._desk
        with desk.changed:
            if not desk.quota_news:
                return
            desk.quota_news = False
            held = [holding for holding in desk.holdings() if not holding.leaving]
            if surplus(len(held), desk.quota, chance=chance):
                given_up = first_to_leave(held)
                if given_up.barren and given_up.claim.seq and not given_up.spared:
                    given_up.spared = True  # unplayed it would wait for the second time, with nobody in a hurry for it
                    return
                log.info("giving up shard=%s, another worker has too few", given_up.lease.named)
                desk.leave([given_up], "another worker has too few")

    def blame(self, holding: Holding, error: EnvError) -> None:
        """Its environment or policy failed: it leaves with the reason, and this worker lives on."""
        holding.error = reason_of(error)
        holding.stuck_env = error.stuck_env if isinstance(error, PlayError) else None
        holding.early = _is_early(error)
        log.error("giving back shard=%s because %s", holding.lease.named, holding.error)
        self._desk.counters.env_errors += 1
        self._desk.leave([holding], holding.error)
        lease = holding.lease
        self._broker.events.log(
            lease.experiment, "worker", self._worker, "error", f"shard {lease.shard}: {holding.error}"
        )
        self._note(holding, error)

    def abandon(self) -> None:
        """Give back what could not be delivered in time; it was never accepted, so nobody counts on it."""
        for holding in self._desk.holdings():
            dropped = self._appender.forget(holding.lease)
            self._desk.counters.unsent += len(dropped)
            log.warning("abandoning shard=%s undelivered=%d", holding.lease.named, holding.outstanding)
            self.release(holding)
        self.report_taken()

    def release_quickly(self, error: EnvError | None) -> None:
        """Give everything back within a moment, the shard being stepped with `error`; for a process about to end."""
        thread = threading.Thread(target=self._release_all, args=(error,), name="release", daemon=True)
        thread.start()
        thread.join(HURRY_S)

    def _release_all(self, error: EnvError | None) -> None:
        reason = None if error is None else reason_of(error)
        if reason is not None:
            self._broker.events.log(None, "worker", self._worker, "error", reason)
        for holding in sorted(self._desk.holdings(), key=lambda one: one.key != self._desk.stepping):  # it comes first
            blamed = error is not None and holding.key == self._desk.stepping
            if blamed and error is not None:
                self._note(holding, error)
            try:
                barren, early = blamed and holding.barren, blamed and _is_early(error)
                self._give_back(holding, error=reason if blamed else None, barren=barren, early=early)
            except HeddleError as failure:
                log.info("could not release shard=%s error=%s", holding.lease.named, failure)

    def _note(self, holding: Holding, error: EnvError) -> None:
        """Keep the failure where people and `heddle repro` find it."""
        failure, replay = failure_of(error)
        lease = holding.lease
        failure = replace(failure, worker=self._worker, attempt=holding.claim.attempts)
        try:
            self._broker.shards.note_failure(lease.experiment, lease.partition, lease.shard, failure, replay)
        except Damaged as error:
            self._broker.damages.note(lease.experiment, error)
