"""Stable-Baselines3: the rollouts of its PPO, into its own buffer; nothing is learned."""

from functools import cache, partial

import gymnasium
import torch
from common import Waiting, play_for
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

torch.set_num_threads(1)


class Rollouts:
    """A PPO that only collects."""

    def __init__(self, vector, steps):
        self._model = PPO("MlpPolicy", vector, n_steps=steps, device="cpu", policy_kwargs={"net_arch": [64, 64]})
        self._size = steps * vector.num_envs
        self._model._setup_learn(10**12)  # what learn() does before its first rollout
        self._nothing = CallbackList([])
        self._nothing.init_callback(self._model)

    def segment(self):
        """One buffer full; how many steps that is."""
        model = self._model
        model.collect_rollouts(model.env, self._nothing, model.rollout_buffer, n_rollout_steps=model.n_steps)
        return self._size


@cache
def _cartpole():
    return Rollouts(DummyVecEnv([partial(gymnasium.make, "CartPole-v1")] * 64), 128)


@cache
def _waiting():
    return Rollouts(SubprocVecEnv([partial(Waiting, place) for place in range(64)], start_method="fork"), 16)


WORKLOADS = {
    "w1": lambda seconds: play_for(seconds, _cartpole().segment),
    "w3": lambda seconds: play_for(seconds, _waiting().segment),
}
