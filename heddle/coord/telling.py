"""What a leader tells of its decisions: one line for a change of state, in this process's log and in the broker's.

It never decides anything, and a line that is lost costs nothing.
"""

import logging
from collections.abc import Iterable, Mapping

from heddle.broker import Broker
from heddle.broker.lines import Line
from heddle.broker.types import Reaped, ShardState
from heddle.errors import BrokerAmiss, BrokerBlocked, BrokerFull

log = logging.getLogger("heddle.coordinator")

AMISS_EVERY_MS = 60_000
STEPS_EVERY_MS = 10_000
FEW = 16
"""More reaped shards than these are told together: one by one a dead fleet's lines cost more than its reaping."""
WARNINGS = ("dropped", "failed", "misses", "quarantined", "reaped", "stuck")


class Teller:
    """Tells for one coordinator.

    Args:
        coordinator: id of this process.
    """

    def __init__(self, broker: Broker, coordinator: str) -> None:
        self._broker = broker
        self._coordinator = coordinator
        self._is_full = False
        self._was_full = False
        self._amiss: dict[str, int] = {}
        self._step_ms: int | None = None
        self._steps_untold = 0

    def next_round(self) -> None:
        """A round begins: a broker that stays full is told of once."""
        self._was_full, self._is_full = self._is_full, False

    def full(self, error: BrokerFull) -> None:
        """The broker is out of memory: what it refused is asked again; renewals, acks and reaping go on.

        Raises:
            BrokerBlocked: nothing goes on.
        """
        if isinstance(error, BrokerBlocked):
            raise error
        if not self._is_full and not self._was_full:
            log.warning("waits for room in the broker error=%s", error)
        self._is_full = True

    def amiss(self, error: BrokerAmiss, now_ms: int) -> None:
        """A key that all share holds something else: what needs it waits, and all else goes on; told once a minute."""
        if now_ms >= self._amiss.get(error.key, 0):
            self._amiss[error.key] = now_ms + AMISS_EVERY_MS
            log.warning("goes on without a key error=%s", error)
            self._broker.events.log(None, "coordinator", self._coordinator, "warning", str(error))

    def clock_was_set(self, by_ms: float, now_ms: int) -> None:
        """The broker's clock was set by so much, on or back, and shows `now_ms`. Of many steps one in ten seconds is
        told, with the number of those before it."""
        if self._step_ms is not None and abs(now_ms - self._step_ms) < STEPS_EVERY_MS:
            self._steps_untold += 1
            return
        more = f", {self._steps_untold} times more since that was told last" if self._steps_untold else ""
        self._step_ms, self._steps_untold = now_ms, 0
        line = f"the broker's clock was set by {by_ms / 1000:+.1f} s{more}; dead workers' shards wait as long, or a TTL"
        log.warning("%s", line)
        self._broker.events.log(None, "coordinator", self._coordinator, "warning", line)

    def stuck(self, experiment: str, error: Exception) -> None:
        """One experiment cannot be looked after; called where the error is handled."""
        log.exception("cannot look after experiment=%s", experiment)
        self.note(experiment, "stuck", error=f"{type(error).__name__}: {error}")

    def reaped(self, experiment: str, shards: Iterable[Reaped]) -> None:
        """Tell which shards were taken from whom; where a fleet died at once, in one round trip."""
        told = [
            {"shard": one.shard, "worker": one.worker, "epoch": one.epoch, "state": one.state, "error": one.error}
            for one in shards
        ]
        if len(told) <= FEW:
            for facts in told:
                self.note(experiment, "reaped", **facts)
            return
        lines = [_line("reaped", facts) for facts in told]
        for line in lines:
            log.info("%s experiment=%s", line, experiment)
        said = [Line(experiment, "coordinator", self._coordinator, "warning", line) for line in lines]
        self._broker.events.log_all(said)

    def quarantines(self, experiment: str, before: frozenset[int], shards: Iterable[ShardState]) -> frozenset[int]:
        """Tell which shards came into quarantine, or out of it, since `before`; those that are in it now."""
        errors = {shard.shard: shard.last_error for shard in shards if shard.state == "quarantined"}
        for shard in sorted(errors.keys() - before):
            self.note(experiment, "quarantined", shard=shard, error=errors[shard])
        for shard in sorted(before - errors.keys()):
            self.note(experiment, "lifted", quarantine_of_shard=shard)
        return frozenset(errors)

    def note(self, experiment: str | None, verb: str, **facts: object) -> None:
        """A change of state; `experiment` None when it is not about one that is still there."""
        line = _line(verb, facts)
        log.info("%s%s", line, f" experiment={experiment}" if experiment is not None else "")
        level = "warning" if verb in WARNINGS else "info"
        self._broker.events.log(experiment, "coordinator", self._coordinator, level, line)


def _line(verb: str, facts: Mapping[str, object]) -> str:
    told = " ".join(f"{key}={_shown(value)}" for key, value in facts.items() if value not in (None, ""))
    return f"{verb} {told}".rstrip()


def _shown(value: object) -> str:
    text = str(value)
    return repr(text) if " " in text else text
