"""Planting bugs: other text in shipped Lua or Python, for as long as a context lasts.

It never writes a file. Text that is not there exactly once is an error: a bug that no longer applies must not pass for
one that was not found.
"""

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import heddle
from heddle.broker.scripts import script

ROOT = Path(heddle.__file__).parent
Rewrite = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Edit:
    """Text in one file (its path within `heddle/`), and what stands there instead."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug.

    Attributes:
        name: what goes wrong, in a few words.
        edits: where.
        theme: of the seeds that are looked at first, "" for none.
        seed: that found it last, None where none is noted; breaks: which promise it broke there.
        missed: these plans did not find it in all seeds of its theme; it is looked for only when asked for.
        shown: the test that fails with it, where neither a seed nor a kept schedule shows it.
    """

    name: str
    edits: tuple[Edit, ...]
    theme: str = ""
    seed: int | None = None
    missed: bool = False
    breaks: str = ""
    shown: str = ""


class NotThere(Exception):
    """The text to replace is not in the file, or more than once."""


def edited(edit: Edit, text: str) -> str:
    """`text` with the edit made. Raises NotThere."""
    count = text.count(edit.old)
    if count != 1:
        raise NotThere(f"{edit.file}: {count} times instead of once: {edit.old!r}")
    return text.replace(edit.old, edit.new)


@contextmanager
def planted(bug: Bug) -> Iterator[Rewrite]:
    """Within it the Python part of the bug is in the shipped modules; what it gives rewrites Lua as it is loaded."""
    scripts: dict[str, str] = {}
    sources: dict[str, str] = {}
    for edit in bug.edits:
        if edit.file.endswith(".lua"):
            source = script(Path(edit.file).stem).source
            scripts[source] = edited(edit, scripts.get(source, source))
        else:
            text = sources.get(edit.file) or (ROOT / edit.file).read_text()
            sources[edit.file] = edited(edit, text)
    swaps: list[tuple[Any, str, Any]] = []
    try:
        for file, text in sources.items():
            swaps += _swap(file, text)
        yield lambda source: scripts.get(source, source)
    finally:
        for owner, name, value in reversed(swaps):
            setattr(owner, name, value)


def _swap(file: str, text: str) -> list[tuple[Any, str, Any]]:
    """Give the functions of a module the code of an edited one; what they had."""
    name = "heddle." + file.removesuffix(".py").replace("/", ".")
    module = importlib.import_module(name)
    other = types.ModuleType(name)
    other.__file__ = module.__file__
    sys.modules[f"{name}-edited"] = other
    exec(compile(text, str(ROOT / file), "exec"), other.__dict__)  # the project's own source, edited
    mine, theirs = dict(_functions(module, name)), dict(_functions(other, name))
    swaps: list[tuple[Any, str, Any]] = []
    for place, function in mine.items():
        edited_one = theirs.get(place)
        for part in ("__code__", "__defaults__", "__kwdefaults__") if edited_one is not None else ():
            before, after = getattr(function, part), getattr(edited_one, part)
            if before != after and not (part != "__code__" and _is_made(before)):
                swaps.append((function, part, before))
                setattr(function, part, after)
    if not swaps:
        raise NotThere(f"{file}: the edit changes no function")
    return swaps


def _is_made(defaults: Any) -> bool:
    """True for defaults that are objects of their own in each module."""
    values = list(defaults.values()) if isinstance(defaults, dict) else list(defaults or ())
    return any(not isinstance(value, int | str | float | bytes | bool | type(None)) for value in values)


def _functions(owner: Any, module: str, place: str = "") -> Iterator[tuple[str, types.FunctionType]]:
    """Every function that a module or class defines, by name."""
    for name, value in vars(owner).items():
        for one in _unwrapped(value):
            if isinstance(one, types.FunctionType) and one.__module__ == module:
                yield f"{place}{name}", one
        if isinstance(value, type) and value.__module__ == module:
            yield from _functions(value, module, f"{place}{name}.")


def _unwrapped(value: Any) -> list[Any]:
    if isinstance(value, property):
        return [value.fget]
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    return [getattr(value, "__wrapped__", value)]
