"""What a worker holds: its shards, how far each is, what each experiment wants, and which shard is played next.

Values and rules only: no thread, no broker, no clock.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.broker.claiming import HEALTHY_BATCHES
from heddle.broker.types import Claim, Lease
from heddle.layout import Segments
from heddle.subject import Subject

if TYPE_CHECKING:
    from heddle.producers.lanes import Lane
    from heddle.producers.parcel import Parcel
    from heddle.producers.play import Play
    from heddle.producers.snapshot_rule import Camera
    from heddle.spec.environments import Env

MOST_OUTSTANDING = 2
"""Batches of one shard that were played and not answered: one on its way and one behind it."""

TRIED_AFTER = 2
"""So many owners in a row died in company. A single one may be anybody's doing, and trying costs the others time."""

REMEMBERED = 10_000
"""Accepted batches whose steps are remembered; a broker in `fast` mode forgets at most the last 2 s."""

Key = tuple[str, int, int]
"""experiment, partition, shard"""


def key_of(lease: Lease) -> Key:
    """Which shard a lease is for."""
    return (lease.experiment, lease.partition, lease.shard)


@dataclass(slots=True)
class Facts:
    """The newest that a worker heard of one experiment, from whichever reply or message came last.

    Attributes:
        command: run, pause or stop; stop is absorbing.
        policy, eval_policy: versions, 0 = none yet; they only rise.
        plane: token of the shared memory that every reader can map; "" for none.
        missing: a pinned version that could not be read just now; 0 for none.
    """

    command: str = "run"
    policy: int = 0
    eval_policy: int = 0
    plane: str = ""
    missing: int = 0

    def hear(self, *, command: str | None = None, policy: int = 0, eval_policy: int = 0) -> bool:
        """Take note; True when something is new."""
        before = (self.command, self.policy, self.eval_policy)
        if command and self.command != "stop":
            self.command = command
        self.policy = max(self.policy, policy)
        self.eval_policy = max(self.eval_policy, eval_policy)
        return before != (self.command, self.policy, self.eval_policy)


