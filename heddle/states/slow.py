"""Slow shards: those that the others of an experiment wait for, with who plays them.

Pure: it never asks the broker.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from heddle.broker.types import ShardState
from heddle.states.bottleneck import Bottleneck, Points, Uneven, find_bottleneck, find_uneven

RECENT = 50
"""Updates that say where time goes now."""


@dataclass(frozen=True, slots=True)
class SlowShards:
    """Shards that take much longer to play than the others.

    Attributes:
        uneven: which, and how long they take.
        players: each with the worker that has it or had it last, "" for none.
    """

    uneven: Uneven
    players: Mapping[int, str]

    @property
    def short(self) -> str:
        """In a few characters."""
        shards = self.uneven.shards
        return f"slow shard {shards[0]}" if len(shards) == 1 else f"{len(shards)} slow shards"

    @property
    def line(self) -> str:
        """What is known of them, in one line."""
        return f"{self.uneven.line}{self.played}"

    @property
    def played(self) -> str:
        """Who plays them, to be added to what is said of them; "" where nobody knows."""
        who = [(shard, worker) for shard, worker in self.players.items() if worker]
        if len(self.players) == 1:
            return f", played by {who[0][1]}" if who else ""
        return f", played by {', '.join(f'{worker} ({shard})' for shard, worker in who)}" if who else ""

    def as_json(self) -> list[dict[str, Any]]:
        """As plain values, one for each."""
        took = {"seconds": round(self.uneven.seconds, 4), "mean_seconds": round(self.uneven.mean, 4)}
        return [{"shard": shard, "worker": worker or None, **took} for shard, worker in self.players.items()]


def slow_shards(points: Points, shards: Iterable[ShardState]) -> SlowShards | None:
    """Those that the trainer of these updates waited for; None where it did not, or for no few alone."""
    if find_uneven(points) is None:  # cheap, and so it is nearly always
        return None
    found = find_bottleneck(points)
    return None if found is None else slow_of(found, shards)


def slow_of(found: Bottleneck, shards: Iterable[ShardState]) -> SlowShards | None:
    """Those that a bottleneck names."""
    if found.uneven is None:
        return None
    workers = {shard.shard: shard.last_worker for shard in shards}
    return SlowShards(found.uneven, {number: workers.get(number, "") for number in found.uneven.shards})
