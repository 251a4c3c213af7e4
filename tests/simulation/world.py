"""One world: a server, processes, faults by plan, and what must have come about when all is healed.

It never looks at real time. `run` is the whole life of a seed; a broken promise ends it.
"""

import gc
import json
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

from heddle.errors import Conflict, HeddleError, SpecError
from heddle.spaces import Box, Discrete, to_json
from tests.simulation.client import sim_broker
from tests.simulation.disk import Disk
from tests.simulation.faults import Faults
from tests.simulation.final import check_end, check_nothing_left
from tests.simulation.hosts import Hosts
from tests.simulation.hub import Hub, Process, Task
from tests.simulation.install import installed
from tests.simulation.lua import Engine
from tests.simulation.net import Net
from tests.simulation.news import SimNews
from tests.simulation.plan import Outcome, Plan
from tests.simulation.play import Nature
from tests.simulation.roles import HOME
from tests.simulation.server import SimServer
from tests.simulation.truth import Violation
from tests.simulation.watch import Watcher

ENGINE = Engine()
EXPERIMENT = "sim-000001"
BEGAN_MS = 1_700_000_000_000.0
PROGRESS_S = 25.0
"""After the healing all goes on within this: 5 TTL, a restart, a call that times out, a look for the stranded."""
END_S = 45.0
"""A stop ends the run within this: a trainer that is not there is waited for, and so are workers."""
BLOB_TTL_S = 75.0
WEIGHTS_S = 0.4
COLLECT_EVERY = 50


