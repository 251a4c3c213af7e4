"""Budget: how much of a run is used, and whether it is over.

Pure: it never reads a clock; seconds come in.
"""

from dataclasses import dataclass

from heddle.spec.models import Budget

RETURN_WINDOW = 100
"""Training episodes whose mean return counts, when there is no evaluation."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has used and reached.

    Attributes:
        env_steps: steps trained on.
        wall_s: seconds of running, pauses and outages of the trainer left out.
        mean_return: of the last evaluation, or of the last 100 training episodes; None before there is one.
        updates: done.
    """

    env_steps: int
    wall_s: float
    mean_return: float | None = None
    updates: int = 0


def reached(budget: Budget, spent: Spent) -> str:
    """Which limit is reached, in words; "" while there is some budget left."""
    target, mean = budget.target_return, spent.mean_return
    if target is not None and mean is not None and mean >= target:
        return f"reached target_return {target:g} (mean return {mean:.1f})"
    if budget.env_steps is not None and spent.env_steps >= budget.env_steps:
        return f"used env_steps {budget.env_steps}"
    if budget.updates is not None and spent.updates >= budget.updates:
        return f"used updates {budget.updates}"
    if budget.wall is not None and spent.wall_s >= budget.wall:
        return f"used wall {budget.wall:g} s"
    return ""


def progress(budget: Budget, spent: Spent) -> float:
    """Share of the budget that is used, 0 to 1, by the limit nearest to its end; 0 when only a return is asked for."""
    shares = [0.0]
    if budget.env_steps is not None:
        shares.append(spent.env_steps / budget.env_steps)
    if budget.updates is not None:
        shares.append(spent.updates / budget.updates)
    if budget.wall is not None:
        shares.append(spent.wall_s / budget.wall)
    return min(1.0, max(shares))
