"""Specs for contract tests: as little of one as the broker looks at."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from heddle.broker import Broker


def submission(name: str = "cartpole", **changes: Any) -> tuple[str, str, str, str]:
    """spec_json, toml, sha256 and name of a spec; `changes` are whole sections."""
    resolved = {"experiment": {"name": name, "pool": "default"}, **changes}
    text = json.dumps(resolved, sort_keys=True)
    return text, f'[experiment]\nname = "{name}"\n', hashlib.sha256(text.encode()).hexdigest(), name


def submitted(broker: Broker, name: str = "cartpole", suffix: str = "aaaa", **changes: Any) -> str:
    """The id of an experiment that is submitted now."""
    return broker.experiments.submit(*submission(name, **changes), suffix=suffix).id


def all_keys(broker: Broker) -> set[str]:
    """The name of every key."""
    return {key.decode() for key in broker.conn.main.scan_iter()}


@contextmanager
def out_of_memory(broker: Broker) -> Iterator[None]:
    """Within it, the server refuses every command that could need memory."""
    main = broker.conn.main
    before = main.config_get("maxmemory")["maxmemory"] or "0"
    main.config_set("maxmemory", 1)
    try:
        yield
    finally:
        main.config_set("maxmemory", before)


def seated(broker: Broker) -> tuple[str, int]:
    """An experiment whose trainer has its seat; its id and the seat's epoch."""
    experiment = submitted(broker)
    seat = broker.seats.claim_seat(experiment, "t1")
    assert seat is not None
    return experiment, seat
