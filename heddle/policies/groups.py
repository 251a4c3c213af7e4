"""One policy for each group of agents, together as one: rows are whole games, an agent each, group by group.

It never learns. Weights, memories and metrics of a group are named "group/..." and "group....". Where groups have other
spaces than each other, the space of all is a Dict with one entry a group, of which only the agent's own means anything.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.errors import EnvError
from heddle.policies.base import Acted, Array, Arrays, OutputSpec, Policy, zero_state
from heddle.policies.chance import noise_for, shared_noise
from heddle.policies.past import PastPolicy
from heddle.policies.weights import WeightsError
from heddle.spaces import ACTION, OBSERVATION, DictSpace, Space, leaves
from heddle.spec import PolicySpec

GROUP = "group"
"""Output that says, by its place in the spec, which group acted."""

Make = Callable[[PolicySpec, Space, Space, int], Policy]


@dataclass(frozen=True, slots=True)
class Member:
    """A group as it acts.

    Attributes:
        name: of the group.
        place: in the spec.
        policy: its own.
        learns: whether a learner trains it.
        agents: numbers of its agents.
        observation, action: what the names of its leaves begin with among those of all.
    """

    name: str
    place: int
    policy: Policy
    learns: bool
    agents: tuple[int, ...]
    observation: str
    action: str

    def rows(self, agents: NDArray[np.integer[Any]]) -> NDArray[np.intp]:
        """[k] places at which one of its own agents stands in `agents`, [N]."""
        return np.flatnonzero(np.isin(agents, self.agents))

    def seen(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Of what is named by leaf, its own, as its policy calls it."""
        return _below(values, self.observation, OBSERVATION)

    def chosen(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """As `seen`, of actions."""
        return _below(values, self.action, ACTION)


class GroupsPolicy:
    """Acts with each group's policy on that group's rows.

    Attributes:
        members: in the order of the spec.

    Args:
        action: of all.

    Raises:
        EnvError: two policies report something else under one name.
    """

    def __init__(self, members: Sequence[Member], action: Space) -> None:
        self.members = tuple(members)
        self._agents = sum(len(member.agents) for member in members)
        self._leaves = leaves(action, ACTION)
        self._rows: dict[int, list[NDArray[np.intp]]] = {}
        self.noise = shared_noise([member.policy.noise for member in members])
        self.outputs: Mapping[str, OutputSpec] = _outputs(members)
        self.state: Mapping[str, OutputSpec] = {
            f"{member.name}.{name}": spec for member in members for name, spec in member.policy.state.items()
        }

    def initial_state(self, n: int) -> Arrays:
        found = zero_state(self.state, n)
        for member in self.members:
            begun = member.policy.initial_state(n)
            found |= {f"{member.name}.{name}": begun[name] for name in member.policy.state}
        return found

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        n = len(next(iter(observations.values())))
        actions: Arrays = {leaf.name: np.zeros((n, *leaf.space.shape), leaf.chosen_dtype) for leaf in self._leaves}
        outputs = {name: np.zeros((n, *spec.shape), spec.dtype) for name, spec in self.outputs.items()}
        after = {name: np.array(values) for name, values in state.items()}
        for member, rows in zip(self.members, self._rows_of(n), strict=True):
            seen = {name: values[rows] for name, values in member.seen(observations).items()}
            own = {name: state[f"{member.name}.{name}"][rows] for name in member.policy.state}
            chance = noise_for(member.policy.noise, self.noise, noise[rows])
            acted = member.policy.act(seen, own, chance, deterministic=deterministic)
            _place(actions, rows, {f"{member.action}{_tail(name, ACTION)}": a for name, a in acted.actions.items()})
            _place(outputs, rows, {name: acted.outputs[name] for name in member.policy.outputs})
            _place(after, rows, {f"{member.name}.{name}": acted.state[name] for name in member.policy.state})
            outputs[GROUP][rows] = member.place
        return Acted(actions, outputs, after)

    def get_weights(self) -> Arrays:
        return joined({member.name: member.policy.get_weights() for member in self.members})

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        parts = parted(weights, [member.name for member in self.members])
        for member in self.members:
            try:
                member.policy.set_weights(parts[member.name])
            except WeightsError as error:
                raise WeightsError(f"group {member.name}: {error}") from error

    def _rows_of(self, n: int) -> list[NDArray[np.intp]]:
        """The rows of each member among `n`, which are whole games."""
        if n not in self._rows:
            if n % self._agents:
                raise ValueError(f"{n} rows are no whole games of {self._agents} agents")
            agents = np.arange(n) % self._agents
            self._rows[n] = [member.rows(agents) for member in self.members]
        return self._rows[n]


def make_groups(spec: PolicySpec, observation: Space, action: Space, *, seed: int, make: Make) -> GroupsPolicy:
    """The policy of [policy] with its groups.

    Args:
        make: makes the policy of one group.

    Raises:
        EnvError: one cannot be made, or past versions of a group shall play where the spaces are others.
    """
    names = [group.name for group in spec.groups]
    members: list[Member] = []
    agent = 0
    for place, group in enumerate(spec.groups):
        like = names.index(group.past_of) if group.past_of is not None else place
        seen, at = _of_group(observation, names, group.name, OBSERVATION)
        choices, to = _of_group(action, names, group.name, ACTION)
        given = (spec.of_group(group), seen, choices, (seed + like * 1_000_003) % 2**63)
        count = len(group.members)
        if group.past_of is None:
            policy = make(*given)
        elif (seen, choices) != tuple(_of_group(s, names, group.past_of, "")[0] for s in (observation, action)):
            reason = f"group {group.name} has other spaces than {group.past_of}, whose past versions shall play it"
            raise EnvError(reason, key=f"policy.groups[{place}].past_of", value=group.past_of)
        else:
            policy = PastPolicy(lambda given=given: make(*given), agents=count)  # type: ignore[misc]
        members.append(Member(group.name, place, policy, group.learn, tuple(range(agent, agent + count)), at, to))
        agent += count
    return GroupsPolicy(members, action)


def joined(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What each group has by name, as one: "group/name"."""
    return {f"{group}/{name}": value for group, part in parts.items() for name, value in part.items()}


def parted(whole: Mapping[str, Any], groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The opposite of `joined`. Raises WeightsError for what belongs to none of the groups."""
    parts: dict[str, dict[str, Any]] = {group: {} for group in groups}
    for name, value in whole.items():
        group, _, rest = name.partition("/")
        if group not in parts or not rest:
            raise WeightsError(f"weights belong to another policy: {name!r} is of none of {', '.join(groups)}")
        parts[group][rest] = value
    return parts


def are_apart(space: Space, names: Sequence[str]) -> bool:
    """Whether `space` holds one space a group, because they differ."""
    return isinstance(space, DictSpace) and set(space.spaces) == set(names)


def _of_group(space: Space, names: Sequence[str], name: str, root: str) -> tuple[Space, str]:
    """A group's own space within that of all, and what the names of its leaves begin with."""
    if are_apart(space, names):
        assert isinstance(space, DictSpace)
        return space.spaces[name], f"{root}.{name}"
    return space, root


def _below(values: Mapping[str, Any], root: str, own: str) -> dict[str, Any]:
    """What is named `root`, or something below it, named by `own` instead."""
    begins = (f"{root}.", f"{root}:")
    return {f"{own}{_tail(name, root)}": v for name, v in values.items() if name == root or name.startswith(begins)}


def _tail(name: str, root: str) -> str:
    return name[len(root) :]


def _place(whole: Arrays, rows: NDArray[np.intp], parts: Mapping[str, Array]) -> None:
    for name, values in parts.items():
        whole[name][rows] = values


def _outputs(members: Sequence[Member]) -> dict[str, OutputSpec]:
    found: dict[str, OutputSpec] = {}
    for member in members:
        for name, spec in member.policy.outputs.items():
            described = OutputSpec(np.dtype(spec.dtype).name, tuple(spec.shape))
            if name == GROUP or found.setdefault(name, described) != described:
                reason = f"reports {name} as {spec.dtype}{list(spec.shape)}, which is taken by something else"
                raise EnvError(f"the policy of group {member.name} {reason}", key="policy.groups", value=member.name)
    return found | {GROUP: OutputSpec("int16")}
