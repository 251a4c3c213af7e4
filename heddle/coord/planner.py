"""The coordinator's decisions: facts in, actions out.

Pure: it never talks to the broker, reads a clock or remembers anything; the loop in `coordinator.py` does what it says.
Times are spans in milliseconds, measured by whoever gathered the facts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Command = Literal["run", "pause", "stop"]
State = Literal["queued", "running", "paused", "stopping", "completed", "stopped", "failed"]

ENDED = ("completed", "stopped", "failed")
ISSUE_GRACE_MS = 300
"""Whoever queues a shard issues its ticket right after: only one that has none for this long was forgotten."""
CLAIM_GRACE_MS = 2_000
"""A ticket that was read but whose shard was not claimed for this long is issued anew."""
TRAINER_GRACE_MS = 15_000
"""How long a stopped experiment waits for a trainer to come back and flush: a restart takes up to 10 s."""
NO_TRAINER_GRACE_MS = 2_000
"""The same when no trainer ever held the seat."""
RENEW_GRACE_MS = 1_000
"""Owners whose call failed ask again within this."""
LONGEST_SLEEP_MS = 500
"""The leader looks at least this often: a dead worker's shard is found within TTL + this."""

_STATE_OF: dict[Command, State] = {"run": "running", "pause": "paused", "stop": "stopping"}


STUCK_MS = 10_000
"""So long may nothing be accepted while a shard waits for room: a trainer that saves, or comes back, takes less."""


@dataclass(frozen=True, slots=True)
class ShardFact:
    """One shard as the broker has it.

    Attributes:
        index: its number.
        kind: train or eval.
        state: queued, leased, quarantined or stopped.
        error: why its last owner lost it; "" when unknown.
    """

    index: int
    kind: Literal["train", "eval"]
    state: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class QueuedFact:
    """One shard that waits for a worker.

    Attributes:
        index: its number.
        in_stream: its ticket is in the pool's stream.
        waits_ms: since it was queued.
        read_ms_ago: since a worker read the ticket without claiming; None while nobody has.
    """

    index: int
    in_stream: bool
    waits_ms: int
    read_ms_ago: int | None = None


