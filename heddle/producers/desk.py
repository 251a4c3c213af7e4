"""The desk: what the threads of one worker share, under one lock, with one condition to wait on.

It never speaks to a broker and never plays; whoever does writes the result down here.
"""

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from heddle.broker.notes import Notes
from heddle.broker.types import Claim, Lease
from heddle.producers.holdings import Facts, Holding, Key, choose, hold, key_of
from heddle.producers.quota import Quota

log = logging.getLogger("heddle.worker")


OUTCOMES = (
    "batches",
    "accepted",
    "given",
    "fenced",
    "gap",
    "gone",
    "unsent",
    "forgotten",
    "claims",
    "lost",
    "env_errors",
)
"""The counters that a heartbeat tells by name."""


@dataclass(slots=True)
class Counters:
    """What happened to this worker's batches since it started; its heartbeat shows it.

    Attributes:
        batches, steps: played.
        accepted, accepted_steps: by the broker.
        given: refused, for that policy version had been given.
        fenced, gap, gone: refused for good, by answer.
        unsent: dropped before they were ever sent (lease lost, or no time left).
        forgotten: batches once accepted that the broker did not know any more.
        claims, lost: shards got, and shards taken away.
        env_errors: shards given back because their environment or policy failed.
        fetches: of policies.
        play_s: seconds spent playing.
        wait_s: seconds in which it held shards and could play none; waited_s: those that no batch has told of yet.
    """

    batches: int = 0
    steps: int = 0
    accepted: int = 0
    accepted_steps: int = 0
    given: int = 0
    fenced: int = 0
    gap: int = 0
    gone: int = 0
    unsent: int = 0
    forgotten: int = 0
    claims: int = 0
    lost: int = 0
    env_errors: int = 0
    fetches: int = 0
    play_s: float = 0.0
    wait_s: float = 0.0
    waited_s: float = 0.0

    def outcomes(self) -> dict[str, int]:
        """What became of its batches and shards, as far as there is something to count."""
        told = {name: getattr(self, name) for name in OUTCOMES}
        return {name: count for name, count in told.items() if count}


