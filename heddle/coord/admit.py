"""Admitting a submitted experiment: may it run here, and if so, its shards.

It never reads the queue and never issues tickets; admitting twice changes nothing.
"""

from heddle.broker import keys
from heddle.broker.records import StoredSpec
from heddle.errors import SpecError
from heddle.shard import plan_shards
from heddle.spec import ExperimentSpec, spec_from_json


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


__all__ = ["plan_shards", "read_spec"]
