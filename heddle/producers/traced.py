"""Traced: the spans of a batch on its worker's side, made when its fate is known.

Only a worker that traces has this; it never changes what becomes of a batch.
"""

from collections.abc import Callable
from functools import partial

from heddle.broker.pointers import batch_name
from heddle.broker.types import AppendReply
from heddle.producers.parcel import Outcome, Parcel
from heddle.tracing import Span, Tracing, Value, batch_ref, policy_ref

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
        lease, meta, tracing = parcel.lease, parcel.meta, self._tracing
        experiment, version = lease.experiment, meta.version_min
        batch = batch_name(lease.shard, lease.epoch, lease.nonce, parcel.seq or 0)
        ready_ns, now_ns = tracing.ns(parcel.since), tracing.ns(tracing.clock.monotonic())
        began_ns = ready_ns - 1_000_000 * meta.played_ms
        about: dict[str, Value] = {
            "experiment": experiment,
            "shard": lease.shard,
            "epoch": lease.epoch,
            "seq": parcel.seq or 0,
        }
        about |= {"worker": lease.worker, "kind": meta.kind, "version": version}
        published = policy_ref("publish", experiment, version)
        rollout = batch_ref("rollout", experiment, lease.partition, batch)
        append = batch_ref("append", experiment, lease.partition, batch)
        played = {**about, "steps": meta.steps, "segments": meta.segments, "waited_ms": meta.waited_ms}
        sent = {**about, "bytes": meta.bytes, "outcome": outcome.value, "refusals": parcel.refusals}
        error = "" if outcome in _WELL else outcome.value
        spans = [
            Span(rollout, "rollout", began_ns, ready_ns, links=(published,), attributes=played),
            Span(append, "append", ready_ns, now_ns, parent=rollout, attributes=sent, error=error),
        ]
        if meta.kind == "train" and version > self._used.get(experiment, 0):
            self._used[experiment] = version
            first = policy_ref(f"first use {lease.worker}", experiment, version)
            spans.append(
                Span(first, "first use", began_ns, began_ns, parent=published, links=(rollout,), attributes=about)
            )
        return spans
