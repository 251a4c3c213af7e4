"""The parts of a worker, wired together: which there are, who tells whom of what, how they start and end.

It never plays; `worker.py` is the loop that uses them. What is called from their threads stands at its end.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from heddle.broker import Broker
from heddle.broker.pools import WorkerBeat
from heddle.broker.types import Claim
from heddle.clock import Clock
from heddle.errors import HeddleError
from heddle.lease import Keeper, Watchdog
from heddle.plane import Plane
from heddle.producers.ahead import Ahead, when_played
from heddle.producers.answers import Answers
from heddle.producers.appender import Appender
from heddle.producers.claims import DEFAULT_TTL_MS, Claimer
from heddle.producers.damaged import DamagedExperiments
from heddle.producers.desk import Desk
from heddle.producers.ending import Ending
from heddle.producers.heartbeat import Heartbeat, describe
from heddle.producers.lane_turns import LaneTurns
from heddle.producers.lately import Lately
from heddle.producers.listener import Listener
from heddle.producers.lost_policies import LostPolicies
from heddle.producers.returns import Returns
from heddle.producers.sampler import Sampler, seen_of
from heddle.producers.stage import Stage
from heddle.producers.traced import traced
from heddle.producers.turn import Turns
from heddle.stop import StopFlag
from heddle.tracing import Tracing

log = logging.getLogger("heddle.worker")


@dataclass(frozen=True, slots=True)
class Means:
    """What a worker's parts are given; each as `Worker` has it.

    Attributes:
        worker, pool: its name, and whose shards are claimed.
        stop: asked whether to end.
        exit_process, entropy, plane, clock, rng, tracing: as of `Worker`.
        is_ahead: have a thread fetch policies.
        is_sampled: have a thread look what the playing one is at.
    """

    worker: str
    pool: str
    stop: StopFlag
    exit_process: Callable[[int], object]
    entropy: Callable[[int], bytes]
    plane: Callable[[], Plane]
    clock: Clock
    rng: np.random.Generator
    tracing: Tracing | None
    is_ahead: bool
    is_sampled: bool


class Parts:
    """Made once the broker is there, started once, ended once.

    Attributes:
        answers, appender, returns: what becomes of batches and shards.
        ahead: fetches policies; None where playing waits for them.
        turns, lanes, claimer: what is played, and where it comes from.
        damaged: experiments whose keys are not what they should be.
        ending, keeper, listener, watchdog, sampler, heartbeat: with threads of their own.

    Args:
        fail: told of what nobody expects, from any thread.
    """

    def __init__(self, broker: Broker, desk: Desk, means: Means, *, fail: Callable[[BaseException], None]) -> None:
        self._broker, self._desk, self._means, self._fail = broker, desk, means, fail
        self._lately = Lately()
        self._make_delivery()
        self._make_play()
        self._make_lookouts()

    # ---- beginning and end

    def _make_delivery(self) -> None:
        broker, desk, means = self._broker, self._desk, self._means
        self.answers = Answers(broker, desk)
        damaged = DamagedExperiments(broker, lose=self.answers.lose_all, clock=means.clock)
        self.damaged = self.answers.damaged = damaged
        self.appender = self.answers.appender = Appender(
            broker.shards.append,
            number=self.answers.number,
            stepping=self.answers.is_stepping,
            on_outcome=traced(self.answers.settled, means.tracing),
            on_heard=self.answers.heard,
            on_failure=self._fail,
            on_damage=lambda parcel, error: damaged.met(parcel.lease.experiment, error),
            clock=means.clock,
        )
        self.returns = Returns(broker, desk, self.appender, damaged, worker=means.worker)
        self.lost_policies = LostPolicies(broker, desk, clock=means.clock)

    def _make_play(self) -> None:
        broker, desk, means = self._broker, self._desk, self._means
        fetch = broker.policies.fetch
        self.ahead = Ahead(fetch, on_failure=self._fail) if means.is_ahead else None
        ready = when_played if self.ahead is None else self.ahead.follow
        self.turns = Turns(broker, desk, clock=means.clock, renewed=self.answers.renewed, ready=ready)
        self.lanes = LaneTurns(self.turns, desk)
        self.claimer = Claimer(
            broker,
            desk,
            damaged=self.damaged,
            pool=means.pool,
            worker=means.worker,
            on_claim=self._claimed,
            entropy=means.entropy,
            clock=means.clock,
            rng=means.rng,
            plane=means.plane,
            fetch=fetch if self.ahead is None else self.ahead.fetch,
        )

    def _make_lookouts(self) -> None:
        broker, desk, means, user_code = self._broker, self._desk, self._means, self.turns.user_code
        stop, leave = means.stop, means.exit_process
        self.ending = Ending(stop, user_code, self.returns, worker=means.worker, exit_process=leave)
        ttl_s, back = DEFAULT_TTL_MS / 1000, desk.told_back
        renew = self.answers.renew_all
        self.keeper = Keeper(renew, ttl_s=ttl_s, on_lost=self._keeper_ended, on_back=back, clock=means.clock)
        self.listener = Listener(broker, desk, on_news=self._heard, on_failure=self._fail)
        self.watchdog = Watchdog(user_code.doing, self.ending.stuck, clock=means.clock)
        self.sampler = Sampler(partial(seen_of, user_code, desk, self.appender))
        self.heartbeat = Heartbeat(broker, desk, describe=self._describe, stop=stop, on_failure=self._fail)

    def start(self) -> None:
        """Start every thread."""
        for part in (self.appender, self.keeper, self.listener, self.watchdog, self.heartbeat):
            part.start()
        self.ending.start()
        if self.ahead is not None:
            self.ahead.start()
        if self._means.is_sampled:
            self.sampler.start()

    def stop(self) -> None:
        """End every thread, and close every player."""
        self.ending.stop()
        undelivered = self.appender.stop()
        if undelivered:
            log.warning("left undelivered batches=%d", undelivered)
        for part in (self.sampler, self.heartbeat, self.listener, self.keeper, self.ahead):
            if part is not None:
                part.stop()
        for holding in [*self._desk.take_dropped(), *self._desk.holdings()]:
            self.lanes.close(holding)
        self.claimer.close()
        self.watchdog.stop()  # last, for closing may hang as well

    def forget(self, experiment: str) -> None:
        """Nothing of an experiment is held any more."""
        self.listener.unwatch(experiment)
        if self.ahead is not None:
            self.ahead.forget(experiment)
        self.claimer.forget(experiment)
        self._desk.forget_experiment(experiment)

    # ---- called by the parts, most of it from their threads

    def _claimed(self, claim: Claim, stage: Stage) -> None:
        self.listener.watch(claim.lease.experiment)
        self.keeper.shorten(stage.ttl_ms / 1000)
        self.heartbeat.soon()

    def _heard(self, experiment: str) -> None:
        self.appender.nudge(experiment)
        if self.ahead is not None:
            self.ahead.heard(experiment, self._desk.facts(experiment).policy)

    def _keeper_ended(self, reason: str) -> None:
        self._fail(HeddleError(f"the keeper ended: {reason}"))

    def _describe(self) -> WorkerBeat:
        means, doing = self._means, self.turns.user_code
        action, now = doing.doing(), means.clock.monotonic()
        if doing.is_playing:
            self._desk.moved_at = now
        about = {"worker": means.worker, "pool": means.pool}
        draining, profile, held = means.stop.draining, self.sampler.counts.copy(), self._desk.holdings()
        is_playing = self._desk.stepping is not None or any(
            (lane := one.lane) is not None and lane.is_parked for one in held
        )
        late = self._lately.look(self._desk.counters, now, is_held=bool(held), is_playing=is_playing)
        return describe(self._desk, **about, draining=draining, action=action, now=now, profile=profile, late=late)
