"""Admitting a submitted experiment: may it run here, and if so, its shards.

It never reads the queue and never issues tickets; admitting twice changes nothing.
"""

from heddle.broker import keys
from heddle.broker.records import StoredSpec
from heddle.errors import SpecError
from heddle.shard import plan_shards
from heddle.spec import ExperimentSpec, spec_from_json

DURABILITIES = ("memory", "fast", "strict")
"""From the least to the most a broker can promise."""


def read_spec(stored: StoredSpec) -> ExperimentSpec | str:
    """The spec, or why this coordinator cannot run it."""
    if stored.protocol != keys.PROTOCOL:
        return (
            f"it speaks protocol {stored.protocol}, this coordinator {keys.PROTOCOL};"
            f" submit it again with the version of Heddle that runs here"
        )
    try:
        return spec_from_json(stored.json)
    except SpecError as error:
        return f"its spec cannot be read: {error.problems[0]}"


def why_refused(spec: ExperimentSpec, durability: str) -> str:
    """Why the broker does not do for this spec; "" when it does."""
    least = spec.limits.durability
    if least is None or durability not in DURABILITIES:
        return ""
    if DURABILITIES.index(durability) >= DURABILITIES.index(least):
        return ""
    return f"limits.durability asks for {least}, but the broker is {durability}; lower it or change the broker"


__all__ = ["plan_shards", "read_spec", "why_refused"]
