"""Facts for the live view and for `status`: read from the broker, from a thread of its own where something waits.

It never draws and never changes anything.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from heddle.broker import Broker, open_broker
from heddle.broker.records import Status
from heddle.broker.types import Flow, ShardState
from heddle.cli.live import Facts, WorkerFact, clock_text
from heddle.clock import Clock, SystemClock
from heddle.errors import BrokerError, Gone

OUTCOMES = ("trained", "evaluated", "stale", "dead", "dropped", "rolled_back")
"""Where an appended batch may end, in the order of promise P2."""
READ_S = 0.25
SPEED_S = 5.0
POINTS_KEPT = 20_000
EVENTS_KEPT = 200


def accounting(flow: Flow) -> dict[str, dict[str, int]]:
    """The counters of promise P2, in batches and in steps, and what they leave unexplained.

    lost = appended that no counter and no stream entry accounts for; duplicated = accounted for, never appended.
    """
    counted = {}
    for unit in ("batches", "steps"):
        ended = {name: int(getattr(getattr(flow, name), unit)) for name in OUTCOMES}
        appended = int(getattr(flow.appended, unit))
        in_flight = flow.entries if unit == "batches" else flow.steps
        open_ = appended - sum(ended.values()) - in_flight
        counted[unit] = {
            "appended": appended,
            **ended,
            "in_flight": in_flight,
            "lost": max(0, open_),
            "duplicated": max(0, -open_),
        }
    return counted


def accounting_line(flow: Flow, *, unit: str = "batches") -> str:
    """The accounting in one line: appended = trained + ... + in flight; lost, duplicated."""
    counts = accounting(flow)[unit]
    ends = " + ".join(f"{name.replace('_', ' ')} {counts[name]:,}" for name in (*OUTCOMES, "in_flight"))
    line = f"appended {counts['appended']:,} = {ends}; lost {counts['lost']:,}, duplicated {counts['duplicated']:,}"
    forgotten = int(getattr(flow.forgotten, unit))
    line += f"; forgotten by the broker {forgotten:,}" if forgotten else ""
    return f"{line}; besides, written by no worker {flow.foreign:,}" if flow.foreign else line


def adds_up(flow: Flow) -> bool:
    """True when nothing is lost and nothing is counted twice."""
    return all(counts["lost"] == 0 == counts["duplicated"] for counts in accounting(flow).values())


def shown_state(status: Status) -> str:
    """Its state; while nobody has written down how it ended, what its trainer says of that."""
    return status.state if status.ended else status.outcome or status.state


def latest_metrics(broker: Broker, experiment: str) -> dict[str, float]:
    """The last value of every metric."""
    return broker.events.metrics_last(experiment)


def troubles(shards: Sequence[ShardState], *, out_of_memory: bool) -> list[str]:
    """What keeps an experiment from going on as planned, in one line each; [] when all is well."""
    found = [
        f"shard {shard.shard} is quarantined: {shard.last_error or 'its workers died while stepping it'}"
        for shard in shards
        if shard.state == "quarantined"
    ]
    if out_of_memory:
        found.append("the broker is out of memory (maxmemory): it takes no policy and no batch until there is room")
    return found


class History:
    """What has been seen so far of one experiment: curves, speed, events."""

    def __init__(self) -> None:
        self.after = "0"
        self.updates = 0
        self.latest: dict[str, float] = {}
        self.returns: list[tuple[float, float]] = []
        self.eval_returns: list[tuple[float, float]] = []
        self._speed: list[tuple[float, int]] = []

    def add_update(self, update: int, values: Mapping[str, float]) -> None:
        """Take in the metrics of one update."""
        self.updates = max(self.updates, update)
        self.latest.update(values)
        steps = self.latest.get("env_steps", float(update))
        for name, points in (("return", self.returns), ("eval_return", self.eval_returns)):
            if name in values:
                points.append((steps, values[name]))
                del points[:-POINTS_KEPT]

    def speed(self, now: float, steps: int) -> float:
        """Steps per second over the last seconds, given the count of now."""
        self._speed.append((now, steps))
        while len(self._speed) > 2 and now - self._speed[0][0] > SPEED_S:
            self._speed.pop(0)
        (then, before), (_, after) = self._speed[0], self._speed[-1]
        return max(0.0, (after - before) / (now - then)) if now > then else 0.0


class FactsReader:
    """Reads the facts of one experiment again and again, in its own thread, with its own connection.

    Args:
        url: the broker.
        budget_steps: of the spec, None when it has none.
        pool: whose workers to show.
    """

    def __init__(
        self,
        url: str,
        experiment: str,
        *,
        budget_steps: int | None,
        pool: str,
        clock: Clock | None = None,
        connect: Callable[[], Broker] | None = None,
    ) -> None:
        self.experiment = experiment
        self.history = History()
        self.flow: Flow | None = None
        self.status: Status | None = None
        self.problem = ""
        self.troubles: list[str] = []
        self.gone = False
        self._url = url
        self._pool = pool
        self._clock = clock or SystemClock()
        self._connect = connect or (lambda: open_broker(url, role="cli"))
        self._lock = threading.Lock()
        self._facts = Facts(experiment, "queued", budget_steps=budget_steps)
        self._began = self._clock.monotonic()
        self._events: list[str] = []
        self._events_told = 0
        self._event_id = ""
        self._shards: list[ShardState] = []
        self._reading = threading.Lock()
        self._broker: Broker | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="facts", daemon=True)

    @property
    def ended(self) -> bool:
        """Its state is final, or it was removed."""
        return self.gone or (self.status is not None and self.status.ended)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more."""
        self._ending.set()
        self._thread.join(5.0)
        if self._broker is not None:
            self._broker.close()

    def facts(self) -> Facts:
        """The last facts, with the time of now."""
        with self._lock:
            return replace(
                self._facts, elapsed_s=self._elapsed(), events=tuple(self._events), events_told=self._events_told
            )

    def say(self, text: str) -> None:
        """Add an event of our own."""
        with self._lock:
            self._add_event(text)

    def now(self) -> float:
        """Seconds since the reader was made."""
        return self._elapsed()

    def held(self) -> dict[str, dict[int, int]]:
        """Worker to the shards it plays, with the epoch of each; as of the last look."""
        with self._lock:
            found: dict[str, dict[int, int]] = {}
            for shard in self._shards:
                if shard.state == "leased":
                    found.setdefault(shard.worker, {})[shard.shard] = shard.epoch
            return found

    def owner(self, number: int) -> ShardState | None:
        """The shard, when somebody plays it; as of the last look."""
        with self._lock:
            return next((s for s in self._shards if s.shard == number and s.state == "leased"), None)

    def read_now(self) -> None:
        """Read once, from the caller's thread. Raises BrokerError, Gone."""
        with self._reading:
            if self._broker is None:
                self._broker = self._connect()
            self._read(self._broker)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self.read_now()
                self.problem = ""
            except BrokerError as error:
                if not self.problem:
                    self.say(f"broker: {' '.join(str(error).split())}")
                self.problem = str(error)
            except Gone:
                self.gone = True
                return
            self._ending.wait(READ_S)

    def _read(self, broker: Broker) -> None:
        status = broker.experiments.status(self.experiment)
        flow = broker.experience.flow(self.experiment, 0)
        shards = broker.shards.shards(self.experiment, 0)
        workers = broker.pools.workers(self._pool)
        self._read_metrics(broker)
        held: dict[str, list[int]] = {}
        for shard in shards:
            if shard.state == "leased":
                held.setdefault(shard.worker, []).append(shard.shard)
        now = self._clock.monotonic()
        steps = flow.trained.steps
        facts = replace(
            self._facts,
            state=shown_state(status),
            reason=status.reason,
            steps=steps,
            steps_per_second=self.history.speed(now, steps),
            updates=self.history.updates,
            policy=status.policy,
            returns=tuple(self.history.returns),
            eval_returns=tuple(self.history.eval_returns),
            latest=dict(self.history.latest),
            in_flight=flow.entries,
            in_flight_bytes=flow.bytes,
            shards=len(shards),
            shards_held=sum(len(numbers) for numbers in held.values()),
            workers=tuple(_worker_fact(worker, held) for worker in workers),
        )
        trouble = troubles(shards, out_of_memory=broker.conn.out_of_memory())
        told = broker.events.read(self.experiment, after_id=self._event_id or f"{status.created_ms}-0", count=100)
        with self._lock:
            self.status, self.flow, self._facts, self._shards = status, flow, facts, shards
            for line in trouble:
                if line not in self.troubles:
                    self._add_event(line)
            self.troubles = trouble
            for event in told:
                self._event_id = event.entry_id
                self._add_event(event.message)

    def _read_metrics(self, broker: Broker) -> None:
        while found := broker.events.metrics_read(self.experiment, self.history.after):
            for item in found:
                self.history.after = item.entry_id
                self.history.add_update(item.update, item.values)

    def _elapsed(self) -> float:
        return self._clock.monotonic() - self._began

    def _add_event(self, text: str) -> None:
        self._events.append(f"{clock_text(self._elapsed())} {text}")
        self._events_told += 1
        del self._events[:-EVENTS_KEPT]


def _worker_fact(worker: Any, held: Mapping[str, list[int]]) -> WorkerFact:
    beat = worker.beat
    numbers = tuple(sorted(held.get(beat.worker, ())))
    speed = 1000 / beat.ms_per_step if beat.ms_per_step else 0.0
    return WorkerFact(beat.worker, worker.alive, numbers, "draining" if worker.draining else beat.state, speed)
