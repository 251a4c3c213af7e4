"""Loading a sweep: every combination read, checked and tried out before any is submitted.

It runs the user's code where it tries environments out, and never talks to the broker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heddle.broker.records import Status
from heddle.errors import HeddleError, Problem, SpecError
from heddle.launch.check import check_all
from heddle.spec import LoadedSpec
from heddle.spec.load import load_leniently
from heddle.spec.overrides import SET
from heddle.spec.sweep import SWEEP, Combination, combine, parse_axes, told_by_combination, unused


@dataclass(frozen=True, slots=True)
class Swept:
    """One experiment of a sweep, ready to be submitted.

    Attributes:
        combination: which one.
        loaded: its spec.
        spaces: JSON of its spaces; "" when it was not tried out.
        is_named: --group or the spec names the group; else it is a default, the experiment's name.
    """

    combination: Combination
    loaded: LoadedSpec
    spaces: str = ""
    is_named: bool = True


def load_sweep(
    source: Path | str | Mapping[str, Any],
    *,
    sweeps: Sequence[str] = (),
    seeds: int | None = None,
    overrides: Sequence[str] = (),
    name: str | None = None,
    group: str | None = None,
    try_out: bool = True,
) -> list[Swept]:
    """Every experiment of a sweep.

    Args:
        source: a file, TOML text, or nested dicts: the spec that is swept.
        sweeps: "key=value,value" each.
        seeds: so many experiments of each combination; None: one, with the spec's own seed.
        overrides: "key=value" each, for all of them.
        name: takes the place of experiment.name, with which all names begin.
        group: of all of them.
        try_out: build an environment and the policy of every combination.

    Raises:
        NotFound: the file cannot be read.
        SpecError: everything that is wrong with any of them; which, where not with all.
    """
    axes = parse_axes(sweeps)
    base, problems = load_leniently(source, overrides=overrides, name=name)
    if base is None:
        raise SpecError(problems)
    made = combine(axes, seeds, base.spec.experiment, group=group)
    swept_keys = {axis.key for axis in axes}
    found = [_load(source, combination, [*overrides, *combination.overrides], swept_keys) for combination in made]
    _raise_any([(combination, faults) for combination, (_, faults) in zip(made, found, strict=True)])
    is_named = bool(group or base.spec.experiment.group)
    pairs = zip(made, found, strict=True)
    whole = [Swept(combination, loaded, is_named=is_named) for combination, (loaded, _) in pairs if loaded]
    return _tried(whole) if try_out else whole


def own_group(swept: Sequence[Swept], known: Sequence[Status]) -> str:
    """The group of a sweep: as named, else its default, with a number where an earlier sweep has that.

    A sweep of which some experiment is active belongs to that one's group.
    """
    default = str(swept[0].loaded.spec.experiment.group)
    if swept[0].is_named:
        return default
    names = {one.combination.name for one in swept}
    groups = {status.group for status in known if status.group}
    active = (status.group for status in known if status.name in names and status.group and not status.ended)
    return next(active, None) or unused(default, groups)


def _load(
    source: Path | str | Mapping[str, Any], combination: Combination, overrides: Sequence[str], swept_keys: set[str]
) -> tuple[LoadedSpec | None, list[Problem]]:
    loaded, problems = load_leniently(source, overrides=overrides, name=combination.name)
    return loaded, [_by_sweep(problem, swept_keys) for problem in problems]


def _by_sweep(problem: Problem, swept_keys: set[str]) -> Problem:
    """With the option that the value really came by."""
    return replace(problem, file=SWEEP) if problem.file == SET and problem.key in swept_keys else problem


def _tried(whole: Sequence[Swept]) -> list[Swept]:
    """With their spaces: one environment and policy are built for each combination, whatever its seeds."""
    first = {one.combination.values: one for one in reversed(whole)}
    distinct = [one for one in whole if first[one.combination.values] is one]
    found: list[tuple[Combination, list[Problem]]] = []
    spaces: dict[tuple[str, ...], str] = {}
    for one, checked in zip(distinct, check_all([one.loaded for one in distinct]), strict=True):
        if isinstance(checked, SpecError):
            found.append((one.combination, list(checked.problems)))
        elif isinstance(checked, HeddleError):
            raise checked
        else:
            found.append((one.combination, []))
            spaces[one.combination.values] = checked.spaces_json()
    _raise_any(found)
    return [replace(one, spaces=spaces[one.combination.values]) for one in whole]


def _raise_any(found: Sequence[tuple[Combination, Sequence[Problem]]]) -> None:
    if problems := told_by_combination(found):
        raise SpecError(sorted(problems, key=lambda problem: (problem.line, problem.column)))
