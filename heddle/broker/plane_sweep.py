"""The sweep: takes out of this host's shared memory what a crash left there and nobody can read or append any more.

It never touches a batch that an entry refers to, nor one of a shard's present owner. Where nothing lies in memory it
asks the broker nothing.
"""

import logging
import shutil
from pathlib import Path

from heddle.broker.planes import Planes
from heddle.clock import Clock, SystemClock
from heddle.errors import BrokerError, Denied
from heddle.plane import Home, batch_of, root_folder
from heddle.plane.sweep import (
    YOUNG_S,
    age_s,
    brokers,
    homes,
    remove_dead_rings,
    remove_deserted,
    remove_empty,
)
from heddle.plane.weights import remove_unused

log = logging.getLogger("heddle.plane")

PARTITION = 0


def sweep(planes: Planes, *, root: Path | None = None, clock: Clock | None = None) -> int:
    """Everything of this broker, and folders that other brokers deserted; how many files and rings went.

    Raises:
        BrokerError: it does not tell.
    """
    root, clock = root or root_folder(), clock or SystemClock()
    remove_unused(root, now_s=clock.wall())
    found = brokers(root)
    if not found:
        return 0
    own, removed = planes.known_identity(), 0
    for broker in found:
        if broker == own:
            removed += sum(sweep_home(planes, name, home, clock=clock) for name, home in homes(root, broker))
        else:
            removed += remove_deserted(root, broker, clock.wall())
    if removed:
        log.info("swept shared memory removed=%d", removed)
    return removed


def sweep_home(
    planes: Planes, experiment: str, home: Home, *, young_s: float = YOUNG_S, clock: Clock | None = None
) -> int:
    """One experiment.

    Args:
        young_s: files written within so long are left alone.
    """
    now_s = (clock or SystemClock()).wall()
    removed = remove_dead_rings(home, now_s)
    named = {batch: name for name in home.names() if (batch := batch_of(name)) is not None}
    old = [batch for batch, name in named.items() if age_s(home, name, now_s) >= young_s]
    for batch in planes.forgotten(experiment, PARTITION, old):
        home.remove(named[batch])
        removed += 1
    remove_empty(home, now_s)
    return removed


def drop_experiment(planes: Planes, experiment: str, *, root: Path | None = None) -> None:
    """The experiment was removed: nothing of it stays on this host; other hosts sweep."""
    root = root or root_folder()
    if not brokers(root):
        return
    own = planes.known_identity()
    for name, home in homes(root, own) if own else []:
        if name == experiment:
            home.drop()


def drop_broker(planes: Planes, *, root: Path | None = None) -> None:
    """The broker's data are about to be removed: nothing of it stays on this host. One that is away is left."""
    root = root or root_folder()
    if not brokers(root):
        return
    try:
        own = planes.known_identity()
    except (BrokerError, Denied) as error:
        log.info("left shared memory to a later sweep error=%s", error)
        return
    if own in brokers(root):
        shutil.rmtree(root / own, ignore_errors=True)
