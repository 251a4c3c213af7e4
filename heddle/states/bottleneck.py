"""Bottlenecks: where the batches of some updates spent their time, and who the others wait for.

Pure: updates' metrics in, a judgement in words out. It never looks at how things are now.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

Values = Mapping[str, float]
Points = Sequence[tuple[int, Values]]
"""(update, metrics by name), oldest first."""

STAGES = {
    "rollout": "its worker plays it",
    "append": "ready, until the broker has it",
    "stream": "until the trainer reads it",
    "queue": "read, until its update begins",
    "update": "the learner learns from it",
    "publish": "until the new policy is published",
    "first use": "until a worker plays with that",
}
"""What a batch goes through, in order, and what each is."""
OF_A_BATCH = ("rollout", "append", "stream", "queue")
"""Stages that differ from batch to batch of one update."""
MUCH = 0.5
"""Who waits for so much of its time is not what others wait for."""
UNEVEN = 1.6
"""Shards whose batches take so many times the mean to play are worth a word..."""
LEAST_S = 0.01
"""...and so long at least: batches tell whole milliseconds; where that explains what the trainer waits, and..."""
FEW, MOST_TIMES = 3, 0.8
"""...where it is the same few, of so much of the updates: else it is chance."""

FASTER = "a faster learner (trainer.device, trainer.threads, fewer passes), or fewer workers for the same speed"
EVEN = "look at the environment of shard {shard} (heddle why EXP/{shard}), rollout.max_seconds, or sync = false"
"""What helps where all wait for a few shards; more workers do not."""
MORE = "more workers (heddle workers scale N), or look at what theirs spend their time on: heddle profile EXP"


_LEARNER = ("trainer", "batches are being learnt from: the learner is the bottleneck", FASTER)
_WEIGHTS = ("broker", "new weights are on their way to the broker: publishing is the bottleneck", "see: heddle doctor")
_LATE = (
    *("policy", "a new policy lies unused: workers take it at their next segment, and theirs are long"),
    "a lower rollout.steps, or rollout.max_seconds",
)
JUDGED: dict[str, tuple[tuple[str, str, str], tuple[str, str, str]]] = {
    "rollout": (
        ("trainer", "batches are being played, and yet the trainer is the bottleneck", FASTER),
        ("workers", "batches are being played: the workers are the bottleneck", MORE),
    ),
    "append": (
        ("trainer", "batches wait for room in the stream: the trainer is the bottleneck", FASTER),
        (
            *("broker", "batches are ready and wait to be accepted: the broker, or the way to it, is the bottleneck"),
            "see: heddle doctor",
        ),
    ),
    "stream": (
        ("trainer", "batches wait in the stream: the trainer is the bottleneck", FASTER),
        (
            *("broker", "batches wait in the stream though the trainer waits for them: reading is the bottleneck"),
            "see: heddle doctor, and how many went through shared memory: heddle status",
        ),
    ),
    "queue": (
        ("trainer", "batches wait for the update before theirs: the trainer is the bottleneck", FASTER),
        ("workers", "batches wait for the others of their update: the slowest workers are the bottleneck", MORE),
    ),
    "update": (_LEARNER, _LEARNER),
    "publish": (_WEIGHTS, _WEIGHTS),
    "first use": (_LATE, _LATE),
}
"""By the stage that takes most, for a trainer that does not wait and one that does: who holds up, how, what to do."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: mean seconds of a batch, and its share of the whole."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class Slow:
    """The slowest batch of one update.

    Attributes:
        update, shard, epoch, seq: which.
        seconds: by stage, the update's own included.
    """

    update: int
    shard: int
    epoch: int
    seq: int
    seconds: Mapping[str, float]

    @property
    def total(self) -> float:
        """Of all stages."""
        return sum(self.seconds.values())

    @property
    def most_in(self) -> str:
        """The stage that took longest."""
        return max(self.seconds, key=lambda stage: self.seconds[stage])


