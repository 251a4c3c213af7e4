"""Checking a spec before anybody runs it: what is wrong with its text, its environment, its policy and their sizes.

It never runs user code in this process: a child does, see `trial.py`. It never talks to the broker.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from heddle.errors import HeddleError, Problem, SpecError
from heddle.launch.checked import Checked, checked_of, spaces_of
from heddle.launch.trial import Request, run_trials
from heddle.spaces import Space
from heddle.spec import ExperimentSpec, LoadedSpec
from heddle.spec.load import load_leniently

_PLACE = re.compile(r"(?P<file>.*):(?P<line>\d+)")

TRIAL = 3
"""Making an environment and playing a few steps of it may take this many times `env.step_timeout`, and a reset."""
LEAST_S = 30.0
"""And never less: packages are imported meanwhile, which takes seconds on a busy machine, however quick a step is."""


def load_and_check(
    source: Path | str | Mapping[str, Any],
    overrides: Sequence[str] = (),
    name: str | None = None,
    *,
    with_snapshot: bool = False,
) -> tuple[LoadedSpec, Checked]:
    """Load a spec and try it out.

    Args:
        with_snapshot: also whether its environments can be snapshotted, and what a vector form that is registered would
            gain, which takes two more of them, and a shard's.

    Raises:
        NotFound, SpecError: as `load_spec` and `check`; problems carry their place in the file.
    """
    loaded, problems = load_leniently(source, overrides=overrides, name=name)
    if loaded is not None and not problems:
        return loaded, check(loaded, with_snapshot=with_snapshot)
    if loaded is not None and not any(_makes_env(problem.key) for problem in problems):
        problems += _environment_problems(loaded)
    raise SpecError(sorted(problems, key=lambda problem: (problem.line, problem.column)))


def _makes_env(key: str) -> bool:
    """Whether an environment cannot be made as meant while `key` is wrong."""
    return key == "env" or key.startswith(("env.id", "env.kwargs", "env.wrappers", "env.isolation"))


def _environment_problems(loaded: LoadedSpec) -> list[Problem]:
    """What is wrong with the environment of a spec that has other mistakes."""
    try:
        see_spaces(loaded.spec)
    except SpecError as error:
        return [_placed(problem, loaded.origins) for problem in error.problems]
    return []


def check(loaded: LoadedSpec, *, with_snapshot: bool = False) -> Checked:
    """Build one environment, one policy and the learner's class of a loaded spec.

    Raises:
        SpecError: what does not work, as many problems as can be found in one go.
    """
    (found,) = check_all([loaded], with_snapshot=with_snapshot)
    if isinstance(found, HeddleError):
        raise found
    return found


def check_all(loaded: Sequence[LoadedSpec], *, with_snapshot: bool = False) -> "list[Checked | HeddleError]":
    """As `check`, of several specs one after the other; what would be raised stands in the place of its result."""
    requests = [Request("try", one.spec, trial_s(one.spec), with_snapshot=with_snapshot) for one in loaded]
    found: list[Checked | HeddleError] = []
    for one, answer in zip(loaded, run_trials(requests), strict=True):
        if isinstance(answer, SpecError):
            placed = SpecError([_placed(problem, one.origins) for problem in answer.problems])
            placed.__cause__ = answer
            found.append(placed)
        else:
            found.append(answer if isinstance(answer, HeddleError) else checked_of(answer))
    return found


def trial_s(spec: ExperimentSpec) -> float:
    """How long trying a part of a spec may take: a trainer that gives up on it too soon fails the experiment."""
    from heddle.producers.limits import BACKSTOP_S

    limit_s = max(LEAST_S, TRIAL * spec.env.step_timeout + spec.env.reset_timeout)
    return limit_s + (BACKSTOP_S if spec.env.in_children else 0.0)  # a child has deadlines of its own


def see_spaces(spec: ExperimentSpec) -> tuple[Space, Space]:
    """Make one environment, play a few steps of it, and return its observation and action spaces.

    Raises:
        SpecError: it breaks its contract, or does not answer for long.
    """
    (answer,) = run_trials([Request("see", spec, trial_s(spec))])
    if isinstance(answer, HeddleError):
        raise answer
    return spaces_of(answer)


def _placed(problem: Problem, origins: Mapping[str, str]) -> Problem:
    """`problem` with the file and line that its key came from, where one is known."""
    if problem.line:
        return problem
    origin = _origin(problem.key, origins)
    match = _PLACE.fullmatch(origin)
    if match is None:
        return replace(problem, file=origin) if origin.startswith("--") else problem
    return replace(problem, file=match["file"], line=int(match["line"]), column=1)


def _origin(key: str, origins: Mapping[str, str]) -> str:
    """Where a key, something in it, or the nearest value around it came from; "" when that is unknown."""
    while key and key not in origins:
        inside = next((place for other, place in origins.items() if other.startswith(f"{key}.")), "")
        if inside:
            return inside
        key = re.sub(r"(\.[^.\[]*|\[\d+\])$", "", key) if re.search(r"[.\[]", key) else ""
    return origins.get(key, "")
