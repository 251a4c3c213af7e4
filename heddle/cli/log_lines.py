"""Log lines of a process: for people, or one JSON object each for Loki, ELK and the like (`HEDDLE_LOG=json`).

It never sends one anywhere: what collects the output of processes does.
"""

import logging
import os
import re
from datetime import UTC, datetime

from heddle.errors import UsageError
from heddle.subject import subject

FORMAT_ENV = "HEDDLE_LOG"
_PAIR = re.compile(r"(?<![\w-])(experiment|pool|worker|supervisor|trainer|shard|epoch|seq|update|version)=([^\s,;]+)")
MOST_BYTES = 8_000
"""Of a line: a launcher reads its children's in pieces of `process.LINE_LIMIT_BYTES`, and half an object is none. Of a
traceback the end is kept, of a message the begin."""
LEAST_CHARS = 100
_NUMBERS = frozenset({"shard", "epoch", "seq", "update", "version"})


def is_json() -> bool:
    """Whether HEDDLE_LOG asks for JSON; text is what nobody asked for. Raises UsageError."""
    said = os.environ.get(FORMAT_ENV) or "text"
    if said not in ("text", "json"):
        raise UsageError(f"{FORMAT_ENV} is {said!r}; say text or json")
    return said == "json"


def formatter() -> logging.Formatter:
    """As HEDDLE_LOG says. Raises UsageError."""
    if is_json():
        return JsonLines()
    return logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s", "%H:%M:%S")


class JsonLines(logging.Formatter):
    """A line as one object: time, level, logger, message, and what it is about, each under its own name: what the
    process and the thread are at work on, and what the message names, which goes in front. A record with `printed` is a
    line of user code, in which nothing is looked for."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        from heddle.broker.records import dump_json

        printed: str | None = getattr(record, "printed", None)
        message = record.getMessage() if printed is None else printed
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        told |= subject() | getattr(record, "subject", {})
        if printed is None:
            told |= fields_of(message)
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        line = dump_json(told)
        for name in ("traceback", "message"):
            while len(line) > MOST_BYTES and len(text := str(told.get(name, ""))) > LEAST_CHARS:
                left = len(text) * 3 // 4
                told[name] = text[-left:] if name == "traceback" else text[:left]
                line = dump_json(told)
        return line


def fields_of(message: str) -> dict[str, object]:
    """What a line says it is about, as `name=value`; a shard that is named with its experiment tells both."""
    found: dict[str, object] = {}
    for name, value in _PAIR.findall(message):
        if name == "shard" and "/" in value:
            found["experiment"], _, value = value.rpartition("/")
        found[name] = int(value) if name in _NUMBERS and value.isdecimal() else value
    return found
