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
from heddle.clock import Clock, SystemClock
from heddle.launch import process
from heddle.launch.liaison import Liaison
from heddle.launch.process import ONE_THREAD, Child, describe_exit
from heddle.producers.identity import process_name
from heddle.stop import StopFlag

log = logging.getLogger("heddle.supervisor")

LOOP_S = 0.05
HEALTHY_S = 10.0
RESTART_FIRST_S = 0.2
RESTART_LAST_S = 30.0
WORKER_ID_ENV = "HEDDLE_WORKER_ID"
SUPERVISOR_ENV = "HEDDLE_SUPERVISOR"
URL_ENV = "HEDDLE_REDIS_URL"
SHOWN_LINES = 5


def share(desired: int, supervisors: Sequence[str], me: str) -> int:
    """How many of `desired` workers fall to `me`: as even as can be, the rest to the first by name."""
    if me not in supervisors:
        return 0
    names = sorted(set(supervisors))
    each, rest = divmod(max(0, desired), len(names))
    return each + (1 if names.index(me) < rest else 0)


def restart_delay_s(failures: int, chance: float) -> float:
    """Seconds before a worker that ended unasked is started again: doubling, half of it jitter.

    Args:
        failures: ends in a row without a healthy run between them, >= 1.
        chance: uniform in [0, 1).
    """
    bound = min(RESTART_LAST_S, RESTART_FIRST_S * 2.0 ** min(failures - 1, 30))
    return bound * (0.5 + 0.5 * chance)


def telling(lines: Sequence[str]) -> list[str]:
    """Of the last lines that a process printed those that say why it died.

    Of Python's dump at a fatal signal that is its first line and the innermost call, which comes first in it.
    """
    said = [line for line in lines if line.strip() and not line.startswith("Extension modules:")]
    dump = next((at for at, line in enumerate(said) if "(most recent call first)" in line), None)
    if dump is None:
        return said
    fatal = [line for line in said[:dump] if line.startswith("Fatal Python error")]
    return fatal + said[dump + 1 : dump + 2]


@dataclass(slots=True)
class Slot:
    """One worker that shall run, whichever process is it now.

    Attributes:
        failures: ends in a row without a healthy run.
        start_at: monotonic seconds before which it is not started again.
    """

    child: Child | None = None
    failures: int = 0
    start_at: float = 0.0


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
        command: what to run instead of `heddle worker`.
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
        name: str | None = None,
        command: Sequence[str] | None = None,
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
        self._command = list(command) if command else worker_command(pool)
        self._env = dict(os.environ if env is None else env)
        self._on_line = on_line
        self._liaison = Liaison(connect or partial(open_broker, url, role="supervisor"), pool, self.name, wants=wants)
        self._clock = clock or SystemClock()
        self._rng = rng or np.random.default_rng()
        self._slots: list[Slot] = []
        self._leaving: list[Child] = []
        self._started = 0

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
            self._liaison.stop()
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
        for slot in self._slots:
            if slot.child is None and now >= slot.start_at:
                self._start(slot)

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

    def _start(self, slot: Slot) -> None:
        self._started += 1
        worker = process_name(os.uname().nodename, os.getpid(), os.urandom(3), part=f"w{self._started}")
        env = {**ONE_THREAD, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **self._env}
        env |= {URL_ENV: self._url, WORKER_ID_ENV: worker, SUPERVISOR_ENV: self.name}
        on_line = self._on_line
        try:
            slot.child = Child(
                self._command,
                env=env,
                name=worker,
                log_file=self._log_dir / f"{worker}.log" if self._log_dir else None,
                on_line=(lambda line: on_line(worker, line)) if on_line else None,
                clock=self._clock,
            )
        except OSError as error:  # no memory, no processes left: wait and try again
            self._fail(slot, f"cannot start a worker: {error}", worker)
            return
        log.info("started worker=%s pid=%d", worker, slot.child.pid)
        self._liaison.tell("info", worker, f"started worker={worker} pid={slot.child.pid}")

    def _look(self) -> None:
        for slot in self._slots:
            child = slot.child
            if child is None or child.poll() is None:
                continue
            slot.child = None
            self._liaison.release(child.name, self._cause(child), how=_how(child))
            if child.lifetime_s() >= HEALTHY_S:
                slot.failures = 0
            self._fail(slot, self._epitaph(child), child.name, level=logging.WARNING if child.code else logging.INFO)
        for child in [c for c in self._leaving if c.poll() is not None]:
            self._leaving.remove(child)
            self._liaison.release(child.name, how=_how(child))
            log.info("ended worker=%s %s", child.name, describe_exit(child.code or 0))

    def _fail(self, slot: Slot, why: str, worker: str, *, level: int = logging.WARNING) -> None:
        slot.failures += 1
        delay_s = restart_delay_s(slot.failures, self._rng.random())
        slot.start_at = self._clock.monotonic() + delay_s
        log.log(level, "restarting worker in=%.1fs because %s", delay_s, why)
        self._liaison.tell(logging.getLevelName(level).lower(), worker, why)

    def _cause(self, child: Child) -> str:
        last = (telling(child.tail()) or [""])[-1].strip()
        hint = 'if it did that, isolation = "process" under [env] keeps it from workers'
        how = describe_exit(child.code or 0)
        return f"its worker ended with {how} while stepping it ({hint}); last line: {last[:300]}"

    def _epitaph(self, child: Child) -> str:
        if not child.code:  # one that was asked to drain ends like this
            return f"worker {child.name} left by itself after {child.lifetime_s():.1f} s"
        last = " | ".join(telling(child.tail())[-SHOWN_LINES:])
        said = f"; last lines: {last}" if last else "; it printed nothing"
        return f"worker {child.name} ended with {describe_exit(child.code or 0)} after {child.lifetime_s():.1f} s{said}"

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
        hurried = False
        while self._leaving:
            if self._stop.now and not hurried:
                hurried = True
                for child in self._leaving:
                    child.hurry()
            self._look()
            self._clock.sleep(LOOP_S)


def _how(child: Child) -> str:
    """How a worker ended, in one short line."""
    asked = ", after it was asked to end" if child.ending else ""
    return f"it ended with {describe_exit(child.code or 0)}{asked}"
