"""From exp.toml, a text or a mapping to a frozen spec, with every mistake found at once and the origin of each value.

It never touches the broker and never runs user code.
"""

import contextlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from heddle.errors import NotFound, Problem, SpecError, UsageError
from heddle.spec.bounds import dotted, excess_problems
from heddle.spec.checks import cross_checks
from heddle.spec.derive import with_derived
from heddle.spec.explain import Fault, explain, told_once, without_echoes
from heddle.spec.locate import KeyPath, Location, locate
from heddle.spec.models import ExperimentSpec
from heddle.spec.overrides import Override, apply_overrides, parse_overrides
from heddle.spec.values import Schedule
from heddle.spec.write import to_toml

_SYNTAX = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)", re.DOTALL)

MOST_BYTES = 1_000_000
"""Of a spec; a longer file is another one, or has no end."""
_KEYS = re.compile(r"\((?:'[^']*',? ?)+\)")  # tomllib shows a dotted key as a tuple


@dataclass(frozen=True, slots=True)
class LoadedSpec:
    """A spec and where it came from.

    Attributes:
        spec: every value filled in.
        toml: the text as given, with the overrides as comments above it.
        origins: dotted key to "exp.toml:12", "--set", "--name", "given" (from a mapping), "default" or "derived".
    """

    spec: ExperimentSpec
    toml: str
    origins: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Source:
    """What was read: the raw tables, their text, and the label and places for messages."""

    raw: dict[str, Any]
    toml: str
    file: str | None
    places: dict[KeyPath, Location]


def load_spec(
    source: Path | str | Mapping[str, Any], *, overrides: Sequence[str] = (), name: str | None = None
) -> LoadedSpec:
    """Read, override, derive and check a spec.

    Args:
        source: a file, TOML text, or nested dicts.
        overrides: "key=value" each, applied in order; the value is TOML, or plain text where it is not.
        name: takes the place of experiment.name.

    Raises:
        NotFound: the file cannot be read.
        SpecError: everything that is wrong with it.
    """
    loaded, problems = load_leniently(source, overrides=overrides, name=name)
    if problems or loaded is None:
        raise SpecError(problems)
    return loaded


def load_leniently(
    source: Path | str | Mapping[str, Any], *, overrides: Sequence[str] = (), name: str | None = None
) -> tuple[LoadedSpec | None, list[Problem]]:
    """The spec and what is wrong with it; where keys are wrong, the spec that their defaults would make, to look on.

    Returns:
        None for a spec of which nothing can be made.

    Raises:
        NotFound, SpecError: the file cannot be read, or is no TOML.
        UsageError: it is of no type that a spec can have.
    """
    origin = _read(source)
    given, problems = parse_overrides(overrides)
    if name is not None:
        given.append(Override(("experiment", "name"), name, "--name"))
    raw, more = apply_overrides(origin.raw, given)
    spec, faults = _validate(raw)
    set_by = {override.path: override.label for override in given}
    problems += more
    problems += _in_order([_problem(fault, origin, set_by) for fault in faults])
    if spec is None:
        return None, problems
    comments = "".join(f"# {override}\n" for override in given)
    return LoadedSpec(spec, comments + origin.toml, _origins(spec, raw, origin, set_by)), problems


def spec_from_json(text: str) -> ExperimentSpec:
    """The spec that `canonical_json` or `model_dump_json` wrote.

    One of a version without `rollout.frames` has whole observations: readers of that version know no others.

    Raises:
        SpecError: the text is no spec of this version.
    """
    try:
        spec = ExperimentSpec.model_validate_json(text)
    except ValidationError as error:
        faults = [explain(dict(detail)) for detail in error.errors()]
        raise SpecError([_plain(fault) for fault in faults]) from error
    if "frames" in spec.rollout.model_fields_set:
        return spec
    return spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"frames": "whole"})})


def _read(source: Path | str | Mapping[str, Any]) -> _Source:
    if isinstance(source, Mapping):
        raw = {str(key): value for key, value in source.items()}
        _refuse_excess(raw, None)
        return _Source(raw, to_toml(raw), None, {})
    if not isinstance(source, Path | str):
        raise UsageError(f"a spec is a file's path, TOML text or a mapping, not {type(source).__name__}")
    file = str(source) if isinstance(source, Path) else None
    text = _text_of(source) if isinstance(source, Path) else source
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError([_syntax_problem(error, text, file)]) from error
    except (RecursionError, ValueError) as error:  # how tomllib meets thousands of brackets, or of digits
        raise SpecError([Problem("", None, f"not TOML that can be read: {_short(error)}", file=file)]) from error
    _refuse_excess(raw, file)
    return _Source(raw, text, file, locate(text))


def _refuse_excess(raw: Mapping[str, Any], file: str | None) -> None:
    if problems := excess_problems(raw, file):
        raise SpecError(problems)


def _short(error: Exception) -> str:
    return "tables or lists in each other too deep" if isinstance(error, RecursionError) else str(error).split(";")[0]


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise SpecError([Problem("", None, f"is longer than {MOST_BYTES:,} bytes: no spec", file=str(path))])
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 text (byte {error.start})"
        raise SpecError([Problem("", None, reason, "save the file as UTF-8", file=str(path))]) from error
    except OSError as error:
        why = error.strerror or str(error)
        raise NotFound(f"cannot read {path}: {why}; `heddle init` writes one to start from") from error


