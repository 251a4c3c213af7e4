"""Refusals: what scripts answer instead of doing it, as the errors that callers are given.

It never asks a server.
"""

from heddle.broker import keys
from heddle.errors import Gone, LeaderLost, SeatLost


def gone(experiment: str) -> Gone:
    """What to raise where there is no such experiment any more."""
    return Gone(f"no experiment {experiment!r}: it was removed, or the broker lost what it held")


def seat_lost(experiment: str, seat_epoch: int | None) -> SeatLost:
    """What to raise where somebody acts for a seat that is another trainer's now."""
    return SeatLost(f"{experiment}: another trainer took the seat after epoch {seat_epoch}")


def check_seat(experiment: str, seat_epoch: int | None, answer: str) -> None:
    """Raises Gone, SeatLost: a script that only the holder of the seat may run answered GONE or FENCED."""
    if answer == "GONE":
        raise gone(experiment)
    if answer == "FENCED":
        raise seat_lost(experiment, seat_epoch)


def check_leader(experiment: str, answer: str) -> None:
    """Raises Gone, LeaderLost: a script that only who leads may run answered GONE or FENCED."""
    if answer == "GONE":
        raise gone(experiment)
    if answer == "FENCED":
        raise LeaderLost(
            f"another coordinator leads; it has decided about {experiment} already", key=keys.ctl(experiment)
        )
