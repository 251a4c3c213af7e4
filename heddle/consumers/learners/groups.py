"""A learner for each group of agents, together as one: each learns from its own agents' rows.

It never learns by itself. What is saved, and what is told, is that of every learner, named by its group.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heddle.consumers.learners.base import AGENT_BITS, Learner, State, TrainBatch
from heddle.errors import CheckpointError, EnvError, ExperimentFailed
from heddle.policies.base import Array, Arrays, Policy
from heddle.policies.groups import GroupsPolicy, Member, joined, parted
from heddle.policies.past import by_update, named
from heddle.policies.weights import WeightsError
from heddle.spec import ExperimentSpec
from heddle.spec.policy import Group

Make = Callable[[ExperimentSpec, Policy, int], Learner]


class Pool:
    """The past versions of a group that another one plays.

    Attributes:
        kept: weights by update.
    """

    def __init__(self, group: Group, first: Arrays) -> None:
        self.group = group
        self.kept: dict[int, Arrays] = {0: first}

    def see(self, update: int, weights: Callable[[], Arrays]) -> None:
        """An update of the group that learns is done."""
        group = self.group
        if group.pick == "fixed":
            if update == group.update:
                self.kept = {update: weights()}
        elif update % group.every == 0:
            self.kept[update] = weights()
            self.kept = {key: self.kept[key] for key in sorted(self.kept)[-group.most_kept :]}


class GroupsLearner:
    """Learners side by side.

    Attributes:
        learners: of the groups that learn, by name.
        pools: of the groups that past versions play.

    Args:
        make: makes the learner of one group.

    Raises:
        EnvError: one cannot be made, or keeps files of its own.
    """

    def __init__(self, spec: ExperimentSpec, policy: Policy, *, seed: int, make: Make) -> None:
        if not isinstance(policy, GroupsPolicy):
            raise EnvError(f"is a {type(policy).__name__} where policy.groups are given", key="policy.groups")
        self._policy = policy
        self.learners: dict[str, Learner] = {}
        for group, member in zip(spec.policy.groups, policy.members, strict=True):
            if not group.learn:
                continue
            own = spec.model_copy(update={"policy": spec.policy.of_group(group)})
            made = make(own, member.policy, (seed + member.place) % 2**63)
            if hasattr(made, "open"):
                reason = "keeps files of its own, and would do so once for each of policy.groups"
                raise EnvError(reason, key="trainer.learner", value=spec.trainer.learner, hint="leave the groups out")
            self.learners[group.name] = made
        self.pools = {
            group.name: Pool(group, self.learners[group.past_of].get_weights())
            for group in spec.policy.groups
            if group.past_of is not None
        }
        self.min_steps = max(learner.min_steps for learner in self.learners.values())
        self.updates = 0

    def update(self, batch: TrainBatch, progress: float) -> dict[str, float]:
        metrics: dict[str, float] = {}
        agents = batch.env >> AGENT_BITS
        for member in self._policy.members:
            learner = self.learners.get(member.name)
            if learner is None:
                continue
            own = part_of(batch, member, member.rows(agents))
            metrics[f"{member.name}.steps"] = float(own.num_steps)
            if own.num_steps < learner.min_steps:
                continue  # its agents were out nearly all the time; the number of steps says so
            try:
                told = learner.update(own, progress)
            except ExperimentFailed as error:
                raise ExperimentFailed(f"group {member.name}: {error}") from error
            metrics |= {f"{member.name}.{name}": value for name, value in told.items()}
        self.updates += 1
        for pool in self.pools.values():
            assert pool.group.past_of is not None
            pool.see(self.updates, self.learners[pool.group.past_of].get_weights)
        return metrics

    def complaint(self) -> str:
        """Why the experiment shall pause, told once; "" for nothing."""
        asked = {name: getattr(learner, "complaint", None) for name, learner in self.learners.items()}
        told = {name: str(ask()) for name, ask in asked.items() if callable(ask)}
        return "; ".join(f"group {name}: {why}" for name, why in told.items() if why)

    def get_weights(self) -> Arrays:
        parts: dict[str, Arrays] = {}
        for member in self._policy.members:
            if member.name in self.learners:
                parts[member.name] = self.learners[member.name].get_weights()
            elif member.name in self.pools:
                parts[member.name] = named(self.pools[member.name].kept)
            else:
                parts[member.name] = member.policy.get_weights()
        return joined(parts)

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        parts = parted(weights, [member.name for member in self._policy.members])
        for member in self._policy.members:
            part = parts[member.name]
            if member.name in self.learners:
                self.learners[member.name].set_weights(part)
                continue
            member.policy.set_weights(part)
            if member.name in self.pools:
                self.pools[member.name].kept = by_update(part)

    def state(self) -> State:
        tensors: dict[str, Arrays] = {}
        metas: dict[str, Any] = {}
        for name, learner in self.learners.items():
            tensors[name], metas[name] = learner.state()
        return joined(tensors), {"learner": "groups", "updates": self.updates, "groups": metas}

    def load(self, tensors: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        metas = meta.get("groups")
        if meta.get("learner") != "groups" or not isinstance(metas, dict) or metas.keys() != self.learners.keys():
            raise CheckpointError(f"the state is not of learners of the groups {', '.join(self.learners)}")
        try:
            parts = parted(tensors, list(self.learners))
        except WeightsError as error:
            raise CheckpointError(f"the state of the learners is not whole: {error}") from error
        for name, learner in self.learners.items():
            learner.load(parts[name], metas[name])
        self.updates = int(meta["updates"])


def part_of(batch: TrainBatch, member: Member, rows: Array) -> TrainBatch:
    """Those rows [b] of a batch that are a group's, as its learner knows them."""
    index = torch.from_numpy(np.ascontiguousarray(rows, np.int64)).to(batch.device)
    place = torch.full((len(batch.valid),), -1, dtype=torch.int64, device=batch.device)
    place[index] = torch.arange(len(index), device=batch.device)
    finals = (place[batch.final_index[:, 0]] >= 0).nonzero().squeeze(1)
    final_index = batch.final_index[finals]

    def some(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor[index] for name, tensor in values.items()}

    state = {name: batch.state[f"{member.name}.{name}"] for name in member.policy.state}
    valid = batch.valid[index]
    return TrainBatch(
        observations=some(member.seen(batch.observations)),
        actions=some(member.chosen(batch.actions)),
        reward=batch.reward[index],
        terminated=batch.terminated[index],
        truncated=batch.truncated[index],
        valid=valid,
        outputs=some({name: batch.outputs[name] for name in member.policy.outputs}),
        info=some(batch.info),
        state=some(state),
        version=batch.version[index],
        final_index=torch.stack([place[final_index[:, 0]], final_index[:, 1]], dim=1),
        final_observations={name: t[finals] for name, t in member.seen(batch.final_observations).items()},
        shard=batch.shard[rows],
        env=batch.env[rows],
        epoch=batch.epoch[rows],
        num_steps=int(valid.sum()),
    )
