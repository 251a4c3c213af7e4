"""Warnings of our own process, said on the live screen instead of in the middle of it. It never hides one."""

import logging
from collections.abc import Callable


class Heard(logging.Handler):
    """Hands what our own process warns of to the live view."""

    logger = "heddle"

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())


def hear_warnings(say: Callable[[str], None]) -> Heard:
    """Have warnings said on the screen from now on, instead of in the middle of it."""
    heard = Heard(say)
    logger = logging.getLogger(heard.logger)
    logger.addHandler(heard)
    logger.propagate = False
    return heard
