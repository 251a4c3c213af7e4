"""Which stepper steps the environments of a shard: the one that its spec asks for.

It never steps.
"""

from collections.abc import Sequence
from typing import Any

from heddle.producers.process_stepper import ProcessStepper
from heddle.producers.steppers import AsyncStepper, Stepper, ThreadStepper
from heddle.spec import ExperimentSpec
from heddle.spec.beside import threads_of


def stepper_for(spec: ExperimentSpec, envs: Sequence[Any]) -> Stepper:
    """A stepper of `envs`, beside each other, as `env.stepping` says."""
    if spec.env.stepping == "async":
        return AsyncStepper([env.inner for env in envs])
    if spec.env.stepping == "processes":
        return ProcessStepper(envs)
    return ThreadStepper(envs, threads_of(spec.env, len(envs)))
