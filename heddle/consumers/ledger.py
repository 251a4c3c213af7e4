"""The ledger: what became of each entry that was read, and when the broker may be told.

It never reads, trains or saves. An entry is settled once; what is trained or evaluated is acked only after a durable
manifest covers it (or, with ack = "update", at once), what is set aside at the next flush. Acks that the broker did not
answer are sent again: only the one that deletes an entry counts it.
"""

import logging
from collections.abc import Mapping, Sequence

from heddle.broker import Broker
from heddle.broker.experience_types import Pointer, Settled
from heddle.broker.pointers import batch_name, identity_of
from heddle.consumers.marks import Key, Mark, key_of
from heddle.consumers.ordering import Hole, Ordering
from heddle.consumers.shelf import Shelf
from heddle.errors import BrokerFull, BrokerUnreachable

log = logging.getLogger("heddle.trainer")

ACK_AT_ONCE = 256
"""Entries in one ack script: some 2 ms of the server's thread."""
ASIDE_KEPT = 1024
"""Of so many batches, those set aside last, the outcome is remembered: what a broker forgets is its newest."""

PASSED_KEPT = 16
"""And of each shard so many that were passed over."""

PASSED = "passed"
"""Of a batch of which only that is known: an earlier trainer acked it, and no manifest holds it."""


