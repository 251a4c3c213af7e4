"""Trying a spec out: build one environment and one policy, and see that they fit each other and the limits.

It runs the user's code in this process and never talks to the broker.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.errors import DataError, EnvError, MissingExtra, Problem, SpecError
from heddle.launch.deadline import within
from heddle.layout import make_layout
from heddle.policies import Policy, make_policy
from heddle.policies.initial import give_weights
from heddle.policies.q import EPSILON
from heddle.policies.sac import RANDOM, SacPolicy
from heddle.spaces import Space, to_json
from heddle.spec import ExperimentSpec, LoadedSpec
from heddle.spec.derive import REPLAYING
from heddle.spec.load import load_leniently
from heddle.spec.objects import import_object, is_object_name
from heddle.spec.plan import Needs, needs, size_problems

if TYPE_CHECKING:
    from heddle.producers.snapshot_check import SnapshotTrial

_PLACE = re.compile(r"(?P<file>.*):(?P<line>\d+)")

TRIAL = 3
"""Making an environment and playing a few steps of it may take this many times `env.step_timeout`, and a reset."""
LEAST_S = 30.0
"""And never less: packages are imported meanwhile, which takes seconds on a busy machine, however quick a step is."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What trying a spec out has shown.

    Attributes:
        observation, action: the spaces of its environment.
        needed: shards, sizes, memory.
        no_snapshot: why its environments cannot be snapshotted; "" when they can, None when that was not tried.
    """

    observation: Space
    action: Space
    needed: Needs
    no_snapshot: str | None = None

    def numbers(self) -> dict[str, Any]:
        """`needed` as plain values."""
        return asdict(self.needed)

    def spaces_json(self) -> str:
        """The spaces as they stand in the stored spec."""
        return json.dumps({"observation": to_json(self.observation), "action": to_json(self.action)})


def load_and_check(
    source: Path | str | Mapping[str, Any],
    overrides: Sequence[str] = (),
    name: str | None = None,
    *,
    with_snapshot: bool = False,
) -> tuple[LoadedSpec, Checked]:
    """Load a spec and try it out.

    Args:
        with_snapshot: also whether its environments can be snapshotted, which takes two more of them.

    Raises:
        NotFound, SpecError, EnvError: as `load_spec` and `check`; problems carry their place in the file.
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
    try:
        return try_out(loaded.spec, with_snapshot=with_snapshot)
    except SpecError as error:
        placed = [_placed(problem, loaded.origins) for problem in error.problems]
        raise SpecError(placed) from error


def try_out(spec: ExperimentSpec, *, with_snapshot: bool = False) -> Checked:
    """As `check`, without places in a file."""
    problems = list(_learner_problems(spec))
    try:
        observation, action = see_spaces(spec)
        with within(trial_s(spec), what="was not made", key="policy.id", value=spec.policy.id):
            policy = make_policy(spec.policy, observation, action, seed=spec.experiment.seed)
            if spec.policy.init is not None:
                give_weights(policy, Path(spec.policy.init))
    except SpecError as error:
        raise SpecError([*error.problems, *problems]) from error
    problems += _training_problems(spec, policy)
    problems += _data_problems(spec, observation, action, policy)
    layout = make_layout(
        observation,
        action,
        steps=spec.rollout.steps,
        outputs=policy.outputs,
        state=policy.state,
        info_keys=spec.rollout.info_keys,
    )
    weights = sum(np.asarray(array).nbytes for array in policy.get_weights().values())
    trial = see_snapshot(spec, observation, action) if with_snapshot and spec.faults.snapshot_every != 0 else None
    snapshot = trial.size if trial else 0
    needed = needs(spec, segment_bytes=layout.segment_bytes, policy_bytes=weights, snapshot_bytes=snapshot)
    problems += size_problems(spec, needed)
    if problems:
        raise SpecError(problems)
    return Checked(observation, action, needed, trial.reason if trial else None)


