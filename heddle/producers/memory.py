"""Memory: what a policy carries on in environments whose episodes begin.

It never looks at a value: `scrutiny.py` does, whenever the policy has acted.
"""

import numpy as np

from heddle.errors import EnvError
from heddle.policies.base import Arrays, Policy
from heddle.spec import ExperimentSpec
from heddle.spec.objects import describe_error, user_errors


def fresh_state(policy: Policy, n: int, spec: ExperimentSpec) -> Arrays:
    """The policy's state for `n` environments: by name, [n, ...].

    Raises:
        EnvError: the policy, the user's code maybe, raised, or gave no dict.
    """
    try:
        return dict(policy.initial_state(n))
    except user_errors() as error:
        reason = f"initial_state({n}) raised {describe_error(error)}"
        raise EnvError(reason, key="policy.id", value=spec.policy.id) from error


def copied(state: Arrays) -> Arrays:
    """The same values in arrays of their own, shaped as they were."""
    return {name: np.array(array) for name, array in state.items()}
