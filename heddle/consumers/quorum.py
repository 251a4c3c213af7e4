"""Quorum: which batches make the next train batch, which are too old, and whether to wait for more.

Pure: facts in, a decision out. It never reads a stream, a clock or an array.

With `sync`, an update takes one batch of the current version from every active train shard; a shard whose batch of that
version was stale, dead or dropped is excused. Without it, an update takes batches in the order they came until they
hold `batch_steps` steps; older ones than `max_lag` versions are stale.

How many shards count is known, not which. Should one be quarantined after it gave a version, an update may go ahead
without the last of the others; that shard's batch is then stale, once.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from heddle.policies.lag import NO_GAP, Gap, is_stale
from heddle.spec import ExperimentSpec

Why = Literal["quorum", "steps", "timeout", "high water", "flush", "void", "wait"]


class Given(Protocol):
    """What a decision looks at; `broker.experience_types.Pointer` has it."""

    @property
    def shard(self) -> int: ...
    @property
    def given(self) -> int: ...
    @property
    def version_min(self) -> int: ...
    @property
    def steps(self) -> int: ...


G = TypeVar("G", bound=Given)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the spec says about updates.

    Attributes:
        sync: one batch of every active shard for each version.
        max_lag: versions a batch may be behind; None = no limit. Not looked at when `sync`.
        batch_steps: steps of one update when not `sync`.
        timeout_s: seconds a sync update waits, from the first batch of its version on, for the others.
        min_steps: fewest steps a learner can be given.
        usual_steps: steps of a whole update; a remainder below half of it is not worth one.
    """

    sync: bool
    max_lag: int | None
    batch_steps: int
    timeout_s: float
    min_steps: int
    usual_steps: int


def rules_of(spec: ExperimentSpec, *, min_steps: int) -> Rules:
    """The rules that a spec sets, for a learner that needs `min_steps`."""
    whole = spec.env.num_envs * spec.env.agents_each * spec.rollout.steps
    return Rules(
        sync=spec.rollout.sync,
        max_lag=spec.rollout.max_policy_lag,
        batch_steps=max(spec.trainer.batch_steps, min_steps),
        timeout_s=spec.trainer.sync_timeout,
        min_steps=min_steps,
        usual_steps=whole if spec.rollout.sync else spec.trainer.batch_steps,
    )


@dataclass(frozen=True, slots=True)
class Facts(Generic[G]):
    """How things stand.

    Attributes:
        version: newest policy version published.
        same: versions whose weights are the current ones, `version` among them: after a resume, the checkpoint's too.
        batches: read, decoded, waiting to be trained; of each shard in order.
        active: number of train shards that count.
        excused: version -> shards whose batch of that version is not coming to be trained.
        waited_s: seconds since the first batch of the current version came; 0 when none did.
        high_water: producers wait for room and nothing more can come before something is acked.
        gap: numbers that were left out, and do not count as versions.
    """

    version: int
    same: frozenset[int]
    batches: Sequence[G]
    active: int
    excused: Mapping[int, Collection[int]] = field(default_factory=dict)
    waited_s: float = 0.0
    high_water: bool = False
    gap: Gap = NO_GAP


@dataclass(frozen=True, slots=True)
class Decision(Generic[G]):
    """What to do.

    Attributes:
        train: batches of the next update, in order; () = no update now.
        stale: batches that are not to be trained any more.
        why: what made the update go ahead; "wait"; or "void": every shard gave this version and there is nothing to
            train, so that the same weights must be published under the next one, or all would wait for ever.
    """

    train: tuple[G, ...]
    stale: tuple[G, ...]
    why: Why


def decide(rules: Rules, facts: Facts[G]) -> Decision[G]:
    """The next update, or to wait for more; stale batches are named either way."""
    fresh, stale = sort_out(rules, facts)
    steps = sum(batch.steps for batch in fresh)
    enough = bool(fresh) and steps >= rules.min_steps
    why = _why_sync(rules, facts, fresh) if rules.sync else _why_async(rules, facts, steps)
    if not enough:
        return Decision((), stale, "void" if why == "quorum" else "wait")
    if why == "wait":
        return Decision((), stale, why)
    return Decision(_enough(fresh, rules.batch_steps) if why == "steps" else fresh, stale, why)


def decide_remainder(rules: Rules, facts: Facts[G]) -> Decision[G]:
    """What to do with what is left when an experiment ends: train what is worth an update; ask again after it."""
    fresh, stale = sort_out(rules, facts)
    steps = sum(batch.steps for batch in fresh)
    if fresh and steps >= max(rules.min_steps, rules.usual_steps / 2):
        return Decision(fresh if rules.sync else _enough(fresh, rules.batch_steps), stale, "flush")
    return Decision((), (*stale, *fresh), "wait")


def sort_out(rules: Rules, facts: Facts[G]) -> tuple[tuple[G, ...], tuple[G, ...]]:
    """The batches that may be trained on now, and those that are too old; both in order."""
    fresh: list[G] = []
    stale: list[G] = []
    for batch in facts.batches:
        (stale if _is_old(rules, facts, batch) else fresh).append(batch)
    return tuple(fresh), tuple(stale)


def version_of(rules: Rules, batch: Given) -> int:
    """The version that a batch counts for."""
    return batch.given if rules.sync and batch.given else batch.version_min


def _is_old(rules: Rules, facts: Facts[G], batch: G) -> bool:
    if batch.version_min in facts.same:
        return False
    if rules.sync:
        return batch.version_min < facts.version
    return is_stale(batch.version_min, facts.version, rules.max_lag, facts.gap)


def _why_sync(rules: Rules, facts: Facts[G], fresh: tuple[G, ...]) -> Why:
    # Only the newest version counts: one of equal weights from before a resume comes on top, and its shard plays on.
    gave = {batch.shard for batch in fresh if version_of(rules, batch) == facts.version}
    if facts.active and len(gave.union(facts.excused.get(facts.version, ()))) >= facts.active:
        return "quorum"
    if facts.waited_s >= rules.timeout_s:
        return "timeout"
    return "high water" if facts.high_water else "wait"


def _why_async(rules: Rules, facts: Facts[G], steps: int) -> Why:
    if steps >= rules.batch_steps:
        return "steps"
    return "high water" if facts.high_water else "wait"


def _enough(fresh: Sequence[G], batch_steps: int) -> tuple[G, ...]:
    steps = 0
    for count, batch in enumerate(fresh, start=1):
        steps += batch.steps
        if steps >= batch_steps:
            return tuple(fresh[:count])
    return tuple(fresh)
