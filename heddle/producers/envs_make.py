"""Making what a spec names: Gymnasium ids, factories, wrappers. All that can go wrong is one line.

It never looks at what was made beyond whether it could be an environment.
"""

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium import wrappers as gym_wrappers

from heddle.errors import EnvError
from heddle.producers.envs_homes import install_hint, register
from heddle.spec import Env
from heddle.spec.environments import Wrapper
from heddle.spec.objects import describe_error, import_object, is_object_name, nearest, user_errors


def call_gymnasium(env: Env, make: Callable[..., Any] = gymnasium.make, **kwargs: Any) -> Any:
    """What Gymnasium makes of an id, its package imported first where that is known.

    Args:
        make: of Gymnasium.
        kwargs: of `make`, where the spec does not say otherwise.

    Raises:
        EnvError: there is no such environment, it lacks a package, or it raised.
    """
    try:
        register(env.id)
        return make(env.id, **(kwargs | env.kwargs))
    except EnvError:
        raise
    except gymnasium.error.UnregisteredEnv as error:
        close = nearest(env.id, list(gymnasium.registry))
        hint = close or "is the package that registers it installed? name it too, as in package:Name-v0"
        reason = _first_line(error).partition(" Did you mean")[0]
        raise EnvError(f"there is no such environment: {reason}", value=env.id, hint=hint) from error
    except gymnasium.error.Error as error:
        raise EnvError(f"cannot be made: {_first_line(error)}", value=env.id) from error
    except ModuleNotFoundError as error:
        module = error.name or env.id.partition(":")[0]
        raise EnvError(f"there is no module {module!r}", value=env.id, hint=install_hint(module)) from error
    except user_errors() as error:
        raise EnvError(f"making it raised {describe_error(error)}", value=env.id) from error


def call_factory(env: Env, offered: Mapping[str, Any]) -> Any:
    """Call the user's factory with its kwargs and those of `offered` that it names as parameters.

    Raises:
        EnvError: there is no such factory, or it raised.
    """
    factory = import_object(env.id)
    if not callable(factory):
        raise EnvError(f"is a {type(factory).__name__}, not a function or class", value=env.id)
    kwargs = {name: value for name, value in offered.items() if name in _named_parameters(factory)} | env.kwargs
    try:
        made = factory(**kwargs)
    except user_errors() as error:
        raise EnvError(f"the factory raised {describe_error(error)}", value=env.id) from error
    if made is None:
        raise EnvError("the factory returned nothing", value=env.id, hint="does it lack a return ?")
    return made


def _named_parameters(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in parameters if parameter.kind in by_name]


def wrap(env: Any, wrapper: Wrapper, place: int, *, of: ModuleType = gym_wrappers) -> Any:
    """`env` within a wrapper of the spec, the one at `place`.

    Args:
        of: the module of Gymnasium that holds wrappers named without a module.

    Raises:
        EnvError: there is no such wrapper, or it raised.
    """
    key = f"env.wrappers[{place}]"
    kind: Any
    if is_object_name(wrapper.id):
        kind = import_object(wrapper.id, key=key)
    else:
        kind = getattr(of, wrapper.id, None)
        known = [name for name in dir(of) if name[0].isupper()]
        if kind is None or wrapper.id not in known:
            reason = f"is neither a wrapper of {of.__name__} nor package.module:Class"
            raise EnvError(reason, key=key, value=wrapper.id, hint=nearest(wrapper.id, known))
    try:
        wrapped = kind(env, **wrapper.kwargs)
    except user_errors() as error:
        raise EnvError(f"wrapping raised {describe_error(error)}", key=key, value=wrapper.id) from error
    if not hasattr(wrapped, "step"):
        raise EnvError(f"returned a {type(wrapped).__name__}, not an environment", key=key, value=wrapper.id)
    return wrapped


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return " ".join(lines[0].replace("`", "").split()) if lines else type(error).__name__
