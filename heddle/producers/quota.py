"""How many shards a worker holds: pure rules over its quota and the tickets it sees.

Nothing here talks to a broker or reads a clock.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quota:
    """What the coordinator wants of each worker of a pool.

    Attributes:
        floor, ceil: active shards / live workers, rounded down and up; (0, 0) when there is nothing to play.
        someone_below: another live worker holds less than `floor`.
        live: workers that are alive and not draining, this one included.
    """

    floor: int = 1
    ceil: int = 1
    someone_below: bool = False
    live: int = 1


BEAT_S = 1.0
BEATS_PER_S = 500.0
LONGEST_BEAT_S = 2.5
"""Half of the silence that is taken for odd (`states/workers.py`), which is 5 s with the default TTL."""
OLD_TICKET_TTLS = 0.5
BELOW_EVERY_S = 0.05
READS_PER_S = 1_000.0
PEEKS_PER_S = 500.0
PEEK_AT_LEAST_S = 0.2
MOST_PER_LOOK = 8
MANY_WORKERS = 64
"""From here on a worker reads several tickets at once: in a smaller pool that would leave too few to the others."""
PART_PER_READ = 16
"""Above its quota it reads this part of the tickets that wait, at most."""


def beat_every_s(quota: Quota, *, ttl_s: float) -> float:
    """Seconds between two heartbeats: one, and more where a pool has more than 500 workers."""
    return max(BEAT_S, min(LONGEST_BEAT_S, ttl_s / 4.0, quota.live / BEATS_PER_S))


def wants_more(held: int, quota: Quota) -> bool:
    """True while a worker that holds `held` shards reads tickets as a matter of course."""
    return held < max(1, quota.ceil) and not (held >= quota.floor > 0 and quota.someone_below)


def may_take_above(*, age_ms: int, urgent: bool, ttl_ms: int) -> bool:
    """True when a ticket may be taken by a worker at its quota: nobody took it in time, or its owner died."""
    return urgent or age_ms > OLD_TICKET_TTLS * ttl_ms


def tickets_at_once(held: int, quota: Quota, *, waiting: int | None = None, most: int = MOST_PER_LOOK) -> int:
    """How many tickets to read and claim together; one but where a large pool has many: each alone takes four trips.

    Args:
        held: shards that it holds.
        waiting: for one at its quota, how many tickets the pool's stream has; None for one below it.
        most: so many, at most.
    """
    if quota.live < MANY_WORKERS:
        return 1
    some = quota.ceil - held if waiting is None else waiting // PART_PER_READ
    return max(1, min(most, some))


def surplus(held: int, quota: Quota, *, chance: float) -> int:
    """How many shards to release at this batch boundary while another worker is below the floor: 0 or 1.

    Above `ceil` one goes for certain. Between floor and `ceil` several workers could give, and one
    of them is enough: each does so with a chance of 2 / live, asked once a heartbeat.

    Args:
        chance: uniform in [0, 1).
    """
    if not quota.someone_below or quota.floor <= 0 or held <= quota.floor:
        return 0
    if held > quota.ceil:
        return 1
    return 1 if chance < 2.0 / max(1, quota.live) else 0


def look_every_s(held: int, quota: Quota, *, ttl_s: float) -> float:
    """Seconds between two looks at the tickets.

    All workers of a pool together look a bounded number of times a second, those below quota twice as often; where a
    quarter of a lease's time is less than that takes, each looks once in that.
    """
    if wants_more(held, quota):
        return max(BELOW_EVERY_S, min(ttl_s / 4.0, quota.live / READS_PER_S))
    return max(PEEK_AT_LEAST_S, min(ttl_s / 4.0, quota.live / PEEKS_PER_S))
