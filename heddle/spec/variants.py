"""Variants: which environment of an experiment is of which kind. Pure.

They are spread as evenly as they can be, so that every shard, and whatever a worker's death takes away for a moment,
has about the mix that the spec asks for.
"""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from heddle.spec.environments import Env, Variant
from heddle.spec.explain import Fault
from heddle.spec.models import ExperimentSpec


def variant_of(spec: ExperimentSpec, index: int) -> Variant | None:
    """The variant of environment `index` of the experiment; None where there are none.

    Args:
        index: evaluation environments are numbered behind the training ones, and have the same mix.
    """
    variants = spec.env.variants
    if not variants:
        return None
    shares = tuple(variant.weight if variant.count is None else float(variant.count) for variant in variants)
    train = spec.env.num_envs
    if index < train:
        return variants[_spread(shares, train)[index]]
    total = max(index - train + 1, 0 if spec.eval is None else spec.eval.num_envs)
    return variants[_spread(shares, total)[index - train]]


def env_of(spec: ExperimentSpec, index: int) -> Env:
    """[env] as environment `index` is made from it."""
    variant = variant_of(spec, index)
    if variant is None:
        return spec.env
    return spec.env.model_copy(update={"kwargs": {**spec.env.kwargs, **variant.kwargs}})


def first_of_each(spec: ExperimentSpec) -> dict[str, int]:
    """Variant's name -> its first training environment; {"": 0} where there are none."""
    first: dict[str, int] = {}
    for index in range(spec.env.num_envs if spec.env.variants else 1):
        variant = variant_of(spec, index)
        first.setdefault("" if variant is None else variant.name, index)
        if len(first) == max(1, len(spec.env.variants)):
            break
    return first


def mix(spec: ExperimentSpec, first: int, num_envs: int) -> str:
    """How many of `num_envs` environments from `first` on are of each variant, e.g. "easy 6, hard 2"; "" without."""
    found = [variant for index in range(first, first + num_envs) if (variant := variant_of(spec, index))]
    counts = Counter(variant.name for variant in found)
    return ", ".join(f"{variant.name} {counts[variant.name]}" for variant in spec.env.variants if counts[variant.name])


def variant_faults(spec: ExperimentSpec) -> Iterator[Fault]:
    """What cannot be meant."""
    variants, total = spec.env.variants, spec.env.num_envs
    if not variants:
        return
    key = ("env", "variants")
    names = Counter(variant.name for variant in variants)
    for name in [name for name, count in names.items() if count > 1]:
        yield Fault(key, name, "names two variants", "give each a name of its own")
    counts = [variant.count for variant in variants if variant.count is not None]
    if counts and len(counts) < len(variants):
        yield Fault(key, len(counts), "variants have a count, others have none", "give all a count, or all a weight")
    elif counts and sum(counts) != total:
        yield Fault(key, sum(counts), f"is the sum of all counts, and env.num_envs is {total}", "make them equal")
    elif missing := sorted(names.keys() - first_of_each(spec).keys()):
        reason = f"would have none of the {total} environments"
        yield Fault(key, missing[0], reason, "raise env.num_envs, or its weight")
    if spec.env.at_once:
        which = "agents" if spec.env.agents is not None else "vector = true"
        reason = f"has no meaning with {which}, where the environments of a shard are one object"
        yield Fault(key, len(variants), reason, "let the factory look at its parameter env_index")


@lru_cache(maxsize=16)
def _spread(shares: tuple[float, ...], total: int) -> tuple[int, ...]:
    """[total] the number of a variant for each environment: exact to one of each, and evenly mixed.

    Counts are those of the largest remainder; the k-th of c environments of a kind stands at (k + 1/2) / c.
    """
    wanted = np.array(shares) / sum(shares) * total
    counts = np.floor(wanted + 1e-9).astype(np.int64)
    rest = total - int(counts.sum())
    counts[np.argsort(counts - wanted, kind="stable")[:rest]] += 1
    places = np.concatenate([(np.arange(count) + 0.5) / max(1, count) for count in counts])
    kinds = np.repeat(np.arange(len(shares)), counts)
    spread: tuple[int, ...] = tuple(kinds[np.argsort(places, kind="stable")].tolist())
    return spread
