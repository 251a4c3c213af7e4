"""Series: what an experiment measured, update by update, from the broker or from its folder.

Pure but for `find`, which reads; it never draws.
"""

import glob
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from heddle.broker.metrics import Metric
from heddle.consumers.curve_file import CURVE, SPEC, Points, read_metrics, read_origin, read_points
from heddle.consumers.tracking.points import place_of
from heddle.errors import BrokerUnreachable, NotFound, UsageError
from heddle.states.results import interval95

if TYPE_CHECKING:
    from heddle.client import Client

Axis = Literal["steps", "time", "updates"]
AXES: dict[str, tuple[str, str]] = {
    "steps": ("env_steps", "environment steps"),
    "time": ("wall_seconds", "seconds of running"),
    "updates": ("", "updates"),
}
"""Axis to the metric it shows and its label."""
RUNS = Path("runs")
OWN_KEYS = (
    *("experiment.name", "experiment.seed", "experiment.tags", "experiment.group", "experiment.pool", "eval.seed"),
)
"""Keys of a spec that may differ between runs of one and the same setting."""
ORIGINS = ("code", "commit")
"""Versions of Heddle and of the submitter's own code: told where they differ, and of one setting all the same."""
GRID = 200


@dataclass(frozen=True, slots=True)
class Series:
    """One experiment's measurements.

    Attributes:
        name: its id.
        spec: the resolved spec, dotted key to value; {} when nobody kept it.
        points: (update, values by name), oldest first.
        origin: what it was made of, `code` and `commit`; {} when nobody kept it.
        cut: so many before them were measured, and are not here: the broker let go of them.
    """

    name: str
    spec: Mapping[str, Any]
    points: Points
    cut: int = 0
    origin: Mapping[str, str] = field(default_factory=dict)

    def metrics(self) -> list[str]:
        """Every name that was measured, sorted."""
        return sorted({name for _, values in self.points for name in values})

    def curve(self, metric: str, axis: Axis) -> tuple[tuple[float, float], ...]:
        """(x, y) where `metric` was measured and is finite; x is the last value known then, and never falls."""
        name, _ = AXES[axis]
        x, found = 0.0, []
        for update, values in self.points:
            x = max(x, values.get(name, x)) if name else float(update)
            y = values.get(metric, math.nan)
            if math.isfinite(y):
                found.append((x, y))
        return tuple(found)

    def last(self, metric: str) -> float:
        """The last finite value; NaN when there is none."""
        return next((y for _, v in reversed(self.points) if math.isfinite(y := v.get(metric, math.nan))), math.nan)


@dataclass(frozen=True, slots=True)
class Band:
    """Runs of one setting together, on a common grid.

    Attributes:
        label: what sets it apart from the other settings; runs: its members.
        x, mean: [G]; half: [G] half the width of the 95 % interval of the mean, NaN with a single run.
    """

    label: str
    runs: tuple[Series, ...]
    x: np.ndarray[Any, np.dtype[np.float64]]
    mean: np.ndarray[Any, np.dtype[np.float64]]
    half: np.ndarray[Any, np.dtype[np.float64]]


def find(what: str, client: "Client | None") -> Series:
    """An experiment by id or name of the broker's, else by folder, e.g. runs/cartpole-7f3a2b.

    What the broker has let go of is taken from its folder below `RUNS`, where there is one.

    Raises:
        NotFound: neither knows it.
    """
    folder = Path(what)
    if (folder / CURVE).is_file():
        return _from_folder(folder)
    if client is not None:
        try:
            experiment = client.experiment(what)
            points, cut = _measured(client, experiment.id)
            spec, origin = experiment.spec().canonical_json(), client.broker.experiments.spec(experiment.id).origin
            return Series(experiment.id, flat(json.loads(spec)), points, cut, origin)
        except NotFound:
            pass
    if folder.is_dir() and len(folder.parts) > 1:
        raise NotFound(f"the folder {folder} holds no {CURVE}: nothing was measured there")
    if not what or len(folder.parts) != 1 or folder.is_absolute():
        raise NotFound(f"no experiment {what!r}, and no folder of that name")
    named = [RUNS / what] if (RUNS / what / CURVE).is_file() else RUNS.glob(f"{glob.escape(what)}-??????")
    kept = sorted((one for one in named if (one / CURVE).is_file()), key=_changed)
    if not kept:
        where = "the broker knows it not" if client is not None else "no broker is reached"
        raise NotFound(f"no experiment {what!r}: {where}, and there is no {RUNS / what / CURVE}")
    return _from_folder(kept[-1])


def find_all(names: Sequence[str], redis_url: str | None) -> list[Series]:
    """`find` for each; without a broker from folders alone. Raises NotFound, BrokerError where one was named."""
    from heddle.cli.options import connect

    if all((Path(name) / CURVE).is_file() for name in names):
        return [find(name, None) for name in names]
    try:
        client = connect(redis_url)
    except BrokerUnreachable:
        if redis_url is not None:
            raise
        return [find(name, None) for name in names]
    with client:
        return [find(name, client) for name in names]


