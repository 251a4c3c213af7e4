"""The stage: all that is needed to play one experiment's shards, and the policy versions it plays them with.

It knows the spec and the policy; it never claims, appends or decides what is played.
"""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from heddle.broker.records import StoredSpec
from heddle.broker.types import Claim
from heddle.clock import Clock
from heddle.errors import EnvError, PlaneError, PolicyLost, SnapshotError
from heddle.layout import Layout, Segments, rollout_layout
from heddle.plane import Home
from heddle.policies.base import Policy
from heddle.policies.factory import hold_torch_to_one_thread, make_policy
from heddle.policies.weights import TornWeights, WeightsError, unpack
from heddle.producers.envs import check_env
from heddle.producers.pace import Pace
from heddle.producers.packing import Packer
from heddle.producers.play import Play
from heddle.producers.player import Player
from heddle.producers.ready_player import ReadyPlayer
from heddle.producers.vector_check import check_vector
from heddle.producers.vector_player import VectorPlayer
from heddle.shard import ShardPlan, continued_seed, first_episode, plan_shards
from heddle.spaces import Space, from_json
from heddle.spec import ExperimentSpec, spec_from_json
from heddle.spec.objects import describe_error, user_errors

log = logging.getLogger("heddle.worker")

Fetch = Callable[[str, int | None], tuple[int, bytes]]
Watch = Callable[[], AbstractContextManager[object]]


