"""Overrides of a spec from the command line: "rollout.steps=64" over what the file says.

It never knows which keys exist; the models refuse what does not.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle.errors import Problem
from heddle.spec.bounds import excess_problems
from heddle.spec.locate import KeyPath

SET = "--set"


@dataclass(frozen=True, slots=True)
class Override:
    """One value that wins over the file's.

    Attributes:
        path: keys from the root.
        value: as TOML reads it.
        label: the option it came by.
    """

    path: KeyPath
    value: Any
    label: str = SET

    def __str__(self) -> str:
        return f"{self.label} {'.'.join(map(str, self.path))}={self.value}"


def parse_overrides(texts: Sequence[str]) -> tuple[list[Override], list[Problem]]:
    """The overrides that can be read, and a problem for each that cannot."""
    overrides, problems = [], []
    for text in texts:
        key, equals, value = text.partition("=")
        parts = tuple(part.strip() for part in key.split("."))
        if not equals or not all(parts):
            problems.append(Problem(key.strip(), None, f"cannot read {text!r}", "write key=value", file=SET))
        else:
            override = Override(parts, parse_value(value.strip()))
            found = excess_problems(nested(override), SET)
            problems += found
            overrides += [] if found else [override]
    return overrides, problems


def nested(override: Override) -> dict[str, Any]:
    """The tables that an override makes where there are none."""
    value = override.value
    for part in reversed(override.path):
        value = {part: value}
    tables: dict[str, Any] = value
    return tables


def parse_value(text: str) -> Any:
    """`text` as a TOML value, or as it stands when it is none."""
    if "\n" in text:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # of TOML; of brackets or digits by the thousand
        return text


def apply_overrides(raw: Mapping[str, Any], overrides: Sequence[Override]) -> tuple[dict[str, Any], list[Problem]]:
    """A copy of `raw` with each override put in, making tables on the way; and those that do not fit."""
    changed = _copy(raw)
    problems = []
    for override in overrides:
        table: Any = changed
        for depth, part in enumerate(override.path[:-1], start=1):
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                above = ".".join(map(str, override.path[:depth]))
                key = ".".join(map(str, override.path))
                problems.append(Problem(key, override.value, f"{above} is not a table", file=override.label))
                break
        else:
            table[override.path[-1]] = override.value
    return changed, problems


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value
