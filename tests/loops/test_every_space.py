"""An environment that shows every kind of space and takes every kind of action, played by a worker, read by a tap."""

from typing import Any

import numpy as np
import pytest

from heddle.broker import Broker
from heddle.consumers.tap import Tap
from heddle.layout import make_layout
from heddle.policies import weights
from heddle.producers.envs import check_env
from heddle.producers.envs_spaces import describe, describe_action
from heddle.producers.isolation.repro import play_again
from heddle.producers.mishap import PlayError
from heddle.producers.player import Player
from heddle.shard import env_seed, plan_shards, root_seed
from heddle.spaces import leaves
from heddle.spec import ExperimentSpec
from tests.fixtures import with_worker
from tests.helpers import eventually
from tests.space_zoo import Chooses, Everything, acting, leaf_values, same
from tests.unit.fake_envs import spec_of
from tests.worker_kit import states, submit

SEED, STEPS, BATCHES = 3, 8, 4
ACTING = describe_action(acting())

broker = with_worker


def played(broker: Broker, isolation: str) -> Tap:
    """A tap of an experiment that a worker plays."""
    submitted = submit(
        broker,
        experiment={"seed": SEED},
        env={"id": "tests.space_zoo:Everything", "num_envs": 2, "envs_per_shard": 2, "isolation": isolation},
        policy={"id": "tests.space_zoo:Chooses"},
        rollout={"steps": STEPS},
        faults={"lease_ttl": 5.0},
    )
    tap = Tap(broker, submitted, "look", describe=check_env)
    seat = broker.seats.claim_seat(submitted, "reader", ttl_ms=600_000)
    assert seat is not None
    broker.policies.publish(submitted, seat, 1, weights.pack({}, version=1, update=1), update=1)
    return tap


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_a_tap_reads_what_a_plain_loop_sees(broker: Broker, isolation: str) -> None:
    # Given batches of an environment with every kind of space
    tap = played(broker, isolation)
    batches: list[Any] = []

    def enough() -> bool:
        batches.extend(tap.poll(block_ms=100))
        return len(batches) >= BATCHES

    eventually(enough, timeout_s=60.0, what=f"{BATCHES} batches; {states(broker, tap._experiment)}")
    broker.experiments.set_command(tap._experiment, "stop")
    # When a plain loop plays the same actions from the same seeds
    for env in range(2):
        rows = [batch.segments.arrays for batch in batches[:BATCHES]]
        assert all(arrays["length"][env] == STEPS for arrays in rows)
        chosen = [leaf.name for leaf in leaves(ACTING, "action")]
        actions = {name: np.concatenate([arrays[name][env] for arrays in rows]) for name in chosen}
        looped = loop(env, [given(actions, step) for step in range(BATCHES * STEPS)])
        # Then nothing differs, cell by cell
        for number, arrays in enumerate(rows):
            compare(arrays, env, looped, number * STEPS)


def given(chosen: dict[str, Any], step: int) -> dict[str, Any]:
    """What the environment is given for what a policy chose, written out."""
    at = {name.removeprefix("action."): values[step] for name, values in chosen.items()}
    alternatives = (int(at["either.0"]) + 2, np.clip(at["either.1"], 0.0, 1.0))
    which = int(at["either.index"])
    return {
        "turn": int(at["turn"]) - 1,
        "dials": (at["dials"] + [[5, 0]]).astype(np.int32),
        "lamps": at["lamps"],
        "push": (np.clip(at["push.0"], np.float32(-0.5), np.float32(0.5)), np.asarray(np.clip(at["push.1"], -3, 3))),
        "either": (which, alternatives[which]),
    }


def loop(env: int, actions: list[Any]) -> list[tuple[Any, float, bool, bool, Any]]:
    """For every step: the observation before it, its reward, how it ended, and the observation behind it."""
    made, episode, found = Everything(), 0, []
    seen, _ = made.reset(seed=env_seed(SEED, 0, env, episode))
    for action in actions:
        after, reward, terminated, truncated, _ = made.step(action)
        found.append((seen, reward, terminated, truncated, after))
        seen = after
        if terminated or truncated:
            episode += 1
            seen, _ = made.reset(seed=env_seed(SEED, 0, env, episode))
    found.append((seen, 0.0, False, False, None))
    return found


