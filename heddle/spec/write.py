"""A mapping as TOML text, for specs that were given as dicts.

It never checks a spec; what TOML cannot say (None) is left out, other types are written as text.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(raw: Mapping[str, Any]) -> str:
    """`raw` as TOML: one table a section, deeper tables inline."""
    lines: list[str] = []
    for key, value in raw.items():
        if not isinstance(value, Mapping) and value is not None:
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, value in raw.items():
        if isinstance(value, Mapping):
            lines.append(f"[{_key(key)}]")
            lines += [f"{_key(name)} = {_value(item)}" for name, item in value.items() if item is not None]
    return "\n".join(lines) + "\n"


def _key(key: object) -> str:
    text = str(key)
    return text if _BARE.fullmatch(text) else _text(text)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items() if item is not None)
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item) for item in value if item is not None)}]"
    return _text(str(value))


def _text(text: str) -> str:
    # JSON's escapes are TOML's, but for DEL, which TOML wants escaped, and pairs of surrogates, which it refuses.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
