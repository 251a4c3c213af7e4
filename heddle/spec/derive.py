"""Values of a spec that follow from others when they are not given.

It never validates: a value of the wrong type is left for the models to name, and nothing is derived from it.
"""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

MOST_ENVS_PER_SHARD = 64
"""A shard is what one worker steps in one thread and what is lost at once: 64 keeps both small."""
SHARDS_AIMED_AT = 4
LAG_WHEN_NOT_SYNC = 4
MOST_IN_MINIBATCH = 64
"""Unless the spec says otherwise; fewer where an update has fewer steps."""
EVAL_SEED_OFFSET = 1_000_000
LEAST_MAX_ENTRIES = 1024


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
    sync = section("rollout").get("sync", False) is True
    give("rollout", "max_policy_lag", None if sync else LAG_WHEN_NOT_SYNC)
    give("trainer", "batch_steps", num_envs * steps)
    update = num_envs * steps if sync else _positive(section("trainer").get("batch_steps"))
    give("trainer", "minibatch", min(MOST_IN_MINIBATCH, update))
    seed = section("experiment").get("seed", 0)
    if isinstance(filled.get("eval"), dict):
        give("eval", "seed", _positive(seed, least=0) + EVAL_SEED_OFFSET)
    shards = math.ceil(num_envs / _positive(section("env").get("envs_per_shard", 1)))
    every = _positive(section("trainer").get("checkpoint_every", 1))
    give("limits", "max_entries", max(LEAST_MAX_ENTRIES, 4 * shards * every))
    return filled, frozenset(derived)


def _open(section: object) -> object:
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
