"""Exposition: the fleet's numbers for Prometheus, read from the broker when they are asked for.

It never labels by worker or shard, so that there are as many series with ten thousand workers as with ten. Counters are
totals that the broker holds: they go on where they were when another coordinator takes over.
"""

import errno
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from heddle.broker import Broker, open_broker
from heddle.broker.faults import Damaged
from heddle.broker.fleet import Fleet, FleetReader
from heddle.coord.phases import Phases
from heddle.coord.series import Series, series_of
from heddle.errors import BrokerError, Denied, Gone, MissingExtra, NotFound, UsageError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger("heddle.coordinator")

LATELY_MS = 300_000
"""For so long after its end an experiment's counters are told: some scrapes of Prometheus, with one or two lost. What
was added between the last scrape and the end would be missing for ever."""


class Collector:
    """Looks at the fleet at every scrape, over a connection of its own.

    Args:
        connect: opens the broker; asked again after trouble.
        coordinator: id of this process.
    """

    def __init__(self, connect: Callable[[], Broker], coordinator: str) -> None:
        self._connect = connect
        self._coordinator = coordinator
        self._broker: Broker | None = None
        self._reader: FleetReader | None = None
        self._latest: dict[str, dict[str, float]] = {}
        self._budgets: dict[str, float] = {}
        self._phases = Phases()
        self._lock = threading.Lock()

    def collect(self) -> "Iterator[Metric]":
        """Every series, as prometheus_client wants them; without the broker only that it is away."""
        with self._lock:
            try:
                found = self._look()
            except (BrokerError, Denied) as error:
                log.debug("cannot look for a scrape error=%s", error)
                found = [Series("heddle_broker_up", "gauge", "1 while the broker answers", (), [((), 0.0)])]
        yield from families(found)

    def describe(self) -> "Iterable[Metric]":
        """Nothing in advance: nobody shall be asked before there is a scrape."""
        return []

    def close(self) -> None:
        """Let the connection go."""
        with self._lock:
            if self._broker is not None:
                self._broker.close()

    def _look(self) -> list[Series]:
        if self._broker is None or self._reader is None:
            self._broker = self._connect()
            # Sums of what was heard long ago are wrong; and whoever coordinates may not read what is printed
            self._reader = FleetReader(self._broker, lines=False, numbers=True, lately_ms=LATELY_MS)
        fleet = self._reader.read()
        self._remember(self._broker, fleet)
        phases = self._phases.look(fleet.workers)
        return series_of(fleet, self._coordinator, self._latest, self._budgets, phases)

    def _remember(self, broker: Broker, fleet: Fleet) -> None:
        """The last value of every metric of those that go on."""
        here = {**fleet.experiments, **fleet.ended}
        self._latest = {name: values for name, values in self._latest.items() if name in here}
        self._budgets = {name: steps for name, steps in self._budgets.items() if name in here}
        for experiment, glance in fleet.experiments.items():
            values = self._latest.setdefault(experiment, {})
            for metric in glance.metrics:
                values.update(metric.values)
            if experiment not in self._budgets:
                self._budgets[experiment] = _budget(broker, experiment)


def _budget(broker: Broker, experiment: str) -> float:
    """Steps of its budget; 0 without one."""
    try:
        return broker.experiments.spec(experiment).number("budget", "env_steps", 0.0)
    except (NotFound, Gone, Damaged):
        return 0.0


def families(found: Iterable[Series]) -> "Iterator[Metric]":
    """Series as those of prometheus_client."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for one in found:
        kind = CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily
        family = kind(one.name, one.about, labels=one.labels)
        for values, value in one.samples:
            family.add_metric(values, value)
        yield family


@contextmanager
def exposed(url: str, coordinator: str, *, bind: str, port: int) -> Iterator[None]:
    """Serve /metrics while inside; a port that is taken is told and is no reason not to coordinate.

    Raises:
        MissingExtra: prometheus_client is not installed.
        UsageError: there is no such address here.
    """
    try:
        from prometheus_client import start_http_server
        from prometheus_client.registry import CollectorRegistry
    except ImportError:
        raise MissingExtra("heddle coordinator --metrics-port", "obs") from None
    collector = Collector(lambda: open_broker(url, role="metrics"), coordinator)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    try:
        server, thread = start_http_server(port, addr=bind, registry=registry)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise UsageError(f"cannot serve metrics at {bind}:{port}: {error}") from error
        log.warning("serves no metrics, the port is taken address=%s:%d", bind, port)
        yield
        return
    log.info("serves metrics at http://%s:%d/metrics", bind, server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)
        collector.close()
