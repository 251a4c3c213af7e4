"""Facts for the live view and for `status`: read from the broker, from a thread of its own where something waits.

It never draws and never changes anything.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from heddle.broker import Broker, open_broker
from heddle.broker.experience_types import Flow
from heddle.broker.faults import Damaged
from heddle.broker.lines import Place
from heddle.broker.pools import WorkerInfo
from heddle.broker.records import Status
from heddle.broker.types import ShardState
from heddle.cli.history import History
from heddle.cli.live import Facts, WorkerFact, clock_text
from heddle.clock import Clock, SystemClock
from heddle.errors import BrokerError, Gone, HeddleError
from heddle.states.experiments import judge
from heddle.states.judgement import Judgement
from heddle.states.read import Watch, facts_of, pool_facts, sight

READ_S = 0.25
EVENTS_KEPT = 200
STEADY_S = 3.0
"""A state is worth a line of its own once it has stayed for so long."""


def shown_state(status: Status) -> str:
    """Its state; while nobody has written down how it ended, what its trainer says of that."""
    return status.state if status.ended else status.outcome or status.state


def latest_metrics(broker: Broker, experiment: str) -> dict[str, float]:
    """The last value of every metric; {} where somebody put something else in their place."""
    try:
        return broker.events.metrics_last(experiment)
    except Damaged:
        return {}


def recent_metrics(broker: Broker, experiment: str, *, count: int) -> list[tuple[int, Mapping[str, float]]]:
    """(update, values) of the last updates, oldest first; [] where somebody put something else in their place."""
    try:
        return [(one.update, one.values) for one in broker.events.metrics_recent(experiment, count=count)]
    except Damaged:
        return []


def troubles(shards: Sequence[ShardState], *, out_of_memory: bool, blocked: str = "") -> list[str]:
    """What keeps an experiment from going on as planned, in one line each; [] when all is well."""
    found = [
        f"shard {shard.shard} is quarantined: {shard.last_error or 'its workers died while stepping it'}"
        for shard in shards
        if shard.state == "quarantined"
    ]
    if blocked:
        found.append(f"the broker {blocked}")
    if out_of_memory:
        found.append("the broker is out of memory (maxmemory): it takes no policy and no batch until there is room")
    return found


class FactsReader:
    """Reads the facts of one experiment again and again, in its own thread, with its own connection.

    Args:
        url: the broker.
        budget_steps: of the spec, None when it has none.
        pool: whose workers to show.
        starts_roles: this process starts coordinator, workers and trainer by itself: nobody is told to.

    Attributes:
        refusal: what ended its looks for good, e.g. a right that is missing; None while there is no such thing.
    """

    refusal: HeddleError | None = None

    def __init__(
        self,
        url: str,
        experiment: str,
        *,
        budget_steps: int | None,
        pool: str,
        starts_roles: bool = False,
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
        self._starts_roles = starts_roles
        self._watch = Watch()
        self._judged: tuple[tuple[str, str], float] = (("", ""), 0.0)
        self._judged_told = ("", "")
        self._clock = clock or SystemClock()
        self._connect = connect or (lambda: open_broker(url, role="cli"))
        self._lock = threading.Lock()
        self._facts = Facts(experiment, "queued", budget_steps=budget_steps)
        self._began = self._clock.monotonic()
        self._events: list[str] = []
        self._events_told = 0
        self._place: Place | None = None
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
        """Read once, from the caller's thread. Raises BrokerError, Denied, Gone."""
        with self._reading:
            if self._broker is None:
                self._broker = self._connect()
            self._read(self._broker)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self.read_now()
                self.problem = ""
            except (BrokerError, Damaged) as error:  # of what was damaged the coordinator makes an end
                if not self.problem:
                    self.say(f"broker: {' '.join(str(error).split())}")
                    self._lose_sight()
                self.problem = str(error)
            except Gone:
                self.gone = True
                return
            except HeddleError as error:
                self.refusal = error
                return
            self._ending.wait(READ_S)

    def _read(self, broker: Broker) -> None:
        seen = sight(broker, self._watch)
        status = broker.experiments.status(self.experiment)
        flow = broker.experience.flow(self.experiment, 0)
        shards = broker.shards.shards(self.experiment, 0)
        pool = pool_facts(broker, self._pool)
        known = facts_of(broker, self.experiment, seen=seen, pool=pool, status=status, flow=flow, shards=shards)
        picture = judge(known)
        self._read_metrics(broker)
        now = self._clock.monotonic()
        state, reason = self._shown(status, picture.experiment, seen.now_ms)
        facts = replace(
            self._facts,
            state=state,
            reason=reason,
            steps=self.history.steps(flow.trained.steps),
            steps_here=flow.trained.steps,
            steps_per_second=self.history.speed(now, flow.trained.steps),
            updates=self.history.updates,
            policy=status.policy,
            returns=tuple(self.history.returns),
            eval_returns=tuple(self.history.eval_returns),
            latest=dict(self.history.latest),
            in_flight=flow.entries,
            in_flight_bytes=flow.bytes,
            shards=len(shards),
            shards_held=sum(shard.state == "leased" for shard in shards),
            workers=_worker_facts(pool.workers.values(), picture.workers, shards, seen.now_ms),
        )
        trouble = troubles(shards, out_of_memory=known.out_of_memory, blocked=known.blocked)
        since = self._place or Place.at_ms(status.created_ms)
        told, place = broker.events.after(since, self.experiment, count=100)
        with self._lock:
            self.status, self.flow, self._facts, self._shards = status, flow, facts, shards
            self._tell_troubles(trouble)
            self._tell_state(picture.experiment, state, reason, now)
            self._place = place
            for event in told:
                if event.level != "debug":
                    self._add_event(event.message)

    def _shown(self, status: Status, judgement: Judgement, now_ms: int) -> tuple[str, str]:
        """State and reason as they are shown."""
        if status.outcome and not status.ended:
            return shown_state(status), status.reason
        if self._starts_roles and any(way.startswith("start ") for way in judgement.do.split("; else ")):
            judgement = replace(judgement, do="this terminal starts one")
        return judgement.state, status.reason if status.ended else judgement.line(now_ms)

    def _tell_troubles(self, trouble: list[str]) -> None:
        """An event for each that is new."""
        for line in trouble:
            if line not in self.troubles:
                self._add_event(line)
        self.troubles = trouble

    def _tell_state(self, judgement: Judgement, state: str, reason: str, now: float) -> None:
        """An event for a state that stays, and says why, and for the way out of it."""
        what = (state, judgement.why if state == judgement.state and not judgement.is_green else "")
        if what != self._judged[0]:
            self._judged = (what, now)
        if now - self._judged[1] < STEADY_S or what == self._judged_told:
            return
        if reason and not judgement.is_green and not (self.status and self.status.ended):
            self._add_event(f"{state}: {reason}")
        elif judgement.is_green and self._judged_told[1] and not (self.status and self.status.ended):
            self._add_event(f"{state} again")
        self._judged_told = what

    def _lose_sight(self) -> None:
        """The broker does not answer: what was seen last may be so still, and nobody knows."""
        with self._lock:
            last = self._facts
            reason = f"the broker does not answer; {last.state} when it last did"
            workers = tuple(replace(worker, state="unknown") for worker in last.workers)
            self._facts = replace(last, state="unknown", reason=reason, workers=workers, steps_per_second=0.0)

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


def _worker_facts(
    infos: Iterable[WorkerInfo], judged: Mapping[str, Judgement], shards: Sequence[ShardState], now_ms: int
) -> tuple[WorkerFact, ...]:
    held: dict[str, list[int]] = {}
    for shard in shards:
        if shard.state == "leased":
            held.setdefault(shard.worker, []).append(shard.shard)
    return tuple(
        WorkerFact(
            worker=info.beat.worker,
            alive=judged[info.beat.worker].state not in ("dead", "unknown"),
            shards=tuple(sorted(held.get(info.beat.worker, ()))),
            state=judged[info.beat.worker].state,
            waits_for=judged[info.beat.worker].waits_for,
            steps_per_second=info.beat.steps_per_second,
            why=judged[info.beat.worker].line(now_ms),
        )
        for info in infos
    )