def check_metric(series: Sequence[Series], metric: str) -> None:
    """Raises UsageError, with what there is, when none of them measured it; NotFound when nothing was measured."""
    if any(math.isfinite(one.last(metric)) for one in series):
        return
    known = sorted({name for one in series for name in one.metrics()})
    if not known:
        raise NotFound(f"nothing was measured yet in {', '.join(one.name for one in series)}")
    raise UsageError(f"no metric {metric!r} in these; there are: {', '.join(known)}")


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; a schedule is one value, "0.001 to 0"."""
    found: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping) and set(item) == {"start", "end"}:
            found[f"{prefix}{name}"] = f"{_shown(item['start'])} to {_shown(item['end'])}"
        elif isinstance(item, Mapping) and item:
            found |= flat(item, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = item
    return found


def differences(series: Sequence[Series]) -> dict[str, list[Any]]:
    """Dotted keys in which the specs differ, each with a value for every run; names and seeds are left out."""
    keys = sorted({key for one in series for key in one.spec} - set(OWN_KEYS))
    found = {key: [one.spec.get(key) for one in series] for key in keys}
    return {key: values for key, values in found.items() if any(value != values[0] for value in values)}


def told_differences(series: Sequence[Series]) -> dict[str, list[Any]]:
    """The same, and before it of what runs were made, where that differs."""
    made = {name: [one.origin.get(name, "") for one in series] for name in ORIGINS}
    return {name: list[Any](each) for name, each in made.items() if len(set(each)) > 1} | differences(series)


def grouped(series: Sequence[Series]) -> list[tuple[str, list[Series]]]:
    """Runs of one setting together, in the order of their first; each with a label that sets it apart."""
    differing = differences(series)
    groups: dict[str, list[Series]] = {}
    for place, one in enumerate(series):
        own = ", ".join(f"{_short_key(key, differing)}={_shown(values[place])}" for key, values in differing.items())
        groups.setdefault(own, []).append(one)
    return [(label or runs[0].name.rpartition("-")[0] or runs[0].name, runs) for label, runs in groups.items()]


def band(label: str, runs: Sequence[Series], metric: str, axis: Axis) -> Band | None:
    """Mean and interval of `metric` where all of `runs` were measured; None when they have no common stretch."""
    measured = [(one, curve) for one in runs if (curve := one.curve(metric, axis))]
    if not measured:
        return None
    curves = [curve for _, curve in measured]
    low, high = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    if high < low:
        return None
    x = np.linspace(low, high, GRID if high > low else 1)
    columns = [np.asarray(curve, np.float64) for curve in curves]
    rows = np.stack([np.interp(x, column[:, 0], column[:, 1]) for column in columns])
    return Band(
        label,
        tuple(one for one, _ in measured),
        x,
        rows.mean(axis=0),
        np.asarray([interval(column.tolist()) for column in rows.T]),
    )


def interval(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the mean, by Student's t; NaN below two values."""
    ends = interval95(values)
    return math.nan if ends is None else (ends[1] - ends[0]) / 2


def _measured(client: "Client", experiment: str) -> tuple[Points, int]:
    """Everything that can be had here, and how many measurements before it cannot."""
    kept, cut = _all_metrics(client, experiment), client.broker.events.metrics_cut(experiment)
    earlier = _before(RUNS / experiment / CURVE, kept) if cut or not kept or kept[0].update > 1 else []
    return [(one.update, dict(one.values)) for one in [*earlier, *kept]], max(0, cut - len(earlier))


def _before(path: Path, kept: Sequence[Metric]) -> list[Metric]:
    """What a run's file says of the time before the first of `kept`; [] where there is none."""
    try:
        found = [one for one in read_metrics(path) if one.entry_id]
        return [one for one in found if not kept or place_of(one.entry_id) < place_of(kept[0].entry_id)]
    except (OSError, ValueError):  # no such file, or ids that nobody of ours wrote
        return []


def _all_metrics(client: "Client", experiment: str) -> list[Metric]:
    found: list[Metric] = []
    while page := client.broker.events.metrics_read(experiment, found[-1].entry_id if found else "0"):
        found += page
    return found


def _from_folder(folder: Path) -> Series:
    try:
        spec = flat(json.loads((folder / SPEC).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        spec = {}
    return Series(folder.resolve().name, spec, read_points(folder / CURVE), origin=read_origin(folder))


def _changed(folder: Path) -> float:
    return folder.stat().st_mtime


def _short_key(key: str, keys: Iterable[str]) -> str:
    """The last part of a dotted key where that is enough to tell it from the others."""
    last = key.rpartition(".")[2]
    return last if sum(one.rpartition(".")[2] == last for one in keys) == 1 else key


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
