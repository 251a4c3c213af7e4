"""The heartbeat: about once a second a worker says how it is and hears its quota and whether it shall drain.

It never claims or releases; it writes the quota down at the desk and asks the stop flag.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping

from heddle.broker import Broker
from heddle.broker.pools import WorkerBeat
from heddle.errors import HeddleError
from heddle.lease import Action
from heddle.producers.claims import DEFAULT_TTL_MS
from heddle.producers.desk import Desk
from heddle.producers.holdings import Holding, reason_to_wait
from heddle.producers.lately import Late
from heddle.producers.limits import own_limit_of
from heddle.producers.quota import Quota, beat_every_s
from heddle.stop import StopFlag
from heddle.usage import cpu_seconds, resident_bytes
from heddle.version import __version__

log = logging.getLogger("heddle.worker")

SUPERVISOR_ENV = "HEDDLE_SUPERVISOR"


def describe(
    desk: Desk,
    *,
    worker: str,
    pool: str,
    draining: bool,
    action: Action | None = None,
    now: float = 0.0,
    profile: Mapping[str, int] | None = None,
    late: Late | None = None,
) -> WorkerBeat:
    """What a worker says of itself now.

    Args:
        action: the call into user code that runs at `now`, monotonic seconds.
        profile: what the sampler counted.
        late: how fast it played in the last seconds.
    """
    held, counters, late = desk.holdings(), desk.counters, late or Late()
    still_s = max(0.0, now - (desk.moved_at if action is None else action.since))
    state = "draining" if draining else "playing" if desk.stepping else "waiting" if held else "idle"
    return WorkerBeat(
        worker=worker,
        pool=pool,
        host=os.uname().nodename,
        pid=os.getpid(),
        state=state,
        shards=len(held),
        experiments=tuple(sorted({holding.lease.experiment for holding in held})),
        envs=sum(player.plan.num_envs for player in [holding.player for holding in held] if player is not None),
        steps=counters.steps,
        ms_per_step=late.ms_per_step,
        play_s=round(counters.play_s, 3),
        wait_s=round(counters.wait_s, 3),
        outcomes=counters.outcomes(),
        profile=dict(profile or {}),
        supervisor=os.environ.get(SUPERVISOR_ENV, ""),
        reason=reason_to_wait(held, desk.facts_of(held)) if state == "waiting" else "",
        ttl_ms=min((holding.ttl_ms for holding in held), default=DEFAULT_TTL_MS),
        doing=action.what if action else "",
        subject=action.subject if action else "",
        doing_ms=round(1000 * still_s) if action else 0,
        limit_ms=round(1000 * action.limit_s) if action else 0,
        own_limit_ms=round(1000 * _own_limit_s(held, action)) if action else 0,
        still_ms=round(1000 * still_s),
        code=__version__,
        pace="\n".join(sorted(_paces(held))),
        cpu_s=round(cpu_seconds(), 1),
        rss_bytes=resident_bytes(),
        late_s=late.seconds,
        late_speed=late.steps_per_second,
        late_waits=late.waits,
    )


def _own_limit_s(held: Iterable[Holding], action: Action) -> float:
    """Seconds after which the call is given up and this worker lives; 0 where only its end ends it."""
    one = next((holding for holding in held if holding.name == action.subject), None)
    return 0.0 if one is None or one.env is None else own_limit_of(one.env, action.what, beside=one.beside)


def _paces(held: Iterable[Holding]) -> set[str]:
    """How environments are stepped where that was left to this worker, and why."""
    told = [(holding.lease.experiment, holding.player) for holding in held]
    return {f"{experiment} {player.pace}" for experiment, player in told if player is not None and player.pace}


class Heartbeat:
    """Beats from a thread of its own.

    Args:
        describe: what to say of the worker now.
        stop: asked to drain when the broker says so.
        on_failure: told an error that nobody expects; the thread then ends.
    """

    def __init__(
        self,
        broker: Broker,
        desk: Desk,
        *,
        describe: Callable[[], WorkerBeat],
        stop: StopFlag,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._broker = broker
        self._desk = desk
        self._describe = describe
        self._stop = stop
        self._on_failure = on_failure
        self._wake = threading.Event()
        self._ending = False
        self._silent = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> "Heartbeat":
        """Beat once, and have the thread go on with it."""
        self.beat()
        self._thread.start()
        return self

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread."""
        self._ending = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def soon(self) -> None:
        """Beat now instead of when it is due: something changed that others wait for."""
        self._wake.set()

    def beat(self) -> None:
        """Say it once; a broker that does not answer is asked again with the next beat."""
        try:
            reply = self._broker.pools.heartbeat(self._describe())
        except HeddleError as error:
            if not self._silent:
                log.warning("cannot beat, trying again error=%s", error)
            self._silent = True
            return
        self._silent = False
        self._desk.notes.send(self._broker.events)
        self._desk.set_quota(
            Quota(floor=reply.floor, ceil=reply.ceil, someone_below=reply.someone_below, live=max(1, reply.live))
        )
        if reply.drain:
            self._stop.drain("drained on request")

    def _pause_s(self) -> float:
        ttl_ms = min((holding.ttl_ms for holding in self._desk.holdings()), default=DEFAULT_TTL_MS)
        return beat_every_s(self._desk.quota, ttl_s=ttl_ms / 1000)

    def _run(self) -> None:
        try:
            while not self._ending:
                self._wake.wait(self._pause_s())
                self._wake.clear()
                if not self._ending:
                    self.beat()
        except Exception as error:  # noqa: BLE001  top of a thread: a worker without a pulse must not look alive
            log.exception("heartbeat failed")
            self._on_failure(error)
