"""How long a call into the user's code may last before the watchdog ends the worker. Pure."""

from heddle.shard import ShardPlan
from heddle.spec import ExperimentSpec
from heddle.spec.environments import Env

BACKSTOP_S = 90.0
"""On top of what a child may take: starting it, ending it, telling what it said."""

OF_RESETS = ("make", "reset", "restore")
"""Calls that `env.reset_timeout` is for."""


def own_limit_of(env: Env, what: str, *, beside: bool) -> float:
    """Seconds after which a call is given up and its worker lives; 0 where only the end of the worker ends it.

    Args:
        beside: environments are stepped beside each other.
    """
    if not (env.in_children or beside) or what in ("act", "load", "close"):
        return 0.0
    return env.reset_timeout if what in (*OF_RESETS, "snapshot") else env.step_timeout


def limit_of(spec: ExperimentSpec, plan: ShardPlan, what: str, *, beside: bool) -> float:
    """Seconds after which the watchdog takes a call for hanging.

    The deadlines of a child, and of environments that are stepped beside each other, are looked at by whoever waits for
    them: the watchdog only comes when that one hangs itself.

    Args:
        beside: they are stepped beside each other.
    """
    limit_s = spec.env.reset_timeout if what in OF_RESETS else spec.env.step_timeout
    if (spec.env.isolation == "process" or beside) and what != "act":
        return plan.num_envs * max(limit_s, spec.env.reset_timeout) + BACKSTOP_S
    return limit_s
