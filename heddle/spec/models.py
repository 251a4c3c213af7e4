"""The spec of an experiment as frozen models: every section of exp.toml, and the keys, types, bounds and defaults of
those that are short; the others are modules beside this one.

It never reads a file and never checks one key against another; `load.py` and `checks.py` do.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from heddle.spec.derive import with_derived
from heddle.spec.environments import Env
from heddle.spec.learning import LEARNERS, Trainer
from heddle.spec.policy import PolicySpec
from heddle.spec.tracking import Track
from heddle.spec.values import Bytes, Frozen, Seconds, Slug, Word, auto_none, none_auto

__all__ = ["LEARNERS", "PolicySpec", "Trainer"]


def _none_compression(value: object) -> object:
    return None if value == "none" else value


MOST_EVAL_STEPS = 1_000_000
"""Steps without the end of an episode after which an evaluation waits no longer."""


class Experiment(Frozen):
    """[experiment]: who it is.

    Attributes:
        name: short name; the id is this plus a suffix.
        seed: root of every random stream of the experiment.
        tags: free words to find it by.
        group: of experiments that belong together, such as those of a sweep; None for none.
        pool: the pool of workers that plays it.
    """

    name: Slug
    seed: int = Field(default=0, ge=0, lt=2**63)
    tags: Annotated[tuple[str, ...], Field(strict=False)] = ()
    group: Slug | None = None
    pool: Slug = "default"


class Rollout(Frozen):
    """[rollout]: how experience is cut and how old it may be.

    Attributes:
        steps: T, steps in a full segment.
        max_seconds: a slow environment's segment ends after this long, shorter than T.
        sync: one batch of every shard for each policy version.
        max_policy_lag: versions a segment may be behind before it is stale; None when sync.
        info_keys: numeric info values that travel with each step.
        compression: of batches on the wire.
        plane: how batches travel: auto, through shared memory where worker and trainer are on one host and the batch
            has 128 KiB or more, else through the broker; shm, as auto, whatever their size; redis, through the broker.
        frames: how stacked observations travel (FrameStackObservation): once, each frame once wherever the bytes of a
            batch show that they are stacks; whole, as they are; auto, once through the broker, whole in shared memory.
    """

    steps: int = Field(default=32, ge=1, le=1_000_000)
    max_seconds: Seconds | None = Field(default=None, gt=0)
    sync: bool = False
    max_policy_lag: int | None = Field(default=None, ge=0)
    info_keys: Annotated[tuple[Word, ...], Field(strict=False)] = ()
    compression: Annotated[Literal["lz4", "zstd"] | None, BeforeValidator(_none_compression)] = None
    plane: Literal["auto", "shm", "redis"] = "auto"
    frames: Literal["auto", "once", "whole"] = "auto"


class Data(Frozen):
    """[data]: recorded experience to train from, offline; without the section workers play.

    Attributes:
        path: folder that `heddle record-experience` wrote, where the trainer runs.
        min_return: only episodes whose recorded rewards add up to so much; None takes all.
    """

    path: str = Field(min_length=1)
    min_return: float | None = None


class Eval(Frozen):
    """[eval]: how the policy is measured; without the section it is not.

    Attributes:
        num_envs: environments that only evaluate.
        episodes: played for one evaluation, over all of them.
        every_updates: updates between evaluations.
        seed: root of their random streams; derived when not given.
        deterministic: the likeliest action instead of a drawn one.
        max_steps: of an environment that ends no episode, after which an evaluation waits for it no longer.
    """

    num_envs: int = Field(default=4, ge=1, le=4096)
    episodes: int = Field(default=20, ge=1)
    every_updates: int = Field(default=50, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**63)
    deterministic: bool = True
    max_steps: int = Field(default=MOST_EVAL_STEPS, ge=1)


class Budget(Frozen):
    """[budget]: when it is over; the first limit reached ends it cleanly.

    Attributes:
        env_steps: steps accepted for training.
        updates: of the learner.
        passes: over the whole of the recording; with [data] only.
        wall: seconds of running.
        target_return: mean return, of the evaluation when there is one, else of the last 100 training episodes.
    """

    env_steps: int | None = Field(default=None, ge=1)
    updates: int | None = Field(default=None, ge=1)
    passes: int | None = Field(default=None, ge=1)
    wall: Seconds | None = Field(default=None, gt=0)
    target_return: float | None = None


class Faults(Frozen):
    """[faults]: what happens when things break.

    Attributes:
        lease_ttl: seconds without a renewal after which a shard may be given to another worker.
        barren_deaths: workers that may die on a shard without a single batch before it is quarantined.
        env_failures: failures in a row of one shard's environments, or of the policy in them, before it is quarantined
            although it gives batches; 0: any number. One follows another where fewer than 100 batches were accepted
            between them, or where what failed had not finished an episode.
        on_quarantine: go on with the other shards, or fail the experiment.
        trainer_failures: trainers that may end in a row with the same error and nothing trained between them before
            the experiment fails with it; 0: any number.
        snapshot_every: batches from one snapshot of a shard's environments to the next; 0: none are taken;
            None, written "auto": as often as that costs at most 3 % of the playing.
    """

    lease_ttl: Seconds = Field(default=10.0, ge=0.2, le=3600)
    barren_deaths: int = Field(default=5, ge=1)
    env_failures: int = Field(default=10, ge=0)
    on_quarantine: Literal["continue", "fail"] = "continue"
    trainer_failures: int = Field(default=10, ge=0)
    snapshot_every: Annotated[
        int | None,
        Field(ge=0),
        BeforeValidator(none_auto),
        PlainSerializer(auto_none, return_type=Any, when_used="json"),
    ] = None


class Limits(Frozen):
    """[limits]: how much may be in flight, and how safely it must be kept.

    Attributes:
        max_entries: batches between workers and trainer; derived when not given.
        max_bytes: bytes between workers and trainer.
        batch_bytes: size cap of one batch.
        durability: the least the broker must promise; None accepts any.
        snapshot_bytes: size cap of one shard's snapshot; above it none is stored.
    """

    max_entries: int = Field(default=1024, ge=1)
    max_bytes: Bytes = Field(default=512 * 2**20, ge=1024)
    batch_bytes: Bytes = Field(default=64 * 2**20, ge=1024, le=512 * 2**20)
    durability: Literal["strict", "fast", "memory"] | None = None
    snapshot_bytes: Bytes = Field(default=16 * 2**20, ge=1024, le=512 * 2**20)


class ExperimentSpec(Frozen):
    """The whole of exp.toml, every value filled in.

    Derived values (`env.envs_per_shard`, `env.reset_timeout`, `rollout.max_policy_lag`, `trainer.batch_steps`,
    `eval.seed`, `limits.max_entries`) are filled in when the model is made from a mapping.
    """

    experiment: Experiment
    env: Env
    policy: PolicySpec = Field(default_factory=PolicySpec)
    rollout: Rollout = Field(default_factory=Rollout)
    trainer: Trainer = Field(default_factory=Trainer)
    data: Data | None = None
    eval: Eval | None = None
    budget: Budget
    faults: Faults = Field(default_factory=Faults)
    limits: Limits = Field(default_factory=Limits)
    track: Track | None = None

    @property
    def plane(self) -> Literal["auto", "shm", "redis"]:
        """How batches travel: what must survive the host as well as the server does not lie in a host's memory."""
        return "redis" if self.limits.durability == "strict" else self.rollout.plane

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, value: object) -> object:
        return with_derived(value)[0] if isinstance(value, Mapping) else value

    def canonical_json(self) -> str:
        """The resolved spec as JSON with sorted keys: equal specs give equal text.

        Without [track] there is no word of it: roles that do not know the section read such a spec.
        """
        resolved = self.model_dump(mode="json", exclude={"track"} if self.track is None else None)
        return json.dumps(resolved, sort_keys=True, separators=(",", ":"))

    def sha256(self) -> str:
        """Digest of the canonical JSON, in hex."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()