def compare(arrays: Any, env: int, looped: list[Any], begin: int) -> None:
    space = describe(Everything().observation_space)
    names = [leaf.name for leaf in leaves(space)]
    finals = np.flatnonzero(arrays["final_row"] == env).tolist()
    for step in range(STEPS + 1):
        seen, reward, terminated, truncated, after = looped[begin + step]
        expected = leaf_values(space, seen)
        assert [name for name in names if not same(arrays[name][env, step], expected[name])] == []
        if step == STEPS:
            break
        assert arrays["reward"][env, step] == np.float32(reward)
        assert arrays["terminated"][env, step] == terminated
        assert arrays["truncated"][env, step] == truncated
        assert arrays["out.seen"][env, step] == sum(len(expected[leaf.name]) for leaf in leaves(space) if leaf.ragged)
        if truncated:
            place = finals.pop(0)
            assert arrays["final_step"][place] == step
            last = leaf_values(space, after)
            assert [name for name in names if not same(arrays[f"final.{name}"][place], last[name])] == []
    assert not finals


def test_torch_batches_hold_padded_tensors_and_lengths(broker: Broker) -> None:
    tap = played(broker, "inline")
    batch = next(tap.torch())
    broker.experiments.set_command(tap._experiment, "stop")
    words, lengths = batch.observations["obs.words"], batch.observations["obs.words:length"]
    assert words.shape[:2] == lengths.shape == (2, STEPS + 1)
    assert words.shape[2] == max(1, int(lengths.max()))
    assert batch.observations["obs.items.where"].shape[-1] == 2
    assert batch.observations["obs.items.name:length.1"].shape[:2] == (2, STEPS + 1)
    assert batch.final_observations["obs.words"].shape[1:] == words.shape[2:]
    assert list(batch.actions) == [leaf.name for leaf in leaves(ACTING, "action")]


def spec_with(**env: Any) -> ExperimentSpec:
    return spec_of(
        env={"id": "tests.space_zoo:Everything", **env},
        policy={"id": "tests.space_zoo:Chooses"},
        rollout={"steps": 4},
    )


def player_of(spec: ExperimentSpec, **options: Any) -> Player:
    observation, action = describe(Everything().observation_space), ACTING
    policy = Chooses(observation, action)
    layout = make_layout(observation, action, steps=spec.rollout.steps, outputs=policy.outputs)
    return Player(plan_shards(spec)[0], spec, policy, layout, **options)


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_who_takes_over_plays_on_bit_for_bit(isolation: str) -> None:
    spec = spec_with(isolation=isolation)
    alone = player_of(spec)
    expected = [alone.play(1) for _ in range(4)]
    alone.close()
    snapshot = b""
    for segments in expected:
        player = player_of(spec, **({"first_episode": 77} if snapshot else {}))
        if snapshot:
            player.resume(snapshot)
        found = player.play(1)
        snapshot = player.standing.pack()
        player.close()
        for name, array in segments.arrays.items():
            pairs = zip(array.reshape(-1), found.arrays[name].reshape(-1), strict=True)
            assert all(same(*pair) or pair[0] != pair[0] for pair in pairs), name


def test_a_failure_is_told_and_played_again_with_every_part_of_its_actions() -> None:
    # Given an environment that fails, and tells with what action
    spec = spec_with(kwargs={"fails_at": 3}, num_envs=1)
    player = player_of(spec)
    with pytest.raises(PlayError) as failed:
        player.play(1)
    player.close()
    # When what was recorded is played again, in a child
    failure, replay = failed.value.failure, failed.value.replay
    outcome = play_again(
        spec, plan_shards(spec)[0], failure, replay,
        seed=root_seed(plan_shards(spec)[0], spec), observation=describe(Everything().observation_space), action=ACTING,
    )  # fmt: skip
    # Then it fails again, with the very same action
    assert outcome.happened
    assert "worth" in failure.what
    assert outcome.what.split(" at ")[0] == failure.what.split(" at ")[0]
    assert list(failure.last_actions[-1]) == [leaf.name for leaf in leaves(ACTING, "action")]
