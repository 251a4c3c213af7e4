"""Trying a spec out, here: make one environment and one policy, and see that they fit the rest and the limits.

It runs the user's code, and never talks to the broker. `check.py` has it run in a child, which may hang or crash.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.errors import DataError, EnvError, MissingExtra, Problem, SpecError
from heddle.launch.checked import Checked
from heddle.layout import rollout_layout
from heddle.policies import Policy, make_policy
from heddle.policies.groups import GroupsPolicy
from heddle.policies.initial import begin_with_files
from heddle.policies.q import EPSILON
from heddle.policies.sac import RANDOM, SacPolicy
from heddle.spaces import Space
from heddle.spec import ExperimentSpec
from heddle.spec.derive import REPLAYING
from heddle.spec.learner_checks import METHODS
from heddle.spec.objects import describe_error, import_object, is_object_name, user_errors
from heddle.spec.plan import needs, size_problems
from heddle.spec.policy import POLICIES

if TYPE_CHECKING:
    from heddle.producers.snapshot_check import SnapshotTrial


Guard = Callable[..., AbstractContextManager[None]]
"""`guard(what=..., key=..., value=..., hint=...)`: around each part that runs user code; ends one that hangs."""


@contextmanager
def unguarded(*, what: str, key: str, value: object, hint: str = "") -> Iterator[None]:
    """No guard: a part may last as long as it likes."""
    yield


def try_out(spec: ExperimentSpec, *, guard: Guard = unguarded, with_snapshot: bool = False) -> Checked:
    """Build one environment, one policy and the learner's class of a spec.

    Args:
        with_snapshot: also whether its environments can be snapshotted, and what a registered vector form would gain.

    Raises:
        SpecError: what does not work, as many problems as can be found in one go.
    """
    with guard(what="was not imported", key="trainer.learner", value=spec.trainer.learner):
        problems = list(_learner_problems(spec))
    try:
        observation, action = see_spaces(spec, guard=guard)
        with guard(what="was not made", key="policy.id", value=spec.policy.id):
            policy = _made_policy(spec, observation, action)
            begin_with_files(policy, spec.policy)
    except SpecError as error:
        raise SpecError([*error.problems, *problems]) from error
    problems += _training_problems(spec, policy)
    if not problems and is_object_name(spec.trainer.learner):
        with guard(what="was not made", key="trainer.learner", value=spec.trainer.learner):
            problems += _made_problems(spec, policy)
    problems += _data_problems(spec, observation, action, policy)
    layout = rollout_layout(observation, action, policy, spec.rollout)
    weights = _bytes_of(policy) + _past_bytes(spec, policy)
    is_taken = with_snapshot and spec.faults.snapshot_every != 0
    trial = see_snapshot(spec, observation, action, guard=guard) if is_taken else None
    snapshot = trial.size if trial else 0
    needed = needs(spec, segment_bytes=layout.segment_bytes, policy_bytes=weights, snapshot_bytes=snapshot)
    problems += size_problems(spec, needed)
    if problems:
        raise SpecError(problems)
    is_played = with_snapshot and spec.data is None
    gain = see_gain(spec, observation, action, policy, guard=guard) if is_played else 0.0
    return Checked(observation, action, needed, trial.reason if trial else None, gain)


def _made_policy(spec: ExperimentSpec, observation: Space, action: Space) -> Policy:
    """The policy of a spec. Raises EnvError, also where its weights do not fit into this machine."""
    try:
        return make_policy(spec.policy, observation, action, seed=spec.experiment.seed)
    except (MemoryError, RuntimeError) as error:
        is_ours = spec.policy.id in POLICIES
        # torch has no class of its own for it, and who writes a policy may say "memory" of anything
        if not is_ours or (not isinstance(error, MemoryError) and "memory" not in str(error)):
            raise
        reason = f"makes a network that does not fit into the memory of this machine: {describe_error(error)}"
        hidden = list(spec.policy.hidden)
        raise EnvError(reason, key="policy.hidden", value=hidden, hint="use smaller layers") from error


def _bytes_of(policy: Policy) -> int:
    return sum(np.asarray(array).nbytes for array in policy.get_weights().values())


def _past_bytes(spec: ExperimentSpec, policy: Policy) -> int:
    """Of groups that past versions play: what is published once as many are kept as can be, beside the first."""
    if not isinstance(policy, GroupsPolicy):
        return 0
    found = zip(spec.policy.groups, policy.members, strict=True)
    return sum((group.most_kept - 1) * _bytes_of(member.policy) for group, member in found if group.past_of)


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


def see_spaces(spec: ExperimentSpec, *, guard: Guard = unguarded) -> tuple[Space, Space]:
    """Make one environment, play a few steps of it, and return its observation and action spaces.

    Raises:
        EnvError: it breaks its contract, or does not answer for long.
    """
    from heddle.producers.envs import check_env
    from heddle.producers.vector_check import check_vector

    what = "was not made and played for a few steps"
    hint = f"more time: env.step_timeout = {spec.env.step_timeout * 10:g}"
    with guard(what=what, key="env.id", value=spec.env.id, hint=hint):
        return check_vector(spec) if spec.env.at_once else check_env(spec)


def see_snapshot(
    spec: ExperimentSpec, observation: Space, action: Space, *, guard: Guard = unguarded
) -> "SnapshotTrial":
    """Whether an environment of `spec` can be snapshotted.

    Raises:
        EnvError: it cannot be made, or does not answer for long.
    """
    from heddle.producers.snapshot_check import try_snapshot

    what = "was not made twice, snapshotted and brought back"
    with guard(what=what, key="env.id", value=spec.env.id):
        return try_snapshot(spec, observation, action)


def see_gain(
    spec: ExperimentSpec, observation: Space, action: Space, policy: Policy, *, guard: Guard = unguarded
) -> float:
    """How many times as fast `env.vector = true` would be; 0.0 where it cannot be had, or was not found out in time:
    the spec does not ask for it, so that is no mistake of its."""
    from heddle.producers.vector_gain import vector_gain

    try:
        with guard(what="was not played for some segments, alone and as a vector", key="env.id", value=spec.env.id):
            return vector_gain(spec, observation, action, policy)
    except EnvError:
        return 0.0


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
    reason = _no_learner(target, spec.trainer.kwargs)
    hint = "a learner is a class such as heddle.consumers.learners.Learner, or a function that returns one"
    return [Problem("trainer.learner", name, reason, hint)] if reason else []


def _made_problems(spec: ExperimentSpec, policy: Policy) -> list[Problem]:
    """Whether a learner of the user's can be made, and is one; on the device that it would have, where that is here."""
    try:
        from heddle.consumers.learners import make_learner, resolve_device
    except ImportError:
        return []
    device = resolve_device(spec.trainer.device)
    if device.type not in ("cpu", resolve_device("auto").type):
        return []
    try:
        make_learner(spec, policy, device=device, seed=spec.experiment.seed)
    except EnvError as error:
        return list(error.problems)
    return []