def episodes_of(plan: ShardPlan, plans: tuple[ShardPlan, ...], episodes: int) -> int:
    """How many of `episodes` this evaluation shard plays: its part by environments, at least one."""
    shards = [other for other in plans if other.kind == "eval"]
    total = sum(other.num_envs for other in shards)
    before = sum(other.num_envs for other in shards if other.index < plan.index)
    upto = before + plan.num_envs
    return max(1, episodes * upto // total - episodes * before // total)


def _no_home() -> Home:
    raise PlaneError("nobody opened any shared memory")


class Actor:
    """A policy and the version of the weights it has; training and evaluation have one each."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.version = 0

    def load(self, version: int, data: bytes, *, policy_id: str) -> None:
        """Take over published weights.

        Raises:
            EnvError: they do not fit this policy, or it raised, the user's code maybe.
        """
        try:
            self.policy.set_weights(unpack(data)[0])
        except WeightsError as error:
            raise EnvError(f"published weights do not fit: {error}", key="policy.id", value=policy_id) from error
        except user_errors() as error:
            reason = f"set_weights raised {describe_error(error)}, at policy version {version}"
            raise EnvError(reason, key="policy.id", value=policy_id) from error
        self.version = version


class Stage:
    """One experiment as this worker plays it.

    Everything of the user's is made at first use, so that it happens while the watchdog looks.

    Args:
        stored: the spec as submitted.
        fetch: the broker's `policies.fetch`.
        home: opens the experiment's shared memory on this host.

    Attributes:
        packer: of its batches.
        pace: chooses how environments are stepped; None where the spec says so.
        not_taken: why its environments cannot be snapshotted, as far as that was told.
    """

    def __init__(self, stored: StoredSpec, fetch: Fetch, *, clock: Clock, home: Callable[[], Home] = _no_home) -> None:
        self.experiment = stored.experiment
        self.spec: ExperimentSpec = spec_from_json(stored.json)
        self._sha256 = stored.sha256 or self.spec.sha256()  # of it as it was submitted: a later version knows more keys
        self.packer = Packer(self.spec, home)
        self.plans = plan_shards(self.spec)
        seed = self.spec.experiment.seed
        self._seed = continued_seed(seed, stored.resume_from) if stored.resume_from else seed
        self._spaces_json = stored.spaces
        self._spaces: tuple[Space, Space] | None = None
        self._fetch = fetch
        self._clock = clock
        self._actors: dict[str, Actor] = {}
        self._layout: Layout | None = None
        self.pace = Pace(self.spec, clock=clock) if self.spec.env.stepping == "auto" else None
        self.not_taken: set[str] = set()

    @property
    def stepping(self) -> str:
        """How environments are stepped, as `env.stepping` names it."""
        return self.spec.env.stepping if self.pace is None else self.pace.choice.mode

    @property
    def ttl_ms(self) -> int:
        """How long a lease lasts."""
        return int(self.spec.faults.lease_ttl * 1000)

    def plan_of(self, claim: Claim) -> ShardPlan:
        """How the claimed shard is laid out."""
        return self.plans[claim.lease.shard]

    def make_player(self, claim: Claim, *, at_start: bool = False) -> Play:
        """The environments of a shard, with seeds that no earlier owner used.

        Args:
            at_start: with the seeds of the very first owner, for nothing of the shard was ever accepted.

        Raises:
            EnvError: the environment or the policy cannot be made.
        """
        plan = self.plans[claim.lease.shard]
        claim_number = 1 if at_start else claim.attempts
        begin_at = first_episode(claim_number, claim.seq, self.spec.rollout.steps)
        actor = self._actor(claim.kind)
        make: type[Player | VectorPlayer | ReadyPlayer] = VectorPlayer if self.spec.env.at_once else Player
        if self.stepping != "inline":
            make = ReadyPlayer
        player = make(
            plan,
            self.spec,
            actor.policy,
            self.layout(),
            clock=self._clock,
            first_episode=begin_at,
            seed=self._seed if plan.kind == "train" else None,
        )
        return self._identified(player)

    def resume_player(
        self, claim: Claim, snapshot: bytes, restoring: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> Play:
        """The environments of a shard where a snapshot left them.

        Args:
            restoring: what that is done within, once they are made.

        Raises:
            SnapshotError: they cannot be brought there; those that were made are closed.
            EnvError: the environment or the policy cannot be made.
        """
        player = self.make_player(claim)
        try:
            with restoring():
                player.resume(snapshot)
        except SnapshotError:
            player.close()
            raise
        return player

    def paced(self, player: Play) -> Play:
        """Between two segments: `player`, or what goes on in its place where its steps have shown to wait."""
        return player if self.pace is None else self.pace.follow(player, self._beside)

    def _beside(self, player: Play) -> Play:
        plan, seed = player.plan, self._seed if player.plan.kind == "train" else None
        envs = player.standing.envs
        made = ReadyPlayer(plan, self.spec, player.policy, player.layout, envs=envs, clock=self._clock, seed=seed)
        return self._identified(made)

    def _identified(self, player: Play) -> Play:
        """Its snapshots are of the spec as it was submitted, whichever version of Heddle takes or reads them."""
        player.standing.identity = replace(player.standing.identity, spec=self._sha256)
        return player

    def layout(self) -> Layout:
        """The layout of this experiment's batches."""
        if self._layout is None:
            observation, action = self._look_at_spaces()
            policy = self._actor("train").policy
            self._layout = rollout_layout(observation, action, policy, self.spec.rollout)
        return self._layout

    def version(self, kind: str) -> int:
        """The version loaded for training or evaluation; 0 before the first."""
        return self._actors[kind].version if kind in self._actors else 0

    def load_newest(self, wanted: int, *, loading: Watch = nullcontext) -> bool:
        """Have at least version `wanted` for training; True when it had to be fetched.

        Args:
            loading: entered while the policy, which may be the user's, takes the weights over.

        Raises:
            NotFound: nothing is published (any more, then PolicyLost); BrokerError, Gone: as they say.
            EnvError: what is published does not fit the policy.
        """
        actor = self._actor("train")
        if actor.version >= wanted:
            return False
        self._load(actor, None, loading)
        return True

    def load_pinned(self, version: int, *, loading: Watch = nullcontext) -> bool:
        """Have exactly `version` for evaluation; True when it had to be fetched. All else as in `load_newest`."""
        actor = self._actor("eval")
        if actor.version == version:
            return False
        self._load(actor, version, loading)
        return True

    def evaluation(self, claim: Claim, player: Play) -> Iterator[tuple[Segments, bool]]:
        """Plays this shard's part of an evaluation of the pinned version; the bool marks the last segment."""
        assert self.spec.eval is not None
        plan = self.plans[claim.lease.shard]
        return player.play_episodes(
            self.version("eval"),
            episodes_of(plan, self.plans, self.spec.eval.episodes),
            deterministic=self.spec.eval.deterministic,
            most_steps=self.spec.eval.max_steps,
        )

    def _load(self, actor: Actor, version: int | None, loading: Watch) -> None:
        try:
            fetched, data = self._fetch(self.experiment, version)
        except TornWeights as error:  # damaged where they lie
            raise PolicyLost(str(error), version=error.version) from error
        with loading():
            actor.load(fetched, data, policy_id=self.spec.policy.id)

    def _actor(self, kind: str) -> Actor:
        if kind not in self._actors:
            observation, action = self._look_at_spaces()
            policy = make_policy(self.spec.policy, observation, action, seed=self.spec.experiment.seed)
            hold_torch_to_one_thread()  # workers share a host: each with threads for all its cores would be too many
            self._actors[kind] = Actor(policy)
        return self._actors[kind]

    def _look_at_spaces(self) -> tuple[Space, Space]:
        if self._spaces is None and self._spaces_json:
            spaces = json.loads(self._spaces_json)
            self._spaces = from_json(spaces["observation"]), from_json(spaces["action"])
        if self._spaces is None:
            self._spaces = check_vector(self.spec) if self.spec.env.at_once else check_env(self.spec)
        return self._spaces
