"""Rules between the keys of one spec: what each key alone allows but the whole cannot mean.

Pure, and it never raises: it returns what it finds.
"""

import math
from collections.abc import Iterator

from heddle.spec.environments import ENVPOOL
from heddle.spec.explain import Fault
from heddle.spec.groups import group_faults
from heddle.spec.learner_checks import learner_faults, schedule_faults
from heddle.spec.locate import KeyPath
from heddle.spec.models import ExperimentSpec
from heddle.spec.objects import is_object_name
from heddle.spec.offered import offered_faults
from heddle.spec.policy import TORSOS, Network
from heddle.spec.variants import variant_faults
from heddle.spec.weights_size import weights_faults

ON_POLICY = ("ppo", "none")
"""Learners that a recording cannot teach."""
_DEFAULT = Network()


def cross_checks(spec: ExperimentSpec) -> list[Fault]:
    """Every contradiction in `spec`, in the order of its sections."""
    begin = (_env, offered_faults, _vector, variant_faults, _stepping, _agents, group_faults, _policy)
    rest = (weights_faults, _rollout, _trainer, learner_faults, schedule_faults, _data, _eval, _budget, _limits)
    return [fault for rule in (*begin, *rest) for fault in rule(spec)]


def batches_per_update(spec: ExperimentSpec) -> int:
    """Batches of full segments that one update consumes."""
    if spec.rollout.sync:
        return math.ceil(spec.env.num_envs / spec.env.envs_per_shard)
    return math.ceil(spec.trainer.batch_steps / (spec.env.envs_per_shard * spec.env.agents_each * spec.rollout.steps))


def batches_per_checkpoint(spec: ExperimentSpec) -> int:
    """Batches that stay in the stream between two acknowledgements."""
    every = spec.trainer.checkpoint_every if spec.trainer.ack == "checkpoint" else 1
    return batches_per_update(spec) * every


def steps_per_update(spec: ExperimentSpec) -> int:
    """Environment steps that one update learns from when every segment is full."""
    whole = spec.env.num_envs * spec.env.agents_each * spec.rollout.steps
    return whole if spec.rollout.sync else spec.trainer.batch_steps


def _env(spec: ExperimentSpec) -> Iterator[Fault]:
    if spec.env.envs_per_shard > spec.env.num_envs:
        yield Fault(
            ("env", "envs_per_shard"),
            spec.env.envs_per_shard,
            f"is more than env.num_envs = {spec.env.num_envs}",
            f"use at most {spec.env.num_envs}, or leave it out",
        )
    if spec.env.memory is not None and not spec.env.in_children:
        yield Fault(
            ("env", "memory"),
            spec.env.memory,
            'has no meaning with env.isolation = "inline", where environments share the memory of their worker',
            'add isolation = "process" to [env], or leave it out',
        )


def _policy(spec: ExperimentSpec) -> Iterator[Fault]:
    policy = spec.policy
    if not policy.groups:
        unused = _unused(policy)
        yield from (_meaningless(("policy", key), policy, key) for key in unused)
        if policy.id == "random" and spec.eval is not None and spec.eval.deterministic:
            yield Fault(
                ("eval", "deterministic"),
                True,
                "has no meaning with policy.id = 'random', which has no likeliest action",
                "use deterministic = false",
            )
        return
    everywhere = set.intersection(*(set(_unused(group)) for group in policy.groups))
    for key in sorted(key for key in everywhere if getattr(policy, key) != getattr(_DEFAULT, key)):
        yield Fault(("policy", key), getattr(policy, key), "has no meaning in any of policy.groups", "remove it")
    for place, group in enumerate(policy.groups):
        for key in _unused(group):
            if getattr(group, key) != getattr(policy, key):  # what all groups have from [policy] may not suit one
                yield _meaningless(("policy", "groups", place, key), group, key)


def _unused(network: Network) -> list[str]:
    """Keys that say something which this policy does not look at."""
    acts = network.builtin and network.id not in ("q", "sac")
    uses = {
        "torso": network.id in TORSOS,
        "recurrent_size": network.recurrent,
        "dueling": network.id == "q",
        "filters": network.looks_through == "cnn",
        "std": acts,
        "squash": acts,
        "image": network.looks_through in ("cnn", "impala"),
    }
    return [key for key, used in uses.items() if not used and getattr(network, key) != getattr(_DEFAULT, key)]


def _meaningless(path: KeyPath, network: Network, key: str) -> Fault:
    return Fault(path, getattr(network, key), f"has no meaning with policy.id = {network.id!r}", "remove it")


def _vector(spec: ExperimentSpec) -> Iterator[Fault]:
    env = spec.env
    if env.vector and env.isolation == "process":
        reason = "a vector environment runs in its worker"
        yield Fault(("env", "isolation"), env.isolation, f"has no meaning with vector = true: {reason}", "leave it out")
    if env.id.startswith(ENVPOOL) and not env.vector:
        reason = "EnvPool makes vector environments"
        yield Fault(("env", "id"), env.id, reason, "add vector = true to [env]")


_BESIDE = ("threads", "processes", "async", "auto")


