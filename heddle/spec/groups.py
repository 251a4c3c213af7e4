"""Rules of [[policy.groups]]: which agents have a policy of their own, and which of those policies are trained.

Pure, and it never raises: it returns what it finds. Whether the agents' names are right, only their environment tells.
"""

from collections import Counter
from collections.abc import Iterator

from heddle.spec.explain import Fault
from heddle.spec.locate import KeyPath
from heddle.spec.models import ExperimentSpec
from heddle.spec.policy import Group, Network
from heddle.spec.values import is_user_code

GROUPED = ("ppo", "vtrace", "none")
"""Built-in learners of which each group can have one."""
_UNREAD = {"uniform": ("update",), "latest": ("last", "update"), "fixed": ("last", "every")}
"""Ways to pick a past version, and the keys that mean nothing to each."""


def group_faults(spec: ExperimentSpec) -> Iterator[Fault]:
    """What cannot be meant."""
    groups, key = spec.policy.groups, ("policy", "groups")
    if not groups:
        return
    if spec.env.agents is None:
        reason = "has no meaning in an environment of one agent"
        yield Fault(key, len(groups), reason, "add agents = N to [env], or leave the groups out")
        return
    yield from _agents(groups, spec.env.agents)
    yield from _learner(spec)
    if spec.policy.init is not None:
        hint = "give each group an init of its own"
        yield Fault(("policy", "init"), spec.policy.init, "has no meaning with policy.groups", hint)
    for place, group in enumerate(groups):
        yield from _past(spec, place, group)


def _agents(groups: tuple[Group, ...], agents: int) -> Iterator[Fault]:
    key = ("policy", "groups")
    names = Counter(group.name for group in groups)
    for name in [name for name, count in names.items() if count > 1]:
        yield Fault(key, name, "names two groups", "give each a name of its own")
    members = Counter(name for group in groups for name in group.members)
    for name in [name for name, count in members.items() if count > 1]:
        yield Fault(key, name, "is an agent that is named twice", "every agent belongs to one group")
    total = sum(members.values())
    if total != agents:
        reason = f"name {total} agents in all, and env.agents is {agents}"
        yield Fault(key, len(groups), reason, "every agent belongs to one group")


def _learner(spec: ExperimentSpec) -> Iterator[Fault]:
    learner, groups = spec.trainer.learner, spec.policy.groups
    if spec.data is not None:
        yield Fault(("data", "path"), spec.data.path, "cannot teach several policies", "leave policy.groups out")
    elif learner not in GROUPED and not is_user_code(learner):
        reason = "trains one policy, and policy.groups says that there are several"
        hint = f"use {' or '.join(GROUPED)}, or your own, of which each group gets one"
        yield Fault(("trainer", "learner"), learner, reason, hint)
    elif learner != "none" and not any(group.learn for group in groups):
        hint = 'let one learn, or use trainer.learner = "none"'
        yield Fault(("policy", "groups"), len(groups), "hold no group that learns", hint)
    for place, group in enumerate(groups):
        path = ("policy", "groups", place)
        if group.id in ("q", "sac"):
            reason = "is a policy of learners that train no groups"
            yield Fault((*path, "id"), group.id, reason, "use mlp, or another policy that draws its actions")
        if group.id == "random" and group.learn and learner != "none":
            yield Fault((*path, "learn"), True, "has no meaning with id = 'random'", "leave it out")


def _past(spec: ExperimentSpec, place: int, group: Group) -> Iterator[Fault]:
    """What is wrong with a group that plays past versions of another, or that says how without doing so."""
    path = ("policy", "groups", place)
    if group.past_of is None:
        for key in ("pick", "last", "every", "update"):
            value, default = getattr(group, key), Group.model_fields[key].default
            if value != default:
                yield Fault((*path, key), value, "has no meaning without past_of", "remove it")
        return
    source = next((other for other in spec.policy.groups if other.name == group.past_of), None)
    if source is None or not source.learn or source.past_of is not None:
        reason = "is no group that learns" if source is not None else "names no group"
        hint = f"one of {', '.join(other.name for other in spec.policy.groups if other.learn) or 'none'}"
        yield Fault((*path, "past_of"), group.past_of, reason, hint)
        return
    yield from _past_keys(spec, path, group, source)


def _past_keys(spec: ExperimentSpec, path: KeyPath, group: Group, source: Group) -> Iterator[Fault]:
    if group.learn:
        reason = "has no meaning with past_of: past versions are not trained"
        yield Fault((*path, "learn"), True, reason, "leave it out")
    if group.init is not None:
        yield Fault((*path, "init"), group.init, "has no meaning with past_of", "give it to the group that learns")
    if spec.trainer.learner == "none":
        reason = "has no meaning with trainer.learner = none: there is one version only"
        yield Fault((*path, "past_of"), group.past_of, reason, "use another learner")
    for key in _UNREAD[group.pick]:
        if getattr(group, key) != Group.model_fields[key].default:
            reason = f"has no meaning with pick = {group.pick!r}"
            yield Fault((*path, key), getattr(group, key), reason, "remove it")
    network = [key for key in Network.model_fields if key != "init"]
    if odd := [key for key in network if getattr(group, key) != getattr(source, key)]:
        reason = f"differs from that of group {source.name}, whose past versions play here"
        yield Fault((*path, odd[0]), None, reason, "leave it out")
