"""Accounts: the counters of an experiment's experience as JSON values.

It never counts; the broker's scripts do.
"""

from typing import Any

from heddle.broker.experience_types import Amount, Flow

NAMES = ("appended", "trained", "evaluated", "stale", "dead", "dropped", "rolled_back", "discarded", "forgotten")


def accounting(flow: Flow) -> dict[str, Any]:
    """The counters of promise P2, in batches and steps."""
    amounts: dict[str, Amount] = {name: getattr(flow, name) for name in NAMES}
    shown = {name: {"batches": amount.batches, "steps": amount.steps} for name, amount in amounts.items()}
    return shown | {"in_flight": {"batches": flow.entries, "steps": flow.steps}}
