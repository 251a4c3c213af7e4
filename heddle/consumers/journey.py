"""Journeys: where the batches of an update spent their time, from the first step to the first use of what they taught.

It asks nobody: a pointer tells how long a batch was played and held, and when the broker accepted it; what time the
broker has is known from its last answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from heddle.broker.experience_types import Pointer
from heddle.clock import Clock
from heddle.consumers.reader import Loaded
from heddle.consumers.traced import Traces

STAGES = ("rollout", "append", "stream", "queue")
"""What every batch goes through before its update; "append" is from when it is ready until it is accepted."""
QUANTILES = (("p50", 0.5), ("p95", 0.95), ("max", 1.0))
KEPT = 64
"""Published versions that nobody was seen to use yet."""


@dataclass(frozen=True, slots=True)
class _Update:
    """The last one: its batches, which it was, and monotonic seconds."""

    batches: Sequence[Loaded]
    number: int
    began: float
    ended: float


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def play_step_metrics(pointers: Sequence[Pointer]) -> dict[str, float]:
    """Seconds that playing one environment step took, policy and encoding included: quantiles over batches."""
    took = [pointer.played_ms / 1000 / pointer.steps for pointer in pointers if pointer.steps]
    return {f"play_step_{name}_seconds": round(quantile(took, share), 7) for name, share in QUANTILES} if took else {}


class Journeys:
    """Of one seated trainer.

    Args:
        server_s: the broker's time, in seconds, at a monotonic moment; None while that is not known.
        traces: takes the same as spans; None when nobody traces.
    """

    def __init__(self, clock: Clock, server_s: Callable[[float], float | None], traces: Traces | None = None) -> None:
        self._clock = clock
        self._server_s = server_s
        self._traces = traces
        self._published: dict[int, float] = {}
        self._last: _Update | None = None

    def begin(self, version: int) -> None:
        """Published before the first update."""
        if self._traces is not None:
            self._traces.first(version, self._clock.monotonic())

    def of(self, batches: Sequence[Loaded], *, update: int, began: float, ended: float) -> dict[str, float]:
        """Metrics of an update on `batches`: seconds by stage, mean and 95th percentile over them, and of the slowest;
        seconds that shards took for a step."""
        self._last = _Update(batches, update, began, ended)
        spent = [self._stages(item, began) for item in batches]
        if not spent:
            return {}
        told = {f"{stage}_seconds": sum(one[stage] for one in spent) / len(spent) for stage in spent[0]}
        told |= {f"{stage}_p95_seconds": quantile([one[stage] for one in spent], 0.95) for stage in spent[0]}
        place = max(range(len(spent)), key=lambda at: sum(spent[at].values()))
        slowest, pointer = spent[place], batches[place].pointer
        told |= {f"slowest_{stage}_seconds": seconds for stage, seconds in slowest.items()}
        longest = max(range(len(spent)), key=lambda at: spent[at]["rollout"])
        told |= {"longest_rollout_seconds": spent[longest]["rollout"]} | self._first_use(batches)
        told = {name: round(seconds, 4) for name, seconds in told.items()}
        told |= play_step_metrics([item.pointer for item in batches])
        names = {"slowest_shard": pointer.shard, "slowest_epoch": pointer.epoch, "slowest_seq": pointer.seq}
        names["longest_shard"] = batches[longest].pointer.shard
        return told | {name: float(number) for name, number in names.items()}

    def published(self, version: int) -> dict[str, float]:
        """The update that was told last made this version, which workers can fetch now.

        Large weights of a run without a barrier are on their way.
        """
        assert self._last is not None, "an update comes before what it makes"
        last, now = self._last, self._clock.monotonic()
        self._last = None
        self._published[version] = now
        while len(self._published) > KEPT:
            del self._published[next(iter(self._published))]
        if self._traces is not None:
            self._traces.update(
                last.batches, update=last.number, version=version, began=last.began, ended=last.ended, published=now
            )
        return {"publish_seconds": round(now - last.ended, 4)}

    def _stages(self, item: Loaded, began: float) -> dict[str, float]:
        pointer, read_s = item.pointer, self._server_s(item.at)
        in_stream = {} if read_s is None else {"stream": max(0.0, read_s - pointer.appended_ms / 1000)}
        return {
            "rollout": pointer.played_ms / 1000,
            "append": pointer.held_ms / 1000,
            **in_stream,
            "queue": max(0.0, began - item.at),
        }

    def _first_use(self, batches: Sequence[Loaded]) -> dict[str, float]:
        """How long the newest version among those that a batch was played with, for the first time, lay unused."""
        fresh = [item.pointer for item in batches if item.pointer.version_min in self._published]
        if not fresh:
            return {}
        version = max(pointer.version_min for pointer in fresh)
        published_s = self._server_s(self._published[version])
        self._published = {one: at for one, at in self._published.items() if one > version}
        if published_s is None:
            return {}
        began_ms = min(
            pointer.appended_ms - pointer.held_ms - pointer.played_ms
            for pointer in fresh
            if pointer.version_min == version
        )
        return {"first_use_seconds": max(0.0, began_ms / 1000 - published_s)}
