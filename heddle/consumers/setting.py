"""The setting: what a consumer must know of an experiment before it can read: spec, spaces, layout, shards, policy.

It never reads experience and never imports torch.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heddle.broker import Broker, keys
from heddle.broker.records import StoredSpec
from heddle.consumers.watch import Noted, unwatched
from heddle.errors import BrokerUnfit, EnvError
from heddle.layout import Layout, rollout_layout
from heddle.policies.base import Policy
from heddle.policies.factory import make_policy
from heddle.shard import ShardPlan, plan_shards
from heddle.spaces import Space, from_json, to_json
from heddle.spec import ExperimentSpec, spec_from_json

Describe = Callable[[ExperimentSpec], tuple[Space, Space]]
"""Makes one environment to see its observation and action spaces; raises EnvError."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that follows from an experiment's spec.

    Attributes:
        stored: the spec as submitted.
        spec: the same, resolved.
        observation, action: the spaces.
        policy: with fresh, seeded weights.
        layout: of its batches.
        plans: of its shards.
    """

    stored: StoredSpec
    spec: ExperimentSpec
    observation: Space
    action: Space
    policy: Policy
    layout: Layout
    plans: tuple[ShardPlan, ...]

    @property
    def batch_bytes(self) -> int:
        """Of the largest shard's batch, but for what has no fixed shape."""
        return max((self.layout.segment_bytes * plan.lanes for plan in self.plans), default=0)

    def spaces_json(self) -> dict[str, Any]:
        """As a checkpoint holds them."""
        return {"observation": to_json(self.observation), "action": to_json(self.action)}


def read_setting(
    broker: Broker, experiment: str, *, describe: Describe | None = None, noted: Noted = unwatched
) -> Setting:
    """The setting of an experiment.

    Args:
        describe: asked when whoever submitted it did not look at the environment.
        noted: around the making of the policy, which may be the user's.

    Raises:
        NotFound: no such experiment.
        BrokerUnfit: its keys speak another protocol version.
        EnvError: the policy does not fit the spaces, or the spaces are unknown.
    """
    stored = broker.experiments.spec(experiment)
    if stored.protocol != keys.PROTOCOL:
        raise BrokerUnfit(
            f"{experiment} speaks protocol {stored.protocol}, this version of Heddle speaks {keys.PROTOCOL}:"
            " use the version that submitted it"
        )
    spec = spec_from_json(stored.json)
    observation, action = _spaces(stored, spec, describe)
    with noted("making the policy", spec.trainer.update_timeout):
        policy = make_policy(spec.policy, observation, action, seed=spec.experiment.seed)
    layout = rollout_layout(observation, action, policy, spec.rollout)
    return Setting(stored, spec, observation, action, policy, layout, plan_shards(spec))


def _spaces(stored: StoredSpec, spec: ExperimentSpec, describe: Describe | None) -> tuple[Space, Space]:
    if stored.spaces:
        told = json.loads(stored.spaces)
        return from_json(told["observation"]), from_json(told["action"])
    if describe is None:
        raise EnvError("has spaces that nobody looked at when it was submitted", value=spec.env.id)
    return describe(spec)