class Ledger:
    """What is settled and not yet acked, of one partition.

    Attributes:
        buried: train batches that went to dead with nothing trained between them; last_reason: of the last one.
        excused: policy version -> train shards whose batch of it was set aside: a sync update does not wait for them.

    Args:
        carried: batch -> (outcome, reason) of what earlier trainers set aside, as their manifest has it.
        shelf: where the bytes are; the broker alone by default.
    """

    def __init__(
        self,
        broker: Broker,
        experiment: str,
        partition: int,
        *,
        seat_epoch: int,
        ordering: Ordering[Pointer],
        carried: Mapping[str, tuple[str, str]] | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        self._shelf = shelf or Shelf(broker)
        self.ordering = ordering
        self.excused: dict[int, set[int]] = {}
        self.buried = 0
        self.last_reason = ""
        self._broker = broker
        self._experiment = experiment
        self._partition = partition
        self._seat_epoch = seat_epoch
        told = carried or {}
        self._aside = {batch: known for batch, known in told.items() if known[0] != PASSED}
        self._passed = {batch: known for batch, known in told.items() if known[0] == PASSED}
        self._durable = ordering.marks()
        self._spoilt: set[int] = set()
        self._held: list[tuple[Pointer, Settled]] = []
        self._owed: dict[Key, tuple[Pointer, Settled]] = {}
        self._dead: dict[Key, tuple[Pointer, str]] = {}
        self._is_refused = False

    def hold(self, pointers: Sequence[Pointer], outcome: Settled) -> None:
        """These entries are in the learner, or in an evaluation; they are acked once `release` says so."""
        if outcome == "trained":
            self.buried = 0
        for pointer in pointers:
            self.ordering.settle(pointer)
            self._held.append((pointer, outcome))

    def set_aside(self, pointer: Pointer, outcome: Settled) -> None:
        """This entry is used for nothing; it is acked at the next flush."""
        self._excuse(pointer)
        if pointer.kind == "eval" and outcome != "evaluated":
            self._spoilt.add(pointer.version_min)
        self.ordering.settle(pointer)
        self._owed[key_of(pointer)] = (pointer, outcome)
        if outcome != "evaluated":
            self._remember(pointer, outcome, "")

    def bury(self, pointer: Pointer, reason: str) -> None:
        """This entry cannot be used: it goes to the dead stream, with its reason, at the next flush."""
        log.warning(
            "set aside as dead shard=%d epoch=%d seq=%d reason=%s", pointer.shard, pointer.epoch, pointer.seq, reason
        )
        self._excuse(pointer)
        if pointer.kind == "eval":
            self._spoilt.add(pointer.version_min)
        else:
            self.buried, self.last_reason = self.buried + 1, reason
        self.ordering.settle(pointer)
        self._dead[key_of(pointer)] = (pointer, reason)
        self._remember(pointer, "dead", reason)

    def repeat(self, pointer: Pointer) -> None:
        """This entry was dealt with before: it is acked for what it was then, without another look.

        The broker forgot that ack, or the entry itself, and took the batch again under another id. Where no durable
        manifest covers it yet it waits for one as the first copy does.
        """
        usual: Settled = "evaluated" if pointer.kind == "eval" else "trained"
        mark = self._durable.get(pointer.shard)
        identity = identity_of(pointer)
        if identity in self._aside or identity in self._passed or (mark is not None and mark.covers(pointer)):
            self._owe(pointer, usual)
        else:
            self._held.append((pointer, usual))

    def passed_over(self, hole: Hole) -> None:
        """An earlier trainer dealt with these, and no manifest says how: then it did not train them.

        A broker that goes back to an old backup may give them out once more.
        """
        first, after = (hole.before.seq if hole.before else 0) + 1, hole.after
        owners = {(mark.epoch, mark.nonce) for mark in (hole.before, after) if mark is not None}
        newest = range(max(first, after.seq - PASSED_KEPT), after.seq)
        for seq in newest:
            for epoch, nonce in owners:
                self._passed[batch_name(hole.shard, epoch, nonce, seq)] = (PASSED, "")
        while len(self._passed) > ASIDE_KEPT:
            del self._passed[next(iter(self._passed))]

    def rewind(self, pointer: Pointer) -> None:
        """The broker has forgotten this entry before it could be used: what was taken for a repeat of it, or of what
        was read behind it, is none."""
        self._disown(self.ordering.rewind(pointer))

    def withdraw(self, pending: Sequence[Pointer]) -> None:
        """What waits for a batch before it, and is not among all that is `pending`, was forgotten likewise."""
        self._disown(self.ordering.withdraw(pending))

    def release(self) -> None:
        """A durable manifest covers what the marks cover (or nothing waits for one): let it be acked."""
        kept: list[tuple[Pointer, Settled]] = []
        for pointer, outcome in self._held:
            if self.ordering.covered(pointer):
                self._owe(pointer, outcome)
            else:
                kept.append((pointer, outcome))
        self._held = kept
        self._durable = self.ordering.marks()

    def roll_back(self) -> None:
        """No manifest will ever cover what is trained and not released: that is how it is acked."""
        for pointer, outcome in self._held:
            self._owe(pointer, "rolled_back" if outcome == "trained" else outcome)
        self._held = []

    def flush(self) -> bool:
        """Tell the broker all that it may know; what it did not answer stays owed.

        Returns:
            True when nothing is owed any more.

        Raises:
            SeatLost, Gone: and nothing was changed.
        """
        try:
            self.flush_or_raise()
        except (BrokerUnreachable, BrokerFull) as error:
            level = logging.DEBUG if self._is_refused else logging.WARNING
            log.log(level, "cannot ack, will again owed=%d error=%s", self.num_owed, error)
            self._is_refused = True
            return False
        self._is_refused = False
        return True

    def flush_or_raise(self) -> None:
        """As `flush`; raises also BrokerUnreachable and BrokerFull."""
        self._flush_dead()
        self._flush_owed()
        self._forget_old()

    @property
    def num_owed(self) -> int:
        """Entries that may be acked and are not."""
        return len(self._owed) + len(self._dead)

    @property
    def num_held(self) -> int:
        """Entries that are trained or evaluated and wait for a manifest."""
        return len(self._held)

    def marks(self) -> dict[int, Mark]:
        """By shard, for a manifest."""
        return self.ordering.marks()

    def owed(self) -> dict[str, list[str]]:
        """For a manifest: batch -> [outcome, reason] of what was set aside and is not acked, or may be seen again."""
        return {identity: [outcome, reason] for identity, (outcome, reason) in {**self._passed, **self._aside}.items()}

    def forget_excuses(self, below: int) -> None:
        """Versions below `below` are not waited for any more."""
        self.excused = {version: shards for version, shards in self.excused.items() if version >= below}

    def take_spoilt(self) -> set[int]:
        """Versions whose evaluation cannot be whole any more, for a batch of theirs was buried or dropped."""
        spoilt, self._spoilt = self._spoilt, set()
        return spoilt

    def _disown(self, pointers: Sequence[Pointer]) -> None:
        """These were held as repeats, and are new."""
        keys = {key_of(pointer) for pointer in pointers}
        self._held = [(one, outcome) for one, outcome in self._held if key_of(one) not in keys]

    def _excuse(self, pointer: Pointer) -> None:
        if pointer.kind == "train":
            self.excused.setdefault(pointer.given or pointer.version_min, set()).add(pointer.shard)

    def _remember(self, pointer: Pointer, outcome: str, reason: str) -> None:
        identity = identity_of(pointer)
        self._aside.pop(identity, None)  # the newest stand last
        self._aside[identity] = (outcome, reason)

    def _owe(self, pointer: Pointer, outcome: Settled) -> None:
        """Ack it at the next flush: as what it was set aside for, if it was."""
        identity = identity_of(pointer)
        aside, reason = self._aside.get(identity, self._passed.get(identity, (outcome, "")))
        if aside == PASSED:
            aside = "evaluated" if pointer.kind == "eval" else "stale"
        if aside == "dead":
            self._dead[key_of(pointer)] = (pointer, reason)
        else:
            self._owed[key_of(pointer)] = (pointer, aside)  # type: ignore[assignment]

    def _forget_old(self) -> None:
        """With nothing owed, only the newest that were set aside need be known."""
        while len(self._aside) > ASIDE_KEPT:
            del self._aside[next(iter(self._aside))]

    def _flush_dead(self) -> None:
        for key, (pointer, reason) in list(self._dead.items()):
            data = self._shelf.view(pointer)  # to be looked at from anywhere the bytes go to the broker
            self._broker.experience.set_aside(
                self._experiment, self._partition, self._seat_epoch, pointer, reason, keep_blob=True, data=data
            )
            self._shelf.remove(pointer)
            del self._dead[key]
            self.ordering.forget(pointer)

    def _flush_owed(self) -> None:
        while self._owed:
            keys = list(self._owed)[:ACK_AT_ONCE]
            self._broker.experience.ack(
                self._experiment,
                self._partition,
                self._seat_epoch,
                [self._owed[key] for key in keys],
                free=self._shelf.remove,
            )
            for key in keys:
                pointer, _ = self._owed.pop(key)
                self.ordering.forget(pointer)