def _syntax_problem(error: tomllib.TOMLDecodeError, text: str, file: str | None) -> Problem:
    match = _SYNTAX.fullmatch(str(error))
    if match is None:
        return Problem("", None, f"not TOML: {error}", file=file, line=1, column=1)
    line = int(match["line"] or text.count("\n") + 1)
    column = int(match["column"] or 1)
    lines = text.splitlines()
    hint = f"the line reads: {lines[line - 1].strip()}" if line <= len(lines) else ""
    what = _KEYS.sub(lambda found: ".".join(re.findall(r"'([^']*)'", found[0])), match["what"])
    return Problem("", None, f"not TOML: {what[:1].lower()}{what[1:]}", hint, file=file, line=line, column=column)


def _validate(raw: Mapping[str, Any]) -> tuple[ExperimentSpec | None, list[Fault]]:
    """The spec and everything wrong with it; the rules between keys are tried even when single keys are wrong.

    Where there is something wrong the spec is what is left of it, None when that is not one.
    """
    try:
        spec = ExperimentSpec.model_validate(raw)
    except ValidationError as error:
        faults = [explain(dict(detail)) for detail in error.errors()]
        mended: ExperimentSpec | None = None
        rest: list[Fault] = []
        with contextlib.suppress(ValidationError):
            mended = ExperimentSpec.model_validate(_without(raw, [fault.path for fault in faults]))
            rest = cross_checks(mended)
        bad = {fault.path[:2] for fault in faults} | {fault.path[:1] for fault in faults}
        return mended, told_once(without_echoes(faults)) + [fault for fault in rest if fault.path not in bad]
    return spec, cross_checks(spec)


def _without(raw: Mapping[str, Any], paths: Sequence[KeyPath]) -> dict[str, Any]:
    """`raw` without the keys at fault, and with what is required, so that the rest can be checked."""
    kept = {key: dict(value) if isinstance(value, Mapping) else value for key, value in raw.items()}
    for path in paths:
        section = kept.get(str(path[0]))
        if len(path) == 1 or not isinstance(section, dict):
            kept.pop(str(path[0]), None)
        else:
            section.pop(str(path[1]), None)
    for section_name, key, value in (("experiment", "name", "x"), ("env", "id", "x"), ("budget", "env_steps", 1)):
        required = kept.setdefault(section_name, {})
        if isinstance(required, dict) and (section_name != "budget" or ("budget",) in paths):
            required.setdefault(key, value)
    return kept


def _problem(fault: Fault, origin: _Source, set_by: Mapping[KeyPath, str]) -> Problem:
    plain = _plain(fault)
    for path, label in set_by.items():
        if fault.path[: len(path)] == path:
            return replace(plain, file=label)
    place = _place(fault.path, origin.places)
    if place is None:  # a whole section is missing: that is the file's fault from its first line on
        return replace(plain, file=origin.file, line=1, column=1) if origin.file else plain
    if fault.is_about_key or fault.path not in origin.places:
        return replace(plain, file=origin.file, line=place.line, column=place.column)
    return replace(plain, file=origin.file, line=place.value_line, column=place.value_column)


def _plain(fault: Fault) -> Problem:
    value = fault.value.model_dump(mode="json") if isinstance(fault.value, BaseModel) else fault.value
    return Problem(dotted(fault.path), value, fault.reason, fault.hint)


def _place(path: KeyPath, places: Mapping[KeyPath, Location]) -> Location | None:
    """Where `path` stands, or the nearest table around it."""
    while path and path not in places:
        path = path[:-1]
    return places.get(path)


def _in_order(problems: list[Problem]) -> list[Problem]:
    """File order; what has no place comes last, in the order found."""
    return sorted(problems, key=lambda problem: (problem.line == 0, problem.line, problem.column))


def _origins(
    spec: ExperimentSpec, raw: Mapping[str, Any], origin: _Source, set_by: Mapping[KeyPath, str]
) -> dict[str, str]:
    derived = with_derived(raw)[1]
    origins = {}
    for path in _leaves(spec):
        key = dotted(path)
        place = _place(path, origin.places)
        if label := _label(path, set_by):
            origins[key] = label
        elif not _given(raw, path):
            origins[key] = "derived" if key in derived else "default"
        else:
            origins[key] = f"{origin.file or '<spec>'}:{place.line}" if place is not None else "given"
    return origins


def _label(path: KeyPath, set_by: Mapping[KeyPath, str]) -> str | None:
    """The option that set `path`, something in it, or the table around it."""
    for over, label in set_by.items():
        depth = min(len(over), len(path))
        if over[:depth] == path[:depth]:
            return label
    return None


def _given(raw: Mapping[str, Any], path: KeyPath) -> bool:
    section: object = raw
    for part in path:
        if not isinstance(section, Mapping) or part not in section:
            return False
        section = section[str(part)]
    return True


def _leaves(model: BaseModel, path: KeyPath = ()) -> list[KeyPath]:
    """Paths of every value that is not a section."""
    leaves: list[KeyPath] = []
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel) and not isinstance(value, Schedule):
            leaves += _leaves(value, (*path, name))
        else:
            leaves.append((*path, name))
    return leaves
