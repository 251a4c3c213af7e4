"""Where the keys of a TOML text stand: line and column of every key and value.

It never checks or converts anything: the text must have been read by a TOML reader before.
No TOML reader for Python tells positions, hence this small scanner.
"""

import bisect
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]
"""Keys from the root; a number is an index into an array."""

_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b", '"': '"', "\\": "\\"}
_CODE_POINTS = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True)
class Location:
    """Position of a key and of its value, both counted from 1; of a table, its header or first key."""

    line: int
    column: int
    value_line: int
    value_column: int


def locate(text: str) -> dict[KeyPath, Location]:
    """The position of every table, key and array element in `text`, which must be valid TOML."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.found


class _Scanner:
    """One pass over the text; `at` only moves forward."""

    def __init__(self, text: str) -> None:
        self.text = text + "\n"
        self.at = 0
        self.found: dict[KeyPath, Location] = {}
        self._lines = [0, *(index + 1 for index, character in enumerate(self.text) if character == "\n")]
        self._last_element: dict[KeyPath, int] = {}

    def document(self) -> None:
        prefix: KeyPath = ()
        self._skip_blank()
        while self.at < len(self.text):
            if self._peek() == "[":
                prefix = self._header()
            else:
                self._pair(prefix)
            self._skip_blank()

    def _header(self) -> KeyPath:
        is_array = self.text.startswith("[[", self.at)
        self.at += 2 if is_array else 1
        self._skip_blank()
        start = self.at
        parts = self._dotted_key()
        self._skip_blank()
        self.at += 2 if is_array else 1
        path: KeyPath = ()
        for number, part in enumerate(parts):
            path = (*path, part)
            self._note(path, start, start)
            if is_array and number == len(parts) - 1:
                self._last_element[path] = self._last_element.get(path, -1) + 1
            if path in self._last_element:
                path = (*path, self._last_element[path])
                self._note(path, start, start)
        return path

    def _pair(self, prefix: KeyPath) -> None:
        start = self.at
        parts = self._dotted_key()
        self._skip_blank()
        self.at += 1  # the equals sign
        self._skip_blank()
        value_start = self.at
        for count in range(1, len(parts) + 1):
            self._note((*prefix, *parts[:count]), start, value_start)
        self._value((*prefix, *parts))

    def _value(self, path: KeyPath) -> None:
        first = self._peek()
        if first in "\"'":
            self._string()
        elif first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        else:
            while self._peek() not in ",]}#\n":
                self.at += 1

    def _array(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        self._skip_separators()
        while self._peek() != "]":
            self._note((*path, index), self.at, self.at)
            self._value((*path, index))
            index += 1
            self._skip_separators()
        self.at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self.at += 1
        self._skip_separators()
        while self._peek() != "}":
            self._pair(path)
            self._skip_separators()
        self.at += 1

    def _dotted_key(self) -> list[str]:
        parts = [self._simple_key()]
        self._skip_spaces()
        while self._peek() == ".":
            self.at += 1
            self._skip_spaces()
            parts.append(self._simple_key())
            self._skip_spaces()
        return parts

    def _simple_key(self) -> str:
        if self._peek() in "\"'":
            return self._string()
        start = self.at
        while self._peek().isalnum() or self._peek() in "_-":
            self.at += 1
        return self.text[start : self.at]

    def _string(self) -> str:
        """Move past a string of any of the four kinds and return what it says."""
        quote = self._peek()
        mark = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(mark)
        said: list[str] = []
        while not self.text.startswith(mark, self.at):
            if quote == '"' and self._peek() == "\\":
                said.append(self._escape())
            else:
                said.append(self._peek())
                self.at += 1
        self.at += len(mark)
        while len(mark) == 3 and self._peek() == quote:  # up to two quotes may stand before the closing three
            said.append(quote)
            self.at += 1
        return "".join(said)

    def _escape(self) -> str:
        kind = self.text[self.at + 1]
        self.at += 2
        if kind in _CODE_POINTS:
            digits = self.text[self.at : self.at + _CODE_POINTS[kind]]
            self.at += len(digits)
            return chr(int(digits, 16))
        return _ESCAPES.get(kind, "")

    def _peek(self) -> str:
        return self.text[self.at]

    def _skip_spaces(self) -> None:
        while self._peek() in " \t":
            self.at += 1

    def _skip_blank(self, also: str = "") -> None:
        """Move past spaces, line ends, comments and the characters in `also`."""
        while self.at < len(self.text):
            if self._peek() == "#":
                self.at = self.text.index("\n", self.at)
            elif self._peek() in " \t\r\n" + also:
                self.at += 1
            else:
                return

    def _skip_separators(self) -> None:
        self._skip_blank(also=",")

    def _note(self, path: KeyPath, start: int, value_start: int) -> None:
        line, column = self._position(start)
        value_line, value_column = self._position(value_start)
        self.found.setdefault(path, Location(line, column, value_line, value_column))

    def _position(self, offset: int) -> tuple[int, int]:
        line = bisect.bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1
