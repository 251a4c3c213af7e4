"""Said: what user code printed, taken out of the log line that tells it.

Pure: it never reads or writes a stream.
"""

import json
import re

from heddle.subject import PRINTED

_PASSED_ON = re.compile(rf"\d\d:\d\d:\d\d [A-Z]+ +{re.escape(PRINTED)} (?:shard=(\S+)/\d+ )?[^|]*\| (.*)")


def printed_in(line: str) -> tuple[str | None, str] | None:
    """Experiment and line where a log line says what user code printed: an environment in a child of its own, with JSON
    whoever it was; else None."""
    if (found := _PASSED_ON.match(line)) is not None:
        return found.group(1), found.group(2)
    if not line.startswith("{"):
        return None
    try:
        told = json.loads(line)
    except ValueError:
        return None
    if not isinstance(told, dict) or told.get("logger") != PRINTED:
        return None
    experiment = told.get("experiment")
    return None if experiment is None else str(experiment), str(told.get("message", ""))
