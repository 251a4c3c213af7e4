"""Sweeps: from "trainer.lr=1e-3,3e-4" and a number of seeds to one named experiment for each combination.

Pure: it reads no file and knows no key; what a combination's values are worth, the models say.
"""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from heddle.errors import Problem, SpecError
from heddle.spec.models import Experiment
from heddle.spec.overrides import parse_overrides

SWEEP = "--sweep"
MOST = 1_000
"""Experiments of one sweep; more is a slip of the pen."""
LONGEST_NAME = 63
OWN_KEYS = ("experiment.name", "experiment.group", "experiment.tags")
"""What a sweep sets itself."""
_SEED = "experiment.seed"
_OPENING, _CLOSING = "[{(", "]})"


@dataclass(frozen=True, slots=True)
class Axis:
    """One key and the values that it takes, as they were written."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Combination:
    """One experiment of a sweep.

    Attributes:
        name: of the experiment; tells the values.
        values: "key=value" for each axis, its tags.
        seed: experiment.seed.
        overrides: what makes it out of the spec that is swept, as --set takes it.
    """

    name: str
    values: tuple[str, ...]
    seed: int
    overrides: tuple[str, ...]

    @property
    def label(self) -> str:
        """For people: its values and seed."""
        return ", ".join((*self.values, f"seed {self.seed}"))


def parse_axes(texts: Sequence[str]) -> list[Axis]:
    """The axes of a sweep, each "key=value,value"; commas within brackets and quotes belong to a value.

    Raises:
        SpecError: every text that is none.
    """
    axes: list[Axis] = []
    problems: list[Problem] = []
    for text in texts:
        key, equals, listed = text.partition("=")
        key = ".".join(part.strip() for part in key.split("."))
        values = split_values(listed)
        if reason := _fault(key, equals, values, [axis.key for axis in axes]):
            problems.append(Problem(key, None, reason[0], reason[1], file=SWEEP))
        else:
            axes.append(Axis(key, tuple(values)))
    if problems:
        raise SpecError(problems)
    return axes


def split_values(text: str) -> list[str]:
    """The parts of `text` between commas that stand outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
        elif letter == "," and depth <= 0:
            parts.append("")
            continue
        parts[-1] += letter
    return [part.strip() for part in parts]


def combine(
    axes: Sequence[Axis], seeds: int | None, base: Experiment, *, group: str | None = None
) -> list[Combination]:
    """Every combination of the values, each with every seed, in the order given; the last axis changes fastest.

    Args:
        seeds: how many, from the spec's own seed on; None: that one alone, or those that are swept.
        base: name, seed, tags and group of the spec that is swept.
        group: of all of them; the spec's own, or its name, when not given.

    Raises:
        SpecError: there are too many, or the seed is given in two ways or is none.
    """
    if seeds is not None and any(axis.key == _SEED for axis in axes):
        raise SpecError([Problem(_SEED, None, "is swept, and --seeds is given, too", "use one of them", file=SWEEP)])
    given = _seeds_of(axes) if seeds is None else range(base.seed, base.seed + seeds)  # any number may be asked for
    axes = [axis for axis in axes if axis.key != _SEED]
    count = (seeds or len(given) or 1) * math.prod(len(axis.values) for axis in axes)
    if count > MOST:
        hint = "sweep fewer values at once"
        raise SpecError([Problem("", None, f"makes {count} experiments, at most {MOST} go", hint, file=SWEEP)])
    names: set[str] = set()
    made = []
    for values in itertools.product(*(axis.values for axis in axes)):
        chosen = tuple(f"{axis.key}={value}" for axis, value in zip(axes, values, strict=True))
        for seed in given or [base.seed]:
            parts = [*_name_parts(axes, values), *([f"s{seed}"] if given else [])]
            name = unused(_joined(base.name, parts), names)
            names.add(name)
            own = _own_overrides(base, group, chosen)
            seeded = [f"{_SEED}={seed}"] if given else []
            made.append(Combination(name, chosen, seed, (*chosen, *seeded, *own)))
    return made


def _seeds_of(axes: Sequence[Axis]) -> list[int]:
    """The seeds that are swept: runs of one combination, as those of --seeds are. Raises SpecError."""
    texts = [value for axis in axes if axis.key == _SEED for value in axis.values]
    if odd := [text for text in texts if not re.fullmatch(r"[0-9]+(_[0-9]+)*", text)]:
        raise SpecError([Problem(_SEED, odd[0], "must be a whole number from 0 on", "", file=SWEEP)])
    return [int(text) for text in texts]


def told_by_combination(found: Sequence[tuple[Combination, Sequence[Problem]]]) -> list[Problem]:
    """The problems of a sweep, each once: those that not every combination has name the first that has them."""
    owners: dict[str, tuple[Problem, list[Combination]]] = {}
    for combination, problems in found:
        for problem in problems:
            owners.setdefault(str(problem), (problem, []))[1].append(combination)
    return [_labelled(problem, having, len(found)) for problem, having in owners.values()]


def _labelled(problem: Problem, having: Sequence[Combination], total: int) -> Problem:
    if len(having) == total:
        return problem
    more = f" and {len(having) - 1} more" if len(having) > 1 else ""
    return Problem(
        problem.key,
        problem.value,
        f"{problem.reason}, in the combination {having[0].label}{more}",
        problem.hint,
        problem.file,
        problem.line,
        problem.column,
    )


def _fault(key: str, equals: str, values: Sequence[str], taken: Sequence[str]) -> tuple[str, str] | None:
    """What is wrong with one axis, and what to do; None for nothing."""
    example = "write --sweep key=value,value"
    if not equals or parse_overrides([f"{key}=0"])[1]:
        return f"cannot read {key + equals + ','.join(values)!r}", example
    if not all(values):
        return "has an empty value", example
    if key in OWN_KEYS:
        return "cannot be swept: a sweep sets it itself", "use --name or --group"
    if key in taken:
        return "is swept twice", "give all of its values in one --sweep"
    if repeated := next((value for value in values if values.count(value) > 1), None):
        return f"has the value {repeated} twice", "use --seeds to repeat"
    return None


def _own_overrides(base: Experiment, group: str | None, chosen: Sequence[str]) -> list[str]:
    named = group or base.group or base.name
    tags = dict.fromkeys([*base.tags, named, *chosen])
    listed = ", ".join(_toml_text(tag) for tag in tags)
    return [f"experiment.group={_toml_text(named)}", f"experiment.tags=[{listed}]"]


def _toml_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _name_parts(axes: Sequence[Axis], values: Sequence[str]) -> list[str]:
    """ "lr-1e-3" for trainer.lr=1e-3; the whole key where two of the last words are the same."""
    lasts = [axis.key.rpartition(".")[2] for axis in axes]
    keys = [axis.key if lasts.count(last) > 1 else last for axis, last in zip(axes, lasts, strict=True)]
    return [f"{_slug(key)}-{_slug(value)}" for key, value in zip(keys, values, strict=True)]


def _slug(text: str) -> str:
    """What a name may hold of `text`: a full stop becomes "_", what else is not allowed "-"."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower().replace(".", "_")).rstrip("-")


def _joined(name: str, parts: Sequence[str]) -> str:
    return "-".join([name, *parts])


def unused(name: str, taken: set[str]) -> str:
    """`name`, cut where it is too long, with a number from 2 on where it is taken."""
    candidate, number = name[:LONGEST_NAME], 1
    while candidate in taken or (number == 1 and len(name) > LONGEST_NAME):
        number += 1
        candidate = f"{name[: LONGEST_NAME - len(str(number)) - 1]}-{number}"
    return candidate
