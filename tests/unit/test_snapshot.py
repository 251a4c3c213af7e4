"""Snapshots of one environment: what comes back, and what is refused with a reason."""

from typing import Any

import gymnasium
import numpy as np

from heddle.producers.envs import make_env
from heddle.producers.snapshot import restore, take
from heddle.spec import load_spec


def _make() -> Any:
    spec = load_spec({"experiment": {"name": "x"}, "env": {"id": "CartPole-v1"}, "budget": {"env_steps": 1}}).spec
    return make_env(spec.env)


def _play(env: Any, steps: int, seed: int) -> list[Any]:
    rng, seen = np.random.default_rng(seed), []
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = env.step(int(rng.integers(2)))
        seen.append((observation.tolist(), float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            seen.append(env.reset()[0].tolist())
    return seen


def test_a_restored_environment_goes_on_bit_for_bit_over_resets_that_name_no_seed() -> None:
    env, other = _make(), _make()
    env.reset(seed=7)
    _play(env, 13, seed=1)
    restore(other, take(env))
    assert isinstance(env, gymnasium.Wrapper)
    assert _play(env, 120, seed=2) == _play(other, 120, seed=2)
