"""Results of a group: what its experiments reached, per combination, with a mean and an interval over the seeds.

Pure: it never asks the broker.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix

from heddle.broker.records import Status
from heddle.spec import ExperimentSpec

METRICS = ("eval_return", "return")
"""What counts when nobody says what: the first that an experiment of the group has."""

# Two-sided 95 % points of Student's t by degrees of freedom (Fisher and Yates 1938, table III); beyond them by number
# of degrees from which a value holds, always the cautious one.
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_T95_BEYOND = ((120, 1.980), (60, 2.000), (40, 2.021), (30, 2.042))


@dataclass(frozen=True, slots=True)
class Reached:
    """One experiment of a group.

    Attributes:
        status: how it is.
        spec: of it.
        metrics: newest of each name, over them what it left when it ended.
    """

    status: Status
    spec: ExperimentSpec
    metrics: Mapping[str, float]

    @classmethod
    def of(cls, status: Status, spec: ExperimentSpec, latest: Mapping[str, float]) -> "Reached":
        """By its newest metrics, and by what its trainer left where that says more."""
        left = {
            name: float(value)
            for name, value in status.result.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        return cls(status, spec, {**latest, **left})

    @property
    def values(self) -> tuple[str, ...]:
        """Its combination, "key=value" each, as the sweep wrote them into its tags."""
        return tuple(tag for tag in self.spec.experiment.tags if "=" in tag)


@dataclass(frozen=True, slots=True)
class Result:
    """One combination of a group.

    Attributes:
        values: "key=value" each; () for experiments that no sweep made.
        name: what the names of its experiments have in common.
        experiments: ids, in the order of their seeds.
        seeds: of each.
        states: of each.
        scores: of each; None where it has none yet, or failed.
        env_steps: of each.
        mean, low, high: over the scores that there are, with the ends of its 95 % interval; None where too few are.
    """

    values: tuple[str, ...]
    name: str
    experiments: tuple[str, ...]
    seeds: tuple[int, ...]
    states: tuple[str, ...]
    scores: tuple[float | None, ...]
    env_steps: tuple[int, ...]
    mean: float | None
    low: float | None
    high: float | None

    @property
    def done(self) -> int:
        """How many are over and did not fail."""
        return sum(state in ("completed", "stopped") for state in self.states)


def chosen_metric(found: Sequence[Reached]) -> str:
    """What the experiments are compared by, when nobody says: their evaluations, where one has any."""
    return next((name for name in METRICS if any(name in one.metrics for one in found)), METRICS[-1])


def results_of(found: Sequence[Reached], metric: str) -> list[Result]:
    """One result for each combination, in the order of their submission; of a spec that ran again its newest run."""
    newest: dict[str, Reached] = {}
    for one in sorted(found, key=lambda one: one.status.created_ms):
        newest[one.status.name] = one
    combinations: dict[str, list[Reached]] = {}
    for one in sorted(newest.values(), key=lambda one: one.status.created_ms):
        combinations.setdefault(_key(one), []).append(one)
    return [_result(ones, metric) for ones in combinations.values()]


def interval95(scores: Sequence[float]) -> tuple[float, float] | None:
    """Ends of the 95 % confidence interval of the mean by Student's t; None for fewer than two scores."""
    if len(scores) < 2:
        return None
    mean = math.fsum(scores) / len(scores)
    variance = math.fsum((score - mean) ** 2 for score in scores) / (len(scores) - 1)
    half = _t95(len(scores) - 1) * math.sqrt(variance / len(scores))
    return mean - half, mean + half


def _t95(degrees: int) -> float:
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    return next(value for least, value in _T95_BEYOND if degrees >= least)


def _key(one: Reached) -> str:
    """What experiments have in common that differ in nothing but their seed."""
    resolved = one.spec.model_dump(mode="json")
    resolved.pop("track", None)  # where it is shown changes nothing
    for section, key in (("experiment", "name"), ("experiment", "seed"), ("eval", "seed")):
        (resolved.get(section) or {}).pop(key, None)
    return json.dumps(resolved, sort_keys=True)


def _result(ones: Sequence[Reached], metric: str) -> Result:
    ones = sorted(ones, key=lambda one: one.spec.experiment.seed)
    scores = tuple(None if one.status.state == "failed" else one.metrics.get(metric) for one in ones)
    known = [score for score in scores if score is not None]
    ends = interval95(known)
    return Result(
        values=ones[0].values,
        name=commonprefix([one.status.name for one in ones]).removesuffix("-s" if len(ones) > 1 else "").rstrip("-"),
        experiments=tuple(one.status.experiment for one in ones),
        seeds=tuple(one.spec.experiment.seed for one in ones),
        states=tuple(one.status.state for one in ones),
        scores=scores,
        env_steps=tuple(int(one.metrics.get("env_steps", 0)) for one in ones),
        mean=math.fsum(known) / len(known) if known else None,
        low=ends[0] if ends else None,
        high=ends[1] if ends else None,
    )
