"""Arguments that Heddle itself passes to what a spec names, where [kwargs] of the spec say them, too.

Pure, and it never raises: it returns what it finds.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from heddle.spec.environments import ENVPOOL, Env
from heddle.spec.explain import Fault
from heddle.spec.locate import KeyPath
from heddle.spec.models import ExperimentSpec
from heddle.spec.objects import is_object_name
from heddle.spec.policy import Network

OWN_NUMBER = {
    "env_index": "would give all environments the same number: Heddle tells each its own",
    "num_envs": "is what Heddle tells: how many environments there are",
}
_HINT = "leave it out; a parameter of another meaning needs another name"


def offered_faults(spec: ExperimentSpec) -> Iterator[Fault]:
    """Arguments that cannot be meant: they would take away what every environment or policy is told by Heddle."""
    for path, kwargs in _env_kwargs(spec.env):
        for name in _told(spec.env):
            if name in kwargs:
                yield Fault((*path, name), kwargs[name], OWN_NUMBER[name], _HINT)
    networks: list[tuple[KeyPath, Network]] = [(("policy",), spec.policy)]
    networks += [(("policy", "groups", place), group) for place, group in enumerate(spec.policy.groups)]
    for path, network in networks:
        if is_object_name(network.id) and "seed" in network.kwargs:
            reason = "is what Heddle passes: experiment.seed"
            yield Fault((*path, "kwargs", "seed"), network.kwargs["seed"], reason, _HINT)


def fixed_seed(spec: ExperimentSpec) -> str:
    """What follows where environments are all made with the seed of [env.kwargs], in words; "" where they are not.

    It may be meant, as for one layout that all play in.
    """
    if not (is_object_name(spec.env.id) or spec.env.id.startswith(ENVPOOL)):
        return ""  # constructors of Gymnasium's are passed none, so this is one of their own
    given = [".".join(map(str, (*path, "seed"))) for path, kwargs in _env_kwargs(spec.env) if "seed" in kwargs]
    return f"{given[0]} makes all environments with one seed, where Heddle passes each its own" if given else ""


def _told(env: Env) -> tuple[str, ...]:
    """What Heddle tells whoever makes environments, beside their seed."""
    if is_object_name(env.id):
        return ("env_index", "num_envs")
    return ("num_envs",) if env.vector else ()


def _env_kwargs(env: Env) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    yield ("env", "kwargs"), env.kwargs
    for place, variant in enumerate(env.variants):
        yield ("env", "variants", place, "kwargs"), variant.kwargs