@dataclass(frozen=True, slots=True)
class ExperimentFacts:
    """One admitted experiment as the broker has it.

    Attributes:
        state, reason: its status.
        command: what it shall do.
        outcome, outcome_reason: what the trainer said of its end; "" until then.
        active, active_eval: shards that count, as written.
        on_quarantine: what the spec wants.
        shards: all of them.
        seat_held: a trainer holds the seat.
        seat_epoch: 0 when no trainer ever held it.
        seat_free_ms: how long the seat has been free since the stop; 0 while it is held or nobody stopped.
        in_flight: batches between workers and trainer.
    """

    state: str
    reason: str
    command: Command
    outcome: str
    outcome_reason: str
    active: int
    active_eval: int
    on_quarantine: Literal["continue", "fail"]
    shards: tuple[ShardFact, ...]
    seat_held: bool
    seat_epoch: int = 0
    seat_free_ms: int = 0
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class SetActive:
    """Write how many shards count."""

    active: int
    active_eval: int


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Write the state and why."""

    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """Command stop."""


Action = SetActive | SetStatus | Stop


@dataclass(frozen=True, slots=True)
class Quota:
    """How many shards each worker of a pool should hold.

    Attributes:
        floor, ceil: of active shards / live workers.
        below: live workers that hold fewer than the floor.
        live: workers that are here and not draining.
    """

    floor: int
    ceil: int
    below: int
    live: int


def plan_experiment(facts: ExperimentFacts) -> list[Action]:
    """What to do for one experiment now; nothing when all is as it should be, so it can be asked at any time."""
    if facts.state in ENDED:
        return []
    actions: list[Action] = []
    active, active_eval = count_active(facts.shards)
    if (active, active_eval) != (facts.active, facts.active_eval):
        actions.append(SetActive(active, active_eval))
    failure = why_failed(facts)
    ending = plan_end(facts, failure)
    if ending is not None:
        return [*actions, ending]
    wanted: State = "stopping" if failure else _STATE_OF[facts.command]
    if wanted != facts.state:
        reason = "" if was_stopped_first(facts) else failure
        actions.append(SetStatus(wanted, reason or facts.outcome_reason))
    if failure and facts.command != "stop":
        actions.append(Stop())
    return actions


def plan_end(facts: ExperimentFacts, failure: str) -> SetStatus | None:
    """The final status, once stop was commanded, every shard was released and the trainer has left.

    One that left batches behind, killed before it had settled them, is waited for, whatever it told before.
    """
    if facts.command != "stop" or facts.seat_held or any(shard.state == "leased" for shard in facts.shards):
        return None
    has_waited = facts.seat_free_ms >= (TRAINER_GRACE_MS if facts.seat_epoch else NO_TRAINER_GRACE_MS)
    left = f"{facts.in_flight} batches were left untrained" if facts.in_flight else ""
    if facts.outcome in ("completed", "stopped") and left and not has_waited:
        return None
    if facts.outcome == "completed":
        return SetStatus("completed", _joined(facts.outcome_reason, left))
    if failure and not was_stopped_first(facts):
        return SetStatus("failed", failure)
    if facts.outcome == "failed":
        return SetStatus("failed", facts.outcome_reason or "the trainer gave no reason")
    if facts.outcome == "stopped":
        return SetStatus("stopped", _joined(facts.outcome_reason, failure, left))
    return SetStatus("stopped", _joined("no trainer was there to end it", failure, left)) if has_waited else None


def was_stopped_first(facts: ExperimentFacts) -> bool:
    """Somebody stopped it before its shards did: of a failure of theirs the reason is written before the command."""
    is_theirs = facts.state == "stopping" and facts.reason not in ("", facts.outcome_reason)
    return facts.command == "stop" and not is_theirs


def _joined(*reasons: str) -> str:
    return "; ".join(reason for reason in reasons if reason)


def why_failed(facts: ExperimentFacts) -> str:
    """Why the experiment cannot go on, from its quarantined shards; "" when it can."""
    quarantined = [shard for shard in facts.shards if shard.state == "quarantined"]
    if not quarantined:
        return ""
    train = [shard for shard in facts.shards if shard.kind == "train"]
    named = next((shard for shard in quarantined if shard.error), quarantined[0])
    error = named.error or "its workers died without a word"
    if all(shard.state == "quarantined" for shard in train):
        return f"every train shard is quarantined; shard {named.index}: {error}"
    if facts.on_quarantine == "fail":
        return f"shard {named.index} is quarantined: {error}"
    return ""


def count_active(shards: Iterable[ShardFact]) -> tuple[int, int]:
    """Train and eval shards that are not quarantined."""
    counts = {"train": 0, "eval": 0}
    for shard in shards:
        if shard.state != "quarantined":
            counts[shard.kind] += 1
    return counts["train"], counts["eval"]


def tickets_to_issue(command: Command, queued: Iterable[QueuedFact]) -> list[int]:
    """Shards that need a new ticket: theirs has left the stream, or was read and came to nothing."""
    if command == "stop":
        return []
    return [fact.index for fact in queued if _needs_ticket(fact)]


def _needs_ticket(fact: QueuedFact) -> bool:
    if not fact.in_stream:
        return fact.waits_ms >= ISSUE_GRACE_MS
    return fact.read_ms_ago is not None and fact.read_ms_ago >= CLAIM_GRACE_MS


def quota(active_shards: int, held: Sequence[int]) -> Quota:
    """The quota of a pool.

    Args:
        active_shards: of all experiments that are not stopping, train and eval.
        held: shards of each live worker that is not draining.
    """
    live = len(held)
    floor, ceil = (active_shards // live, -(-active_shards // live)) if live else (0, 0)
    return Quota(floor, ceil, sum(1 for count in held if count < floor), live)


def sleep_ms(now_ms: int, next_due_ms: int | None) -> int:
    """How long the leader may sleep: until the earliest lease is due, at most half a second, at least a millisecond."""
    if next_due_ms is None:
        return LONGEST_SLEEP_MS
    return max(1, min(LONGEST_SLEEP_MS, next_due_ms - now_ms))


def is_stuck(waits_for_room: bool, unchanged_ms: int) -> bool:
    """Whether room is waited for so long that somebody should look whether what takes it is there.

    Args:
        waits_for_room: some shard has a batch that found none.
        unchanged_ms: since one was accepted, or somebody looked.
    """
    return waits_for_room and unchanged_ms >= STUCK_MS


def may_reap(contact_ms: int, known_ms: int, ttl_ms: int) -> bool:
    """False until a coordinator has been in touch with the broker for one TTL: failing to observe is not failing.

    Args:
        contact_ms: for how long contact has been unbroken; that a broker was up before this process was born counts.
        known_ms: since the first answer of this process's life. A broker that was frozen when it was born looks like
            one that was up: its owners get the time in which they renew, and a retry.
        ttl_ms: of the leases.
    """
    return contact_ms >= ttl_ms and known_ms >= min(ttl_ms, ttl_ms // 3 + RENEW_GRACE_MS)
