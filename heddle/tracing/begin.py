"""Whether this process traces: one variable says so, and it is looked at once.

It never loads OpenTelemetry; it only looks whether it is there.
"""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import urlsplit

from heddle.clock import Clock, SystemClock
from heddle.errors import MissingExtra, UsageError
from heddle.tracing.outbox import Outbox
from heddle.tracing.spans import Span

TRACE_ENV = "HEDDLE_TRACE"
STANDARD = "otlp"
FLUSH_S = 1.0
"""How long the end of a process may take for the spans that wait."""


@dataclass(frozen=True, slots=True)
class Tracing:
    """Takes the spans of this process, and tells what time it was for a moment of the monotonic clock."""

    outbox: Outbox
    clock: Clock

    def add(self, spans: Sequence[Span]) -> None:
        """Take finished spans along; returns at once."""
        self.outbox.add(spans)

    def ns(self, monotonic_s: float) -> int:
        """Nanoseconds since 1970 at that moment, as this host's clock has it."""
        return round(1e9 * (self.clock.wall() - self.clock.monotonic() + monotonic_s))

    def close(self) -> None:
        """Send what waits, for a moment; what is left is lost."""
        self.outbox.close(FLUSH_S)

    def __enter__(self) -> "Tracing":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


def check_tracing(told: str | None = None) -> bool:
    """Whether somebody turned tracing on.

    Args:
        told: what the variable says; None to look.

    Raises:
        UsageError: it names no collector.
        MissingExtra: OpenTelemetry is not installed.
    """
    told = _told(told)
    if told in ("", "0"):
        return False
    endpoint_of(told)
    if not _is_installed():
        raise MissingExtra(TRACE_ENV, "obs")
    return True


def open_tracing(service: str, *, told: str | None = None, clock: Clock | None = None) -> Tracing | None:
    """What takes this process's spans; None when nobody turned tracing on.

    Args:
        service: what this process is, e.g. heddle-worker.
        told: what the variable says; None to look.

    Raises:
        UsageError, MissingExtra: as `check_tracing`.
    """
    if not check_tracing(told):
        return None
    from heddle.tracing.otlp import Otlp

    about = {"service.name": service, "service.instance.id": f"{os.uname().nodename}-{os.getpid()}"}
    return Tracing(Outbox(Otlp(endpoint_of(_told(told)), about).send).start(), clock or SystemClock())


def _told(told: str | None) -> str:
    return (os.environ.get(TRACE_ENV, "") if told is None else told).strip()


def endpoint_of(told: str) -> str | None:
    """The collector's address; None where OpenTelemetry's own variables tell it. Raises UsageError."""
    if told.lower() == STANDARD:
        return None
    parts = urlsplit(told)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"{TRACE_ENV}={told} names no collector: give its address, e.g. http://127.0.0.1:4318, or "
            f"{STANDARD} to take it from OTEL_EXPORTER_OTLP_ENDPOINT"
        )
    return told


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:  # one of its parents
        return False
