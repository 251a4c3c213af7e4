"""The siege: carries a schedule out against a fleet, heals everything, has the experiments stopped, and tells.

It never judges; the observer's checks, the counters and what is left over do. One thread, the main one.
"""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import redis

from heddle.broker import open_broker
from heddle.errors import HeddleError
from heddle.plane import root_folder
from tests.chaos import procs
from tests.chaos.checker import books
from tests.chaos.fleet import MARK, Fleet
from tests.chaos.observer import Observer, read_flow
from tests.chaos.schedule import Action

STEP_S = 0.01
SERVER_DATA = ("appendonlydir", "server.durability")
"""What a server leaves on purpose: its data, and how they were kept."""
BOOKS_EVERY_S = 1.0
AGAIN_S, PATIENCE_S = 0.2, 10.0
"""When nobody of a role is alive, it is tried again so often, for so long."""
MOST_FILES = 600
"""In shared memory: the 128 in flight, and what each victim of a kill had in its hands before a sweep comes by."""
SETTLE_S = 120.0
"""How long a healed fleet may take to play every shard again, and to stop: processes start on a busy machine."""


@dataclass(slots=True)
class Hit:
    """An attack that found its victim.

    Attributes:
        at_ms: wall milliseconds, as the server counts them.
        pid: of the victim; 0 for a link.
        command: of the victim.
        held: (experiment, shard) -> epoch of its claim, of a worker.
        until_ms: when it was taken back; 0 for a death.
    """

    action: Action
    at_ms: int
    pid: int
    command: str = ""
    held: dict[tuple[str, int], int] = field(default_factory=dict)
    until_ms: int = 0


