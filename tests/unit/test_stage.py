"""What a worker plays an experiment's shards with: seeds that no earlier owner used, one thread of torch."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from heddle.broker.records import StoredSpec
from heddle.broker.types import Claim, Lease
from heddle.clock import SystemClock
from heddle.errors import EnvError
from heddle.policies.weights import pack
from heddle.producers.stage import Stage
from heddle.spec import load_spec
from tests.unit.fake_envs import Drawn


def stage(*, resume_from: str | None = None, **sections: dict[str, Any]) -> Stage:
    """Of CartPole with one training and one evaluation environment; policy 1 is there."""
    base: dict[str, dict[str, Any]] = {
        "experiment": {"name": "test"},
        "env": {"id": "CartPole-v1", "num_envs": 1},
        "rollout": {"steps": 4},
        "eval": {"num_envs": 1, "episodes": 1},
        "budget": {"env_steps": 100},
    }
    spec = load_spec({**base, **sections}).spec
    stored = StoredSpec(
        experiment="test-1",
        name="test",
        pool="default",
        owner="",
        toml="",
        json=spec.canonical_json(),
        sha256="",
        spaces="",
        code="",
        protocol=1,
        created_ms=0,
        resume_from=resume_from,
    )
    return Stage(stored, lambda experiment, version: (1, b""), clock=SystemClock())


def claim(kind: str = "train", *, attempts: int = 1, seq: int = 0) -> Claim:
    """The shard's claim number `attempts`, when `seq` batches of it are accepted."""
    shard = 0 if kind == "train" else 1
    values: dict[str, Any] = {"kind": kind, "attempts": attempts, "seq": seq, "given": 0, "sync": False}
    lease = Lease(experiment="test-1", partition=0, shard=shard, worker="w", epoch=attempts, nonce="n")
    return Claim(lease=lease, command="run", policy=1, min_policy=0, eval_policy=1, snapshot=None, **values)


def first_observation(made: Stage, taken: Claim) -> tuple[float, ...]:
    player = made.make_player(taken)
    try:
        return tuple(player.play(1).arrays["obs"][0, 0].tolist())
    finally:
        player.close()


def test_the_same_spec_plays_the_same_episodes_for_its_first_owner() -> None:
    assert first_observation(stage(), claim()) == first_observation(stage(), claim())


def test_an_owner_after_the_broker_forgot_batches_plays_other_episodes() -> None:
    made = stage()
    owners = [claim(attempts=1), claim(attempts=2), claim(attempts=3), claim(attempts=3, seq=1)]
    assert len({first_observation(made, owner) for owner in owners}) == len(owners)


def test_a_run_that_goes_on_plays_other_episodes_than_the_one_before_and_is_evaluated_on_the_same() -> None:
    before, after = stage(), stage(resume_from="test-0")
    later = stage(resume_from="test-1")
    assert len({first_observation(made, claim()) for made in (before, after, later)}) == 3
    assert first_observation(before, claim("eval")) == first_observation(after, claim("eval"))


@pytest.fixture
def threads() -> Iterator[None]:
    """torch may use two threads, and again what it could before when the test is over."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_a_policy_with_torch_acts_in_one_thread() -> None:
    stage(policy={"id": "tests.unit.policy_zoo:Linear"}).layout()
    assert torch.get_num_threads() == 1


class Refusing(Drawn):
    """Takes no weights."""

    def __init__(self, observation: object, action: object) -> None:
        super().__init__(2)

    def set_weights(self, weights: object) -> None:
        raise ArithmeticError("not these")


def test_a_policy_that_raises_over_published_weights_is_named_with_their_version() -> None:
    made = stage(policy={"id": "tests.unit.test_stage:Refusing"})
    made._fetch = lambda experiment, version: (7, pack({}, version=7, update=1))
    with pytest.raises(EnvError, match=r"set_weights raised ArithmeticError: not these at .*, at policy version 7"):
        made.load_newest(7)


def test_a_snapshot_of_an_earlier_version_of_heddle_is_of_the_same_spec() -> None:
    # Given an experiment that was submitted before `rollout.frames` was known
    env = {"id": "CartPole-v1", "num_envs": 1}
    spec = load_spec({"experiment": {"name": "t"}, "env": env, "budget": {"env_steps": 9}}).spec
    told = json.loads(spec.canonical_json())
    del told["rollout"]["frames"], told["faults"]["env_failures"]
    text = json.dumps(told)
    digest = hashlib.sha256(text.encode()).hexdigest()
    stored = StoredSpec("t-1", "t", "default", "", "", text, digest, "", "", 1, 0, None)
    # When it is played by this one
    made = Stage(stored, lambda experiment, version: (1, b""), clock=SystemClock())
    player = made.make_player(claim())
    player.close()
    # Then its snapshots go by what was submitted
    assert player.standing.identity.spec == digest
