"""Usage: what this process has used of its host, as the system tells.

It never guesses: what is not known is 0.
"""

import os
import resource
from pathlib import Path

_STATM = Path("/proc/self/statm")


def cpu_seconds() -> float:
    """Processor time of this process, all its threads and the children that it has waited for."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def resident_bytes() -> int:
    """Memory that this process has now."""
    try:
        words = _STATM.read_text().split()
    except OSError:
        return 0
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 else 0
