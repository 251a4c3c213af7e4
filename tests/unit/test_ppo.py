"""PPO improves what it should, continues where it stopped, and refuses what it cannot train."""

from typing import Any

import numpy as np
import pytest
import torch

from heddle.consumers.assemble import Assembler
from heddle.consumers.learners import Ppo, TrainBatch, make_learner, resolve_device
from heddle.errors import CheckpointError, EnvError, ExperimentFailed
from heddle.layout import Segments, make_layout
from heddle.policies import make_policy
from heddle.policies.base import Policy
from heddle.policies.weights import WeightsError
from heddle.spaces import Box, DictSpace, Discrete, MultiBinary, MultiDiscrete, Space, TupleSpace
from heddle.spec import ExperimentSpec
from tests.unit.policy_zoo import CARTPOLE, MASKED, draw, make_spec

CPU = torch.device("cpu")
ZOO = "tests.unit.policy_zoo"
STEPS = 8


def play(
    policy: Policy, observation: Space, action: Space, *, rows: int = 16, seed: int = 0, shorten: bool = False
) -> TrainBatch:
    """A bandit: each step is an episode; reward 1 for action 0 (or for the negative of a Box action's square)."""
    rng = np.random.default_rng(seed)
    plan = make_layout(observation, action, steps=STEPS, outputs=policy.outputs, state=policy.state)
    segments = Segments.empty(plan, rows)
    arrays = segments.arrays
    for step in range(STEPS + 1):
        seen = draw(observation, rows, rng)
        if "obs.action_mask" in seen:
            seen["obs.action_mask"][...] = 1
        for name, values in seen.items():
            arrays[name][:, step] = values
        if step == STEPS:
            break
        size = policy.noise.size
        noise = rng.random((rows, size)) if policy.noise.kind == "uniform" else rng.standard_normal((rows, size))
        acted = policy.act(seen, policy.initial_state(rows), noise)
        for name, chosen in acted.actions.items():
            arrays[name][:, step] = chosen
        for name, values in acted.outputs.items():
            arrays[f"out.{name}"][:, step] = values
        for chosen in acted.actions.values():
            arrays["reward"][:, step] += _good(chosen, rows)
    arrays["terminated"][...] = True
    arrays["length"][:] = STEPS
    if shorten:
        arrays["length"][::2] = 3
        arrays["reward"][::2, 3:] = np.nan  # beyond the end: nothing may look there
    arrays["env"][:] = np.arange(rows)
    return Assembler(plan, device=CPU).assemble([segments], [0])


def _good(chosen: Any, rows: int) -> Any:
    """Zeros among integers are good, and ones among floats."""
    if chosen.dtype.kind == "f":
        return -np.square(chosen - 1).reshape(rows, -1).sum(axis=1)
    return (chosen == 0).reshape(rows, -1).mean(axis=1)


MANY = DictSpace(
    {
        "arm": Box((2,), "float32", -1, 2),
        "gear": Discrete(3),
        "keys": TupleSpace((MultiDiscrete((2, 3)), MultiBinary((2,)))),
    }
)
CASES: list[tuple[Space, Space, dict[str, Any]]] = [
    (CARTPOLE, Discrete(3), {}),
    (CARTPOLE, Discrete(3), {"shared": True, "activation": "relu"}),
    (CARTPOLE, Box((2,), "float32", -1, 1), {}),
    (MASKED, Discrete(3), {}),
    (CARTPOLE, Discrete(3), {"id": f"{ZOO}:Linear"}),
    (CARTPOLE, Discrete(3), {"id": f"{ZOO}:Remembers"}),
    (CARTPOLE, Discrete(3), {"id": f"{ZOO}:Plain"}),
    (CARTPOLE, MANY, {"std": "state", "squash": True}),
    (CARTPOLE, MANY, {"id": "gru", "recurrent_size": 16, "std": "state"}),
]