@dataclass(slots=True, eq=False)
class Holding:
    """One shard that this worker holds.

    Attributes:
        claim: how it was got.
        ttl_ms: how long its lease lasts.
        accepted: seq of the last batch that the broker accepted.
        given: highest policy version whose batch was played: for a synchronous or an evaluation
            shard the next one must be newer.
        outstanding: batches handed to the appender and not answered.
        is_refused: the first of them found no room yet: another one would only grow old behind it.
        steps: (seq, environment steps) of the batches accepted under this claim, to report what a broker forgot.
        turn: number of the turn in which it was last played.
        player, camera: its environments, and what takes their snapshots, once they are made.
        env: its section of the spec; set with the player. beside: they are stepped beside each other.
        stepping: what the broker was last told: this shard is being stepped; None while that is not certain.
        apart: they run in children of this worker. begun: its first turn began, so something of it may live here.
        leaving: play it no further and release it as soon as nothing is outstanding.
        spared: it was kept once for being played first.
        why: why it leaves, for people; "" when its experiment was stopped.
        forgotten: batches and steps that the broker had accepted and does not know any more.
        error: why it is given back, in one line; None when nothing is wrong with it.
        stuck_env: the environment that it failed with and that gave nothing, though others may have; None otherwise.
        early: what it failed with had not finished an episode since the claim.
        lane: the thread that plays it, where its environments run in a child.
        evaluation, evaluating: the evaluation that is being played, None between two; of which version.
    """

    claim: Claim
    ttl_ms: int
    accepted: int
    given: int
    outstanding: int = 0
    is_refused: bool = False
    steps: "deque[tuple[int, int]]" = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    turn: int = 0
    player: "Play | None" = None
    camera: "Camera | None" = None
    env: "Env | None" = None
    beside: bool = False
    stepping: bool | None = False
    apart: bool = False
    begun: bool = False
    leaving: bool = False
    spared: bool = False
    why: str = ""
    forgotten: tuple[int, int] = (0, 0)
    error: str | None = None
    stuck_env: int | None = None
    early: bool = False
    lane: "Lane[Parcel | None] | None" = None
    evaluation: "Iterator[tuple[Segments, bool]] | None" = None
    evaluating: int = 0

    @property
    def lease(self) -> Lease:
        """By which it is held."""
        return self.claim.lease

    @property
    def key(self) -> Key:
        """Of its shard."""
        return key_of(self.claim.lease)

    @property
    def waits(self) -> bool:
        """True while the answer of its child is awaited, and others may play."""
        return self.lane is not None and self.lane.is_parked

    @property
    def runs_on(self) -> bool:
        """True while it waits for threads of this very process, which step its environments meanwhile."""
        return self.waits and self.player is not None and not self.player.spec.env.in_children

    @property
    def barren(self) -> bool:
        """True while no batch of this claim was accepted."""
        return self.accepted == self.claim.seq

    @property
    def is_suspect(self) -> bool:
        """True while it may have crashed a worker that held others as well."""
        return self.claim.suspect and self.accepted - self.claim.seq < HEALTHY_BATCHES

    @property
    def is_tried(self) -> bool:
        """True before its first batch where owners in a row died with it and others, and nobody knows of which."""
        return self.barren and self.claim.company >= TRIED_AFTER

    @property
    def is_fruitless(self) -> bool:
        """True while it got nowhere: no batch was accepted, or it ended with an environment that gave nothing."""
        return self.barren or self.stuck_env is not None

    def note_accepted(self, seq: int, steps: int) -> None:
        """A batch was accepted."""
        self.accepted = seq
        self.steps.append((seq, steps))

    def note_forgotten(self, seq: int) -> None:
        """The broker knows only batches up to `seq`: what came after is lost, and the shard must be claimed anew.

        A late copy of an append may bring one of them again, so `seq` may be higher when this is called again.
        """
        lost = [steps for accepted, steps in self.steps if accepted > seq]
        self.forgotten = (max(0, self.accepted - seq), sum(lost))
        self.leaving = True
        self.why = f"the broker forgot {self.forgotten[0]} batches after seq {seq}"

    @property
    def known(self) -> int:
        """Seq of the last accepted batch that the broker still knows, as far as was heard."""
        return self.accepted - self.forgotten[0]

    @property
    def name(self) -> str:
        """For people: "cartpole-7f3a/3"."""
        return f"{self.lease.experiment}/{self.lease.shard}"

    @property
    def subject(self) -> Subject:
        """What is said while it is played is about."""
        return {"experiment": self.lease.experiment, "shard": self.lease.shard, "epoch": self.lease.epoch}


def hold(claim: Claim, ttl_ms: int, *, apart: bool = False) -> Holding:
    """The holding that a claim begins."""
    return Holding(claim=claim, ttl_ms=ttl_ms, accepted=claim.seq, given=claim.given, apart=apart)


def first_to_leave(holdings: Sequence[Holding]) -> Holding:
    """Which one to give up when another worker has too few: the one claimed last that gave a batch since, and plays no
    evaluation.

    What was claimed a moment ago may be a dead worker's: it was taken at once so that it is played.

    An evaluation counts by its last owner's episodes alone, so a shard that changes hands in its middle begins anew;
    one that did so after each batch would never end.

    Args:
        holdings: at least one, in the order of their claims.
    """
    movable = [holding for holding in holdings if holding.evaluation is None] or holdings
    return next((holding for holding in reversed(movable) if not holding.barren), movable[-1])


