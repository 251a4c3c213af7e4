"""Replies of a real and of a simulated server, without what need not be the same. It never asks either."""

from typing import Any

import redis

from tests.simulation.net import error_of
from tests.simulation.values import ServerError, Status


def told(reply: Any) -> Any:
    """A reply for comparing: errors by their first word, times since left out."""
    if isinstance(reply, ServerError):
        return told(error_of(reply))
    if isinstance(reply, redis.ResponseError):
        return f"{type(reply).__name__} {str(reply).removeprefix('ERR ').split(' ')[0]}"
    if isinstance(reply, Status):
        return bytes(reply)
    return [told(item) for item in reply] if isinstance(reply, list) else reply


def blurred(command: list[bytes], reply: Any) -> Any:
    """Without what depends on the moment: remaining time, and how long ago an entry was delivered."""
    found = told(reply)
    if command[0] == b"PTTL" and isinstance(found, int):
        return min(found, 1)
    if command[0] == b"XPENDING" and isinstance(found, list):
        return [[entry, who, count] for entry, who, _, count in found]
    return found
