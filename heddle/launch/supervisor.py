"""The supervisor: keeps its part of a pool's desired workers running as child processes on this host.

It never plays, and it never speaks to the broker from the thread that watches the children: with the
broker away or silent the children are kept, restarted and ended all the same.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from heddle.broker import Broker, open_broker
from heddle.broker.presence import HostReport
from heddle.clock import Clock, SystemClock
from heddle.launch import process
from heddle.launch.epitaph import cause, epitaph, has_crashed, how, kind
from heddle.launch.forks import Forks, may_fork
from heddle.launch.host import HostWatch, cores
from heddle.launch.liaison import Liaison
from heddle.launch.pacing import HEALTHY_S, restart_delay_s, share
from heddle.launch.process import ONE_THREAD, Child, describe_exit, spawn
from heddle.launch.sweeping import Sweeper
from heddle.launch.vigil import Patience, lost, may_start
from heddle.launch.waiting import Waiting
from heddle.producers.identity import process_name
from heddle.stop import StopFlag

log = logging.getLogger("heddle.supervisor")

LOOP_S = 0.05
STARTS_A_CORE = 4
"""So many workers start at once: enough to keep the cores busy with it also while others want them, few enough that
whoever changes his mind is heard in between."""
START_S = 15.0
"""A worker that was not heard of for so long after its start keeps no other one from starting."""
WORKER_ID_ENV = "HEDDLE_WORKER_ID"
SUPERVISOR_ENV = "HEDDLE_SUPERVISOR"
URL_ENV = "HEDDLE_REDIS_URL"


@dataclass(slots=True)
class Slot:
    """One worker that shall run, whichever process is it now.

    Attributes:
        failures: ends in a row without a healthy run.
        start_at: monotonic seconds before which it is not started again.
        lost: why its child was killed by us; "" while it was not.
    """

    child: Child | None = None
    failures: int = 0
    start_at: float = 0.0
    lost: str = ""


@dataclass(frozen=True, slots=True)
class ChildInfo:
    """What a supervisor tells about one of its workers."""

    worker: str
    pid: int
    ending: bool
    lifetime_s: float
    failures: int


def worker_command(pool: str) -> list[str]:
    """The command of one worker; the broker's address travels in the environment, for it may hold a password."""
    return [*process.HEDDLE, "worker", "--pool", pool]