def version_to_play(holding: Holding, facts: Facts) -> int | None:
    """The policy version (at least) that this shard's next segment is to be played with; None = it must wait."""
    if holding.leaving or facts.command != "run" or holding.is_refused or holding.outstanding >= MOST_OUTSTANDING:
        return None
    if holding.claim.kind == "eval":
        is_there = facts.eval_policy != facts.missing
        return facts.eval_policy if is_there and facts.eval_policy > holding.given else None
    if facts.policy <= 0 or (holding.claim.sync and facts.policy <= holding.given):
        return None
    return facts.policy


def choose(holdings: Iterable[Holding], facts: dict[str, Facts]) -> Holding | None:
    """The playable shard whose last turn is longest ago; None when all must wait.

    One that waited for its child goes on as soon as it can. Evaluations of an experiment share a policy of one version:
    while one of them waits the others do not begin. Who is tried plays alone for as long as it can play.
    """
    holdings = list(holdings)
    if (tried := _tried(holdings, facts)) is not None:
        holdings = [tried]
    if (ready := next((h for h in holdings if h.waits and h.lane is not None and h.lane.is_ready), None)) is not None:
        return ready
    if any(h.is_suspect for h in holdings) and any(h.runs_on for h in holdings):
        return None  # a crash now is of one that is not the one marked
    waiting = {h.lease.experiment for h in holdings if h.waits and h.claim.kind == "eval"}
    may = [h for h in holdings if not h.waits and not (h.claim.kind == "eval" and h.lease.experiment in waiting)]
    playable = [h for h in may if version_to_play(h, facts[h.lease.experiment]) is not None]
    return min(playable, key=lambda h: h.turn, default=None)


def _tried(holdings: list[Holding], facts: dict[str, Facts]) -> Holding | None:
    """The shard beside which no other one may begin: in the company of which most owners died; None when all may."""
    begun = [h for h in holdings if h.begun]
    able = [h for h in begun or holdings if h.waits or version_to_play(h, facts[h.lease.experiment]) is not None]
    one = max(able, key=lambda h: h.claim.company * h.is_tried, default=None)
    return one if one is not None and one.is_tried and len(begun) < 2 else None


IN_STEP = "with sync = true the trainer trains on this one first"


def reason_to_wait(holdings: Iterable[Holding], facts: dict[str, Facts]) -> str:
    """Why the first shard that cannot be played waits, for people; "" when all can be played."""
    for holding in holdings:
        heard = facts[holding.lease.experiment]
        if holding.waits:
            return f"{holding.name} waits for its environments"
        if version_to_play(holding, heard) is not None:
            continue
        if holding.leaving or heard.command == "stop":
            return f"{holding.name} is being given back"
        if heard.command == "pause":
            return f"{holding.lease.experiment} is paused"
        if holding.is_refused or holding.outstanding >= MOST_OUTSTANDING:
            return f"{holding.name} waits for room"
        if holding.claim.kind == "eval":
            is_lost = heard.missing > holding.given and heard.missing == heard.eval_policy
            lost = f": pinned policy {heard.missing} cannot be read" if is_lost else ""
            return f"{holding.name} waits for the next evaluation{lost}"
        if not heard.policy:
            return f"{holding.name} waits for the first policy"
        return f"{holding.name} waits for a policy newer than {holding.given}: {IN_STEP}"
    return ""


def stepping_changes(
    holdings: Iterable[Holding], current: Holding, *, is_to_blame: bool = True
) -> list[tuple[Holding, int, bool]]:
    """What the broker must be told before `current` is stepped, so that only it is blamed for a death, if it would be.

    Shards that delivered since they were claimed cannot be blamed and cost no round trip, suspects left out.

    Returns:
        Each with its last accepted seq of now, and whether it is the one being stepped; those of one experiment stand
        together, `current`'s last: until it is marked, nobody may be blamed wrongly.
    """
    changes = [
        (holding, holding.accepted, is_to_blame and holding is current)
        for holding in holdings
        if (holding.barren or holding.is_suspect) and holding.stepping != (is_to_blame and holding is current)
    ]
    return sorted(changes, key=lambda change: (change[0].key[:2] == current.key[:2], change[0].key))
