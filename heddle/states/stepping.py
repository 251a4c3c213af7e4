"""Stepping: how workers step an experiment's environments where `env.stepping` leaves that to them, and why.

Pure: it reads what their heartbeats say.
"""

from collections import Counter

from heddle.states.facts import Facts


def stepping_of(facts: Facts) -> dict[str, str]:
    """By worker that lives, "threads: a step takes ..."; {} where the spec says how."""
    found: dict[str, str] = {}
    for worker, info in facts.pool.workers.items():
        for line in info.beat.pace.splitlines() if info.alive else ():
            experiment, _, told = line.partition(" ")
            if experiment == facts.status.experiment and told:
                found[worker] = told
    return found


def stepping_lines(facts: Facts) -> list[str]:
    """The same for people: each choice once, with its reason on one worker and how many made it."""
    told = stepping_of(facts)
    modes = Counter(one.partition(":")[0] for one in told.values())
    lines = []
    for mode, count in modes.most_common():
        worker, reason = next((who, one) for who, one in sorted(told.items()) if one.partition(":")[0] == mode)
        lines.append(reason if count == 1 == len(told) else f"{reason} (on {worker}; {count} of {len(told)} workers)")
    return lines
