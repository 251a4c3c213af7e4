"""Values of a spec that follow from others when they are not given.

It never validates: a value of the wrong type is left for the models to name, and nothing is derived from it.
"""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from heddle.spec.policy import derived_group, derived_policy

MOST_ENVS_PER_SHARD = 64
"""A shard is what one worker steps in one thread and what is lost at once: 64 keeps both small."""
SHARDS_AIMED_AT = 4
LAG_WHEN_NOT_SYNC = 4
MOST_IN_MINIBATCH = 64
"""Unless the spec says otherwise; fewer where an update has fewer steps."""
OFFLINE_BATCH_STEPS = 2048
"""Of recorded steps, which lie ready, more go into an update."""
EVAL_SEED_OFFSET = 1_000_000
LEAST_MAX_ENTRIES = 1024
"""In a synchronous run, which holds itself back: one batch a shard and version."""

REPLAYING = {"dqn": "q", "sac": "sac"}
"""Learners with a replay buffer, and the policy that each of them trains."""
_BY_LEARNER: dict[str, dict[str, object]] = {
    "vtrace": {"vtrace": {}, "passes": 1, "gae_lambda": 1.0, "normalize_advantage": False},
    "dqn": {"dqn": {}, "replay": {}, "minibatch": 64, "max_grad_norm": 10.0},
    "sac": {"sac": {}, "replay": {"samples_per_step": 256.0}, "minibatch": 256, "max_grad_norm": 1000.0},
}
"""Keys of [trainer] whose default depends on the learner, as its paper has them."""


