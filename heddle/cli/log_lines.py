"""Log lines of a process: for people, or one JSON object each for Loki, ELK and the like (`HEDDLE_LOG=json`).

It never sends one anywhere: what collects the output of processes does.
"""

import logging
import os
import re
from datetime import UTC, datetime

from heddle.errors import UsageError

FORMAT_ENV = "HEDDLE_LOG"
WORKER_ENV = "HEDDLE_WORKER_ID"
_PAIR = re.compile(r"(?<![\w-])(experiment|pool|worker|supervisor|trainer|shard|epoch|seq|update|version)=([^\s,;]+)")
_NUMBERS = frozenset({"shard", "epoch", "seq", "update", "version"})


def formatter() -> logging.Formatter:
    """As HEDDLE_LOG says: text (when it is not set) or json. Raises UsageError."""
    said = os.environ.get(FORMAT_ENV) or "text"
    if said not in ("text", "json"):
        raise UsageError(f"{FORMAT_ENV} is {said!r}; say text or json")
    if said == "json":
        return JsonLines(os.environ.get(WORKER_ENV, ""))
    return logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s", "%H:%M:%S")


class JsonLines(logging.Formatter):
    """A line as one object: time, level, logger, message, and what the message names, each under its own name.

    Args:
        worker: of this process; "" where it is none.
    """

    def __init__(self, worker: str = "") -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        from heddle.broker.records import dump_json

        message = record.getMessage()
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if self._worker:
            told["worker"] = self._worker
        told |= fields_of(message)
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return dump_json(told)


def fields_of(message: str) -> dict[str, object]:
    """What a line says it is about, as `name=value`; a shard that is named with its experiment tells both."""
    found: dict[str, object] = {}
    for name, value in _PAIR.findall(message):
        if name == "shard" and "/" in value:
            found["experiment"], _, value = value.rpartition("/")
        found[name] = int(value) if name in _NUMBERS and value.isdecimal() else value
    return found
