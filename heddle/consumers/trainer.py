"""The trainer: a process that takes an experiment's seat and trains it to its end, or until it loses the seat.

It never trains by itself: it builds the parts, hands them to the loop, and turns what comes of it into an exit code.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from heddle.broker import Broker, open_broker
from heddle.broker.faults import Damaged
from heddle.broker.plane_sweep import sweep_home
from heddle.broker.seats import SEAT_TTL_MS, wants_trainer
from heddle.checkpoint import highest_epoch
from heddle.clock import Clock, SystemClock
from heddle.consumers import ending
from heddle.consumers.building import Source, build
from heddle.consumers.data.source import DataSource
from heddle.consumers.loop import Loop
from heddle.consumers.offline import OfflineLoop, offline_setting, open_source
from heddle.consumers.parts import PARTITION, Parts, Trains
from heddle.consumers.patience import GivenUp, Patience
from heddle.consumers.restoring import CheckpointMissing
from heddle.consumers.saver import DIRECTORY as CHECKPOINTS
from heddle.consumers.seat import ASK_EVERY_S, Seat, trainer_id
from heddle.consumers.setting import Describe, Setting
from heddle.consumers.watch import Watch
from heddle.consumers.watched import WatchedTraining
from heddle.errors import (
    BrokerError,
    CheckpointError,
    Conflict,
    DataError,
    EnvError,
    ExperimentFailed,
    Gone,
    Interrupted,
    SeatLost,
    SpecError,
)
from heddle.lease import Action, Watchdog
from heddle.plane import Plane, open_plane
from heddle.policies.weights import WeightsError
from heddle.quick_exit import STUCK_CODE, exit_now
from heddle.stop import StopFlag
from heddle.tracing import Tracing

log = logging.getLogger("heddle.trainer")

GRACE_S = 10.0
"""How long a trainer that shall end waits for a broker that is away."""

LEAVE_S = 1.0


class Trainer:
    """One trainer process.

    Args:
        url: address of the broker.
        experiment: its id.
        directory: the experiment's own folder; checkpoints go into `checkpoints` in it.
        stop: asks to end: once = checkpoint, ack, leave the seat; twice = at once.
        device: "cpu", "cuda" or "auto", instead of what the spec says.
        describe: makes one environment to see its spaces, where whoever submitted the spec did not.
        train: makes what trains, instead of the spec's learner; nobody looks at how long it takes.
        ttl_ms: how long the seat outlives this process.
        broker: used instead of connecting to `url`.
        exit_process: ends the process from the watchdog's thread, when the learner hangs.
        plane: opens this host's shared memory.
        tracing: takes spans; None when nobody traces.
    """

    def __init__(
        self,
        url: str,
        experiment: str,
        *,
        directory: Path,
        stop: StopFlag | None = None,
        device: str | None = None,
        describe: Describe | None = None,
        train: Callable[[Setting], Trains] | None = None,
        ttl_ms: int = SEAT_TTL_MS,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
        broker: Broker | None = None,
        exit_process: Callable[[int], object] = exit_now,
        plane: Callable[[], Plane] = open_plane,
        tracing: Tracing | None = None,
    ) -> None:
        self._url = url
        self._tracing = tracing
        self._plane = plane
        self._experiment = experiment
        self._directory = directory
        self._stop = stop or StopFlag()
        self._train = train
        self._device = device
        self._exit_process = exit_process
        self._describe = describe
        self._ttl_ms = ttl_ms
        self._clock = clock or SystemClock()
        self._rng = rng or np.random.default_rng()
        self._broker = broker
        self._trainer = trainer_id()
        self._watch = Watch(experiment, self._clock)
        self._connected: Broker | None = None
        self._seat: Seat | None = None
        self._parts: Parts | None = None
        self._data: DataSource | None = None
        self._patience = Patience(check=self._check, on_damage=self._wait_for_mending, clock=self._clock, rng=self._rng)

    def run(self) -> int:
        """Train until the experiment ends or this process shall end.

        Returns:
            0 when it ended well or goes on without us; 1 when it failed; 130 when stopped twice.

        Raises:
            SeatLost, Gone, NotFound, BrokerUnfit, Denied: it cannot be trained by this process (any more).
            CheckpointError: its checkpoints are not here.
            BrokerUnreachable: at the start; later it is waited for.
        """
        broker = self._connected = self._broker or open_broker(self._url, role="trainer")
        try:
            seat = self._claim(broker)
            return 0 if seat is None else self._run_seated(broker, seat)
        except GivenUp as error:
            log.warning("stopped at once reason=%s", error)
            return 130 if self._stop.now else 0
        except Damaged as error:
            log.error("cannot go on experiment=%s because %s", self._experiment, error)
            broker.damages.note(self._experiment, error)
            return 1
        finally:
            if self._broker is None:
                broker.close()

    def _wait_for_mending(self, error: Damaged) -> bool:
        """Have the leader look at a key that is not what it should be; False when the experiment has failed over it."""
        broker = self._connected
        assert broker is not None, "only a call to it meets damage"
        broker.damages.note(self._experiment, error)
        return not broker.experiments.status(self._experiment).ended

    def _check(self) -> None:
        if self._seat is not None:
            self._seat.check()
        if self._stop.now:
            raise GivenUp("asked twice")
        if self._stop.draining and self._patience.silent_s >= GRACE_S:
            raise GivenUp(f"the broker did not answer for {GRACE_S:g} s")

    def _claim(self, broker: Broker) -> Seat | None:
        """Wait for the seat; None when the experiment is over, or we shall end before we got it."""
        waiting = False
        while not self._stop.draining:
            status = self._patience.call("read status", lambda: broker.experiments.status(self._experiment))
            if status.ended or not wants_trainer(status.outcome, self._in_flight(broker) if status.outcome else 0):
                log.info("nothing to train experiment=%s is %s", self._experiment, status.outcome or status.state)
                return None
            seat = self._patience.call("claim the seat", partial(self._claim_once, broker), full_too=True)
            if seat is not None:
                self._seat = seat
                return seat
            if not waiting:
                waiting = True
                log.info("waiting, another trainer holds the seat experiment=%s", self._experiment)
            self._stop.wait(ASK_EVERY_S * (0.5 + self._rng.random()))
        return None

    def _in_flight(self, broker: Broker) -> int:
        read = partial(broker.experience.flow, self._experiment, PARTITION)
        return self._patience.call("read flow", read).entries

    def _claim_once(self, broker: Broker) -> Seat | None:
        return Seat.claim(
            broker,
            self._experiment,
            self._trainer,
            clock=self._clock,
            ttl_ms=self._ttl_ms,
            above=highest_epoch(self._directory / CHECKPOINTS),
        )

    def _run_seated(self, broker: Broker, seat: Seat) -> int:
        watchdog = Watchdog(self._watch.doing, self._stuck, clock=self._clock).start() if self._train is None else None
        try:
            try:
                parts = build(self._source(broker), seat)
                self._parts = parts
                loop = Loop(parts) if self._data is None else OfflineLoop(parts, self._data)
            except (EnvError, SpecError, WeightsError, ExperimentFailed, CheckpointError, DataError) as error:
                if isinstance(error, CheckpointMissing):
                    raise
                return self._fail_early(broker, seat, f"cannot start training: {error}")
            return self._run_loop(loop)
        except (Conflict, Gone) as error:
            seat.abandon()
            if isinstance(error, SeatLost):
                if seat.is_removed():  # its keeper noticed first, and knows only that it holds no seat
                    raise Gone(f"{self._experiment} was removed while it was trained") from error
                told = f"lost the seat of epoch={seat.epoch}, ends"
                broker.events.log(self._experiment, "trainer", seat.trainer, "warning", told)
            raise
        finally:
            if watchdog is not None:
                watchdog.stop()
            if self._parts is not None:  # whoever holds us may live on: a notebook whose loop was left
                self._parts.close()
            seat.release()
            self._tidy_memory(broker)

    def _tidy_memory(self, broker: Broker) -> None:
        """What nobody can read or append any more goes; what another trainer will train stays."""
        home = self._parts.reader.shelf.home if self._parts is not None else None
        if home is None:
            return
        try:
            sweep_home(broker.planes, self._experiment, home, young_s=0.0, clock=self._clock)
        except BrokerError as error:
            log.info("left shared memory to a later sweep error=%s", error)

    def _run_loop(self, loop: Loop) -> int:
        try:
            loop.begin()
            reason = loop.run()
            if reason:
                outcome = ending.complete(loop, reason)
            elif loop.ctl().command == "stop":
                outcome = ending.stop(loop)
            else:
                ending.leave(loop)
                return 0
        except Interrupted:
            ending.leave(loop)
            return 0
        except ExperimentFailed as error:
            log.error("failed experiment=%s reason=%s", self._experiment, error)
            outcome = ending.fail(loop, str(error))
        return 1 if outcome == "failed" else 0

    def _fail_early(self, broker: Broker, seat: Seat, reason: str) -> int:
        log.error("failed experiment=%s reason=%s", self._experiment, reason)
        final = self._patience.call(
            "tell the outcome",
            lambda: broker.experiments.finish(self._experiment, seat.epoch, "failed", reason, {}),
        )
        return 1 if final == "failed" else 0

    def _source(self, broker: Broker) -> Source:
        return Source(
            broker=broker,
            experiment=self._experiment,
            home=self._directory,
            train=self._train or self._watched_learner,
            noted=self._watch.noted,
            describe=self._describe,
            patience=self._patience,
            clock=self._clock,
            stop=self._stop,
            plane=self._plane,
            tracing=self._tracing,
        )

    def _watched_learner(self, setting: Setting) -> Trains:
        """The spec's learner, each call into it noted for the watchdog; loads torch."""
        from heddle.consumers.training import Training

        limit_s = setting.spec.trainer.update_timeout
        if setting.spec.data is not None:
            self._data = open_source(setting)
            setting = offline_setting(setting, self._data)
        epoch = self._seat.epoch if self._seat is not None else 0
        with self._watch.noted("making the learner", limit_s):
            training = Training(setting, device=self._device, home=self._directory, seat_epoch=epoch)
        return WatchedTraining(training, self._watch, limit_s=limit_s)

    def _stuck(self, action: Action, lasted_s: float) -> None:
        """For the watchdog: nothing in this process can end a learner that hangs, so the process ends.

        Whoever takes the seat next goes on at the last checkpoint.
        """
        reason = f"the learner hangs: {action.what} lasted longer than {action.limit_s:g} s (trainer.update_timeout)"
        log.error("ending trainer=%s because %s (%.1f s)", self._trainer, reason, lasted_s)
        try:
            leaving = threading.Thread(target=self._leave_seat, args=(reason,), name="leaving", daemon=True)
            leaving.start()
            leaving.join(LEAVE_S)
        finally:  # whatever cannot be done any more, this process ends
            self._exit_process(STUCK_CODE)

    def _leave_seat(self, reason: str) -> None:
        if self._seat is not None:
            self._seat.give_up(reason)
