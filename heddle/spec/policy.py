"""[policy] of exp.toml as a frozen model: what acts.

It never builds a network; `heddle.policies` does.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from heddle.spec.values import Frozen, Kwargs, Slug, Word, builtin_or_own

POLICIES = ("mlp", "cnn", "impala", "lstm", "gru", "random", "q", "sac")
"""Built-in policies; others are named "package.module:Name"."""
RECURRENT = ("lstm", "gru")
TORSOS = (*RECURRENT, "q", "sac")
"""Policies that `torso` belongs to."""
NATURE_FILTERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))

MOST_AGENTS = 1024
"""In one environment."""
_RANGE = re.compile(r"(?P<before>[^{}]*)\{(?P<first>\d{1,6})\.\.(?P<last>\d{1,6})\}(?P<after>[^{}]*)")

Positive = Annotated[int, Field(ge=1)]
Filter = Annotated[tuple[Positive, Positive, Positive], Field(strict=False)]


class Network(Frozen):
    """What acts: the keys that [policy] and each of its groups may have.

    Attributes:
        id: built-in name, or "package.module:Name".
        torso: what a recurrent policy, "q" and "sac" look through.
        hidden: widths of the hidden layers, behind the convolutions if there are any; derived when not given.
        activation: between them; derived when not given.
        shared: one network for policy and value, up to their heads; derived when not given.
        filters: of "cnn": channels, kernel and stride of each convolution.
        image: order of an image's axes: height, width, channels or channels, height, width.
        recurrent_size: numbers that an LSTM or GRU carries from step to step.
        std: how far actions of floats spread: a weight beside the network, or what it says for each observation.
        squash: actions of floats go through tanh to their bounds, instead of being clipped there.
        dueling: of "q": a value and advantages instead of values of actions.
        init: safetensors file of first weights, read where the trainer runs; None: they are drawn.
        kwargs: passed to a policy of your own.
    """

    id: Annotated[str, builtin_or_own(POLICIES)] = "mlp"
    torso: Literal["mlp", "cnn", "impala"] = "mlp"
    hidden: Annotated[tuple[Positive, ...], Field(strict=False)] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    shared: bool = False
    filters: Annotated[tuple[Filter, ...], Field(strict=False, min_length=1)] = NATURE_FILTERS
    image: Literal["auto", "hwc", "chw"] = "auto"
    recurrent_size: int = Field(default=128, ge=1)
    std: Literal["parameter", "state"] = "parameter"
    squash: bool = False
    dueling: bool = False
    init: Annotated[str, Field(min_length=1)] | None = None
    kwargs: Kwargs = Field(default_factory=dict)

    @property
    def builtin(self) -> bool:
        """A network of Heddle's own from which actions are drawn by their probabilities."""
        return self.id in POLICIES and self.id not in ("random", "q", "sac")

    @property
    def recurrent(self) -> bool:
        """A built-in policy with a memory."""
        return self.id in RECURRENT

    @property
    def looks_through(self) -> str:
        """The torso of a built-in policy: "mlp", "cnn" or "impala"."""
        return self.torso if self.id in TORSOS else self.id


class Group(Network):
    """[[policy.groups]]: agents that share a policy of their own; keys that it has not are those of [policy].

    Attributes:
        name: in weights, metrics and batches.
        agents: their names; "wolf_{0..2}" stands for wolf_0, wolf_1 and wolf_2.
        learn: the learner trains it, on its own agents' steps; derived when not given.
        past_of: the group whose past versions play here; None: it has weights of its own.
        pick: which of them an episode is played with: the latest, any of the last ones, or a fixed one.
        last: how many are kept, with "uniform".
        every: updates from one that is kept to the next.
        update: the one that "fixed" plays with; the first weights until then.
    """

    name: Slug
    agents: Annotated[tuple[Word, ...], Field(strict=False, min_length=1)]
    learn: bool = True
    past_of: Slug | None = None
    pick: Literal["latest", "uniform", "fixed"] = "uniform"
    last: int = Field(default=5, ge=1, le=64)
    every: int = Field(default=10, ge=1)
    update: int = Field(default=0, ge=0)

    @property
    def most_kept(self) -> int:
        """Past versions that are kept at once."""
        return self.last if self.pick == "uniform" else 1

    @property
    def members(self) -> tuple[str, ...]:
        """Every agent's name, ranges written out."""
        return tuple(name for given in self.agents for name in written_out(given))


class PolicySpec(Network):
    """[policy]: what acts.

    Attributes:
        groups: of agents with a policy each; () for one policy that plays all.
    """

    groups: Annotated[tuple[Group, ...], Field(strict=False)] = ()

    @property
    def agents_of(self) -> dict[str, tuple[str, ...]]:
        """Group to its agents, in the order of the lanes."""
        return {group.name: group.members for group in self.groups}

    @property
    def returns_compare(self) -> bool:
        """Whether a higher return is a better policy: not where opponents get better with it."""
        return all(group.past_of is None or group.pick == "fixed" for group in self.groups)

    def of_group(self, group: Group) -> "PolicySpec":
        """[policy] as if that group were all there is."""
        return PolicySpec(**{name: getattr(group, name) for name in Network.model_fields})


def written_out(name: str) -> list[str]:
    """The names that "wolf_{0..2}" stands for; a name without a range stands for itself."""
    match = _RANGE.fullmatch(name)
    if match is None:
        return [name]
    first, last = int(match["first"]), int(match["last"])
    return [f"{match['before']}{number}{match['after']}" for number in range(first, min(last, first + MOST_AGENTS) + 1)]


def derived_policy(policy_id: object, torso: object) -> dict[str, object]:
    """What follows for [policy] from its id and torso when it is not given.

    Hidden layers and activation are those of the papers; convolutions and memories serve policy and value alike.
    """
    sight = torso if policy_id in TORSOS else policy_id
    found: dict[str, object] = {}
    if sight in ("cnn", "impala"):
        found = {"hidden": (512,) if sight == "cnn" else (256,), "activation": "relu", "shared": True}
    elif policy_id in ("q", "sac"):
        found = {"hidden": (256, 256) if policy_id == "sac" else (128, 128), "activation": "relu", "shared": True}
    elif policy_id in RECURRENT:
        found = {"hidden": (64,), "shared": True}
    return found


def derived_group(group: Mapping[str, object], policy: Mapping[str, object]) -> dict[str, object]:
    """What follows for one of [[policy.groups]] from its own keys and from those given in [policy]."""
    shared = {key: value for key, value in policy.items() if key in Network.model_fields and key != "init"}
    merged = shared | dict(group)
    known = group.get("past_of") is None and merged.get("id") != "random"
    return derived_policy(merged.get("id", "mlp"), merged.get("torso", "mlp")) | shared | {"learn": known}
