"""Heddle: reinforcement learning rollouts as a fleet, through Redis Streams.

Importing it loads nothing heavy: each public name is fetched from its module when it is first used. Not even `typing`,
which takes as long as all else: until a first line of `__main__` has run, a Ctrl-C shows Python's own traceback.
"""

import importlib

from heddle.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from heddle.client import Client, connect, submit, trainer
    from heddle.errors import HeddleError, SpecError
    from heddle.experiment import Experiment
    from heddle.policies import Policy, ScriptedPolicy
    from heddle.spec import ExperimentSpec, LoadedSpec, load_spec

_HOMES = {
    "Client": "heddle.client",
    "Experiment": "heddle.experiment",
    "ExperimentSpec": "heddle.spec",
    "HeddleError": "heddle.errors",
    "LoadedSpec": "heddle.spec",
    "Policy": "heddle.policies",
    "ScriptedPolicy": "heddle.policies",
    "SpecError": "heddle.errors",
    "connect": "heddle.client",
    "load_spec": "heddle.spec",
    "submit": "heddle.client",
    "trainer": "heddle.client",
}

__all__ = [
    "Client",
    "Experiment",
    "ExperimentSpec",
    "HeddleError",
    "LoadedSpec",
    "Policy",
    "ScriptedPolicy",
    "SpecError",
    "__version__",
    "connect",
    "load_spec",
    "submit",
    "trainer",
]


def __getattr__(name: str) -> "Any":
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'heddle' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
