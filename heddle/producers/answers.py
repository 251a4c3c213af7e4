"""Answers: what the broker's replies to appends and renewals mean for the shards a worker holds.

It never plays; it runs in the appender's and the keeper's threads and writes down at the desk.
"""

import logging
from itertools import groupby

from heddle.broker import Broker
from heddle.broker.faults import Damaged
from heddle.broker.types import AppendReply, Lease, Renewal
from heddle.errors import BrokerError
from heddle.producers.appender import Appender
from heddle.producers.damaged import DamagedExperiments
from heddle.producers.desk import Desk
from heddle.producers.holdings import Holding
from heddle.producers.parcel import Outcome, Parcel

log = logging.getLogger("heddle.worker")


class Answers:
    """Keeps the desk in step with the broker.

    Attributes:
        appender: set by its maker, for what waits there for a lost lease is dropped.
        damaged: set by its maker; told of experiments whose keys are not what they should be.
    """

    appender: Appender
    damaged: DamagedExperiments

    def __init__(self, broker: Broker, desk: Desk) -> None:
        self._broker = broker
        self._desk = desk

    # ---- for the appender

    def number(self, lease: Lease) -> int | None:
        """The seq of this lease's next batch; None when it is over."""
        holding = self._desk.find(lease)
        return holding.accepted + 1 if holding is not None else None

    def is_stepping(self, lease: Lease) -> bool | None:
        """True while a death now is of this very shard, for the append that asks; None where its marks alone say so.

        Those of a suspect do: what an append that is refused or comes late would say is wrong by then.
        """
        with self._desk.changed:
            holding = self._desk.find(lease)
            if holding is not None and holding.is_suspect:
                return None
            return holding is not None and self._desk.is_to_blame(holding)

    def heard(self, parcel: Parcel, reply: AppendReply) -> None:
        """A reply that settles nothing still says what the experiment wants, and whether there was room."""
        with self._desk.changed:
            holding = self._desk.find(parcel.lease)
            if holding is not None:
                holding.is_refused = reply.status == "FULL"
        self._desk.hear(
            parcel.lease.experiment, command=reply.command, policy=reply.policy, eval_policy=reply.eval_policy
        )
        self._desk.share(parcel.lease.experiment, reply.plane)

    def settled(self, parcel: Parcel, outcome: Outcome, reply: AppendReply | None) -> None:
        """Write down what became of a batch."""
        if outcome is Outcome.GONE:
            self._settle_gone(parcel)
            return
        if reply is not None:
            self.heard(parcel, reply)
        desk, counters = self._desk, self._desk.counters
        with desk.changed:
            holding = desk.find(parcel.lease)
            if holding is not None:
                holding.outstanding -= 1
                holding.is_refused = False
            if outcome is Outcome.ACCEPTED or (reply is not None and reply.accepted_before):
                counters.accepted += 1
                counters.accepted_steps += parcel.meta.steps
            if outcome is Outcome.ACCEPTED and holding is not None and parcel.seq is not None:
                holding.note_accepted(parcel.seq, parcel.meta.steps)
            elif outcome is Outcome.GIVEN:
                counters.given += 1
                log.info("already given shard=%s version=%d", parcel.lease.named, parcel.meta.given)
            elif outcome is Outcome.FENCED:
                counters.fenced += 1
                self._lose(parcel.lease, "its batch was fenced")
            elif outcome is Outcome.GAP and reply is not None:
                counters.gap += 1
                self._forgotten(holding, reply.seq)
            elif outcome is Outcome.UNSENT:
                counters.unsent += 1
            desk.changed.notify_all()

    # ---- for the keeper

    def renew_all(self) -> bool:
        """Renew every lease held, one round trip an experiment; what is lost is dropped. Always True.

        Raises:
            BrokerError: ask again soon.
        """
        with self._desk.changed:
            mark = self._desk.mark
            held = [(one, one.accepted, self._desk.is_to_blame(one)) for one in self._desk.holdings()]
            for holding, _, told in held:
                if holding.stepping is not told:
                    holding.stepping = None  # a turn that begins before this is answered must say it again
        held.sort(key=lambda one: one[0].key)
        for (experiment, p), group in groupby(held, key=lambda one: one[0].key[:2]):
            some = list(group)
            asked = [(holding.lease, told) for holding, _, told in some]
            try:
                renewals = self._broker.shards.renew(experiment, p, asked, ttl_ms=some[0][0].ttl_ms, mark=mark)
            except Damaged as error:
                self.damaged.met(experiment, error)
                continue
            except BrokerError:
                self._desk.number_away()  # or it arrives after the next one and says what is over by then
                raise
            for (holding, accepted, told), renewal in zip(some, renewals, strict=True):
                with self._desk.changed:
                    if self._desk.mark == mark:  # else the playing thread has said something newer
                        holding.stepping = told
                self.renewed(holding, accepted, renewal)
        return True

    def renewed(self, holding: Holding, accepted: int, renewal: Renewal) -> None:
        """Write down one renewal's answer.

        Args:
            accepted: last accepted seq at the time of asking: an append may have been answered since.
        """
        if renewal.status == "GONE":
            self.gone(holding.lease.experiment)
        elif renewal.status == "FENCED":
            self._lose(holding.lease, "its lease was fenced")
        else:
            self._desk.hear(
                holding.lease.experiment,
                command=renewal.command,
                policy=renewal.policy,
                eval_policy=renewal.eval_policy,
            )
            if renewal.seq < min(accepted, holding.known):
                self._forgotten(holding, renewal.seq)
                self._drop_waiting(holding.lease)

    # ---- inside

    def gone(self, experiment: str) -> None:
        """The experiment was removed: hold nothing of it any more."""
        self.lose_all(experiment, "the experiment was removed, or the broker lost it")

    def lose_all(self, experiment: str, why: str) -> None:
        """Hold nothing of an experiment any more."""
        for holding in self._desk.of(experiment):
            self._lose(holding.lease, why)

    def _settle_gone(self, parcel: Parcel) -> None:
        self._desk.counters.gone += 1
        if parcel.seq is not None:
            try:
                self._broker.shards.forget_blob(parcel.lease, parcel.seq)
            except BrokerError as error:
                log.info("left a blob to its TTL shard=%s error=%s", parcel.lease.named, error)
        self.gone(parcel.lease.experiment)

    def _lose(self, lease: Lease, why: str) -> None:
        if self._desk.lose(lease) is not None:
            log.warning("lost shard=%s because %s", lease.named, why)
            told = f"lost shard={lease.shard} epoch={lease.epoch} because {why}"
            self._desk.notes.add(lease.experiment, told, level="warning")
            self._drop_waiting(lease)

    def _forgotten(self, holding: Holding | None, seq: int) -> None:
        if holding is not None:
            self._desk.note_forgotten(holding, seq)

    def _drop_waiting(self, lease: Lease) -> None:
        dropped = self.appender.forget(lease)
        with self._desk.changed:
            self._desk.counters.unsent += len(dropped)
            holding = self._desk.find(lease)
            if holding is not None:
                holding.outstanding -= len(dropped)
