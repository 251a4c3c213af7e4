"""Counts: numbers that Heddle keeps, read as far as somebody's hand has left them numbers.

It never raises; what may not be guessed is read by `records.integer`, which does.
"""

import math
import re
from typing import Any

MOST = 2**53
"""Every whole number up to here is exact in a script, too."""
_WHOLE = re.compile(r"[0-9]{1,16}")


def whole(value: Any) -> int | None:
    """What the server answered, if that is a whole number from 0 to `MOST` in digits alone.

    The scripts go by the same rule, see `scripts.WHOLE`.
    """
    said = _said(value)
    return int(said) if _WHOLE.fullmatch(said) and int(said) <= MOST else None


def count(value: Any) -> int:
    """The same; 0 for whatever else it is, and for nothing."""
    return whole(value) or 0


def amount(value: Any) -> float:
    """What the server answered, as a float from 0 to `MOST`; 0.0 for whatever else it is, and for nothing."""
    try:
        found = float(_said(value) or "0")
    except ValueError:
        return 0.0
    return found if math.isfinite(found) and 0.0 <= found <= MOST else 0.0


def _said(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii", "replace")
    return "" if value is None else str(value)
