"""Pacing: whose part of a pool is how large, and how soon what ended is started again.

Pure.
"""

from collections.abc import Sequence

HEALTHY_S = 10.0
"""Whoever lived so long did not fail at its start."""
RESTART_FIRST_S = 0.2
RESTART_LAST_S = 30.0


def share(desired: int, supervisors: Sequence[str], me: str) -> int:
    """How many of `desired` workers fall to `me`: as even as can be, the rest to the first by name."""
    if me not in supervisors:
        return 0
    names = sorted(set(supervisors))
    each, rest = divmod(max(0, desired), len(names))
    return each + (1 if names.index(me) < rest else 0)


def restart_delay_s(failures: int, chance: float) -> float:
    """Seconds before a worker that ended unasked is started again: doubling, half of it jitter.

    Args:
        failures: ends in a row without a healthy run between them, >= 1.
        chance: uniform in [0, 1).
    """
    bound = min(RESTART_LAST_S, RESTART_FIRST_S * 2.0 ** min(failures - 1, 30))
    return bound * (0.5 + 0.5 * chance)