@dataclass(frozen=True, slots=True)
class Uneven:
    """Shards that take much longer to play than the others: which, and seconds of their batches and of all."""

    shards: tuple[int, ...]
    seconds: float
    mean: float

    @property
    def do(self) -> str:
        """What helps."""
        return EVEN.format(shard=self.shards[0])

    @property
    def line(self) -> str:
        """In words."""
        names = ", ".join(map(str, self.shards))
        which = f"shard {names} takes" if len(self.shards) == 1 else f"shards {names} take"
        return f"{which} {self.seconds:.2f} s to play a batch, the mean is {self.mean:.2f} s"


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Where the time goes.

    Attributes:
        updates: how many were looked at.
        stages: in order; those only that were measured.
        learning, waiting: shares of the trainer's time.
        who: trainer, workers, broker, policy, or nobody.
        verdict, do: one line each.
        slowest: the slowest batch of each update, slowest first.
        uneven: shards that others wait for, since theirs takes much longer to play; None for none.
    """

    updates: int
    stages: tuple[Stage, ...]
    learning: float
    waiting: float
    who: str
    verdict: str
    do: str
    slowest: tuple[Slow, ...]
    uneven: Uneven | None = None

    @property
    def total(self) -> float:
        """Seconds of a batch, from its first step to the first use of what it taught."""
        return sum(stage.seconds for stage in self.stages)


def find_bottleneck(points: Points) -> Bottleneck | None:
    """Where the batches of these updates spent their time; None when nobody measured it."""
    told = [(update, values) for update, values in points if "rollout_seconds" in values]
    if not told:
        return None
    means = {stage: mean for stage in STAGES if (mean := _mean(told, f"{stage.replace(' ', '_')}_seconds")) is not None}
    total = sum(means.values()) or 1.0
    stages = tuple(Stage(stage, seconds, seconds / total) for stage, seconds in means.items())
    learning, waiting = _trainer_shares(told)
    worst = max(stages, key=lambda stage: stage.share)
    who, why, do = JUDGED[worst.name][waiting >= MUCH]
    verdict = (
        f"{worst.share:.0%} of the time {why}; the trainer learns {learning:.0%} of its time and waits {waiting:.0%}"
    )
    slowest = sorted((_slow(update, values) for update, values in told), key=lambda one: -one.total)
    uneven = find_uneven(told) if who == "workers" else None
    if uneven is not None:
        verdict, do = f"{verdict}; {uneven.line}", uneven.do
    return Bottleneck(len(told), stages, learning, waiting, who, verdict, do, tuple(slowest), uneven)


def _mean(points: Points, name: str) -> float | None:
    values = [values[name] for _, values in points if values.get(name, -1.0) >= 0]
    return sum(values) / len(values) if values else None


def _trainer_shares(points: Points) -> tuple[float, float]:
    """How much of its time the trainer learnt, and waited for experience."""
    names = ("update_seconds", "wait_seconds", "publish_seconds", "checkpoint_seconds")
    spent = {name: sum(max(0.0, values.get(name, 0.0)) for _, values in points) for name in names}
    total = sum(spent.values()) or 1.0
    return spent["update_seconds"] / total, spent["wait_seconds"] / total


def _slow(update: int, values: Values) -> Slow:
    spent = {stage: values[name] for stage in OF_A_BATCH if (name := f"slowest_{stage}_seconds") in values}
    spent["update"] = values.get("update_seconds", 0.0)
    shard, epoch, seq = (int(values.get(f"slowest_{what}", 0)) for what in ("shard", "epoch", "seq"))
    return Slow(update, shard, epoch, seq, spent)


def find_uneven(points: Points) -> Uneven | None:
    """Shards that take so much longer to play than the others that the trainer waits for them; None for none."""
    longest = [
        (int(one["longest_shard"]), one["longest_rollout_seconds"]) for _, one in points if "longest_shard" in one
    ]
    counted = Counter(shard for shard, _ in longest).most_common(FEW)
    times = sum(count for _, count in counted)
    if not longest or times < MOST_TIMES * len(longest):
        return None
    shards = sorted(shard for shard, count in counted if count * 2 * FEW >= len(longest))
    took = [seconds for shard, seconds in longest if shard in shards]
    seconds, mean = sum(took) / len(took), _mean(points, "rollout_seconds") or 0.0
    # Of most updates: the first one may have waited for workers that were not there yet.
    waited = median([one.get("wait_seconds", 0.0) for _, one in points])
    if seconds < max(LEAST_S, UNEVEN * mean) or seconds - mean < MUCH * waited:
        return None
    return Uneven(tuple(shards), seconds, mean)
