"""DQN and SAC that look at images: what they do depends on what is to be seen, in worker and trainer alike."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from heddle.consumers.assemble import Assembler
from heddle.consumers.learners import TrainBatch, make_learner
from heddle.consumers.learners.off_policy import OffPolicy
from heddle.errors import EnvError, SpecError
from heddle.layout import Segments, make_layout
from heddle.policies import make_policy
from heddle.policies.base import Policy
from heddle.policies.torch_module import make_module
from heddle.spaces import Box, DictSpace, Discrete, MultiBinary, Space
from tests.unit.policy_zoo import CARTPOLE, draw, make_spec

CPU = torch.device("cpu")
STEPS, ROWS = 8, 16
IMAGE = Box((8, 8, 1), "uint8", 0, 255)
ACTIONS: dict[str, Space] = {"dqn": Discrete(2), "sac": Box((1,), "float32", -2.0, 2.0)}
EYES: dict[str, Any] = {"torso": "cnn", "filters": [[8, 3, 2]], "hidden": [32]}


def play(policy: Policy, learner: str, *, seed: int, explore: bool = True) -> TrainBatch:
    """A bandit: one half of the image is bright. Its number, or 1 with its sign, is what is asked for."""
    rng = np.random.default_rng(seed)
    plan = make_layout(IMAGE, ACTIONS[learner], steps=STEPS, outputs=policy.outputs)
    segments = Segments.empty(plan, ROWS)
    arrays = segments.arrays
    for step in range(STEPS + 1):
        side = rng.integers(2, size=ROWS)
        seen = rng.integers(0, 80, size=(ROWS, 8, 8, 1)).astype(np.uint8)
        for row, half in enumerate(side.tolist()):
            seen[row, :, half * 4 : half * 4 + 4] += 150
        arrays["obs"][:, step] = seen
        if step == STEPS:
            break
        size = (ROWS, policy.noise.size)
        noise = rng.random(size) if policy.noise.kind == "uniform" else rng.standard_normal(size)
        chosen = policy.act({"obs": seen}, {}, noise, deterministic=not explore).actions["action"]
        arrays["action"][:, step] = chosen
        arrays["reward"][:, step] = chosen == side if learner == "dqn" else -np.square(chosen[:, 0] - (2 * side - 1))
    arrays["terminated"][...] = True
    arrays["length"][:] = STEPS
    arrays["env"][:] = np.arange(ROWS)
    return Assembler(plan, device=CPU).assemble([segments], [0])


def make(learner: str, **policy: Any) -> tuple[Policy, OffPolicy]:
    replay = {"samples_per_step": 4.0, "learning_starts": 200}
    spec = make_spec(learner=learner, policy=EYES | policy, lr=5e-3, minibatch=32, replay=replay, gamma=0.9)
    made = make_policy(spec.policy, IMAGE, ACTIONS[learner], seed=1)
    learns: Any = make_learner(spec, made, device=CPU, seed=1)
    return make_policy(spec.policy, IMAGE, ACTIONS[learner], seed=1), learns


@pytest.mark.parametrize(("learner", "bound"), [("dqn", 0.9), ("sac", -0.3)])
def test_what_is_rewarded_here_and_not_there_is_learned_from_the_picture(learner: str, bound: float) -> None:
    policy, made = make(learner, dueling=learner == "dqn")
    for update in range(14):
        policy.set_weights(made.get_weights())
        metrics = made.update(play(policy, learner, seed=update), update / 14)
    policy.set_weights(made.get_weights())
    # blind, half of the guesses are right, and a number between both is wrong by 1 in the square
    assert float(play(policy, learner, seed=999, explore=False).reward.mean()) > bound
    assert all(math.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("torso", ["cnn", "impala"])
@pytest.mark.parametrize(("learner", "answer"), [("dqn", "q"), ("sac", "mean")])
def test_worker_and_trainer_see_the_same_and_weights_come_back_as_they_went(
    learner: str, answer: str, torso: str
) -> None:
    seen: Space = DictSpace({"camera": IMAGE, "speed": Box((3,), "float32"), "lamp": MultiBinary((2,))})
    eyes = EYES if torso == "cnn" else {"torso": torso, "hidden": [32]}
    spec = make_spec(learner=learner, policy=eyes, normalize_observations=True)
    first = make_policy(spec.policy, seen, ACTIONS[learner], seed=1)
    made = make_learner(spec, first, device=CPU, seed=1)
    policy: Any = make_policy(spec.policy, seen, ACTIONS[learner], seed=2)
    assert policy.get_weights().keys() <= made.get_weights().keys()
    policy.set_weights(made.get_weights())
    shown = draw(seen, 20, np.random.default_rng(0))
    model = make_module(policy, device=CPU)
    model.set_weights({name: a for name, a in made.get_weights().items() if name not in ("epsilon", "random")})
    tensors = model.normalise({name: torch.from_numpy(array) for name, array in shown.items()})
    expected = model.answer(tensors, {})[answer].detach().numpy()
    np.testing.assert_allclose(policy._answers(shown)[answer], expected, rtol=1e-4, atol=1e-6)
    again = policy.get_weights()
    assert all(np.array_equal(again[name], array) for name, array in made.get_weights().items())


def test_the_same_seed_gives_the_same_first_weights_and_hidden_layers_follow_from_the_torso() -> None:
    spec = make_spec(learner="dqn", policy={"torso": "cnn", "filters": [[8, 3, 2]]})
    assert (spec.policy.hidden, spec.policy.activation) == ((512,), "relu")
    one, other = (make_policy(spec.policy, IMAGE, Discrete(2), seed=7).get_weights() for _ in range(2))
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_eyes_without_a_picture_and_keys_of_eyes_without_eyes_are_refused() -> None:
    with pytest.raises(EnvError, match="needs an image to look at"):
        make_policy(make_spec(learner="dqn", policy=EYES).policy, CARTPOLE, Discrete(2))
    with pytest.raises(SpecError, match=r"policy.filters.*has no meaning with policy.id = 'q'"):
        make_spec(learner="dqn", policy={"filters": [[8, 3, 2]]})
