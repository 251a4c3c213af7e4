"""The supervisor's line to the broker, in a thread of its own.

It says "I am here", hears the pool's size and the workers' hearts, and frees dead workers' shards; it never starts or
ends a process.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from heddle.broker import Broker
from heddle.broker.failure_types import Cause, Failure
from heddle.broker.plane_sweep import sweep
from heddle.broker.presence import HostReport
from heddle.broker.types import Reaped
from heddle.clock import Clock, SystemClock
from heddle.errors import BrokerAmiss, HeddleError
from heddle.launch.epitaph import HINT
from heddle.launch.hearing import Hearing
from heddle.launch.vigil import Silence
from heddle.launch.voices import Voices
from heddle.lease import retry_delay_s

log = logging.getLogger("heddle.supervisor")

BEAT_S = 1.0
EAGER_S = 0.1
"""How often it listens while others wait for a worker's first heartbeat."""
MOST_TOLD = 200
SWEEP_S = 30.0
"""How often it looks for what dead workers left in shared memory, and soon after one died."""
SWEEP_SOON_S = 11.0
"""What it made last is left alone for 10 s."""


class Liaison:
    """Beats every second, at once when there is something to release.

    Args:
        connect: opens the broker; called by `start` in the caller's thread, so that a broker that
            cannot be used is an error there.
        supervisor: who beats.
        wants: how many workers it runs while the pool has no desired size.
        report: says what its host has; called from the liaison's thread.
    """

    def __init__(
        self,
        connect: Callable[[], Broker],
        pool: str,
        supervisor: str,
        *,
        wants: int,
        report: Callable[[], HostReport | None] = lambda: None,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._connect = connect
        self._clock = clock or SystemClock()
        self._pool = pool
        self._supervisor = supervisor
        self._wants = wants
        self._report_host = report
        self._rng = rng or np.random.default_rng()
        self._lock = threading.Lock()
        self._desired: int | None = None
        self._supervisors: tuple[str, ...] | None = None
        self._hearing = Hearing()
        self._workers: tuple[str, ...] = ()
        self._is_eager = False
        self._next_beat = 0.0
        self._next_sweep = 0.0
        self._to_release: deque[tuple[str, str | None, str, str, bool]] = deque()
        self._to_tell: deque[tuple[str, str, str]] = deque(maxlen=MOST_TOLD)
        self._voices = Voices(self._clock)
        self._wake = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="liaison", daemon=True)

    def start(self) -> None:
        """Connect, beat once and go on doing so.

        Raises:
            BrokerError, Denied: the broker cannot be used.
        """
        self._broker = self._connect()
        self._beat()
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Free what is still to be freed, say goodbye, end; at most `timeout_s`."""
        self._ending = True
        self._wake.set()
        self._thread.join(timeout_s)
        self._broker.close()

    def told(self) -> tuple[int | None, Sequence[str] | None]:
        """The pool's desired size (None = nobody set one) and the live supervisors (None = not heard yet)."""
        with self._lock:
            return self._desired, self._supervisors

    def listen(self, workers: Sequence[str], *, eagerly: bool) -> None:
        """Listen for the hearts of these workers; eagerly while others wait for the first beat of some."""
        with self._lock:
            self._workers = tuple(workers)
            begins, self._is_eager = eagerly and not self._is_eager, eagerly
        if begins:
            self._wake.set()

    def was_heard(self, worker: str) -> bool:
        """It beat at least once."""
        with self._lock:
            return self._hearing.was_heard(worker)

    def silence(self, worker: str) -> Silence | None:
        """For how long nothing was heard of a worker; None when it could not have been."""
        with self._lock:
            return self._hearing.silence(worker, self._clock.monotonic())

    def release(self, worker: str, why: str | None = None, *, how: str, kind: str = "", crashed: bool = False) -> None:
        """Have the shards of a dead worker freed, and the worker shown as dead; asked again until the broker answers.

        Args:
            why: how it died, kept with a shard that is to blame for it.
            how: how it ended, for the list of workers.
            kind: in one word, to be counted; "" for one that ended because it was asked to.
            crashed: it brought its death upon itself.
        """
        with self._lock:
            self._to_release.append((worker, why, how, kind, crashed))
        self._wake.set()

    def tell(self, level: str, worker: str, message: str) -> None:
        """Put one line into the log that everybody can read."""
        with self._lock:
            self._to_tell.append((level, worker, message))
        self._wake.set()

    def say(self, worker: str, line: str) -> None:
        """A worker printed a line that others may want to read; of too many some are left out."""
        self._voices.hear(worker, line)

    def _run(self) -> None:
        failures = 0
        wait_s = BEAT_S
        while True:
            self._wake.wait(wait_s)
            self._wake.clear()
            try:
                is_end = self._ending
                last = (self._bye,) if is_end else (partial(self._beat_on_time, now=failures > 0), self._hear)
                self._all(self._free, self._report, self._sweep, *last)
                if is_end:
                    return
                failures, wait_s = 0, EAGER_S if self._is_eager else BEAT_S
            except Exception as error:  # noqa: BLE001  top of a thread: the supervisor must not lose its line for good
                failures += 1
                if failures == 1:
                    log.warning("waits for the broker, children run on error=%s", error)
                if not isinstance(error, HeddleError):
                    log.exception("liaison failed, going on")
                wait_s = retry_delay_s(failures, self._rng.random())
            if self._ending and failures:
                return

    def _all(self, *steps: Callable[[], None]) -> None:
        """Do each; one that meets a key that all share, and that is not what it should be, keeps no other from it."""
        met: BrokerAmiss | None = None
        for step in steps:
            try:
                step()
            except BrokerAmiss as error:
                met = met or error
        if met is not None:
            raise met

    def _sweep(self) -> None:
        if self._ending or self._clock.monotonic() >= self._next_sweep:
            sweep(self._broker.planes, clock=self._clock)
            self._next_sweep = self._clock.monotonic() + SWEEP_S

    def _bye(self) -> None:
        self._broker.pools.supervisor_bye(self._pool, self._supervisor)

    def _beat_on_time(self, *, now: bool) -> None:
        if now or self._clock.monotonic() >= self._next_beat:
            self._beat()

    def _beat(self) -> None:
        share = self._broker.pools.supervisor_beat(self._pool, self._supervisor, self._wants, host=self._report_host())
        self._next_beat = self._clock.monotonic() + BEAT_S
        with self._lock:
            self._desired, self._supervisors = share.desired, share.supervisors

    def _hear(self) -> None:
        workers = self._workers
        said = self._broker.pools.pulses(self._pool, workers) if workers else {}
        with self._lock:
            self._hearing.hear(self._clock.monotonic(), workers, said)

    def _free(self) -> None:
        while self._to_release:
            worker, why, how, kind, crashed = self._to_release[0]
            bare = None if why is None else why.replace(HINT, "")
            # Tried again, some may be free already: what the worker held, and so which one it was, is not known then.
            self._to_release[0] = (worker, why, how, kind, False)
            freed = self._broker.shards.release_worker(worker, error=why, crashed=crashed, in_children=bare)
            if at := next((shard for shard in freed if shard.stepping), None):
                how = f"{how}, while it stepped {at.experiment}/{at.shard}"
            self._bury(worker, how, kind)
            self._voices.forget(worker)
            if freed:
                log.info("released shards=%d of dead worker=%s", len(freed), worker)
            self._to_release.popleft()
            self._next_sweep = min(self._next_sweep, self._clock.monotonic() + SWEEP_SOON_S)
            for shard in freed:
                why_first = f"freed shard={shard.shard}, its worker {(how or 'it ended').removeprefix('it ')}"
                told = f"{why_first}; epoch={shard.epoch} of worker={worker}, now {shard.state}"
                self._broker.events.log(shard.experiment, "supervisor", self._supervisor, "warning", told)
                if shard.stepping and why is not None:
                    self._blame(shard, worker, why)

    def _bury(self, worker: str, how: str, kind: str) -> None:
        try:
            self._broker.pools.bury(worker, how, pool=self._pool, kind=kind)
        except BrokerAmiss as error:  # of its pool: others that died are freed all the same
            log.warning("not counted worker=%s error=%s", worker, error)

    def _blame(self, shard: Reaped, worker: str, why: str) -> None:
        """Say which environment a worker was at when it died, and keep that with the shard."""
        told = f"worker {worker} died while stepping shard {shard.shard} of {shard.experiment}"
        if shard.in_children:
            why = why.replace(HINT, "")
            told += " and no other one; its environments run in children, one of which may have ended it"
        else:
            told += '; if an environment did that, isolation = "process" under [env] keeps it from workers'
        log.warning("%s", told)
        self._broker.events.log(shard.experiment, "supervisor", self._supervisor, "warning", told)
        cause: Cause = "signal" if "signal" in why else "exit"
        failure = Failure(cause, why, "step", worker=worker)
        self._broker.shards.note_failure(shard.experiment, shard.partition, shard.shard, failure)

    def _report(self) -> None:
        while self._to_tell:
            level, worker, message = self._to_tell[0]
            self._broker.events.log(None, "supervisor", worker, level, message)
            self._to_tell.popleft()
        self._pass_on()

    def _pass_on(self) -> None:
        """What user code printed in workers."""
        said = self._voices.take()
        with self._lock:
            lines = [replace(one, experiment=one.experiment or self._hearing.experiment(one.worker)) for one in said]
        if lines and not self._broker.events.log_all(lines):
            self._voices.give_back(lines)
