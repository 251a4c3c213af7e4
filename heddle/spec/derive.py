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
    filled: dict[str, Any] = {name: _open(section) for name, section in raw.items()}
    derived: set[str] = set()

    def section(name: str) -> Mapping[str, Any]:
        found = filled.get(name)
        return found if isinstance(found, Mapping) else {}

    def give(name: str, key: str, value: object) -> None:
        target = filled.setdefault(name, {})
        if isinstance(target, dict) and key not in target:
            target[key] = value
            derived.add(f"{name}.{key}")

    num_envs = _positive(section("env").get("num_envs", 8))
    steps = _positive(section("rollout").get("steps", 32))
    if isinstance(filled.get("env"), dict):
        give("env", "envs_per_shard", envs_per_shard(num_envs))
        if "step_timeout" in section("env"):
            give("env", "reset_timeout", section("env")["step_timeout"])
    sync = section("rollout").get("sync", False) is True
    replays = str(section("trainer").get("learner")) in REPLAYING  # to them, experience never is too old
    give("rollout", "max_policy_lag", None if sync or replays else LAG_WHEN_NOT_SYNC)
    agents = _positive(section("env").get("agents", 1))
    offline = isinstance(filled.get("data"), dict)
    give("trainer", "batch_steps", max(OFFLINE_BATCH_STEPS, steps) if offline else num_envs * agents * steps)
    update = num_envs * agents * steps if sync else _positive(section("trainer").get("batch_steps"))
    learner = str(section("trainer").get("learner", "ppo"))
    for key, value in _of_learner(learner, filled).items():
        give("trainer", key, value)
    whole = learner == "vtrace"  # whose targets want whole segments, and few steps of the newest weights
    give("trainer", "minibatch", update if whole else min(MOST_IN_MINIBATCH, update))
    _fill_groups(filled)
    for key, value in _of_policy(learner, section("policy")).items():
        give("policy", key, value)
    seed = section("experiment").get("seed", 0)
    if isinstance(filled.get("eval"), dict):
        give("eval", "seed", _positive(seed, least=0) + EVAL_SEED_OFFSET)
    per_shard = _positive(section("env").get("envs_per_shard", 1))
    shards = math.ceil(num_envs / per_shard)
    every = _positive(section("trainer").get("checkpoint_every", 1))
    if sync:
        most = max(LEAST_MAX_ENTRIES, 4 * shards * every)
    else:
        lag = _positive(section("rollout").get("max_policy_lag"), least=0)
        eval_shards = math.ceil(_positive(section("eval").get("num_envs", 0), least=0) / per_shard)
        batches = math.ceil(update / (min(per_shard, num_envs) * agents * steps))
        most = backlog(lag=lag, batches=batches, every=every, shards=shards) + 2 * eval_shards
    give("limits", "max_entries", most)
    return filled, frozenset(derived)


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
