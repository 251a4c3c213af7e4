"""What tests of shared memory share: a consumer that maps batches, and what lies in its folders."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from heddle.broker import Broker
from heddle.clock import SystemClock
from heddle.consumers.ledger import Ledger
from heddle.consumers.ordering import Ordering
from heddle.consumers.patience import Patience
from heddle.consumers.reader import Loaded, Reader
from heddle.consumers.setting import read_setting
from heddle.consumers.shelf import Shelf, offered_shelf
from heddle.plane import Host, Plane, open_plane
from heddle.policies import weights
from heddle.producers.envs import check_env

HERE = Host("here", "boot-1")


def plane_at(root: Path, host: Host = HERE) -> Callable[[], Plane]:
    """Opens shared memory in a folder of the test's own."""
    return lambda: open_plane(root, host)


def files(root: Path) -> list[str]:
    """Every file below `root` that holds bytes of batches, as paths from there."""
    found = [Path(folder, name) for folder, _, names in os.walk(root) for name in names]
    return sorted(str(path.relative_to(root)) for path in found if path.name not in ("lock", "plane"))


class Consumer:
    """The seat of an experiment; reads, keeps and acks."""

    def __init__(self, broker: Broker, experiment: str, plane: Callable[[], Plane], *, name: str = "t") -> None:
        self.broker, self.experiment = broker, experiment
        setting = read_setting(broker, experiment, describe=check_env)
        epoch = broker.seats.claim_seat(experiment, name, ttl_ms=60_000)
        assert epoch is not None
        self.epoch = epoch
        self.shelf: Shelf = offered_shelf(
            broker, experiment, setting, seat_epoch=epoch, plane=plane, call=lambda _, ask: ask()
        )
        self.ledger = Ledger(broker, experiment, 0, seat_epoch=epoch, ordering=Ordering({}), shelf=self.shelf)
        self.reader = Reader(
            broker,
            experiment,
            0,
            seat_epoch=epoch,
            ledger=self.ledger,
            layout=setting.layout,
            plans=setting.plans,
            size_cap=setting.spec.limits.batch_bytes,
            patience=Patience(),
            clock=SystemClock(),
            shelf=self.shelf,
        )
        self.reader.start()
        self.policy = setting.policy

    def publish(self, version: int = 1) -> None:
        """The policy's own weights, as version `version`."""
        data = weights.pack(self.policy.get_weights(), version=version, update=version)
        self.broker.policies.publish(self.experiment, self.epoch, version, data, update=version)

    def poll(self, *, block_ms: int = 50) -> list[Loaded]:
        return self.reader.poll(block_ms=block_ms)

    def train(self, loaded: list[Loaded]) -> None:
        """Settle as trained, and ack."""
        self.ledger.hold([item.pointer for item in loaded], "trained")
        self.ledger.release()
        assert self.ledger.flush()

    def flow(self) -> Any:
        return self.broker.experience.flow(self.experiment, 0)


def columns(loaded: Loaded) -> dict[str, np.ndarray[Any, Any]]:
    """Copies of a batch's arrays."""
    return {name: np.array(array) for name, array in loaded.segments.arrays.items()}
