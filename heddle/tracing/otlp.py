"""OTLP: the only door to OpenTelemetry, which is loaded when the first spans are sent and not before.

It never makes a span of its own; the SDK's processors and samplers are not used, only its exporter.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from heddle.tracing.spans import Ref, Span
from heddle.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

PATH = "/v1/traces"
KINDS = {"append": "PRODUCER", "stream": "CONSUMER"}


class Otlp:
    """Sends spans over HTTP, as OTLP in protobuf.

    Args:
        endpoint: of the collector, e.g. http://host:4318; None for what OTEL_EXPORTER_OTLP_* say.
        about: attributes of this process, e.g. service.name.
    """

    def __init__(self, endpoint: str | None, about: Mapping[str, str]) -> None:
        self._endpoint = None if endpoint is None else _with_path(endpoint)
        self._about = dict(about)
        self._exporter: Any = None
        self._resource: Any = None

    def send(self, spans: Sequence[Span]) -> str:
        """Send spans, for as long as OTEL_EXPORTER_OTLP_TIMEOUT says; why they were not taken, "" when they were."""
        if self._exporter is None:
            self._open()
        from opentelemetry.sdk.trace.export import SpanExportResult

        result = self._exporter.export([self._made(span) for span in spans])
        return "" if result is SpanExportResult.SUCCESS else f"{self._exporter._endpoint} took none of {len(spans)}"

    def _open(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # the outbox tells, and less often
        self._resource = Resource.create({"service.namespace": "heddle", "service.version": __version__, **self._about})
        self._exporter = OTLPSpanExporter(endpoint=self._endpoint)

    def _made(self, span: Span) -> "ReadableSpan":
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import Link, SpanKind
        from opentelemetry.trace.status import Status, StatusCode

        return ReadableSpan(
            name=span.name,
            context=_context(span.ref),
            parent=None if span.parent is None else _context(span.parent),
            resource=self._resource,
            attributes={f"heddle.{name}": value for name, value in span.attributes.items()},
            links=[Link(_context(ref)) for ref in span.links],
            kind=SpanKind[KINDS.get(span.name, "INTERNAL")],
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=span.began_ns,
            end_time=max(span.began_ns, span.ended_ns),
            instrumentation_scope=InstrumentationScope("heddle", __version__),
        )


def _context(ref: Ref) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(ref.trace_id, ref.span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _with_path(endpoint: str) -> str:
    base = endpoint.rstrip("/")
    return base if base.endswith(PATH) else base + PATH
