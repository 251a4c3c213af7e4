"""Telling: the error that a child reports, as the exception that the same error would be inline."""

import json
from collections.abc import Sequence
from typing import Any

from heddle.errors import EnvError, NotSnapshottable, SnapshotError
from heddle.producers.contract import BadAnswer
from heddle.producers.isolation.frames import Frame
from heddle.producers.mishap import Mishap


def error_of(frame: Frame, doing: str, *, limit: int | None, output: Sequence[str]) -> Exception:
    """What to raise for a FAILED frame."""
    told = _read(frame.payload)
    kind, text = str(told.get("kind", "")), str(told.get("text", ""))
    if kind == "unsnapshottable":
        return NotSnapshottable(text)
    if kind == "snapshot":
        return SnapshotError(text)
    if told.get("problems"):
        key, value, reason, hint = told["problems"][0]
        return EnvError(str(reason), key=str(key), value=value, hint=str(hint))
    cause: Any = kind if kind in ("answer", "memory", "exit") else "exception"
    if cause == "memory" and limit is not None:
        text = f"{text}: above env.memory = {limit >> 20} MiB"
    mishap = Mishap(
        cause, text, doing=doing, env=frame.env, traceback=str(told.get("traceback", "")), output=tuple(output)
    )
    if cause == "answer":
        mishap.__cause__ = BadAnswer(text)
    return mishap


def _read(payload: bytes) -> dict[str, Any]:
    try:
        told = json.loads(payload)
    except ValueError:
        return {"text": "it told of an error in bytes that cannot be read"}
    return told if isinstance(told, dict) else {"text": str(told)}