class World:
    """A seed's world."""

    def __init__(
        self, plan: Plan, *, traced: bool = False, rewrite: Callable[[str], str] = lambda source: source
    ) -> None:
        self.plan = plan
        self.experiment = EXPERIMENT
        self.hub = Hub(random.Random(plan.seed))
        self.hub.failed = self._failed
        self.clock_ms = BEGAN_MS
        self.removed_ms = 0.0
        self.server = SimServer(self.now_ms, ENGINE, rewrite=rewrite)
        self.watcher = Watcher(self.server, EXPERIMENT, traced=traced)
        self.watcher.ack_waits = plan.ack == "checkpoint"
        self.watcher.sync = plan.sync
        self.watcher.continues = not plan.permanent & {"broken", "deadly"}
        self.net = Net(self.hub, self.server, self.watcher)
        self.net.published = self._spread_news
        self.net.weights_s = WEIGHTS_S if plan.large else 0.0
        self.disk = Disk(self.hub, plan.write_s)
        self.nature = Nature(self.hub)
        self.hosts = Hosts(self)
        self.faults = Faults(self)
        self.tag = f"heddle:{{{EXPERIMENT}.0}}:".encode()
        self.client = Process(self.hub, "client")
        self.client.steady = True
        self._orders: deque[Callable[[], None]] = deque()
        self.disk.saved = lambda written: self.watcher.checkpointed(written.learner_meta["seen"], self.model())
        self.watcher.is_healthy, self.watcher.is_dead = self.hosts.is_healthy, self.hosts.is_dead

    # ---- facts

    def now_ms(self) -> float:
        """The server's clock."""
        return self.clock_ms + self.hub.now * 1000.0

    def connect(self) -> Any:
        """A broker for the running process."""
        return sim_broker(self.net)

    def model(self) -> list[Any]:
        """What the checkpoint that would be resumed was trained on."""
        newest = self.disk.look(HOME / EXPERIMENT / "checkpoints")
        return [] if newest is None else newest.learner_meta["seen"]

    def hash_of(self, name: str) -> dict[bytes, bytes]:
        """One of the experiment's hashes."""
        found = self.server.db.data.get(self.tag + name.encode(), {})
        return found if isinstance(found, dict) else {}  # type: ignore[return-value]

    def state(self) -> str:
        """The experiment's state."""
        return self.hash_of("status").get(b"state", b"").decode()

    def has_ended(self) -> bool:
        return self.state() in ("completed", "stopped", "failed")

    def _has_dropped(self) -> bool:
        """None of its snapshots are left, and whoever leads knows that."""
        kept = [index for index, state in self.shard_states().items() if b"snapshot" in state]
        return not kept and b"snapshots_from" not in self.hash_of("ctl")

    def shard_states(self) -> dict[int, dict[bytes, bytes]]:
        """Every shard's hash."""
        return {index: self.hash_of(f"shard:{index}") for index in range(self.plan.shards + self.plan.evals)}

    # ---- the life of a seed

    def run(self) -> Outcome:
        """Everything; what came of it."""
        outcome = Outcome(self.plan)
        SimNews.listeners.clear()
        try:
            with installed(self.hub, self.nature, self.disk, self.connect, large=self.plan.large), _collecting_later():
                self._live()
        except Violation as broken:
            outcome.problem = str(broken)
            if self.watcher.trace is not None:
                outcome.stacks = self._stacks()
        finally:
            self._bury()
        outcome.events, outcome.virtual_s = self.watcher.events, self.hub.now
        outcome.trace = self.watcher.trace
        outcome.facts = self._facts()
        return outcome

    def _live(self) -> None:
        plan, hub = self.plan, self.hub
        self._order(self._submit)
        self.hosts.start()
        self.faults.schedule()
        hub.run(plan.calm_s)
        self.faults.heal()
        self._wait_for_progress()
        if plan.forced:
            self._order(partial(self._remove, force=True))
            hub.run(hub.now + 2.0)
        else:
            self._end_well()
        self.hosts.stop_all()
        self._await(self.hosts.all_ended, END_S, "liveness: a process that was told to end did not")
        if not plan.forced:
            check_end(self)
            self._order(self._remove)
        hub.run(hub.now + BLOB_TTL_S)
        check_nothing_left(self)

    def _end_well(self) -> None:
        if not self.has_ended():
            self._order(self._stop)
        self._await(self.has_ended, END_S + self._forgotten_s, "liveness: a stopped run did not end")
        self._await(self._has_dropped, END_S, "liveness: snapshots of a run that ended are left")

    @property
    def _forgotten_s(self) -> float:
        """With little memory: batches that nobody ever accepts hold it until their time is over."""
        return BLOB_TTL_S if "memory" in self.plan.permanent else 0.0

    def _wait_for_progress(self) -> None:
        """Every shard that counts gives another batch, and the model learns from it."""
        begun = {index: int(state.get(b"seq", b"0")) for index, state in self.shard_states().items()}
        learned = len(self.model())

        def moves() -> bool:
            if self.has_ended() or self.hash_of("ctl").get(b"command") == b"stop":
                return True
            states = self.shard_states()
            train = {index: states[index] for index in range(self.plan.shards)}
            spoilt = self.nature.broken | self.nature.deadly
            counted = {i: train[i] for i in train if train[i].get(b"state") != b"quarantined" and i not in spoilt}
            given = all(int(state.get(b"seq", b"0")) > begun[i] for i, state in counted.items())
            return given and (len(self.model()) > learned or not counted) and bool(states[0])

        self._await(moves, PROGRESS_S + self._forgotten_s, "liveness: a shard, or the trainer, does not go on")

    def _await(self, fact: Callable[[], bool], within_s: float, promise: str) -> None:
        deadline = self.hub.now + within_s
        while not fact():
            if self.hub.now >= deadline:
                raise Violation(f"{promise} {self._facts()}")
            self.hub.run(min(deadline, self.hub.now + 0.1))

    # ---- the client

    def _order(self, what: Callable[[], None]) -> None:
        """Have the client do something once all before it is done; it insists until the server answers."""
        self._orders.append(what)
        if len(self._orders) == 1:
            self.client.spawn(self._obey, "orders")

    def _obey(self) -> None:
        while self._orders:
            try:
                self._orders[0]()
            except Conflict:
                pass  # it is over, or on its way out
            except SpecError as error:
                raise Violation(f"the plan's spec is none: {error}") from error
            except HeddleError:
                self.hub.wait(0.2)
                continue
            self._orders.popleft()

    def order_command(self, command: Any) -> None:
        """Have the client say it."""
        self._order(lambda: self.connect().experiments.set_command(EXPERIMENT, command) and None)

    def _submit(self) -> None:
        spec = self.plan.spec()
        try:
            self.connect().experiments.submit(
                spec.canonical_json(), "", spec.sha256(), spec.experiment.name, suffix=EXPERIMENT.rpartition("-")[2],
                spaces=SPACES,
            )  # fmt: skip
        except Conflict as error:  # the broker forgot the first half of it: to be submitted again, as it says
            raise HeddleError(str(error)) from error
        self.faults.floor = self.server.written

    def _stop(self) -> None:
        self.connect().experiments.set_command(EXPERIMENT, "stop")

    def _remove(self, *, force: bool = False) -> None:
        self.connect().experiments.remove(EXPERIMENT, force=force)
        self.removed_ms = self.now_ms()

    def _spread_news(self, published: list[tuple[bytes, bytes]]) -> None:
        """Pass on what was published; some of it late, some never."""
        for channel, data in published:
            experiment = channel.decode().removeprefix("heddle:{").rpartition(".")[0]
            word, _, value = data.decode().partition(" ")
            for listener in SimNews.listeners:
                if self.net.link(listener.process).down and self.hub.rng.random() < 0.9:
                    delay_s = 0.02 * self.hub.rng.random()
                    self.hub.at(delay_s, partial(listener.hear, experiment, word, value))

    # ---- the end of the world

    def _failed(self, task: Task, error: BaseException) -> None:
        if isinstance(error, Violation):
            raise error
        import traceback

        told = "".join(traceback.format_exception(error))
        raise Violation(f"an error that nobody expects, in {task.process.name} {task.name}: {told}")

    def _stacks(self) -> list[str]:
        """Where every living thread is."""
        found = []
        for process in [*self.hosts.everybody(), self.client]:
            for task in process.tasks if process.alive else ():
                found += [f"-- {process.name} {task.name}", *task.stack()]
        return found

    def _bury(self) -> None:
        """Unwind whatever still runs."""
        for process in [*self.hosts.everybody(), self.client]:
            process.alive = False
            for task in process.tasks:
                task.unwind()

    def _facts(self) -> dict[str, Any]:
        flow = {name.decode(): int(value) for name, value in self.hash_of("flow").items()}
        some = ("appended", "trained", "stale", "entries", "discarded")
        shown: dict[str, Any] = {name: flow[name] for name in some if name in flow}
        states = {index: state.get(b"state", b"").decode() for index, state in self.shard_states().items()}
        return {"state": self.state(), "shards": states, **shown, "losses": self.watcher.truth.losses}


_worlds = count(1)


@contextmanager
def _collecting_later() -> Iterator[None]:
    """A world is short, and its garbage small: it is looked for once in many worlds, not all the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
        if next(_worlds) % COLLECT_EVERY == 0:
            gc.collect()


SPACES = json.dumps({"observation": to_json(Box((4,), "float32")), "action": to_json(Discrete(2, 0))})