def _no_learner(target: Any, kwargs: Mapping[str, object]) -> str:
    """Why `target` makes no learner, as far as that can be told without calling it; "" where it may."""
    if not callable(target):
        return f"is a {type(target).__name__}, expected a class or function"
    if isinstance(target, type) and (missing := [name for name in METHODS if not hasattr(target, name)]):
        return f"is no learner: the class lacks {', '.join(missing)}"
    try:
        taken = inspect.signature(target)
    except (TypeError, ValueError):
        return ""  # written in C, and it does not say
    try:
        taken.bind(None, None, **kwargs, device=None, seed=0)
    except TypeError as error:
        return f"cannot be called as NAME(spec, policy, *, device, seed) and [trainer.kwargs]: {error}"
    return ""


def _training_problems(spec: ExperimentSpec, policy: Policy) -> list[Problem]:
    """Whether a built-in learner can train this policy, or those of the groups that learn."""
    if not isinstance(policy, GroupsPolicy):
        return _cannot_train(spec, policy, "policy.id", spec.policy.id)
    found: list[Problem] = []
    for group, member in zip(spec.policy.groups, policy.members, strict=True):
        if group.learn:
            found += _cannot_train(spec, member.policy, f"policy.groups[{member.place}].id", group.id)
    return found


def _cannot_train(spec: ExperimentSpec, policy: Policy, key: str, policy_id: str) -> list[Problem]:
    learner = spec.trainer.learner
    if not (lacks := _lacking(learner, policy)):
        return []
    reason = f"cannot be trained by {learner}: {type(policy).__name__} {lacks}"
    hint = 'to play it untrained: trainer.learner = "none"'
    if spec.policy.groups:
        hint = "to play it untrained: learn = false in its group"
    elif learner in REPLAYING:
        hint = f"use policy.id = {REPLAYING[learner]}, or leave it out"
    elif spec.data is not None:
        hint = "use a built-in policy such as mlp, or give it what it lacks"
    return [Problem(key, policy_id, reason, hint)]


def _lacking(learner: str, policy: Policy) -> str:
    """In words, what `policy` has not that this built-in learner needs; "" for nothing."""
    extras = {"dqn": EPSILON, "sac": RANDOM}
    if learner not in ("ppo", "vtrace", "bc", *extras):
        return ""
    if not callable(getattr(policy, "module", None)):
        return "has no torch module"
    if missing := [name for name in ("observation", "action") if not hasattr(policy, name)]:
        return f"lacks {', '.join(missing)}"
    if kinds := _odd_kinds(policy):
        return f"needs float32 parameters to be trained, found {kinds}"
    if learner not in extras:
        return "" if "log_prob" in policy.outputs else "does not report log_prob with its actions"
    if extras[learner] not in policy.get_weights():
        return f"has no {extras[learner]} among its weights"
    return "is no SacPolicy" if learner == "sac" and not isinstance(policy, SacPolicy) else ""


def _odd_kinds(policy: Any) -> str:
    """Which kinds of parameters, other than float32, a policy of the user's would have trained; "" for none."""
    if type(policy).__module__.startswith("heddle.") and not hasattr(policy, "net"):
        return ""  # one of ours: its torch twin takes a while to make, and is float32
    try:
        parameters = list(policy.module().parameters())
    except user_errors():  # told by whoever trains it
        return ""
    kinds = {str(item.dtype) for item in parameters if item.requires_grad}
    return ", ".join(sorted(kinds)) if kinds - {"torch.float32"} else ""
