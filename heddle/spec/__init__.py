"""The spec of an experiment: from exp.toml to frozen models, with every mistake found at once.

It never touches the broker and never runs user code.
"""

from heddle.spec.environments import Env, Wrapper
from heddle.spec.load import LoadedSpec, load_spec, spec_from_json
from heddle.spec.models import Eval, ExperimentSpec, Rollout, Trainer
from heddle.spec.policy import PolicySpec
from heddle.spec.values import Schedule

__all__ = [
    "Env",
    "Eval",
    "ExperimentSpec",
    "LoadedSpec",
    "PolicySpec",
    "Rollout",
    "Schedule",
    "Trainer",
    "Wrapper",
    "load_spec",
    "spec_from_json",
]
