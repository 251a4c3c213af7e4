"""When a shard is snapshotted, and when a snapshot is continued from.

It never talks to a broker and never touches an environment; `Camera` is told what snapshots cost and says when the
next one is due.
"""

from collections.abc import Callable
from dataclasses import dataclass

from heddle.broker import keys
from heddle.broker.types import Claim
from heddle.clock import Clock
from heddle.errors import NotSnapshottable
from heddle.spec import ExperimentSpec

SHARE = 0.03
"""Of the time it takes to play: what snapshots may cost where the spec leaves it to us."""
MOST_SKIPPED = 64
"""Batches between two looks at a shard whose last snapshot was above the cap: it may have become smaller."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a new owner begins.

    Attributes:
        snapshot: key of the snapshot to continue from; None: fresh episodes.
        at_start: the shard's very first episodes, for nothing of it was ever accepted.
        reason: why the owner does not continue where the one before stopped; "" when it does, or nobody expects it to.
    """

    snapshot: str | None = None
    at_start: bool = False
    reason: str = ""


def begin(claim: Claim, spec: ExperimentSpec) -> Beginning:
    """How the owner of a claim begins, before it is known whether a snapshot can be read.

    Only the snapshot of the very last accepted batch is continued from: an older one would play steps again that are
    part of the experience already. When about half as many owners as may die have died without a batch, what they
    continued from may be what killed them, and the next one gets fresh episodes.
    """
    if claim.kind == "eval" or spec.faults.snapshot_every == 0:
        return Beginning()
    patience = (spec.faults.barren_deaths + 1) // 2
    if claim.deaths >= patience:
        return Beginning(reason=f"owners in a row that ended without a batch: {claim.deaths}")
    if claim.seq == 0:
        return Beginning(at_start=True)
    if claim.snapshot is None:
        return Beginning(reason=claim.no_snapshot or "it has no snapshot")
    found = keys.snapshot_seq(claim.snapshot, claim.lease.experiment, claim.lease.partition, claim.lease.shard)
    if found != claim.seq:
        after = "of another shard" if found is None else f"of batch {found}"
        return Beginning(reason=f"its snapshot is {after}, not of batch {claim.seq}")
    return Beginning(snapshot=claim.snapshot)


class Camera:
    """Takes one shard's snapshots, while one owner plays it.

    Args:
        known: why an earlier owner could take none, as the broker has it.

    Attributes:
        trouble: why the last attempt gave none, in one line; "" when it gave one.
    """

    def __init__(self, spec: ExperimentSpec, *, clock: Clock, known: str = "") -> None:
        self._every, self._cap = spec.faults.snapshot_every, spec.limits.snapshot_bytes
        self._clock = clock
        self._wait = 0  # batches to let pass
        self._above = 0  # snapshots in a row above the cap
        self._cost_s = 0.0  # what one takes, about
        self._played_s = 0.0  # since the last one
        self._refused = self._every == 0
        self._known = known
        self.trouble = ""

    def is_due(self, played_s: float) -> bool:
        """Asked once a batch, which took so long to play: whether it is to travel with a snapshot."""
        self._played_s += played_s
        if self._refused:
            return False
        if self._wait:
            self._wait -= 1
            return False
        return self._every is not None or self._cost_s <= SHARE * self._played_s

    def take(self, pack: Callable[[], bytes]) -> bytes | None:
        """The snapshot that `pack` makes; None, with `trouble`, when it cannot, or when it is too large."""
        self._wait, began = (self._every or 1) - 1, self._clock.monotonic()
        try:
            snapshot = pack()
        except NotSnapshottable as error:
            self._refused, self.trouble = True, error.reason
            return None
        took_s = self._clock.monotonic() - began
        self._cost_s = (self._cost_s + took_s) / 2 if self._cost_s else took_s
        self._played_s = 0.0
        if len(snapshot) > self._cap:
            self._above += 1
            self._wait = max(self._wait, min(MOST_SKIPPED, 2**self._above))
            if self._above == 1:  # told once of those in a row, each of which has its size
                self.trouble = f"a snapshot of {len(snapshot)} bytes is above limits.snapshot_bytes = {self._cap}"
            return None
        self._above, self.trouble, self._known = 0, "", ""
        return snapshot

    def news(self) -> str:
        """`trouble`, when nobody knows of it yet."""
        news, self._known = ("" if self.trouble == self._known else self.trouble), self.trouble
        return news
