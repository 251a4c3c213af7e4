"""Learners: algorithms inside a trainer.

They never do I/O, but for the files of a replay buffer; importing this package imports torch.
"""

from collections.abc import Callable

import torch

from heddle.consumers.learners.base import Learner, State, TrainBatch, resolve_device
from heddle.consumers.learners.bc import Bc
from heddle.consumers.learners.dqn import Dqn
from heddle.consumers.learners.groups import GroupsLearner
from heddle.consumers.learners.none import NoLearner
from heddle.consumers.learners.ppo import Ppo
from heddle.consumers.learners.sac import Sac
from heddle.consumers.learners.vtrace import Vtrace
from heddle.errors import EnvError
from heddle.policies.base import Policy
from heddle.policies.factory import call_user_code
from heddle.spec import ExperimentSpec
from heddle.spec.learner_checks import METHODS
from heddle.spec.objects import import_object

__all__ = ["Bc", "Dqn", "Learner", "Ppo", "Sac", "State", "TrainBatch", "Vtrace", "make_learner", "resolve_device"]

_BUILTIN: dict[str, Callable[..., Learner]] = {
    "ppo": Ppo,
    "vtrace": Vtrace,
    "dqn": Dqn,
    "sac": Sac,
    "bc": Bc,
    "none": NoLearner,
}
_NEEDED = ("min_steps", *METHODS)


def make_learner(spec: ExperimentSpec, policy: Policy, *, device: torch.device, seed: int) -> Learner:
    """The learner that a spec names, starting from the policy's weights; with groups one for each, together as one.

    From here on torch uses as many CPU threads in this process as the spec says.

    Raises:
        EnvError: it cannot be imported or made, lacks a method, or cannot train this policy.
    """
    torch.set_num_threads(spec.trainer.threads)
    if spec.policy.groups and spec.trainer.learner != "none":

        def make(own: ExperimentSpec, part: Policy, number: int) -> Learner:
            return _make_one(own, part, device=device, seed=number)

        return GroupsLearner(spec, policy, seed=seed, make=make)
    return _make_one(spec, policy, device=device, seed=seed)


def _make_one(spec: ExperimentSpec, policy: Policy, *, device: torch.device, seed: int) -> Learner:
    name = spec.trainer.learner
    if name in _BUILTIN:
        return _BUILTIN[name](spec, policy, device=device, seed=seed)
    key = "trainer.learner"
    target = import_object(name, key=key)
    kwargs = {**spec.trainer.kwargs, "device": device, "seed": seed}
    made = call_user_code(target, (spec, policy), kwargs, key=key, name=name)
    if missing := [word for word in _NEEDED if not hasattr(made, word)]:
        raise EnvError(f"is no learner: {type(made).__name__} lacks {', '.join(missing)}", key=key, value=name)
    learner: Learner = made
    return learner