def _stepping(spec: ExperimentSpec) -> Iterator[Fault]:
    env = spec.env
    for key, given in (("threads", env.threads), ("processes", env.processes), ("gather", env.gather)):
        needs = {"threads": ("threads", "auto"), "processes": ("processes",)}.get(key, _BESIDE)
        if given and env.stepping not in needs:
            reason = f"has no meaning with stepping = {env.stepping!r}"
            yield Fault(("env", key), given, reason, f"add stepping = {needs[0]!r} to [env], or remove it")
    if env.stepping == "inline":
        return
    where = ("env", "stepping")
    if env.at_once:
        which = "vector = true" if env.vector else "agents"
        yield Fault(where, env.stepping, f"has no meaning with {which}: one call steps them all", "remove it")
    if env.isolation == "process":
        yield Fault(where, env.stepping, 'cannot be joined with isolation = "process"', "choose one of them")
    if env.stepping == "async" and not is_object_name(env.id):
        reason = "is made by Gymnasium, whose environments are no coroutines"
        yield Fault(("env", "id"), env.id, reason, 'name a factory, "mymodule:make", or use stepping = "threads"')
    if env.stepping == "async" and env.wrappers:
        reason = "cannot be put around an environment of coroutines"
        hint = 'wrap it in a factory of your own: id = "mymodule:make"'
        yield Fault(("env", "wrappers"), env.wrappers[0].id, reason, hint)


def _agents(spec: ExperimentSpec) -> Iterator[Fault]:
    env = spec.env
    if env.agents is None:
        return
    if env.vector:
        yield Fault(("env", "vector"), True, "has no meaning with agents: one call steps them all anyway", "remove it")
    if env.isolation == "process":
        reason = "has no meaning with agents: an environment of several agents runs in its worker"
        yield Fault(("env", "isolation"), env.isolation, reason, "leave it out")
    if env.wrappers:
        reason = "cannot be put around an environment of several agents"
        hint = 'wrap it in a factory of your own: id = "mymodule:make"'
        yield Fault(("env", "wrappers"), env.wrappers[0].id, reason, hint)


def _rollout(spec: ExperimentSpec) -> Iterator[Fault]:
    if spec.rollout.sync and spec.rollout.max_policy_lag is not None:
        yield Fault(
            ("rollout", "max_policy_lag"),
            spec.rollout.max_policy_lag,
            "has no meaning with rollout.sync = true, where every batch is of the newest version",
            "remove one of the two",
        )


def _trainer(spec: ExperimentSpec) -> Iterator[Fault]:
    steps = steps_per_update(spec)
    if spec.trainer.minibatch > steps and spec.trainer.replay is None:
        source = "env.num_envs x rollout.steps" if spec.rollout.sync else "trainer.batch_steps"
        yield Fault(
            ("trainer", "minibatch"),
            spec.trainer.minibatch,
            f"is more than the {steps} steps of one update ({source})",
            f"use at most {steps}",
        )
    natural = spec.env.num_envs * spec.env.agents_each * spec.rollout.steps
    if spec.rollout.sync and spec.trainer.batch_steps != natural:
        yield Fault(
            ("trainer", "batch_steps"),
            spec.trainer.batch_steps,
            f"has no meaning with rollout.sync = true, where an update takes all {natural} steps",
            "remove one of the two",
        )


def _data(spec: ExperimentSpec) -> Iterator[Fault]:
    if spec.data is None:
        if spec.trainer.learner == "bc":
            hint = 'name a recording: [data] path = "DIR"; make one with heddle record-experience'
            yield Fault(("trainer", "learner"), "bc", "imitates recorded experience, and the spec has no [data]", hint)
        if spec.budget.passes is not None:
            hint = "use budget.env_steps or budget.updates"
            yield Fault(("budget", "passes"), spec.budget.passes, "has no meaning without [data]", hint)
        return
    if spec.rollout.sync:
        yield Fault(("rollout", "sync"), True, "has no meaning with [data], where no worker plays", "remove it")
    if spec.trainer.learner in ON_POLICY:
        yield Fault(
            ("trainer", "learner"),
            spec.trainer.learner,
            "cannot learn from a recording",
            'use "bc", another learner that is off-policy, or your own',
        )


def _eval(spec: ExperimentSpec) -> Iterator[Fault]:
    if spec.eval is not None and spec.eval.num_envs > spec.eval.episodes:
        yield Fault(
            ("eval", "num_envs"),
            spec.eval.num_envs,
            f"is more than eval.episodes = {spec.eval.episodes}: some environments would have nothing to play",
            f"use at most {spec.eval.episodes}",
        )
    if spec.eval is not None and spec.eval.seed == spec.experiment.seed:
        yield Fault(
            ("eval", "seed"),
            spec.eval.seed,
            "is experiment.seed: evaluation would see the training episodes",
            "use another number, or leave it out",
        )


def _budget(spec: ExperimentSpec) -> Iterator[Fault]:
    budget = spec.budget
    limits = (budget.env_steps, budget.updates, budget.passes, budget.wall, budget.target_return)
    if all(limit is None for limit in limits):
        yield Fault(
            ("budget",),
            None,
            "needs at least one of env_steps, updates, wall and target_return",
            "for example env_steps = 100_000",
            is_about_key=True,
        )


def _limits(spec: ExperimentSpec) -> Iterator[Fault]:
    if spec.rollout.plane == "shm" and spec.limits.durability == "strict":
        yield Fault(
            ("rollout", "plane"),
            "shm",
            'contradicts limits.durability = "strict": shared memory does not survive its host',
            'use "redis", or ask for less durability',
        )
    needed = batches_per_checkpoint(spec)
    if spec.limits.max_entries < needed:
        what = "one quorum" if spec.rollout.sync else "one update"
        if spec.trainer.ack == "checkpoint" and spec.trainer.checkpoint_every > 1:
            what = f"the {spec.trainer.checkpoint_every} updates between checkpoints"
        yield Fault(
            ("limits", "max_entries"),
            spec.limits.max_entries,
            f"is below the {needed} batches of {what}: training could never go on",
            f"use at least {needed}, or leave it out",
        )
    if spec.limits.batch_bytes > spec.limits.max_bytes:
        yield Fault(
            ("limits", "batch_bytes"),
            spec.limits.batch_bytes,
            f"is more than limits.max_bytes = {spec.limits.max_bytes}",
            "raise limits.max_bytes",
        )
