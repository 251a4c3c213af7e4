"""From what a spec or a command names to trackers, and what they are told first.

It never connects to one.
"""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

from heddle.broker import Broker
from heddle.consumers.tracking.base import Backend
from heddle.consumers.tracking.points import Subject
from heddle.errors import MissingExtra
from heddle.spec import spec_from_json
from heddle.spec.tracking import Track

LIBRARIES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}
"""What each needs; the extra that brings it is called like the tracker."""


def kinds_of(track: Track) -> list[str]:
    """Which trackers it names."""
    return [kind for kind in LIBRARIES if getattr(track, kind) is not None]


def check_installed(track: Track) -> None:
    """Raise MissingExtra for the first tracker whose library is not installed; loads nothing."""
    for kind in kinds_of(track):
        if importlib.util.find_spec(LIBRARIES[kind]) is None:
            raise MissingExtra(f"tracking with {kind}", kind)


def subject_of(broker: Broker, experiment: str) -> Subject:
    """What trackers are told of an experiment. Raises NotFound, Gone, SpecError."""
    stored = broker.experiments.spec(experiment)
    spec = spec_from_json(stored.json)
    return Subject(
        experiment=experiment,
        name=spec.experiment.name,
        group=spec.experiment.group,
        tags=spec.experiment.tags,
        spec=json.loads(stored.json),
        toml=stored.toml,
        code=stored.code,
        commit=stored.commit,
        created_ms=stored.created_ms,
    )


def make_backend(kind: str, track: Track, subject: Subject) -> Backend:
    """The tracker of that kind that `track` names. Raises MissingExtra."""
    return _MAKERS[kind](track, subject)


def _tensorboard(track: Track, subject: Subject) -> Backend:
    from heddle.consumers.tracking.tensorboard import TensorBoard

    assert track.tensorboard is not None
    return TensorBoard(Path(track.tensorboard), subject)


def _wandb(track: Track, subject: Subject) -> Backend:
    from heddle.consumers.tracking.wandb_runs import WandbRun

    assert track.wandb is not None
    return WandbRun(track.wandb, subject)


def _mlflow(track: Track, subject: Subject) -> Backend:
    from heddle.consumers.tracking.mlflow_runs import MlflowRun

    assert track.mlflow is not None
    return MlflowRun(track.mlflow, subject)


_MAKERS: dict[str, Callable[[Track, Subject], Backend]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
}
