"""Weights once a host: a worker's broker takes large ones from what its neighbours have fetched already.

It never makes a worker fail: where a host has no folder for it, every worker fetches for itself.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from heddle.broker import Broker
from heddle.errors import PlaneError
from heddle.plane import open_plane
from heddle.plane.weights import HostWeights

log = logging.getLogger("heddle.worker")


@contextmanager
def weights_of_this_host() -> Iterator[Callable[[Broker], Broker]]:
    """Within, a broker that is given to the function shares what it fetches, and comes back."""
    try:
        weights = HostWeights(open_plane().root).open()
    except (PlaneError, OSError) as error:
        log.info("this worker fetches every policy for itself error=%s", error)
        yield lambda broker: broker
        return

    def sharing(broker: Broker) -> Broker:
        broker.policies.share(weights.get)
        return broker

    try:
        yield sharing
    finally:
        weights.close()