@dataclass(slots=True)
class Siege:
    """See the module.

    Attributes:
        hits: what was done; missed: actions that never found anybody alive.
        problems: found by looking, not by the observer.
        on_link: carries out an attack on a role's link; returns what takes it back.
        most_files: that were seen in shared memory at a time.
    """

    fleet: Fleet
    observer: Observer
    actions: Sequence[Action]
    on_link: Callable[[Action], Callable[[], None]] | None = None
    hits: list[Hit] = field(default_factory=list)
    missed: list[Action] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    most_files: int = 0
    _undo: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    _books_at: float = 0.0

    def run(self) -> None:
        """Attack, then heal."""
        began = self.fleet.clock.monotonic()
        waiting = [(action.at_s, action) for action in self.actions]
        while waiting or self._undo:
            now_s = self.fleet.clock.monotonic() - began
            due = [action for due_s, action in waiting if due_s <= now_s]
            waiting = [entry for entry in waiting if entry[0] > now_s]
            for action in due:
                if self._do(action):
                    continue
                if now_s < action.at_s + PATIENCE_S:
                    waiting.append((now_s + AGAIN_S, action))
                else:
                    self.missed.append(action)
            self.step()

    def step(self) -> None:
        """Keep the fleet running, take back what is over, look at the counters."""
        now = self.fleet.clock.monotonic()
        for entry in [entry for entry in self._undo if now >= entry[0]]:
            self._undo.remove(entry)
            entry[1]()
        self.fleet.step()
        if now >= self._books_at and self.fleet.server_answers:
            self._books_at = now + BOOKS_EVERY_S
            self._look_at_books()
        self.fleet.clock.sleep(STEP_S)

    def settle(self) -> None:
        """Wait until every shard is played and trained again, then stop the experiments and wait for their end."""
        begin = {name: len(one.history.batches) for name, one in self.observer.watched.items()}
        if not self._until(lambda: all(self._plays(name, begin[name]) for name in begin)):
            self.problems.append(f"not everything came back within {SETTLE_S:g} s: {self._standstill(begin)}")
        if not self._until(lambda: all(self._stopped(name) for name in begin)):
            self.problems.append(f"an experiment did not stop within {SETTLE_S:g} s: {self._states()}")

    def sweep(self) -> None:
        """Wait until nothing lies in shared memory any more: the experiments have ended, so nobody may leave a file."""
        if not self._until(lambda: not in_memory(self.fleet)):
            self.problems.append(f"shared memory was not swept within {SETTLE_S:g} s: {in_memory(self.fleet)[:8]}")

    def _until(self, fact: Callable[[], bool]) -> bool:
        deadline = self.fleet.clock.monotonic() + SETTLE_S
        while not fact():
            if self.fleet.clock.monotonic() > deadline:
                return False
            for _ in range(10):
                self.step()
        return True

    def _plays(self, experiment: str, since: int) -> bool:
        """Every shard gave something since, and all of that was trained."""
        with self.observer.lock:
            history = self.observer.watched[experiment].history
            new = [batch for batch in history.batches[since:] if batch.gone]
            return {batch.shard for batch in new} == set(history.shards) and bool(new)

    def _standstill(self, since: dict[str, int]) -> list[str]:
        """Which shards gave nothing, or had nothing trained."""
        with self.observer.lock:
            return [
                f"{name}: {sorted(set(history.shards) - {b.shard for b in history.batches[begin:] if b.gone})}"
                for name, begin in since.items()
                if (history := self.observer.watched[name].history)
            ]

    def _stopped(self, experiment: str) -> bool:
        try:
            with open_broker(self.fleet.server.url, role="test") as broker:
                broker.experiments.set_command(experiment, "stop")
                return broker.experiments.status(experiment).ended
        except HeddleError:
            return False

    def _states(self) -> list[str]:
        with open_broker(self.fleet.server.url, role="test") as broker:
            return [f"{name} {broker.experiments.status(name).state}" for name in self.observer.watched]

    def _do(self, action: Action) -> bool:
        """Carry it out; False when nobody of its role is alive now."""
        if action.deed in ("kill", "freeze"):
            return self._hit_process(action)
        if self.on_link is not None:
            undo = self.on_link(action)
            hit = Hit(action, self._now_ms(), 0)
            self.hits.append(hit)
            self._later(action.lasts_s, undo, hit)
        return True

    def _hit_process(self, action: Action) -> bool:
        pids = self.fleet.pids(action.role)
        if not pids:
            return False
        pid = pids[min(int(action.pick * len(pids)), len(pids) - 1)]
        victim = procs.process(pid)
        hit = Hit(action, 0, pid, victim.command if victim else "", self._held(pid) if action.role == "worker" else {})
        hit.at_ms = self._now_ms()
        if action.role == "server" and action.deed == "freeze":
            self._later(action.lasts_s, self.fleet.freeze_server(), hit)
        elif action.role == "server":
            self.fleet.kill_server(action.lasts_s)
        elif not _signal(pid, signal.SIGKILL if action.deed == "kill" else signal.SIGSTOP):
            return False
        if action.deed == "freeze" and action.role != "server":
            self._later(action.lasts_s, lambda: _thaw(pid), hit)
        self.hits.append(hit)
        return True

    def _later(self, lasts_s: float, undo: Callable[[], None], hit: Hit) -> None:
        def take_back() -> None:
            undo()
            hit.until_ms = self._now_ms()

        self._undo.append((self.fleet.clock.monotonic() + lasts_s, take_back))

    def _held(self, pid: int) -> dict[tuple[str, int], int]:
        worker = self.fleet.worker_id(pid)
        with self.observer.lock:
            return {
                (name, shard): epoch
                for name, one in self.observer.watched.items()
                for shard, epoch in one.history.held_by(worker).items()
            }

    def _look_at_books(self) -> None:
        """The counters add up at any moment, and what lies in shared memory is bounded."""
        found = in_memory(self.fleet)
        self.most_files = max(self.most_files, len(found))
        if len(found) > MOST_FILES:
            self.problems.append(f"{len(found)} files in shared memory, e.g. {found[:4]}")
        for name in self.observer.watched:
            try:
                flow, entries = read_flow(self.fleet.server.url, name)
            except redis.RedisError:
                continue  # on its way up or down
            self.problems += [f"{name}: {problem}" for problem in books(flow, None, entries=entries)]

    def _now_ms(self) -> int:
        return int(self.fleet.clock.wall() * 1000)


def left_over(fleet: Fleet) -> list[str]:
    """Processes of the fleet that live on after its end, and what its server left beside its data."""
    found = [f"process {one.pid}: {one.command}" for one in procs.marked(MARK, str(fleet.folder))]
    folder = fleet.server.settings.folder
    found += [f"file {path.name}" for path in folder.iterdir() if path.name not in SERVER_DATA]
    return found


def in_memory(fleet: Fleet) -> list[str]:
    """Files of batches, and rings of workers, that the experiments of the fleet's server have in shared memory now."""
    try:
        with open_broker(fleet.server.url, role="test") as broker:
            own = broker.planes.known_identity()
    except HeddleError:
        return []
    found = root_folder() / own
    return sorted(path.name for path in found.glob("*/*")) if own else []


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _thaw(pid: int) -> None:
    _signal(pid, signal.SIGCONT)
