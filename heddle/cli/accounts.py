"""The accounting of promise P2 as people and programs see it.

It never counts; the broker's scripts do.
"""

from heddle.broker.experience_types import Flow

OUTCOMES = ("trained", "evaluated", "stale", "dead", "dropped", "rolled_back")
"""Where an appended batch may end, in the order of promise P2."""


def accounting(flow: Flow) -> dict[str, dict[str, int]]:
    """The counters of promise P2, in batches and in steps, and what they leave unexplained.

    lost = appended that no counter and no stream entry accounts for; duplicated = accounted for, never appended.
    """
    counted = {}
    for unit in ("batches", "steps"):
        ended = {name: int(getattr(getattr(flow, name), unit)) for name in OUTCOMES}
        appended = int(getattr(flow.appended, unit))
        in_flight = flow.entries if unit == "batches" else flow.steps
        open_ = appended - sum(ended.values()) - in_flight
        counted[unit] = {
            "appended": appended,
            **ended,
            "in_flight": in_flight,
            "lost": max(0, open_),
            "duplicated": max(0, -open_),
        }
    return counted


def accounting_line(flow: Flow, *, unit: str = "batches") -> str:
    """The accounting in one line: appended = trained + ... + in flight; lost, duplicated."""
    counts = accounting(flow)[unit]
    ends = " + ".join(f"{name.replace('_', ' ')} {counts[name]:,}" for name in (*OUTCOMES, "in_flight"))
    line = f"appended {counts['appended']:,} = {ends}; lost {counts['lost']:,}, duplicated {counts['duplicated']:,}"
    forgotten = int(getattr(flow.forgotten, unit))
    line += f"; through shared memory {flow.mapped:,}" if flow.mapped and unit == "batches" else ""
    line += f"; forgotten by the broker {forgotten:,}" if forgotten else ""
    return f"{line}; besides, written by no worker {flow.foreign:,}" if flow.foreign else line


def adds_up(flow: Flow) -> bool:
    """True when nothing is lost and nothing is counted twice."""
    return all(counts["lost"] == 0 == counts["duplicated"] for counts in accounting(flow).values())
