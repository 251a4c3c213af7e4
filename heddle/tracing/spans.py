"""Spans as plain values, and the ids by which processes that never speak to each other mean the same one.

Pure: it reads no clock and sends nothing. An id is a digest of what the span is about, e.g. of a batch's identity: the
worker that appends it and the trainer that reads it come to the same one.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

Value = str | int | float | bool
FOLLOWED_MS = 250
"""Making and sending the spans of a batch takes both sides some 0.3 ms together, more beside other work: well below one
percent of playing it."""


@dataclass(frozen=True, slots=True)
class Ref:
    """Which span is meant.

    Attributes:
        trace_id, span_id: of 128 and 64 bits, never 0.
    """

    trace_id: int
    span_id: int


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasted from one moment to another.

    Attributes:
        ref, parent: which it is, and within which, None for none.
        name: what it was: rollout, append, stream, queue, update, publish or first use.
        began_ns, ended_ns: since 1970; one that would end before it began, for two hosts' clocks differ, ends there.
        links: spans of other traces that it follows from.
        attributes: what else is known.
        error: what went wrong; "" for nothing.
    """

    ref: Ref
    name: str
    began_ns: int
    ended_ns: int
    parent: Ref | None = None
    links: tuple[Ref, ...] = ()
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str = ""


def batch_ref(name: str, experiment: str, partition: int, batch: str) -> Ref:
    """A span of the trace of one batch.

    Args:
        name: of the span; a batch has one of each.
        batch: its identity, "shard:epoch:nonce:seq".
    """
    return _ref(("batch", experiment, str(partition), batch), name)


def is_followed(batch: Ref, played_ms: int) -> bool:
    """Whether a batch's spans are made: always when it took `FOLLOWED_MS` to play, of quicker ones a part.

    It follows from what the batch carries, so every process says the same of it.

    Args:
        batch: any of its spans.
    """
    return batch.trace_id % FOLLOWED_MS < max(1, played_ms)


def policy_ref(name: str, experiment: str, version: int) -> Ref:
    """A span of the trace of one policy version: of the update that made it and what follows.

    Args:
        name: of the span, with the worker where each has one.
    """
    return _ref(("policy", experiment, str(version)), name)


def _ref(what: tuple[str, ...], name: str) -> Ref:
    trace = hashlib.sha256("\0".join(what).encode("utf-8", "backslashreplace")).digest()
    span = hashlib.sha256(trace + name.encode("utf-8", "backslashreplace")).digest()
    return Ref(int.from_bytes(trace[:16], "big") or 1, int.from_bytes(span[:8], "big") or 1)
