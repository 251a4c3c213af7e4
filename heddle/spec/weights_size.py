"""The least that one version of the weights takes, told from [policy] alone: what no broker could carry is refused.

Pure, and never more than is sure: what is seen and how many actions there are, only an environment tells.
"""

import itertools
import math
from collections.abc import Iterator

from heddle.spec.explain import Fault
from heddle.spec.locate import KeyPath
from heddle.spec.models import ExperimentSpec
from heddle.spec.policy import POLICIES, RECURRENT, Network

MOST_BYTES = 8 * 2**30
"""Of one version: the broker keeps three of them and the one that is evaluated, and every worker has one."""
FLOAT_BYTES = 4
GATES = {"lstm": 4, "gru": 3}


def weights_faults(spec: ExperimentSpec) -> Iterator[Fault]:
    """Networks whose weights nobody could publish."""
    groups = spec.policy.groups
    named: list[tuple[KeyPath, Network]] = [(("policy", "groups", place), group) for place, group in enumerate(groups)]
    for path, network in named or [(("policy",), spec.policy)]:
        parts = _least_numbers(network)
        least = FLOAT_BYTES * sum(parts.values())
        if least > MOST_BYTES:
            key = max(parts, key=lambda part: parts[part])
            value = getattr(network, key)
            reason = f"makes one version of the weights at least {least:,} bytes, more than {MOST_BYTES:,}"
            yield Fault((*path, key), list(value) if isinstance(value, tuple) else value, reason, "use smaller layers")


def _least_numbers(network: Network) -> dict[str, int]:
    """Key -> the numbers, weights and biases, that it asks for with one number to see and one action."""
    if network.id not in POLICIES or network.id == "random":
        return {}
    found = {"hidden": _of_layers((1, *network.hidden, 1))}
    if network.looks_through == "cnn":
        channels = (1, *(channels for channels, _, _ in network.filters))
        sizes = zip(itertools.pairwise(channels), network.filters, strict=True)
        found["filters"] = sum(before * after * kernel**2 + after for (before, after), (_, kernel, _) in sizes)
    if network.id in RECURRENT:
        found["recurrent_size"] = GATES[network.id] * _of_layers((network.recurrent_size, network.recurrent_size))
    return found


def _of_layers(widths: tuple[int, ...]) -> int:
    return sum(math.prod(pair) + pair[1] for pair in itertools.pairwise(widths))
