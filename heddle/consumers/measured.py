"""Measured: what a learner, or a loop of the user's own, says that it measured, as plain numbers by name.

It never lets anything else through, so that no stream, checkpoint or summary behind it meets a tensor.
"""

from collections.abc import Mapping
from typing import Any

from heddle.spec.objects import user_errors

SHOWN_CHARS = 80


class NoMetric(ValueError):
    """Something is no metric; the message names it, and goes on behind who gave it."""


def numbers_of(metrics: object) -> dict[str, float]:
    """Metrics as numbers; of a tensor its value alone, wherever it lies and whether or not it has a gradient.

    Raises:
        NoMetric: it is no dict, a name is no text, or a value is not one number.
    """
    try:
        pairs = list(metrics.items()) if isinstance(metrics, Mapping) else None
    except user_errors() as error:  # a mapping of the user's own
        raise NoMetric(f"metrics that cannot be read: {type(error).__name__}") from error
    if pairs is None:
        raise NoMetric(f"the metrics {_shown(metrics)}, expected a dict of names to numbers")
    for name, _ in pairs:
        if not isinstance(name, str):
            raise NoMetric(f"a metric named {_shown(name)}, expected a dict of names to numbers")
    return {name: _number(name, value) for name, value in pairs}


def _number(name: str, value: Any) -> float:
    if not isinstance(value, str | bytes):
        try:
            bare = value.detach() if callable(getattr(value, "detach", None)) else value  # torch warns of a gradient
            return float(bare.item() if getattr(bare, "shape", ()) else bare)  # numpy of a number in brackets
        except user_errors() as error:
            raise _refusal(name, value) from error
    raise _refusal(name, value)


def _refusal(name: str, value: object) -> NoMetric:
    hint = "; of a tensor give its mean, say" if _shape(value) is not None else ""
    return NoMetric(f"the metric {name!r} = {_shown(value)}, expected one number{hint}")


def _shown(value: object) -> str:
    """In one line, of what has a shape that alone; user code's own `repr` may be broken, too."""
    kind = type(value).__name__
    if (shape := _shape(value)) is not None:
        return f"a {kind} of shape {shape}"
    try:
        return " ".join(repr(value).split())[:SHOWN_CHARS]
    except user_errors():
        return f"a {kind}"


def _shape(value: object) -> list[Any] | None:
    try:
        return list(getattr(value, "shape", None) or ()) or None
    except user_errors():
        return None
