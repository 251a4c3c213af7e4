"""The Lua scripts: one verb a file in `lua/`, known to the server by their SHA1.

This module never interpolates anything into a script; all that varies goes through KEYS and ARGV. What several do, read
a number that somebody's hand may have made none and refuse who leads no more, is a function here.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

WHOLE = """\
local function whole(said) -- as counts.count: 0 for what is no whole number up to 2^53
  local digits = string.match(said or '', '^%d+$')
  return digits and (#digits < 16 or (#digits == 16 and digits <= '9007199254740992')) and tonumber(digits) or 0
end
"""
"""Stands before each script that calls it, and so does the next."""
REFUSED = """\
local function refused() -- why a leader may write nothing: the ctl, KEYS[1], is gone, or its epoch, ARGV[1], is over
  local ctl = redis.call('HMGET', KEYS[1], 'command', 'leader_epoch')
  if not ctl[1] then
    return 'GONE'
  end
  if tonumber(ARGV[1]) < whole(ctl[2]) then
    return 'FENCED'
  end
end
"""


@dataclass(frozen=True, slots=True)
class Script:
    """One script.

    Attributes:
        name: file name without ".lua".
        source: its text, with what it shares.
        sha: how EVALSHA calls it.
    """

    name: str
    source: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script in `lua/<name>.lua`. Raises FileNotFoundError."""
    source = files("heddle.broker").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
    source = REFUSED + source if "refused(" in source else source
    source = WHOLE + source if "whole(" in source else source
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def names() -> list[str]:
    """Every script there is, sorted."""
    found = files("heddle.broker").joinpath("lua").iterdir()
    return sorted(entry.name.removesuffix(".lua") for entry in found if entry.name.endswith(".lua"))
