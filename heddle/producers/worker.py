"""The worker: claims shards, plays them in turn and delivers what it played, until it is told to end.

It keeps nothing that matters: whatever kills it, another worker continues at the last accepted batch.

Threads: this one plays; the appender delivers; the keeper renews; the heartbeat says how it is; the
listener hears news; the watchdog ends the process when user code hangs.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

import numpy as np

from heddle.broker import Broker, open_broker
from heddle.broker.faults import Damaged
from heddle.clock import Clock, SystemClock
from heddle.errors import BrokerError, EnvError, Gone, HeddleError, NotFound, PolicyLost
from heddle.lease import retry_delay_s
from heddle.plane import Plane, open_plane
from heddle.producers.desk import Desk
from heddle.producers.holdings import Holding
from heddle.producers.identity import process_name
from heddle.producers.isolation.origin import kept
from heddle.producers.parcel import Outcome, Parcel
from heddle.producers.worker_parts import Means, Parts
from heddle.quick_exit import exit_now
from heddle.stop import StopFlag
from heddle.tracing import Tracing

log = logging.getLogger("heddle.worker")

DRAIN_S = 10.0
WAIT_S = 0.25


class Worker:
    """One worker process.

    Attributes:
        id: its name.
        desk: what it holds, for those who look on.

    Args:
        url: address of the broker.
        worker_id: its name, never used by another process; None makes one.
        stop: once = finish the segment, deliver, release and leave; twice = leave at once.
        drain_s: seconds that delivering may take after the last segment.
        connect: opens the broker instead of `url`.
        exit_process: ends the process from a thread other than the main one.
        entropy: gives that many random bytes.
        is_sampled: have a thread look what the playing one is at, for `heddle profile`.
        plane: opens this host's shared memory.
        is_ahead: have a thread fetch policies, where playing need not wait for them.
        tracing: takes spans; None when nobody traces.
    """

    def __init__(
        self,
        url: str,
        pool: str = "default",
        *,
        worker_id: str | None = None,
        stop: StopFlag,
        drain_s: float = DRAIN_S,
        connect: Callable[[], Broker] | None = None,
        exit_process: Callable[[int], object] = exit_now,
        entropy: Callable[[int], bytes] = os.urandom,
        plane: Callable[[], Plane] = open_plane,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
        is_sampled: bool = False,
        is_ahead: bool = False,
        tracing: Tracing | None = None,
    ) -> None:
        self.pool = pool
        self.id = worker_id or process_name(os.uname().nodename, os.getpid(), entropy(4))
        self.desk = Desk(self.id)
        self._connect = connect or partial(open_broker, url, role="worker")
        self._stop = stop
        self._drain_s = drain_s
        self._clock = clock or SystemClock()
        self._means = Means(
            worker=self.id,
            pool=pool,
            stop=stop,
            exit_process=exit_process,
            entropy=entropy,
            plane=plane,
            clock=self._clock,
            rng=rng or np.random.default_rng(),
            tracing=tracing,
            is_ahead=is_ahead,
            is_sampled=is_sampled,
        )
        self._failure: BaseException | None = None
        self._failures = 0
        self._turn_number = 0

    def run(self) -> int:
        """Work until asked to end; returns the exit code.

        Raises:
            BrokerError, Denied: the broker cannot be used at the start; later an absence is waited out.
        """
        with kept():  # before user code can change it
            return self._run()

    def _run(self) -> int:
        self._broker = self._connect()
        self._parts = Parts(self._broker, self.desk, self._means, fail=self._fail)
        log.info("working worker=%s pool=%s", self.id, self.pool)
        self.desk.notes.add(None, f"started pool={self.pool} host={os.uname().nodename} pid={os.getpid()}")
        try:
            self._stop.on_request(self._wake)
            self.desk.moved_at = self._clock.monotonic()  # the first heartbeat tells how long ago that was
            self._parts.start()
            while not self._stop.draining and self._failure is None:
                self._work()
            self._drain()
        finally:
            self._close()
        if self._failure is not None:
            raise self._failure
        log.info("ended worker=%s reason=%s counters=%s", self.id, self._stop.reason, asdict(self.desk.counters))
        return 0

    # ---- the end

    def _drain(self) -> None:
        """Deliver what was played and give every shard back, for at most `drain_s`."""
        self._parts.heartbeat.soon()
        deadline = self._clock.monotonic() + (self._drain_s if self._failure is None else 0.0)
        self.desk.leave(self.desk.holdings(), "its worker ends")
        while self._tidy() and self._clock.monotonic() < deadline:
            with self.desk.changed:
                if not self.desk.ready_to_release():
                    self.desk.changed.wait(WAIT_S)
        self._parts.returns.abandon()

    def _close(self) -> None:
        self._parts.stop()
        self.desk.notes.add(None, f"ended because {self._failure or self._stop.reason}")
        self.desk.notes.send(self._broker.events)
        try:
            self._broker.pools.bye(self.id, self.pool)
        except HeddleError as error:
            log.info("could not say goodbye error=%s", error)
        self._broker.close()

    # ---- the loop

    def _work(self) -> None:
        """Claim what may be claimed, then play one segment of one shard, or wait."""
        self.desk.moved_at = self._clock.monotonic()
        self._tidy()
        self._parts.lost_policies.ask_again()
        self._parts.claimer.look()
        if self._stop.draining:
            return
        holding = self.desk.choose()
        if holding is None:
            self._wait()
        else:
            self._play(holding)

    def _play(self, holding: Holding) -> None:
        experiment = holding.lease.experiment
        self._turn_number += 1
        holding.turn = self._turn_number
        self._set_stepping(holding)
        try:
            stage = self._parts.claimer.stages[experiment]
            parcel = self._parts.lanes.play(holding, stage, self.desk.facts(experiment))
        except EnvError as error:
            self._parts.claimer.avoid(holding)
            self._parts.returns.blame(holding, error)
            return
        except Gone:
            self._parts.answers.gone(experiment)
            return
        except Damaged as error:
            self._parts.damaged.met(experiment, error)
            return
        except (NotFound, BrokerError) as error:
            is_pinned_lost = isinstance(error, PolicyLost) and holding.claim.kind == "eval"
            if not is_pinned_lost:  # else all other shards are played on
                self._failed(f"cannot fetch the policy of {experiment}", error)
            if isinstance(error, PolicyLost):
                self._parts.lost_policies.met(experiment, error.version, is_pinned=is_pinned_lost)
            return
        finally:
            self._set_stepping(None)
        self._failures = 0
        if parcel is not None:
            self._hand_over(holding, parcel)

    def _hand_over(self, holding: Holding, parcel: Parcel) -> None:
        """Have a batch delivered, unless its lease was lost while it was played."""
        with self.desk.changed:
            if self.desk.find(holding.lease) is None:
                self.desk.counters.unsent += 1
                parcel.let_go(Outcome.UNSENT)
                return
            holding.outstanding += 1
            self.desk.counters.batches += 1
            self.desk.counters.steps += parcel.meta.steps
            waited_s, self.desk.counters.waited_s = self.desk.counters.waited_s, 0.0
            parcel.meta = replace(parcel.meta, waited_ms=round(1000 * waited_s))
            self._parts.appender.hand_over(parcel)

    def _wait(self) -> None:
        """Until something may be playable, or it is time to look at tickets again."""
        began = self._clock.monotonic()
        with self.desk.changed:
            may_claim = not self.desk.holdings() and self._parts.claimer.next_look <= began
            if self.desk.choose() is None and not may_claim and not self.desk.ready_to_release():
                self.desk.is_waiting = True
                self.desk.changed.wait(min(WAIT_S, max(0.001, self._parts.claimer.next_look - began)))
                self.desk.is_waiting = False
        waited_s = self._clock.monotonic() - began
        held = self.desk.holdings()
        if held and not any(holding.waits for holding in held):  # one that waits for its child is played
            self.desk.counters.wait_s += waited_s
            self.desk.counters.waited_s += waited_s

    def _tidy(self) -> bool:
        """Between two segments: close what is over, give up what is above quota, release what leaves.

        Returns:
            True while anything is held.
        """
        self._close_players()
        self._parts.returns.heed_quota(self._means.rng.random())
        before = len(self.desk.holdings())
        if not (self._parts.returns.release_ready() and self._parts.returns.report_taken()):
            self._failed("cannot release", None)
        if len(self.desk.holdings()) < before:
            self._parts.heartbeat.soon()
            self._close_players()
        return bool(self.desk.holdings())

    def _close_players(self) -> None:
        for holding in self.desk.take_dropped():
            self._parts.lanes.close(holding)
            holding.begun = False
            experiment = holding.lease.experiment
            if not self.desk.of(experiment):
                self._parts.forget(experiment)

    def _failed(self, what: str, error: Exception | None) -> None:
        """Note that the broker could not serve the playing thread, and let a moment pass."""
        self._failures += 1
        if self._failures == 1 and error is not None:
            log.warning("%s, waiting error=%s", what, error)
        with self.desk.changed:
            self.desk.changed.wait(retry_delay_s(self._failures, self._means.rng.random()))

    def _set_stepping(self, holding: Holding | None) -> None:
        with self.desk.changed:
            self.desk.stepping = None if holding is None else holding.key
            if holding is not None:
                holding.begun = True

    # ---- called from other threads

    def _wake(self) -> None:
        self.desk.wake()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._wake()