@pytest.mark.parametrize(("observation", "action", "named"), CASES)
def test_the_reward_rises_whatever_the_spaces_and_the_policy(
    observation: Space, action: Space, named: dict[str, Any]
) -> None:
    # Given a policy and a learner for it
    spec = make_spec(policy=named, lr=3e-3, minibatch=64, passes=8, normalize_observations="Plain" not in str(named))
    policy = make_policy(spec.policy, observation, action, seed=1)
    learner = make_learner(spec, policy, device=CPU, seed=1)
    policy.set_weights(learner.get_weights())
    before = float(play(policy, observation, action, seed=999).reward.mean())
    # When it learns from its own data, some of it in short segments
    for update in range(15):
        metrics = learner.update(play(policy, observation, action, seed=update, shorten=True), update / 15)
        policy.set_weights(learner.get_weights())
    # Then it does what is rewarded more often
    after = float(play(policy, observation, action, seed=999).reward.mean())
    assert after > before + 0.3
    assert all(np.isfinite(value) for value in metrics.values())
    assert {"policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "lr"} <= metrics.keys()


def recall(policy: Policy, *, seed: int) -> TrainBatch:
    """Episodes of two steps: the first observation shows a sign, the second nothing; then acting by it is rewarded.

    Half of the segments start in the middle of an episode, from the state the policy had then.
    """
    rng, rows = np.random.default_rng(seed), 32
    plan = make_layout(CARTPOLE, Discrete(2), steps=STEPS, outputs=policy.outputs, state=policy.state)
    segments = Segments.empty(plan, rows)
    arrays, state = segments.arrays, policy.initial_state(rows)
    shown = np.zeros(rows, np.int64)
    for step in range(-1, STEPS + 1):
        first = (np.arange(rows) + step) % 2 == 0
        shown = np.where(first, rng.integers(0, 2, rows), shown)
        seen = np.zeros((rows, 4), np.float32)
        seen[:, 0] = np.where(first, 2 * shown - 1, 0)
        state = {name: np.where(first[:, None], 0, array).astype(np.float32) for name, array in state.items()}
        if step == 0:
            for name, array in state.items():
                arrays[f"state.{name}"][...] = array
        if step >= 0:
            arrays["obs"][:, step] = seen
        if step == STEPS:
            break
        acted = policy.act({"obs": seen}, state, rng.random((rows, 1)))
        state = acted.state
        if step >= 0:
            arrays["action"][:, step] = acted.actions["action"]
            arrays["out.log_prob"][:, step] = acted.outputs["log_prob"]
            arrays["reward"][:, step] = ~first & (acted.actions["action"] == shown)
            arrays["terminated"][:, step] = ~first
    arrays["length"][:] = STEPS
    return Assembler(plan, device=CPU).assemble([segments], [0])


def check_that_it_learns_to_recall(spec: ExperimentSpec) -> None:
    """A recurrent policy, in an environment where the deciding observation is one step old."""
    policy = make_policy(spec.policy, CARTPOLE, Discrete(2), seed=1)
    learner = make_learner(spec, policy, device=CPU, seed=1)
    # When it learns for a while
    for update in range(25):
        policy.set_weights(learner.get_weights())
        learner.update(recall(policy, seed=update), 0.0)
    # Then it is right nearly always, where guessing gives half of the 0.5 a step
    policy.set_weights(learner.get_weights())
    assert float(recall(policy, seed=999).reward.mean()) > 0.45


def test_a_recurrent_policy_learns_what_only_memory_can_tell() -> None:
    policy = {"id": f"{ZOO}:Remembers"}
    check_that_it_learns_to_recall(make_spec(policy=policy, lr=1e-2, minibatch=128, passes=4, gamma=0.5))


def test_on_fresh_data_the_first_ratio_is_one() -> None:
    # Given a learner whose step is nothing, so that all its minibatches see the acting policy
    spec = make_spec(lr=0.0, passes=2, normalize_observations=True)
    policy = make_policy(spec.policy, CARTPOLE, Discrete(2), seed=1)
    learner = make_learner(spec, policy, device=CPU, seed=1)
    for update in range(3):
        policy.set_weights(learner.get_weights())
        metrics = learner.update(play(policy, CARTPOLE, Discrete(2), seed=update), 0.0)
        # Then worker and trainer agree on every probability, statistics of observations included
        assert abs(metrics["kl"]) < 1e-6
        assert metrics["clip_fraction"] == 0.0


def test_schedules_follow_progress() -> None:
    spec = make_spec(lr={"start": 1e-3, "end": 0.0}, clip={"start": 0.2, "end": 0.1}, passes=1)
    policy = make_policy(spec.policy, CARTPOLE, Discrete(2))
    learner = make_learner(spec, policy, device=CPU, seed=0)
    metrics = learner.update(play(policy, CARTPOLE, Discrete(2)), 0.25)
    assert metrics["lr"] == pytest.approx(7.5e-4)
    assert metrics["clip"] == pytest.approx(0.175)
    assert metrics["explained_variance"] < 1.0


def test_a_number_that_says_nothing_is_left_out() -> None:
    spec = make_spec()
    policy = make_policy(spec.policy, CARTPOLE, Discrete(2))
    batch = play(policy, CARTPOLE, Discrete(2))
    batch.reward.fill_(1.0)
    assert "explained_variance" not in make_learner(spec, policy, device=CPU, seed=0).update(batch, 0.0)


def test_target_kl_ends_an_update_early() -> None:
    spec = make_spec(lr=0.05, passes=10, minibatch=16, target_kl=0.01)
    policy = make_policy(spec.policy, CARTPOLE, Discrete(2))
    learner = make_learner(spec, policy, device=CPU, seed=0)
    assert learner.update(play(policy, CARTPOLE, Discrete(2)), 0.0)["passes"] < 10


def test_a_resumed_learner_goes_on_exactly_as_the_first_would_have() -> None:
    # Given a learner that did two updates, with every kind of state it can have
    spec = make_spec(
        normalize_observations=True, normalize_rewards=True, recompute_advantage=True, value_clip=0.2, entropy=0.01
    )
    policy = make_policy(spec.policy, CARTPOLE, Discrete(2), seed=1)
    first = make_learner(spec, policy, device=CPU, seed=5)
    for update in range(2):
        first.update(play(policy, CARTPOLE, Discrete(2), seed=update), 0.0)
    # When another one takes over its weights and state
    other = make_policy(spec.policy, CARTPOLE, Discrete(2), seed=77)
    second = make_learner(spec, other, device=CPU, seed=6)
    second.set_weights(first.get_weights())
    second.load(*first.state())
    # Then the third update gives the same numbers and the same weights
    batch = play(policy, CARTPOLE, Discrete(2), seed=2)
    assert first.update(batch, 0.5) == second.update(batch, 0.5)
    one, two = first.get_weights(), second.get_weights()
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert first.state()[1] == second.state()[1] == {"learner": "ppo", "updates": 3}


def test_learning_is_the_same_for_the_same_seed() -> None:
    def weights() -> np.ndarray:
        spec = make_spec()
        policy = make_policy(spec.policy, CARTPOLE, Discrete(2), seed=1)
        learner = make_learner(spec, policy, device=CPU, seed=5)
        learner.update(play(policy, CARTPOLE, Discrete(2)), 0.0)
        return learner.get_weights()["policy.0.weight"]

    np.testing.assert_array_equal(weights(), weights())


def test_steps_beyond_a_segments_end_do_not_count() -> None:
    # Given the same short segments with different rubbish after their ends
    spec = make_spec(normalize_rewards=True, normalize_observations=True)
    policy = make_policy(spec.policy, CARTPOLE, Discrete(2), seed=1)
    found = []
    for rubbish in (0.0, 1e6):
        learner = make_learner(spec, policy, device=CPU, seed=5)
        batch = play(policy, CARTPOLE, Discrete(2), shorten=True)
        batch.reward[~batch.valid] = rubbish
        batch.outputs["log_prob"][~batch.valid] = rubbish
        batch.observations["obs"][::2, 4:] = rubbish
        # When learned from
        learner.update(batch, 0.0)
        found.append(learner.get_weights())
    # Then the weights are the same
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0])


