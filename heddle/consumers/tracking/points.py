"""Points: what one entry of the metrics stream says, as trackers show it.

Pure: it never asks the broker and never knows a tracker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heddle.broker.metrics import Metric

SYSTEM = frozenset(
    {
        *("update_seconds", "wait_seconds", "worker_wait_seconds", "checkpoint_seconds", "read_seconds"),
        *("steps_per_second", "wall_seconds", "cpu_seconds", "rss_bytes", "gpu_bytes", "gpu_use"),
        *("in_flight_batches", "in_flight_bytes", "worker_waiting"),
        *("stale_batches", "dead_batches", "dropped_batches"),
    }
)
"""Names that tell of the machinery; all others, those of learners of users too, tell of learning."""

Place = tuple[int, int]
"""Of an entry in its stream: server ms, and which of that ms."""


@dataclass(frozen=True, slots=True)
class Point:
    """One entry.

    Attributes:
        entry_id: in the stream.
        place: the same, to compare.
        update: of the trainer.
        step: environment steps that were trained on by then.
        values: by "rl/..." or "system/..." name; NaN where nothing could be measured.
    """

    entry_id: str
    place: Place
    update: int
    step: int
    values: Mapping[str, float]

    @property
    def time_ms(self) -> int:
        """Server ms."""
        return self.place[0]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is tracked.

    Attributes:
        experiment: its id; name, group, tags: of its spec.
        spec: resolved; toml: as it was written.
        code: the version that it was submitted with.
        created_ms: server ms.
        commit: of the submitter's own code, as `heddle.origin` tells it; "" for none.
    """

    experiment: str
    name: str
    group: str | None
    tags: tuple[str, ...]
    spec: Mapping[str, Any]
    toml: str
    code: str
    created_ms: int
    commit: str = ""

    @property
    def origin(self) -> dict[str, str]:
        """What it was made of."""
        return {"code": self.code, "commit": self.commit, "toml": self.toml}

    @property
    def flat(self) -> dict[str, Any]:
        """The resolved spec with dotted keys, lists as text."""
        return flattened(self.spec)


@dataclass(frozen=True, slots=True)
class Ending:
    """How an experiment ended.

    Attributes:
        state: completed, stopped or failed; reason: in words.
        result: numbers it left.
        checkpoint: the file to keep, where it is here.
    """

    state: str
    reason: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Path | None = None


def place_of(entry_id: str) -> Place:
    """Where an entry is in its stream."""
    ms, _, seq = entry_id.partition("-")
    return int(ms), int(seq or 0)


def named(name: str) -> str:
    """A metric as trackers call it: those of the machinery apart from those of learning."""
    is_system = name in SYSTEM or name.endswith("_seconds") or name.startswith(("gpu_", "lag_", "slowest_", "longest_"))
    return f"{'system' if is_system else 'rl'}/{name}"


def points_of(metrics: Sequence[Metric], step: int) -> list[Point]:
    """Entries as points.

    Args:
        step: environment steps before the first one; an evaluation does not tell its own.
    """
    found = []
    for metric in metrics:
        step = int(metric.values.get("env_steps", step))
        values = {named(name): value for name, value in metric.values.items()}
        found.append(Point(metric.entry_id, place_of(metric.entry_id), metric.update, step, values))
    return found


def flattened(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables with dotted keys; what is no number, text or truth becomes text."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            flat |= flattened(item, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = item if isinstance(item, str | int | float | bool | None) else str(item)
    return flat
