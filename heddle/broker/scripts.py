"""The Lua scripts: one verb a file in `lua/`, known to the server by their SHA1.

This module never interpolates anything into a script; all that varies goes through KEYS and ARGV.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """One script.

    Attributes:
        name: file name without ".lua".
        source: its text.
        sha: how EVALSHA calls it.
    """

    name: str
    source: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script in `lua/<name>.lua`. Raises FileNotFoundError."""
    source = files("heddle.broker").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def names() -> list[str]:
    """Every script there is, sorted."""
    found = files("heddle.broker").joinpath("lua").iterdir()
    return sorted(entry.name.removesuffix(".lua") for entry in found if entry.name.endswith(".lua"))