class Supervisor:
    """Runs `wants` workers of `pool`, or its share of the pool's desired size once somebody set one.

    Args:
        url: address of the broker.
        wants: workers to run while nobody set a desired size.
        most: never run more than this on the host, whatever is desired; None = no bound.
        stop: asks to end: once = drain every worker, twice = at once.
        log_dir: folder for one log file a worker; None = only their last lines are kept.
        grace_s: seconds a worker has to finish its segment and deliver it before it is killed.
        patience: how long one may give no sign of life.
        at_once: how many may start at the same time; None = a few for each core.
        command: what to run instead of `heddle worker`.
        forked: whether the command may be forked (it calls `fork_on_demand`); None: where it is `heddle worker`.
        env: environment of the workers instead of this process's.
        on_line: called with (worker, line) for all they print.
        connect: opens the broker, instead of `url`; the workers still get `url`.
    """

    def __init__(
        self,
        url: str,
        pool: str = "default",
        *,
        wants: int,
        most: int | None = None,
        stop: StopFlag,
        log_dir: Path | None = None,
        grace_s: float = 30.0,
        patience: Patience | None = None,
        at_once: int | None = None,
        name: str | None = None,
        command: Sequence[str] | None = None,
        forked: bool | None = None,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[str, str], None] | None = None,
        connect: Callable[[], Broker] | None = None,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.pool = pool
        self.name = name or process_name(os.uname().nodename, os.getpid(), os.urandom(4))
        self._url = url
        self._wants = wants
        self._most = most
        self._stop = stop
        self._log_dir = log_dir
        self._grace_s = grace_s
        self._patience = patience or Patience()
        self._at_once = at_once or STARTS_A_CORE * cores()
        self._command = list(command) if command else worker_command(pool)
        self._env = self._environment(os.environ if env is None else env)
        is_forked = may_fork(self._env) and (command is None if forked is None else forked)
        self._forks = Forks(self._command, self._env, clock=clock) if is_forked else None
        self._on_line = on_line
        self._clock = clock or SystemClock()
        self._liaison = self._made_liaison(connect or partial(open_broker, url, role="supervisor"))
        self._rng = rng or np.random.default_rng()
        self._slots: list[Slot] = []
        self._leaving: list[Child] = []
        self._sweeper = Sweeper()
        self._started = 0

    def _made_liaison(self, connect: Callable[[], Broker]) -> Liaison:
        host = HostWatch(self._clock, self._most)

        def report() -> HostReport:
            return host.report([child.pid for child in self.children() if not child.ending])

        return Liaison(connect, self.pool, self.name, wants=self._wants, report=report, clock=self._clock)

    def run(self) -> int:
        """Supervise until asked to stop and every worker has ended; returns the exit code.

        Raises:
            BrokerError, Denied: the broker cannot be used at the start; later that is waited out.
        """
        if self._log_dir is not None:
            self._log_dir.mkdir(parents=True, exist_ok=True)
        self._liaison.start()
        log.info("supervising pool=%s supervisor=%s wants=%d", self.pool, self.name, self._wants)
        try:
            while not self._stop.draining:
                self.step()
                self._stop.wait(LOOP_S)
        finally:
            self._end_all()
            if self._forks is not None:
                self._forks.stop()
            self._liaison.stop()
            self._sweeper.finish(self._stop)
        log.info("ended supervisor=%s reason=%s", self.name, self._stop.reason or "error")
        return 0

    def step(self) -> None:
        """Look at every child once, then start and drain workers to match the target."""
        self._look()
        target = self.target()
        if target is None:
            return
        self._shrink(target)
        while len(self._slots) < target:
            self._slots.append(Slot())
        now = self._clock.monotonic()
        due = [slot for slot in self._slots if slot.child is None and now >= slot.start_at]
        starting = self._starting()
        can_start = self._forks is None or not target or self._forks.look()
        for slot in due[: may_start(starting, self._at_once) if can_start else 0]:
            self._start(slot)
        running = [slot.child.name for slot in self._slots if slot.child is not None]
        self._liaison.listen(running, eagerly=starting > 0 or bool(due))

    def target(self) -> int | None:
        """How many workers shall run here; None before the broker answered once."""
        desired, supervisors = self._liaison.told()
        if supervisors is None:
            return None
        wanted = self._wants if desired is None else share(desired, supervisors, self.name)
        return wanted if self._most is None else min(wanted, self._most)

    def children(self) -> list[ChildInfo]:
        """The workers that run now, the leaving ones last."""
        slots = [(slot.child, slot.failures) for slot in self._slots if slot.child is not None]
        pairs = slots + [(child, 0) for child in self._leaving]
        return [ChildInfo(c.name, c.pid, c.ending, c.lifetime_s(), failures) for c, failures in pairs]

    def wake(self) -> None:
        """Have workers that were stopped go on."""
        for child in [slot.child for slot in self._slots if slot.child is not None]:
            child.wake()

    def _environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """What all workers have in common."""
        first = {**ONE_THREAD, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        return {**first, **given, URL_ENV: self._url, SUPERVISOR_ENV: self.name}

    def _start(self, slot: Slot) -> None:
        self._started += 1
        worker = process_name(os.uname().nodename, os.getpid(), os.urandom(3), part=f"w{self._started}")
        try:
            slot.child = Child(
                self._command,
                env={**self._env, WORKER_ID_ENV: worker},
                name=worker,
                log_file=self._log_dir / f"{worker}.log" if self._log_dir else None,
                on_line=partial(self._hear_line, worker),
                start=spawn if self._forks is None else self._forks.start,
                clock=self._clock,
            )
        except OSError as error:  # no memory, no processes left: wait and try again
            self._fail(slot, f"cannot start a worker: {error}", worker)
            return
        log.info("started worker=%s pid=%d", worker, slot.child.pid)
        self._liaison.tell("info", worker, f"started worker={worker} pid={slot.child.pid}")

    def _hear_line(self, worker: str, line: str) -> None:
        self._liaison.say(worker, line)
        if self._on_line is not None:
            self._on_line(worker, line)

    def _look(self) -> None:
        for slot in self._slots:
            child = slot.child
            if child is None:
                continue
            if child.poll() is None:
                self._watch(slot, child)
                continue
            slot.child, killed_for, slot.lost = None, slot.lost, ""
            self._sweeper.after(child.code or 0)
            told = {"how": how(child, killed_for), "kind": "" if child.ending else kind(child, killed_for)}
            crashed = has_crashed(child, killed_for)
            self._liaison.release(child.name, cause(child, killed_for), crashed=crashed, **told)
            if child.lifetime_s() >= HEALTHY_S:
                slot.failures = 0
            level = logging.WARNING if child.code else logging.INFO
            self._fail(slot, epitaph(child, killed_for), child.name, level=level)
        for child in [c for c in self._leaving if c.poll() is not None]:
            self._leaving.remove(child)
            self._sweeper.after(child.code or 0)
            self._liaison.release(child.name, how=how(child))
            log.info("ended worker=%s %s", child.name, describe_exit(child.code or 0))

    def _watch(self, slot: Slot, child: Child) -> None:
        """Kill a child that exists and is not at work any more; the next look finds another one's place free."""
        why = "" if slot.lost else lost(child.stopped_s(), self._liaison.silence(child.name), self._patience)
        if why:
            log.warning("killing worker=%s pid=%d: %s", child.name, child.pid, why)
            slot.lost = why
            child.kill()

    def _starting(self) -> int:
        """Workers that exist and were not heard of yet, those left out that take too long for it."""
        children = [slot.child for slot in self._slots if slot.child is not None]
        return sum(child.lifetime_s() < START_S and not self._liaison.was_heard(child.name) for child in children)

    def _fail(self, slot: Slot, why: str, worker: str, *, level: int = logging.WARNING) -> None:
        slot.failures += 1
        delay_s = restart_delay_s(slot.failures, self._rng.random())
        slot.start_at = self._clock.monotonic() + delay_s
        log.log(level, "restarting worker in=%.1fs because %s", delay_s, why)
        self._liaison.tell(logging.getLevelName(level).lower(), worker, why)

    def _shrink(self, target: int) -> None:
        while len(self._slots) > target:
            waiting = [slot for slot in self._slots if slot.child is None]
            slot = waiting[-1] if waiting else self._slots[-1]
            self._slots.remove(slot)
            if slot.child is not None:
                log.info("draining worker=%s", slot.child.name)
                slot.child.terminate(self._grace_s)
                self._leaving.append(slot.child)

    def _end_all(self) -> None:
        self._shrink(0)
        hurried, waiting = False, Waiting(self._clock)
        while self._leaving:
            if self._stop.now and not hurried:
                hurried = True
                for child in self._leaving:
                    child.hurry()
            self._look()
            waiting.look(self._leaving)
            self._clock.sleep(LOOP_S)
