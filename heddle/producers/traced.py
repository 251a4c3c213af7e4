"""Traced: the spans of a batch on its worker's side, made when its fate is known.

Only a worker that traces has this; it never changes what becomes of a batch.
"""

from collections.abc import Callable
from functools import partial

from heddle.broker.pointers import batch_name
from heddle.broker.types import AppendReply
from heddle.producers.parcel import Outcome, Parcel
from heddle.tracing import Ref, Span, Tracing, Value, batch_ref, is_followed, policy_ref

Settled = Callable[[Parcel, Outcome, AppendReply | None], None]
_WELL = (Outcome.ACCEPTED, Outcome.GIVEN)


def traced(settled: Settled, tracing: Tracing | None) -> Settled:
    """`settled`, told as well to who traces."""
    return settled if tracing is None else partial(_Traces(tracing).settle, settled)


class _Traces:
    """Knows which policy version of each experiment was used here already."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._used: dict[str, int] = {}

    def settle(self, settled: Settled, parcel: Parcel, outcome: Outcome, reply: AppendReply | None) -> None:
        """The answer to a batch: its spans, and what it means."""
        if parcel.seq is not None:  # else it was never sent, and has no name
            self._tracing.add(self._spans(parcel, outcome))
        settled(parcel, outcome, reply)

    def _spans(self, parcel: Parcel, outcome: Outcome) -> list[Span]:
        lease, meta = parcel.lease, parcel.meta
        batch = batch_name(lease.shard, lease.epoch, lease.nonce, parcel.seq or 0)
        rollout = batch_ref("rollout", lease.experiment, lease.partition, batch)
        is_first = meta.kind == "train" and meta.version_min > self._used.get(lease.experiment, 0)
        is_one = is_followed(rollout, meta.played_ms)
        if not is_first and not is_one:
            return []
        spans = self._of_batch(parcel, outcome, rollout, batch) if is_one else []
        if is_first:
            self._used[lease.experiment] = meta.version_min
            spans.append(self._first_use(parcel, rollout))
        return spans

    def _of_batch(self, parcel: Parcel, outcome: Outcome, rollout: Ref, batch: str) -> list[Span]:
        lease, meta, tracing = parcel.lease, parcel.meta, self._tracing
        ready_ns, now_ns = tracing.ns(parcel.since), tracing.ns(tracing.clock.monotonic())
        about = _about(parcel)
        played = {**about, "steps": meta.steps, "segments": meta.segments, "waited_ms": meta.waited_ms}
        sent = {**about, "bytes": meta.bytes, "outcome": outcome.value, "refusals": parcel.refusals}
        published = policy_ref("publish", lease.experiment, meta.version_min)
        append = batch_ref("append", lease.experiment, lease.partition, batch)
        error = "" if outcome in _WELL else outcome.value
        began_ns = ready_ns - 1_000_000 * meta.played_ms
        return [
            Span(rollout, "rollout", began_ns, ready_ns, links=(published,), attributes=played),
            Span(append, "append", ready_ns, now_ns, parent=rollout, attributes=sent, error=error),
        ]

    def _first_use(self, parcel: Parcel, rollout: Ref) -> Span:
        lease, meta = parcel.lease, parcel.meta
        began_ns = self._tracing.ns(parcel.since) - 1_000_000 * meta.played_ms
        first = policy_ref(f"first use {lease.worker}", lease.experiment, meta.version_min)
        published = policy_ref("publish", lease.experiment, meta.version_min)
        about = _about(parcel)
        return Span(first, "first use", began_ns, began_ns, parent=published, links=(rollout,), attributes=about)


def _about(parcel: Parcel) -> dict[str, Value]:
    """Which batch, of whom."""
    lease, meta = parcel.lease, parcel.meta
    about: dict[str, Value] = {"experiment": lease.experiment, "shard": lease.shard, "epoch": lease.epoch}
    return about | {"seq": parcel.seq or 0, "worker": lease.worker, "kind": meta.kind, "version": meta.version_min}