def with_derived(raw: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """A copy of `raw` with missing derived values filled in, and the dotted keys of those."""
    filling = _Filling(raw)
    if isinstance(filling.sections.get("env"), dict):
        filling.give("env", "envs_per_shard", envs_per_shard(filling.num_envs))
        if "step_timeout" in filling.of("env"):
            filling.give("env", "reset_timeout", filling.of("env")["step_timeout"])
    replays = str(filling.of("trainer").get("learner")) in REPLAYING  # to them, experience never is too old
    filling.give("rollout", "max_policy_lag", None if filling.sync or replays else LAG_WHEN_NOT_SYNC)
    learner = str(filling.of("trainer").get("learner", "ppo"))
    _fill_trainer(filling, learner)
    _fill_groups(filling.sections)
    for key, value in _of_policy(learner, filling.of("policy")).items():
        filling.give("policy", key, value)
    if isinstance(filling.sections.get("eval"), dict):
        seed = filling.of("experiment").get("seed", 0)
        filling.give("eval", "seed", _positive(seed, least=0) + EVAL_SEED_OFFSET)
    filling.give("limits", "max_entries", _most_entries(filling))
    return filling.sections, frozenset(filling.derived)


class _Filling:
    """A spec while missing values are filled in.

    Attributes:
        sections: all of it, by name.
        derived: dotted keys of what was not given.
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.sections: dict[str, Any] = {name: _open(section) for name, section in raw.items()}
        self.derived: set[str] = set()
        self.num_envs = _positive(self.of("env").get("num_envs", 8))
        self.steps = _positive(self.of("rollout").get("steps", 32))
        self.agents = _positive(self.of("env").get("agents", 1))
        self.sync = self.of("rollout").get("sync", False) is True

    def of(self, name: str) -> Mapping[str, Any]:
        """A section as it is now; an empty one where there is none."""
        found = self.sections.get(name)
        return found if isinstance(found, Mapping) else {}

    def give(self, name: str, key: str, value: object) -> None:
        """Fill in a value that is not there."""
        target = self.sections.setdefault(name, {})
        if isinstance(target, dict) and key not in target:
            target[key] = value
            self.derived.add(f"{name}.{key}")

    @property
    def version_steps(self) -> int:
        """Steps of one segment of every environment."""
        return self.num_envs * self.agents * self.steps

    @property
    def update_steps(self) -> int:
        """Steps of one update, once [trainer] is filled so far."""
        return self.version_steps if self.sync else _positive(self.of("trainer").get("batch_steps"))


def _fill_trainer(filling: _Filling, learner: str) -> None:
    """Keys of [trainer] that follow from the learner and from how much one update is."""
    offline = isinstance(filling.sections.get("data"), dict)
    filling.give(
        "trainer", "batch_steps", max(OFFLINE_BATCH_STEPS, filling.steps) if offline else filling.version_steps
    )
    for key, value in _of_learner(learner, filling.sections).items():
        filling.give("trainer", key, value)
    update = filling.update_steps
    whole = learner == "vtrace"  # whose targets want whole segments, and few steps of the newest weights
    filling.give("trainer", "minibatch", update if whole else min(MOST_IN_MINIBATCH, update))


def _most_entries(filling: _Filling) -> int:
    """Entries of the stream that are enough for a run never to wait for room while its trainer keeps up."""
    num_envs = filling.num_envs
    per_shard = _positive(filling.of("env").get("envs_per_shard", 1))
    shards = math.ceil(num_envs / per_shard)
    every = _positive(filling.of("trainer").get("checkpoint_every", 1))
    if filling.sync:
        return max(LEAST_MAX_ENTRIES, 4 * shards * every)
    lag = _positive(filling.of("rollout").get("max_policy_lag"), least=0)
    eval_shards = math.ceil(_positive(filling.of("eval").get("num_envs", 0), least=0) / per_shard)
    batches = math.ceil(filling.update_steps / (min(per_shard, num_envs) * filling.agents * filling.steps))
    return backlog(lag=lag, batches=batches, every=every, shards=shards) + 2 * eval_shards


def _of_learner(learner: str, filled: Mapping[str, Any]) -> dict[str, object]:
    """Keys of [trainer] that follow from the learner; its tables that are there get theirs at once."""
    trainer = filled.get("trainer")
    own = _BY_LEARNER.get(learner, {})
    for key, value in own.items():
        if isinstance(trainer, dict) and isinstance(value, dict) and isinstance(trainer.get(key), Mapping | BaseModel):
            trainer[key] = value | _open(trainer[key])
    return own


def _of_policy(learner: str, given: Mapping[str, Any]) -> dict[str, object]:
    """Keys of [policy] that follow from its id, and its id from the learner."""
    needed: dict[str, object] = {"id": REPLAYING[learner]} if learner in REPLAYING else {}
    chosen = given.get("id", needed.get("id", "mlp"))
    return needed | derived_policy(chosen, given.get("torso", "mlp"))


def _fill_groups(filled: dict[str, Any]) -> None:
    """Each of [[policy.groups]] gets the keys that it has not: those given in [policy], and what follows from its id.

    One that plays past versions of another gets those of that one first.
    """
    policy = filled.get("policy")
    groups = policy.get("groups") if isinstance(policy, dict) else None
    if not isinstance(policy, dict) or not isinstance(groups, list | tuple):
        return
    opened = [_open(group) for group in groups]
    named = {str(one.get("name")): one for one in opened if isinstance(one, dict)}
    policy["groups"] = [
        derived_group(one, policy | named.get(str(one.get("past_of")), {})) | one if isinstance(one, dict) else one
        for one in opened
    ]


def backlog(*, lag: int, batches: int, every: int, shards: int) -> int:
    """Entries in flight above which an asynchronous run would only collect what is stale when its turn comes.

    What the trainer holds until its next checkpoint, and what it can train before it is `lag` versions old; less one
    batch a shard, which a waiting worker keeps on top of it.

    Args:
        lag: policy versions that a segment may be behind.
        batches: of one update.
        every: updates between checkpoints.
        shards: train shards.
    """
    return max(batches * (every + 1), batches * (every + lag) - shards)


def _open(section: object) -> Any:
    """A section as a dict of its own: a mapping, or a model with what was given to it; others unchanged."""
    if isinstance(section, BaseModel):
        return section.model_dump(exclude_unset=True)
    return dict(section) if isinstance(section, Mapping) else section


def envs_per_shard(num_envs: int) -> int:
    """Environments per shard so that a laptop gets about four shards and a fleet shards of 64."""
    return min(MOST_ENVS_PER_SHARD, math.ceil(num_envs / SHARDS_AIMED_AT))


def _positive(value: object, *, least: int = 1) -> int:
    """`value` when it is a whole number from `least` on, else `least`: the models will say what is wrong with it."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**62:
        return value
    return least
