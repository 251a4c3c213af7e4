"""Policies: what acts in a worker and learns in a trainer.

Importing this package never imports torch; only `torch_*.py` do.
"""

from heddle.policies.base import Acted, Noise, OutputSpec, Policy, ScriptedPolicy
from heddle.policies.factory import make_policy
from heddle.policies.weights import WeightsError, pack, sha256, unpack

__all__ = [
    "Acted",
    "Noise",
    "OutputSpec",
    "Policy",
    "ScriptedPolicy",
    "WeightsError",
    "make_policy",
    "pack",
    "sha256",
    "unpack",
]
