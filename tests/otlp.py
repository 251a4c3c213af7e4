"""A collector for tests: takes OTLP over HTTP as any collector does, and shows what came."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any

import pytest


def need_opentelemetry() -> None:
    """Skip where it is not installed; fail in CI."""
    if find_spec("opentelemetry") is None:
        if os.environ.get("HEDDLE_ALL_SERVERS"):
            pytest.fail("opentelemetry is not installed, and HEDDLE_ALL_SERVERS is set")
        pytest.skip("opentelemetry is not installed (pip install 'heddle-rl[obs]')")


@dataclass(frozen=True, slots=True)
class Seen:
    """One span as the collector has it; ids in hex, "" for no parent."""

    service: str
    instance: str
    name: str
    trace: str
    span: str
    parent: str
    links: tuple[tuple[str, str], ...]
    began_ns: int
    ended_ns: int
    about: dict[str, Any]

    @property
    def ref(self) -> tuple[str, str]:
        return self.trace, self.span


@dataclass(slots=True)
class Collector:
    """What came; `held` keeps every answer back until it is set."""

    url: str = ""
    spans: list[Seen] = field(default_factory=list)
    requests: int = 0
    held: threading.Event = field(default_factory=threading.Event)

    def named(self, name: str) -> list[Seen]:
        return [span for span in list(self.spans) if span.name == name]

    def by_ref(self) -> dict[tuple[str, str], Seen]:
        return {span.ref: span for span in list(self.spans)}


@contextmanager
def collector(*, slow: bool = False) -> Iterator[Collector]:
    """A collector on a free port; `slow`: it takes requests and answers none until the test is over."""
    taken = Collector()
    if not slow:
        taken.held.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.requests += 1
            taken.held.wait(120)
            taken.spans += _read(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    taken.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield taken
    finally:
        taken.held.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


def _read(body: bytes) -> list[Seen]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest.FromString(body)
    return [
        _seen(span, _values(resource.resource.attributes))
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _seen(span: Any, resource: dict[str, Any]) -> Seen:
    return Seen(
        service=resource["service.name"],
        instance=resource["service.instance.id"],
        name=span.name,
        trace=span.trace_id.hex(),
        span=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        began_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        about=_values(span.attributes),
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
