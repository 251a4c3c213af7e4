"""`heddle`, only that seat, lead and restarts are a matter of a second: more deaths fit into a minute.

It never changes what is done, only how long it is waited for. `python -m tests.chaos.short ARGUMENTS`; with CHAOS_SHORT
= "restarts" in the environment seat and lead last as long as shipped.
"""

import os
import sys

WHAT = "CHAOS_SHORT"
SEAT_TTL_MS = 1_000
LEADER_TTL_MS = 1_000
RESTART_LAST_S = 0.5


def shorten() -> None:
    """Before anything else is imported, for some of these are taken over by value."""
    from heddle.launch import process
    from tests.chaos.witness import attend

    attend()
    process.HEDDLE = (sys.executable, "-m", "tests.chaos.short")
    if os.environ.get(WHAT) != "restarts":
        _shorten_leases()
    from heddle.launch import pacing

    pacing.RESTART_LAST_S = RESTART_LAST_S


def _shorten_leases() -> None:
    from heddle.broker import coordinators, seats

    seats.SEAT_TTL_MS = SEAT_TTL_MS
    coordinators.LEADER_TTL_MS = LEADER_TTL_MS
    for function in (coordinators.Coordinators.claim_leader, coordinators.Coordinators.renew_leader):
        assert function.__kwdefaults__ is not None
        function.__kwdefaults__["ttl_ms"] = LEADER_TTL_MS


def main() -> None:
    shorten()
    from heddle.__main__ import main as heddle

    heddle()


if __name__ == "__main__":
    main()