class Desk:
    """Shards held, facts heard, quota, counters.

    Attributes:
        changed: the lock of all this, notified whenever a shard may have become playable.
        counters, quota: as their names say.
        stepping: the shard being played at this moment. mark: number of the last time that the playing thread told the
            broker so, or began to, or that somebody who did so got no answer. is_waiting: the playing thread waits for
            one to play.
        notes: what this worker has to tell; its heartbeat sends them.
        moved_at: monotonic seconds at which the worker's loop was last seen to move.
    """

    def __init__(self, worker: str = "") -> None:
        self.notes = Notes("worker", worker)
        self.changed = threading.Condition(threading.RLock())
        self.counters = Counters()
        self.quota = Quota()
        self.quota_news = False
        self.stepping: Key | None = None
        self.mark = 0
        self.is_waiting = False
        self.moved_at = 0.0
        self._holdings: dict[Key, Holding] = {}
        self._facts: dict[str, Facts] = {}
        self._dropped: list[Holding] = []
        self._closing: list[Holding] = []
        self._taken: list[Holding] = []

    def number_away(self) -> None:
        """What was just said of stepping got no answer and may arrive yet: all that is said from now on is newer."""
        with self.changed:
            self.mark += 1

    def is_to_blame(self, holding: Holding) -> bool:
        """True while a death of this process would be this shard's doing, as far as anybody can tell.

        A child may end its worker at any moment, so where environments run in children it can be told only while no
        other shard has begun here.
        """
        with self.changed:
            if not holding.apart:
                return holding.key == self.stepping
            others = [*self._holdings.values(), *self._dropped, *self._closing]
            is_alone = not any(one.begun for one in others if one is not holding)
            return is_alone and (holding.key == self.stepping or holding.waits)

    def take(self, claim: Claim, ttl_ms: int, *, apart: bool = False) -> Holding:
        """Write down a shard that was claimed; an older holding of it is over.

        Args:
            apart: its environments run in children.
        """
        with self.changed:
            self.drop(key_of(claim.lease))
            holding = self._holdings[key_of(claim.lease)] = hold(claim, ttl_ms, apart=apart)
            self.hear(claim.lease.experiment, command=claim.command, policy=claim.policy, eval_policy=claim.eval_policy)
            self.share(claim.lease.experiment, claim.plane)
            self.counters.claims += 1
            told = (
                f"claimed shard={claim.lease.shard} epoch={claim.lease.epoch} seq={claim.seq} attempt={claim.attempts}"
            )
            self.notes.add(claim.lease.experiment, told, level="debug")
            return holding

    def told_back(self, after_s: float) -> None:
        """The broker answers renewals again."""
        self.notes.add(None, f"reached the broker again after {after_s:.1f} s", level="warning")

    def wake(self) -> None:
        """Have the playing thread look around."""
        with self.changed:
            self.changed.notify_all()

    def drop(self, key: Key) -> Holding | None:
        """This worker does not hold that shard any more; the playing thread closes its environments."""
        with self.changed:
            holding = self._holdings.pop(key, None)
            if holding is not None:
                self._dropped.append(holding)
                self.changed.notify_all()
            return holding

    def lose(self, lease: Lease) -> Holding | None:
        """Drop the shard if it is still held under this very lease."""
        with self.changed:
            holding = self.find(lease)
            if holding is None:
                return None
            self.counters.lost += 1
            if not holding.barren:
                self._taken.append(holding)
            return self.drop(key_of(lease))

    def take_taken(self) -> list[Holding]:
        """Holdings that were taken away after batches of theirs were accepted; each is handed out once."""
        with self.changed:
            taken, self._taken = self._taken, []
            return taken

    def keep_taken(self, holdings: Iterable[Holding]) -> None:
        """Hand these out again the next time."""
        with self.changed:
            self._taken += holdings

    def note_forgotten(self, holding: Holding, seq: int) -> None:
        """The broker knows its batches only up to `seq`: it is given back as soon as possible, with their count."""
        with self.changed:
            before = holding.forgotten[0]
            holding.note_forgotten(seq)
            self.counters.forgotten += holding.forgotten[0] - before
            self.changed.notify_all()
        log.warning("broker forgot batches=%d of shard=%s after seq=%d", holding.forgotten[0], holding.lease.named, seq)

    def find(self, lease: Lease) -> Holding | None:
        """The holding of this very lease, None when it is over."""
        with self.changed:
            holding = self._holdings.get(key_of(lease))
            return holding if holding is not None and holding.lease == lease else None

    def holdings(self) -> list[Holding]:
        """All shards held, in the order of their claims."""
        with self.changed:
            return list(self._holdings.values())

    def of(self, experiment: str) -> list[Holding]:
        """The shards held of one experiment."""
        return [holding for holding in self.holdings() if holding.lease.experiment == experiment]

    def take_dropped(self) -> list[Holding]:
        """Holdings that are over and whose environments wait to be closed; each is handed out once."""
        with self.changed:
            self._closing, self._dropped = self._dropped, []
            return list(self._closing)

    def facts(self, experiment: str) -> Facts:
        """What was heard of an experiment."""
        with self.changed:
            return self._facts.setdefault(experiment, Facts())

    def hear(self, experiment: str, *, command: str | None = None, policy: int = 0, eval_policy: int = 0) -> None:
        """Take note of what a reply or a message says, and wake who waits when it is new.

        What comes late, of an experiment that nothing is held of any more, is not kept.
        """
        with self.changed:
            if not self.of(experiment):
                return
            facts = self._facts.setdefault(experiment, Facts())
            if facts.hear(command=command, policy=policy, eval_policy=eval_policy):
                self.changed.notify_all()

    def miss(self, experiment: str, version: int) -> None:
        """Take note of a pinned version that cannot be read, 0 for none (any more)."""
        with self.changed:
            if self.of(experiment):
                self.facts(experiment).missing = version
                self.changed.notify_all()

    def share(self, experiment: str, plane: str) -> None:
        """Take note of the shared memory that the readers of an experiment can map now."""
        with self.changed:
            if self.of(experiment):
                self.facts(experiment).plane = plane

    def forget_experiment(self, experiment: str) -> None:
        """Nothing of it is held any more."""
        with self.changed:
            self._facts.pop(experiment, None)

    def ready_to_release(self) -> list[Holding]:
        """Shards that leave and of which nothing is outstanding; all of a stopped experiment leave."""
        with self.changed:
            for holding in self.holdings():
                if self.facts(holding.lease.experiment).command == "stop":
                    holding.leaving = True
            return [holding for holding in self.holdings() if holding.leaving and holding.outstanding == 0]

    def choose(self) -> Holding | None:
        """The shard to play next; None when all must wait."""
        with self.changed:
            return choose(held := self.holdings(), self.facts_of(held))

    def facts_of(self, holdings: Iterable[Holding]) -> dict[str, Facts]:
        """What was heard of the experiments of these shards, which may not be held any more, by experiment."""
        with self.changed:
            names = {holding.lease.experiment for holding in holdings}
            return {name: self._facts.get(name) or Facts() for name in names}

    def set_quota(self, quota: Quota) -> None:
        """A heartbeat's answer; `quota_news` says that the playing thread has not acted on it."""
        with self.changed:
            self.quota = quota
            self.quota_news = True

    def leave(self, holdings: Iterable[Holding], why: str) -> None:
        """Play these no further; they are released once nothing of theirs is outstanding."""
        with self.changed:
            for holding in holdings:
                holding.leaving = True
                holding.why = holding.why or why
            self.changed.notify_all()
