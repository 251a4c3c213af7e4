"""Said: what user code printed, taken out of the line that tells it, and put into one.

Pure: it never reads or writes a stream.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from heddle.subject import PRINTED, Subject

_PASSED_ON = re.compile(
    rf"(?:\d\d:\d\d:\d\d [A-Z]+ +)?{re.escape(PRINTED)} (?:shard=(\S+)/(\d+) )?(?:epoch=(\d+) )?[^|]*\| (.*)"
)
_MARK = re.compile(rf"{re.escape(PRINTED)} shard=\S+/\d+ ")
NAMES = ("experiment", "shard", "epoch")
"""What a line of user code may be about."""


@dataclass(frozen=True, slots=True)
class Said:
    """A line of user code.

    Attributes:
        line: as it was printed.
        about: experiment, shard and epoch that were played then, as far as that is known.
    """

    line: str
    about: Subject = field(default_factory=dict)


def printed_in(line: str) -> Said | None:
    """What user code printed, where a line says that it did so: an environment in a child of its own, Python code of a
    shard, with JSON whoever it was; else None."""
    if (found := _PASSED_ON.match(line)) is not None:
        experiment, shard, epoch, said = found.groups()
        return Said(said, _about({"experiment": experiment, "shard": _number(shard), "epoch": _number(epoch)}))
    if not line.startswith("{"):
        return None
    try:
        told = json.loads(line)
    except ValueError:
        return None
    if not isinstance(told, dict) or told.get("logger") != PRINTED:
        return None
    return Said(str(told.get("message", "")), _about(told))


def marked(line: str, about: Mapping[str, object]) -> str:
    """A line that Python code printed, for whoever reads this process: with its shard, where one was played."""
    if "shard" not in about or "experiment" not in about:
        return line
    epoch = f" epoch={about['epoch']}" if "epoch" in about else ""
    return f"{PRINTED} shard={about['experiment']}/{about['shard']}{epoch} | {line}"


def is_marked(line: str) -> bool:
    """Whether a line is one of `marked`."""
    return _MARK.match(line) is not None


def _about(told: Mapping[str, object]) -> Subject:
    found: dict[str, str | int] = {}
    for name in NAMES:
        value = told.get(name)
        if name == "experiment" and value is not None:
            found[name] = str(value)
        elif isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            found[name] = value
    return found


def _number(digits: str | None) -> int | None:
    return int(digits) if digits is not None and len(digits) <= len(str(2**53)) else None
