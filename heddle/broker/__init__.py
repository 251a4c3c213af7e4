"""The broker: everything that Heddle keeps in Redis, one object with a topic per attribute.

Nothing outside this package knows a key name or a Redis command. `open_broker` connects; importing this costs nothing.
"""

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heddle.broker.connection import Connection
    from heddle.broker.coordinators import Coordinators
    from heddle.broker.damage import Damages
    from heddle.broker.dead import DeadBatches
    from heddle.broker.events import Events
    from heddle.broker.experience import Experience
    from heddle.broker.experiments import Experiments
    from heddle.broker.overview import Overview
    from heddle.broker.planes import Planes
    from heddle.broker.policies import Policies
    from heddle.broker.pools import Pools
    from heddle.broker.seats import Seats
    from heddle.broker.shards import Shards
    from heddle.broker.trackers import Trackers

__all__ = ["Broker", "open_broker"]


def open_broker(url: str, *, role: str) -> "Broker":
    """Connect to the broker at `url` (redis://, rediss:// or unix://) and check that it may be used.

    Args:
        role: what the server shows as the client's name, e.g. "worker".

    Raises:
        BrokerUnreachable: nobody answers there.
        BrokerUnfit: too old, or it evicts keys.
        Denied: wrong password, or a right is missing.
    """
    from heddle.broker.connection import open_connection

    return Broker(open_connection(url, role=role))


class Broker:
    """Every topic on one connection; made by `open_broker`. Threads may share it, forked processes may not."""

    def __init__(self, conn: "Connection") -> None:
        self.conn = conn

    @cached_property
    def shards(self) -> "Shards":
        """Tickets, claims, leases, appends."""
        from heddle.broker.shards import Shards

        return Shards(self.conn)

    @cached_property
    def experience(self) -> "Experience":
        """The stream of pointers, blobs, acks, and the counters."""
        from heddle.broker.experience import Experience

        return Experience(self.conn)

    @cached_property
    def damages(self) -> "Damages":
        """Keys in whose place somebody put something else."""
        from heddle.broker.damage import Damages

        return Damages(self.conn)

    @cached_property
    def dead(self) -> "DeadBatches":
        """What was set aside for good."""
        from heddle.broker.dead import DeadBatches

        return DeadBatches(self.conn)

    @cached_property
    def experiments(self) -> "Experiments":
        """Submit, find, command, end, remove."""
        from heddle.broker.experiments import Experiments

        return Experiments(self.conn)

    @cached_property
    def planes(self) -> "Planes":
        """What readers and sweeps of shared memory need to know."""
        from heddle.broker.planes import Planes

        return Planes(self.conn)

    @cached_property
    def policies(self) -> "Policies":
        """Published weights."""
        from heddle.broker.policies import Policies

        return Policies(self.conn)

    @cached_property
    def pools(self) -> "Pools":
        """Workers and supervisors, desired sizes, quotas."""
        from heddle.broker.pools import Pools

        return Pools(self.conn)

    @cached_property
    def events(self) -> "Events":
        """Log, metrics, news."""
        from heddle.broker.events import Events

        return Events(self.conn)

    @cached_property
    def trackers(self) -> "Trackers":
        """Who hands the metrics on to which tracker, and how far that is."""
        from heddle.broker.trackers import Trackers

        return Trackers(self.conn)

    @cached_property
    def seats(self) -> "Seats":
        """The trainer's seat."""
        from heddle.broker.seats import Seats

        return Seats(self.conn)

    @cached_property
    def coordinators(self) -> "Coordinators":
        """The leader's lease."""
        from heddle.broker.coordinators import Coordinators

        return Coordinators(self.conn)

    @cached_property
    def overview(self) -> "Overview":
        """The whole fleet in a few round trips, for dashboards."""
        from heddle.broker.overview import Overview

        return Overview(self.conn)

    def close(self) -> None:
        """Let every connection go; leases are left to their owners to release."""
        self.conn.close()

    def __enter__(self) -> "Broker":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
