"""What tests of trackers share: a trainer's metrics without a trainer, and readers of what trackers wrote.

TensorBoard's files are read with TensorBoard itself, MLflow's store with MLflow's client, W&B's run files with W&B's
own messages.
"""

import importlib.util
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from heddle.broker import Broker, keys
from heddle.consumers.tracking.wandb_files import RunFile, files_of
from tests.trainer_kit import submit

HEDDLE = [sys.executable, "-m", "heddle"]


def needs(*modules: str) -> None:
    """Skip where a library is missing, which fails in CI."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            if os.environ.get("HEDDLE_ALL_SERVERS"):
                pytest.fail(f"{module} is not installed, and HEDDLE_ALL_SERVERS is set")
            pytest.skip(f"{module} is not installed")


def memory_at(update: int) -> float:
    """Bytes of the trainer at an update, as `Training` tells them."""
    return float((100 + update) << 20)


class Training:
    """An experiment whose metrics the test adds, as its trainer would."""

    def __init__(self, broker: Broker, **sections: Any) -> None:
        self.broker = broker
        self.id = submit(broker, **sections)
        broker.conn.main.hset(keys.status(self.id), "state", "running")
        self.update = 0
        self.seat()

    def seat(self) -> None:
        """Take the seat, as a new trainer."""
        self.broker.conn.main.delete(keys.seat(self.id))
        epoch = self.broker.seats.claim_seat(self.id, f"t-{os.urandom(4).hex()}")
        assert epoch is not None
        self.epoch = epoch

    def updates(self, count: int, *, value: float | None = None) -> None:
        """So many more updates: 10 steps each, with a return that is the update's number unless `value` is given."""
        for _ in range(count):
            self.update += 1
            told = {"env_steps": self.update * 10.0, "return": value or float(self.update)}
            told["rss_bytes"] = memory_at(self.update)
            self.broker.events.metrics_add(self.id, self.update, told, seat_epoch=self.epoch)

    def made_of(self, **what: str) -> None:
        """What it was submitted as: its `toml`, the version of Heddle (`code`), the `commit` of its author's code."""
        for name, value in what.items():
            self.broker.conn.main.hset(keys.spec(self.id), name, value)

    def roll_back(self, update: int) -> None:
        """A new trainer goes on from that update: what was measured after it is taken back."""
        self.seat()
        self.broker.events.metrics_forget(self.id, above=update, seat_epoch=self.epoch)
        self.update = update

    def end(self, state: str = "completed") -> None:
        """It is over."""
        self.broker.conn.main.hset(keys.status(self.id), mapping={"state": state, "reason": "budget used"})


def shown_by_tensorboard(folder: Path, tag: str = "rl/return") -> list[tuple[int, float]]:
    """The points of a curve as TensorBoard draws it."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={SCALARS: 0})
    accumulator.Reload()
    if tag not in accumulator.Tags()["scalars"] and tag not in accumulator.Tags()["tensors"]:
        return []
    return [(event.step, event.value) for event in accumulator.Scalars(tag)]


def written_for_tensorboard(folder: Path, tag: str = "rl/return") -> list[int]:
    """The steps of every record of a curve that is in the files at all, in order."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    steps = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            steps += [event.step for value in event.summary.value if value.tag == tag]
    return steps


def rows_of_wandb(folder: Path, run: str) -> list[int]:
    """The number of every row in every file of a run, oldest first."""
    from wandb.proto import wandb_internal_pb2

    record: Any = wandb_internal_pb2.Record
    return [row for path in files_of(folder, run) for row in RunFile(path, record).rows()]


def sessions_of_wandb(folder: Path, run: str) -> list[dict[str, list[Any]]]:
    """Every record of every file of a run, oldest first: W&B's messages by kind, "run", "history" and so on."""
    from wandb.proto import wandb_internal_pb2

    record: Any = wandb_internal_pb2.Record
    sessions = []
    for path in files_of(folder, run):
        found: dict[str, list[Any]] = defaultdict(list)
        for data in RunFile(path, record).records():
            message = record.FromString(data)
            kind = message.WhichOneof("record_type")
            found[kind].append(getattr(message, kind))
        sessions.append(found)
    return sessions


def items_of_wandb(items: Iterable[Any]) -> dict[str, Any]:
    """What a row, a config or a summary of W&B's says, by name."""
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def mlflow_run(uri: str, experiment: str) -> tuple[Any, Any]:
    """MLflow's client and the only run of an experiment."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    place = client.get_experiment_by_name("heddle").experiment_id
    (run,) = client.search_runs([place], f"tags.`heddle.experiment` = '{experiment}'")
    return client, run


def steps_in_mlflow(uri: str, experiment: str, key: str = "rl/return") -> list[int]:
    """The steps of one metric's history."""
    return [step for step, _ in curve_in_mlflow(uri, experiment, key)]


def curve_in_mlflow(uri: str, experiment: str, key: str) -> list[tuple[int, float]]:
    """(step, value) of one metric's history."""
    client, run = mlflow_run(uri, experiment)
    return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key)]


def every_step(updates: int) -> Sequence[int]:
    """The steps of updates 1 to that one."""
    return [10 * update for update in range(1, updates + 1)]
