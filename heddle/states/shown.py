"""What the Python API gives back as notebooks show it: lists and curves that know how they look as HTML.

Otherwise they are what they are called: a list, a dict, points.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from heddle import markup
from heddle.broker import Broker
from heddle.broker.metrics import Metric
from heddle.broker.records import Status
from heddle.errors import HeddleError
from heddle.states.judgement import Judgement


class Statuses(list[Status]):
    """Experiments, newest first."""

    def _repr_html_(self) -> str:
        header = ("experiment", "state", "why", "policy", "group")
        rows = [(one.experiment, one.state, one.reason, one.policy, one.group) for one in self]
        return markup.table(header, rows, empty="no experiment")


class Workers(dict[str, Judgement]):
    """How workers are, by id."""

    def _repr_html_(self) -> str:
        rows = [(name, one.state, one.why, one.do) for name, one in self.items()]
        return markup.table(("worker", "state", "why", "what to do"), rows, empty="no worker")


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one run.

    Attributes:
        experiment, metric: of which.
        points: (environment steps, value), in the order in which they were measured.
    """

    experiment: str
    metric: str
    points: tuple[tuple[float, float], ...]

    def _repr_html_(self) -> str:
        return markup.curve(self.points, label=f"{self.metric} of {self.experiment}")


def curve_of(experiment: str, metrics: Iterable[Metric], name: str) -> Curve:
    """A metric over steps; of entries that do not tell their steps, those before count."""
    steps, points = 0.0, []
    for metric in metrics:
        steps = metric.values.get("env_steps", steps)
        if name in metric.values:
            points.append((steps, metric.values[name]))
    return Curve(experiment, name, tuple(points))


def html_of_broker(broker: Broker) -> str:
    """Where it is, without its password, and its experiments."""
    where = broker.conn.url_redacted
    try:
        return markup.facts(where, "", []) + Statuses(broker.experiments.ls())._repr_html_()
    except HeddleError as error:
        return markup.facts(where, "", [("cannot be asked", error)])


def html_of(experiment: str, judged: Judgement, latest: Mapping[str, float], curves: Iterable[Curve]) -> str:
    """An experiment: how it is, what it measured last, and its curves."""
    names = ("env_steps", "return", "eval_return", "steps_per_second", "lag_mean")
    pairs: list[tuple[str, object]] = [("why", judged.why), ("what to do", judged.do)]
    pairs += [(name, latest[name]) for name in names if name in latest]
    drawn = "".join(curve._repr_html_() for curve in curves if curve.points)
    return markup.facts(experiment, judged.state, pairs) + drawn
