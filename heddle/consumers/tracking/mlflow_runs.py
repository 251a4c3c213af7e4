"""MLflow: one run for the experiment, found again by a tag of its own.

With each batch of points the run's tag `heddle.recorded` says up to which entry it goes. What a kill left half sent is
compared with the run's history before it is sent again, so that no server and no store has a point twice. MLflow takes
nothing back: points of updates that were rolled back stay beside those that were measured anew; the tag
`heddle.rolled_back` counts how often that happened.
"""

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

from heddle.consumers.tracking.base import in_short, library
from heddle.consumers.tracking.points import Ending, Place, Point, Subject, place_of
from heddle.errors import TrackerDown
from heddle.spec.tracking import Mlflow, holds_secret

OURS = "heddle.experiment"
RECORDED = "heddle.recorded"
TAKEN_BACK = "heddle.rolled_back"
METRICS_AT_ONCE = 1000
PARAMS_AT_ONCE = 100
PARAM_CHARS = 500
STATES = {"completed": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
QUICK = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""A server that is away is asked again by us, and nobody else hears of runs."""


class MlflowRun:
    """A `Backend` that writes a run of MLflow."""

    kind = "mlflow"

    def __init__(self, settings: Mlflow, subject: Subject) -> None:
        for key, value in QUICK.items():
            os.environ.setdefault(key, value)
        self._library: Any = library("mlflow", "mlflow")
        self._entities: Any = library("mlflow.entities", "mlflow")
        uri = settings.uri or os.environ.get("MLFLOW_TRACKING_URI") or ""
        self._uri = uri or None
        shown = "the server of MLFLOW_TRACKING_URI" if holds_secret(uri) else uri or "MLflow's default store"
        self.where = f"{shown}, experiment {settings.experiment}"
        self._settings = settings
        self._subject = subject
        self._client: Any = None
        self._run = ""
        self._last: Place | None = None
        self._in_doubt = False

    def open(self) -> bool:
        with self._speaking("open the run"):
            self._client = library("mlflow.tracking", "mlflow").MlflowClient(tracking_uri=self._uri)
            place = self._experiment()
            found = self._client.search_runs([place], f"tags.`{OURS}` = '{self._subject.experiment}'", max_results=1)
            if not found:
                self._run = self._begin(place)
                return False
            self._run, tags = found[0].info.run_id, found[0].data.tags
            self._last = place_of(tags[RECORDED]) if RECORDED in tags else None
            self._in_doubt = True
            if found[0].info.status != "RUNNING":
                self._client.update_run(self._run, status="RUNNING")
            return True

    @property
    def last(self) -> Place | None:
        return self._last

    def knows(self, point: Point) -> bool:
        return self._last is not None and point.place <= self._last

    def add(self, points: Sequence[Point]) -> None:
        with self._speaking("send metrics"):
            for some in _portions(points):
                metrics = [metric for point in some for metric in self._metrics(point)]
                if self._in_doubt:
                    metrics = self._new_ones(metrics)
                    self._in_doubt = False
                tags = [self._entities.RunTag(RECORDED, some[-1].entry_id)]
                self._client.log_batch(self._run, metrics=metrics, tags=tags)
                self._last = some[-1].place

    def kept(self, points: Sequence[Point]) -> list[Point]:
        return [point for point in points if self.knows(point)]

    def take_back(self, update: int, step: int) -> None:
        del update, step
        with self._speaking("tell of a roll-back"):
            before = int(self._client.get_run(self._run).data.tags.get(TAKEN_BACK, 0))
            self._client.set_tag(self._run, TAKEN_BACK, str(before + 1))

    def finish(self, ending: Ending) -> None:
        with self._speaking("end the run"):
            self._client.set_tag(self._run, "heddle.ended", f"{ending.state}: {ending.reason}".rstrip(": "))
            if ending.checkpoint is not None:
                self._client.log_artifact(self._run, str(ending.checkpoint), "checkpoint")
            self._client.set_terminated(self._run, STATES.get(ending.state, "FINISHED"))

    def close(self) -> None:
        self._client = None

    # ---- inside

    def _experiment(self) -> str:
        name = self._settings.experiment
        known = self._client.get_experiment_by_name(name)
        return str(known.experiment_id if known is not None else self._client.create_experiment(name))

    def _begin(self, place: str) -> str:
        subject = self._subject
        tags = {OURS: subject.experiment, "heddle.code": subject.code}
        tags |= {f"heddle.tag.{number}": tag for number, tag in enumerate(subject.tags)}
        if subject.commit:  # the second is the one that MLflow's own pages know
            tags |= {"heddle.commit": subject.commit, "mlflow.source.git.commit": subject.commit.partition("-")[0]}
        tags |= {"heddle.group": subject.group} if subject.group else {}
        tags["mlflow.note.content"] = "\n".join(f"    {line}" for line in subject.toml.splitlines())[:5000]
        run = self._client.create_run(
            place, start_time=subject.created_ms, run_name=subject.experiment, tags=tags
        ).info.run_id
        params = [self._entities.Param(key, str(value)[:PARAM_CHARS]) for key, value in subject.flat.items()]
        for start in range(0, len(params), PARAMS_AT_ONCE):
            self._client.log_batch(run, params=params[start : start + PARAMS_AT_ONCE])
        return str(run)

    def _metrics(self, point: Point) -> list[Any]:
        return [
            self._entities.Metric(_allowed(name), value, point.time_ms, point.step)
            for name, value in point.values.items()
        ]

    def _new_ones(self, metrics: Sequence[Any]) -> list[Any]:
        """Those that the run's history has not."""
        history = {
            key: {_identity(one) for one in self._client.get_metric_history(self._run, key)}
            for key in {metric.key for metric in metrics}
        }
        return [metric for metric in metrics if _identity(metric) not in history[metric.key]]

    def _speaking(self, what: str) -> "_Speaking":
        return _Speaking(self._library.exceptions.MlflowException, what)


class _Speaking:
    """Within it trouble with MLflow is told in our words."""

    def __init__(self, kind: type[Exception], what: str) -> None:
        self._kind = kind
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, self._kind | OSError):
            raise TrackerDown(f"MLflow: cannot {self._what}: {in_short(error)}") from error


def _portions(points: Sequence[Point]) -> Iterator[list[Point]]:
    """As many points at once as a call may carry."""
    some: list[Point] = []
    size = 0
    for point in points:
        if some and size + len(point.values) > METRICS_AT_ONCE:
            yield some
            some, size = [], 0
        some.append(point)
        size += len(point.values)
    if some:
        yield some


def _identity(metric: Any) -> tuple[int, int, float | None]:
    value = float(metric.value)
    return int(metric.timestamp), int(metric.step), None if math.isnan(value) else value


def _allowed(name: str) -> str:
    """A name with nothing in it that MLflow refuses."""
    return "".join(letter if letter.isalnum() or letter in "_-. :/" else "_" for letter in name)[:250]
