"""What an experiment will need, in numbers: shards, bytes per batch, batches per update, memory in the broker.

Pure: it never builds an environment; the bytes of one segment and of the weights are arguments.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from heddle.errors import Problem
from heddle.shard import ShardPlan, plan_shards
from heddle.spec.checks import batches_per_checkpoint, batches_per_update, steps_per_update
from heddle.spec.models import ExperimentSpec
from heddle.spec.sharing import is_shared

SERVER_OVERHEAD = 1.3
"""Memory a server needs for a stored byte: allocator classes, query and output buffers (measured)."""
POLICIES_KEPT = 3
BATCHES_PARKED = 2
"""A shard may hold one batch waiting for room and one being sent."""


SNAPSHOTS_KEPT = 2
"""A shard has its last one, and the one that its next batch brings."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What one experiment needs.

    Attributes:
        train_shards, eval_shards: shards of each kind.
        envs_per_shard: environments in the largest train shard.
        segment_bytes: one full segment of one environment.
        batch_bytes: one batch of the largest train shard, uncompressed.
        shared: it lies in shared memory where worker and trainer are on one host.
        batches_per_update, steps_per_update, bytes_per_update: what one update takes.
        updates: in the whole budget; None when the budget is not in steps.
        in_flight_bytes: most that can lie between workers and trainer, parked batches counted.
        policy_bytes: one version of the weights.
        snapshot_bytes: state of one environment, as a snapshot of its shard holds it; 0 without snapshots.
        broker_bytes: memory the broker should have for all of it.
    """

    train_shards: int
    eval_shards: int
    envs_per_shard: int
    segment_bytes: int
    batch_bytes: int
    shared: bool
    batches_per_update: int
    steps_per_update: int
    bytes_per_update: int
    updates: int | None
    in_flight_bytes: int
    policy_bytes: int
    snapshot_bytes: int
    broker_bytes: int


def needs(spec: ExperimentSpec, *, segment_bytes: int, policy_bytes: int = 0, snapshot_bytes: int = 0) -> Needs:
    """The numbers of `spec`, given the bytes of one full segment, of one version of the weights, and of one
    environment's snapshot."""
    shards = plan_shards(spec)
    train = [shard for shard in shards if shard.kind == "train"]
    batch_bytes = _largest(train) * spec.env.agents_each * segment_bytes
    cap = min(spec.limits.max_bytes, spec.limits.max_entries * batch_bytes)
    in_flight = cap + BATCHES_PARKED * sum(shard.lanes for shard in shards) * segment_bytes
    steps = steps_per_update(spec)
    budget = spec.budget.env_steps
    snapshots = SNAPSHOTS_KEPT * sum(shard.lanes for shard in train) * snapshot_bytes
    return Needs(
        train_shards=len(train),
        eval_shards=len(shards) - len(train),
        envs_per_shard=_largest(train),
        segment_bytes=segment_bytes,
        batch_bytes=batch_bytes,
        shared=is_shared(spec, batch_bytes),
        batches_per_update=batches_per_update(spec),
        steps_per_update=steps,
        bytes_per_update=math.ceil(steps / spec.rollout.steps) * segment_bytes,
        updates=spec.budget.updates if budget is None else math.ceil(budget / steps),
        in_flight_bytes=in_flight,
        policy_bytes=policy_bytes,
        snapshot_bytes=snapshot_bytes,
        broker_bytes=math.ceil(SERVER_OVERHEAD * (in_flight + POLICIES_KEPT * policy_bytes + snapshots)),
    )


def size_problems(spec: ExperimentSpec, needed: Needs) -> list[Problem]:
    """What cannot work at these sizes, though every key alone is fine."""
    problems = []
    if needed.batch_bytes > spec.limits.batch_bytes:
        problems.append(
            Problem(
                "limits.batch_bytes",
                spec.limits.batch_bytes,
                f"is below the {needed.batch_bytes} bytes of one batch"
                f" ({needed.envs_per_shard} environments x {needed.segment_bytes} bytes)",
                "lower env.envs_per_shard or rollout.steps, or raise it",
            )
        )
    replay = spec.trainer.replay
    if replay is not None and replay.capacity < 2 * needed.bytes_per_update:
        problems.append(
            Problem(
                "trainer.replay.capacity",
                replay.capacity,
                f"is below twice the {needed.bytes_per_update} bytes of one update: all is forgotten at once",
                f"use at least {2 * needed.bytes_per_update}, better a hundred times that",
            )
        )
    interval = batches_per_checkpoint(spec) * needed.batch_bytes
    if interval > spec.limits.max_bytes:
        problems.append(
            Problem(
                "limits.max_bytes",
                spec.limits.max_bytes,
                f"is below the {interval} bytes that lie in the stream between two checkpoints",
                f"use at least {interval}, or checkpoint more often",
            )
        )
    return problems


def _largest(shards: Sequence[ShardPlan]) -> int:
    return max((shard.num_envs for shard in shards), default=0)
