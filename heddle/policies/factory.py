"""From the [policy] section of a spec to a policy: the built-in one, or the user's.

It never trains and never acts.
"""

import importlib.util
import inspect
import sys
from typing import Any

import numpy as np

from heddle.errors import EnvError, MissingExtra
from heddle.policies.base import Policy
from heddle.policies.mlp import MlpPolicy
from heddle.policies.q import QPolicy
from heddle.policies.random_policy import RandomPolicy
from heddle.policies.sac import SacPolicy
from heddle.spaces import Space
from heddle.spec import PolicySpec
from heddle.spec.objects import describe_error, import_object, user_errors
from heddle.spec.policy import POLICIES

_NEEDED = ("noise", "outputs", "state", "initial_state", "act", "get_weights", "set_weights")


def make_policy(spec: PolicySpec, observation: Space, action: Space, *, seed: int = 0) -> Policy:
    """The policy that a spec names, with fresh weights.

    A policy of the user's, "package.module:Name", is called as `Name(observation, action, **kwargs)`, with `seed` when
    it takes one. It is a class with the methods of `Policy`, or a torch or Flax module that answers as
    `heddle.policies.torch_heads` describes. With groups it is one policy for each, together as one.

    Raises:
        EnvError: it cannot be imported or made, lacks a method, or does not fit the spaces.
    """
    if spec.groups:
        from heddle.policies.groups import make_groups

        return make_groups(spec, observation, action, seed=seed, make=_make_one)
    if spec.id == "mlp":
        return MlpPolicy(
            observation,
            action,
            hidden=spec.hidden,
            activation=spec.activation,
            shared=spec.shared,
            std=spec.std,
            squash=spec.squash,
            rng=np.random.default_rng([seed, 0x4D4C50]),  # a stream of its own, apart from those of environments
        )
    if spec.id == "random":
        return RandomPolicy(observation, action)
    if spec.id in ("q", "sac"):
        return _of_values(spec, observation, action, seed)
    if spec.id in POLICIES:
        return _with_torch(spec, observation, action, seed)
    return _of_user(spec, observation, action, seed)


def _of_user(spec: PolicySpec, observation: Space, action: Space, seed: int) -> Policy:
    """A policy of the user's, or one around a module of theirs. Raises EnvError."""
    target = import_object(spec.id, key="policy.id")
    _seed_torch(seed)
    made = call_user_code(target, (observation, action), {**spec.kwargs, "seed": seed}, key="policy.id", name=spec.id)
    if _is_torch_module(made):
        from heddle.policies.torch_policy import TorchPolicy

        return TorchPolicy(made, observation, action, name=spec.id)
    if _is_flax_module(made):
        from heddle.policies.jax_policy import FlaxPolicy

        return FlaxPolicy(made, observation, action, name=spec.id, seed=seed)
    missing = [name for name in _NEEDED if not hasattr(made, name)]
    if missing:
        raise EnvError(
            f"is no policy: {type(made).__name__} lacks {', '.join(missing)}",
            key="policy.id",
            value=spec.id,
            hint="subclass heddle.policies.ScriptedPolicy, or make it a torch or Flax module",
        )
    policy: Policy = made
    return policy


def _make_one(spec: PolicySpec, observation: Space, action: Space, seed: int) -> Policy:
    return make_policy(spec, observation, action, seed=seed)


def _of_values(spec: PolicySpec, observation: Space, action: Space, seed: int) -> Policy:
    """A policy of a learner that learns values of actions."""
    rng = np.random.default_rng([seed, 0x51534143])
    if spec.torso != "mlp":
        if importlib.util.find_spec("torch") is None:
            raise MissingExtra(f"policy.torso = {spec.torso}", "torch")
        from heddle.policies.torch_images import ImageQ, ImageSac

        _seed_torch(seed)
        return (ImageSac if spec.id == "sac" else ImageQ)(spec, observation, action, rng=rng)
    if spec.id == "sac":
        return SacPolicy(observation, action, hidden=spec.hidden, activation=spec.activation, rng=rng)
    return QPolicy(observation, action, hidden=spec.hidden, activation=spec.activation, dueling=spec.dueling, rng=rng)


def _with_torch(spec: PolicySpec, observation: Space, action: Space, seed: int) -> Policy:
    """A built-in policy that is a torch module."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(f"policy.id = {spec.id}", "torch")
    from heddle.policies.torch_nets import make_net
    from heddle.policies.torch_policy import TorchPolicy

    _seed_torch(seed)
    return TorchPolicy(make_net(spec, observation, action), observation, action, name=spec.id)


def call_user_code(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, key: str, name: str) -> Any:
    """Call a class or function of the user's; `seed` is left out when it does not take one.

    Raises:
        EnvError: it cannot be called so, or raised.
    """
    if not callable(target):
        raise EnvError(f"is a {type(target).__name__}, expected a class or function", key=key, value=name)
    if "seed" in kwargs and not _takes(target, "seed"):
        kwargs = {word: value for word, value in kwargs.items() if word != "seed"}
    try:
        return target(*args, **kwargs)
    except EnvError:
        raise
    except user_errors() as error:
        raise EnvError(f"raised {describe_error(error)}", key=key, value=name) from error


def _takes(target: Any, word: str) -> bool:
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return False
    return word in parameters or any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values())


def _seed_torch(seed: int) -> None:
    """A torch module draws its first weights from torch's own generator."""
    if (torch := _torch()) is not None:
        torch.manual_seed(seed)


def hold_torch_to_one_thread() -> None:
    """Have torch, when the user's code imported it, use one CPU thread of this process."""
    if (torch := _torch()) is not None:
        torch.set_num_threads(1)


def _torch() -> Any:
    """torch when the user's code imported it: without it in the process nothing can be one of its modules."""
    return sys.modules.get("torch")


def _is_torch_module(value: object) -> bool:
    torch = _torch()
    return torch is not None and isinstance(value, torch.nn.Module)


def _is_flax_module(value: object) -> bool:
    linen = sys.modules.get("flax.linen")
    return linen is not None and isinstance(value, linen.Module)