def test_numbers_that_are_not_finite_end_the_experiment_naming_the_update() -> None:
    spec = make_spec()
    policy = make_policy(spec.policy, CARTPOLE, Discrete(2))
    learner = make_learner(spec, policy, device=CPU, seed=0)
    batch = play(policy, CARTPOLE, Discrete(2))
    learner.update(batch, 0.0)
    batch.reward[0, 0] = float("inf")
    with pytest.raises(ExperimentFailed, match=r"update 2 gave numbers that are not finite \(policy_loss = nan"):
        learner.update(batch, 0.0)


def test_a_policy_without_log_prob_is_refused() -> None:
    spec = make_spec(policy={"id": f"{ZOO}:AlwaysRight"})
    policy = make_policy(spec.policy, CARTPOLE, Discrete(2))
    with pytest.raises(EnvError, match="does not report log_prob"):
        make_learner(spec, policy, device=CPU, seed=0)


def test_state_of_another_learner_or_policy_is_refused() -> None:
    spec = make_spec()
    small = make_learner(spec, make_policy(spec.policy, CARTPOLE, Discrete(2)), device=CPU, seed=0)
    large = make_learner(spec, make_policy(spec.policy, Box((9,), "float32"), Discrete(2)), device=CPU, seed=0)
    tensors, meta = large.state()
    with pytest.raises(CheckpointError, match="of another policy"):
        small.load(tensors, meta)
    with pytest.raises(CheckpointError, match="'vtrace'"):
        small.load(tensors, {"learner": "vtrace"})
    with pytest.raises(CheckpointError, match="incomplete"):
        small.load({name: array for name, array in small.state()[0].items() if name != "generator"}, meta)
    with pytest.raises(WeightsError):
        small.set_weights(large.get_weights())


