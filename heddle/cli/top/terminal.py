"""The terminal: an alternate screen, keys one by one, and everything as it was before when it is left.

It never decides what a key means.
"""

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

ESCAPES = {
    "[A": "up",
    "[B": "down",
    "[C": "right",
    "[D": "left",
    "OA": "up",
    "OB": "down",
    "OC": "right",
    "OD": "left",
    "[H": "home",
    "[F": "end",
    "[1~": "home",
    "[4~": "end",
    "[5~": "pageup",
    "[6~": "pagedown",
}
SINGLE = {"\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace", "\x03": "ctrl-c"}
HOME, PLAIN, CLEAR = "\x1b[H", "\x1b[0m", "\x1b[K"


class Terminal:
    """A terminal that is ours while `open` lasts."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=False, emoji=False, markup=False)
        self._left = ""
        self._last: tuple[tuple[int, int], list[str]] = ((0, 0), [])

    @contextlib.contextmanager
    def open(self) -> Iterator["Terminal"]:
        """Take it, and give it back whatever happens."""
        descriptor = sys.stdin.fileno()
        before: list[Any] = termios.tcgetattr(descriptor)
        try:
            tty.setcbreak(descriptor)
            mode = termios.tcgetattr(descriptor)
            mode[3] &= ~termios.ISIG  # so that Ctrl-C is a key, and what is typed can be left by it
            termios.tcsetattr(descriptor, termios.TCSADRAIN, mode)
            self._write("\x1b[?1049h\x1b[?25l\x1b[?7l")
            yield self
        finally:
            with contextlib.suppress(OSError, termios.error):  # it may be gone itself
                self._write("\x1b[?7h\x1b[?25h\x1b[?1049l")
                termios.tcsetattr(descriptor, termios.TCSADRAIN, before)

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        found = os.get_terminal_size(sys.stdout.fileno())
        return max(1, found.columns), max(1, found.lines)

    def keys(self, wait_s: float) -> list[str]:
        """The keys that were pressed; waits at most `wait_s` for the first."""
        ready, _, _ = select.select([sys.stdin], [], [], wait_s)
        if not ready:
            return []
        data = os.read(sys.stdin.fileno(), 1024)
        if not data:
            return ["ctrl-c"]  # the terminal is gone
        found, self._left = split_keys(self._left + data.decode("utf-8", "replace"))
        return found

    def draw(self, lines: Sequence[Text]) -> None:
        """Show `lines`; only those that changed are sent."""
        size = self.size()
        drawn = [self._ansi(line) for line in lines]
        before = self._last[1] if self._last[0] == size else []
        changed = [
            f"\x1b[{place + 1};1H{PLAIN}{CLEAR}{line}{PLAIN}"  # cleared before: behind a full line it takes its end
            for place, line in enumerate(drawn)
            if place >= len(before) or before[place] != line
        ]
        self._last = (size, drawn)
        if not before:
            changed.insert(0, f"{HOME}\x1b[2J")
        if changed:
            self._write("".join(changed))

    def _ansi(self, line: Text) -> str:
        return "".join(
            segment.style.render(segment.text, color_system=self._console._color_system)
            if segment.style
            else segment.text
            for segment in line.render(self._console)
        )

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def split_keys(data: str) -> tuple[list[str], str]:
    """Bytes of a terminal as keys, and the start of one that has not come whole."""
    found: list[str] = []
    while data:
        if data[0] != "\x1b":
            found.append(SINGLE.get(data[0], data[0]))
            data = data[1:]
            continue
        sequence = next((one for one in ESCAPES if data[1:].startswith(one)), None)
        if sequence is not None:
            found.append(ESCAPES[sequence])
            data = data[1 + len(sequence) :]
        elif len(data) > 1 and data[1] in "[O":
            end = next((place for place, mark in enumerate(data[2:], start=2) if "@" <= mark <= "~"), None)
            if end is None:
                return found, data
            data = data[end + 1 :]  # a key that means nothing here
        else:
            found.append("escape")
            data = data[1:]
    return found, ""