def _data_problems(spec: ExperimentSpec, observation: Space, action: Space, policy: Policy) -> list[Problem]:
    """Whether the recording that a spec trains from is here, and of these spaces."""
    if spec.data is None:
        return []
    from heddle.consumers.data.source import layout_of
    from heddle.consumers.data.store import read_manifest

    try:
        manifest = read_manifest(Path(spec.data.path))
        layout = layout_of(manifest, observation, action, policy, steps=spec.rollout.steps)
    except DataError as error:
        return [Problem("data.path", spec.data.path, str(error))]
    if not manifest.steps:
        return [Problem("data.path", spec.data.path, "holds no steps yet")]
    if spec.trainer.learner == "vtrace" and "out.log_prob" not in [column.name for column in layout.columns]:
        reason = "holds no log_prob of what was done, which vtrace needs"
        return [Problem("data.path", spec.data.path, reason, 'use trainer.learner = "bc", or one of your own')]
    return []


def trial_s(spec: ExperimentSpec) -> float:
    """How long trying a part of a spec may take: a trainer that gives up on it too soon fails the experiment."""
    from heddle.producers.limits import BACKSTOP_S

    limit_s = max(LEAST_S, TRIAL * spec.env.step_timeout + spec.env.reset_timeout)
    return limit_s + (BACKSTOP_S if spec.env.isolation == "process" else 0.0)  # a child has deadlines of its own


def see_spaces(spec: ExperimentSpec) -> tuple[Space, Space]:
    """Make one environment, play a few steps of it, and return its observation and action spaces.

    Raises:
        EnvError: it breaks its contract, or does not answer for long.
    """
    from heddle.producers.envs import check_env
    from heddle.producers.vector_check import check_vector

    limit_s, what = trial_s(spec), "was not made and played for a few steps"
    hint = f"more time: env.step_timeout = {spec.env.step_timeout * 10:g}"
    with within(limit_s, what=what, key="env.id", value=spec.env.id, hint=hint):
        return check_vector(spec) if spec.env.at_once else check_env(spec)


def see_snapshot(spec: ExperimentSpec, observation: Space, action: Space) -> "SnapshotTrial":
    """Whether an environment of `spec` can be snapshotted.

    Raises:
        EnvError: it cannot be made, or does not answer for long.
    """
    from heddle.producers.snapshot_check import try_snapshot

    what = "was not made twice, snapshotted and brought back"
    with within(trial_s(spec), what=what, key="env.id", value=spec.env.id):
        return try_snapshot(spec, observation, action)


def _learner_problems(spec: ExperimentSpec) -> list[Problem]:
    """Whether a learner of the user's can be imported; a missing torch here is no fault of the spec."""
    name = spec.trainer.learner
    if not is_object_name(name):
        return []
    try:
        target = import_object(name, key="trainer.learner")
    except MissingExtra:
        return []
    except EnvError as error:
        return list(error.problems)
    if callable(target):
        return []
    return [Problem("trainer.learner", name, f"is a {type(target).__name__}, expected a class or function")]


def _training_problems(spec: ExperimentSpec, policy: Policy) -> list[Problem]:
    """Whether a built-in learner can train this policy."""
    learner = spec.trainer.learner
    if not (lacks := _lacking(learner, policy)):
        return []
    reason = f"cannot be trained by {learner}: {type(policy).__name__} {lacks}"
    hint = 'to play it untrained: trainer.learner = "none"'
    if learner in REPLAYING:
        hint = f"use policy.id = {REPLAYING[learner]}, or leave it out"
    elif spec.data is not None:
        hint = "use a built-in policy such as mlp, or give it what it lacks"
    return [Problem("policy.id", spec.policy.id, reason, hint)]


def _lacking(learner: str, policy: Policy) -> str:
    """In words, what `policy` has not that this built-in learner needs; "" for nothing."""
    extras = {"dqn": EPSILON, "sac": RANDOM}
    if learner not in ("ppo", "vtrace", "bc", *extras):
        return ""
    if not callable(getattr(policy, "module", None)):
        return "has no torch module"
    if missing := [name for name in ("observation", "action") if not hasattr(policy, name)]:
        return f"lacks {', '.join(missing)}"
    if learner not in extras:
        return "" if "log_prob" in policy.outputs else "does not report log_prob with its actions"
    if extras[learner] not in policy.get_weights():
        return f"has no {extras[learner]} among its weights"
    return "is no SacPolicy" if learner == "sac" and not isinstance(policy, SacPolicy) else ""


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
