"""Losses: what is said of an experiment that cannot go on, since what somebody put something else in place of is lost.

It never looks for damage: `damage` and `numbers` do.
"""

from collections.abc import Sequence

MOST_NAMED = 3


def told(experiment: str, lost: Sequence[str], *, held: str) -> str:
    """What is wrong with it and what to do, for people; "" when nothing is lost.

    Args:
        lost: of each what is there instead.
        held: what of the experiment that was, and what is lost with it.
    """
    if not lost:
        return ""
    more = f" (and {len(lost) - MOST_NAMED} more)" if len(lost) > MOST_NAMED else ""
    said = ", ".join(lost[:MOST_NAMED]) + more
    return f"somebody put something else in the place of its {held} is lost: {said}; {onward(experiment)}"


def onward(experiment: str) -> str:
    """How to go on with what such an experiment has learned."""
    return f"go on from its checkpoints in a new run: heddle enqueue exp.toml --resume {experiment}"
