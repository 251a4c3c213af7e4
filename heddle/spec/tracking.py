"""[track]: where the metrics of a run are shown besides Heddle: TensorBoard, Weights & Biases, MLflow.

It never holds a credential: those are given to the process that tracks, in its environment.
"""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from heddle.spec.values import Frozen


def _project(value: object) -> object:
    return {"project": value} if isinstance(value, str) else value


def _uri(value: object) -> object:
    return {"uri": value} if isinstance(value, str) else value


def holds_secret(uri: str) -> bool:
    """Whether an address names a user or a password."""
    try:
        return "@" in urlsplit(uri).netloc
    except ValueError:
        return "@" in uri


def _without_secret(uri: str) -> str:
    if holds_secret(uri):
        raise ValueError(
            "must not name a user or a password, for specs are kept and shown; give those to the process that tracks, "
            "in MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )
    return uri


class Wandb(Frozen):
    """track.wandb: a run of Weights & Biases; its key is WANDB_API_KEY, or what `wandb login` wrote.

    Attributes:
        project: of the run.
        entity: user or team; None: that of the key.
        mode: online sends as it goes; offline leaves a folder that `wandb sync` takes.
        dir: where the run's own files go, in a folder "wandb".
    """

    project: str = Field(default="heddle", min_length=1, max_length=128)
    entity: str | None = Field(default=None, min_length=1)
    mode: Literal["online", "offline"] = "online"
    dir: str = Field(default="runs", min_length=1)


class Mlflow(Frozen):
    """track.mlflow: a run of MLflow.

    Attributes:
        uri: of the tracking server or store; None: MLFLOW_TRACKING_URI of the process that tracks.
        experiment: MLflow's word for what runs are in.
    """

    uri: Annotated[str, Field(min_length=1), AfterValidator(_without_secret)] | None = None
    experiment: str = Field(default="heddle", min_length=1)


class Track(Frozen):
    """[track]: trackers that `heddle run` and `heddle up` feed, each from a process beside the run.

    Attributes:
        tensorboard: folder of event files, in a folder of the experiment's id each.
        wandb: a run of Weights & Biases; a text is its project.
        mlflow: a run of MLflow; a text is its address.
        checkpoint: at the end, give W&B and MLflow the best checkpoint as an artifact.
    """

    tensorboard: str | None = Field(default=None, min_length=1)
    wandb: Annotated[Wandb | None, BeforeValidator(_project)] = None
    mlflow: Annotated[Mlflow | None, BeforeValidator(_uri)] = None
    checkpoint: bool = True

    @property
    def is_empty(self) -> bool:
        """Whether it names no tracker at all."""
        return self.tensorboard is None and self.wandb is None and self.mlflow is None