class Counts:
    """A learner of the user's."""

    min_steps = 1

    def __init__(self, spec: object, policy: Policy, *, device: torch.device, seed: int, start: int = 0) -> None:
        self.count = start

    def update(self, batch: TrainBatch, progress: float) -> dict[str, float]:
        self.count += batch.num_steps
        return {"count": float(self.count)}

    def get_weights(self) -> dict[str, np.ndarray]:
        return {}

    set_weights = state = load = get_weights


def test_a_learner_of_the_users_is_made_with_its_kwargs() -> None:
    spec = make_spec(learner="tests.unit.test_ppo:Counts", kwargs={"start": 5})
    policy = make_policy(spec.policy, CARTPOLE, Discrete(2))
    learner = make_learner(spec, policy, device=CPU, seed=0)
    assert learner.update(play(policy, CARTPOLE, Discrete(2), rows=2), 0.0) == {"count": 21.0}


class Idle:
    """Not a learner: it cannot learn."""

    def __init__(self, spec: object, policy: Policy, **options: Any) -> None:
        self.options = options


def test_what_is_no_learner_is_refused() -> None:
    policy = make_policy(make_spec().policy, CARTPOLE, Discrete(2))
    with pytest.raises(EnvError, match="lacks min_steps, update"):
        make_learner(make_spec(learner="tests.unit.test_ppo:Idle"), policy, device=CPU, seed=0)
    with pytest.raises(EnvError, match="raised TypeError"):
        make_learner(make_spec(learner="tests.unit.test_ppo:Counts", kwargs={"stop": 1}), policy, device=CPU, seed=0)


def test_devices_are_chosen_by_name() -> None:
    assert resolve_device("cpu").type == "cpu"
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_ppo_says_how_many_steps_it_needs() -> None:
    assert Ppo.min_steps == 2
