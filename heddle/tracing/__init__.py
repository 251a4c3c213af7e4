"""Traces: what happened to a batch, as spans that any OpenTelemetry collector takes; off unless somebody turns it on.

Spans are named after what batches and versions carry anyway, so nothing more travels between processes. Whoever traces
hands finished spans over and goes on: sending them, or losing them, is another thread's matter.
"""

from heddle.tracing.begin import TRACE_ENV, Tracing, check_tracing, open_tracing
from heddle.tracing.outbox import Outbox, Tally
from heddle.tracing.spans import Ref, Span, Value, batch_ref, is_followed, policy_ref

__all__ = [
    "TRACE_ENV",
    "Outbox",
    "Ref",
    "Span",
    "Tally",
    "Tracing",
    "Value",
    "batch_ref",
    "check_tracing",
    "is_followed",
    "open_tracing",
    "policy_ref",
]
