"""Stable-Baselines3: the rollouts of its PPO, into its own buffer, in its one process; nothing is learned."""

from functools import partial

import torch
from common import ENVS, STEPS, makers
from envs import Images
from nets import seen
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

torch.set_num_threads(1)


class Seen(BaseFeaturesExtractor):
    """What the network sees."""

    def __init__(self, space):
        size, pick = seen(space)
        super().__init__(space, size)
        self.pick = pick

    def forward(self, observations):
        return self.pick(observations)


class Rollouts:
    """A PPO that only collects."""

    def __init__(self, vector, steps):
        shape = {"net_arch": [64, 64], "features_extractor_class": Seen, "normalize_images": False}
        self._model = PPO("MlpPolicy", vector, n_steps=steps, device="cpu", policy_kwargs=shape)
        self._size = steps * vector.num_envs
        self._model._setup_learn(10**12)  # what learn() does before its first rollout
        self._nothing = CallbackList([])
        self._nothing.init_callback(self._model)

    def segment(self):
        """One buffer full; how many steps that is."""
        model = self._model
        model.collect_rollouts(model.env, self._nothing, model.rollout_buffer, n_rollout_steps=model.n_steps)
        return self._size

    def close(self):
        """End what steps the environments."""
        self._model.env.close()


def inline(workload):
    """One environment after the other; channels first, or SB3 would turn each image."""
    make = makers(workload)
    if workload == "w2":
        make = [partial(Images, place, first=True) for place in range(ENVS[workload])]
    return Rollouts(DummyVecEnv(make), STEPS[workload])


def processes(workload):
    """A process for each environment."""
    return Rollouts(SubprocVecEnv(makers(workload), start_method="fork"), STEPS[workload])


SIDES = {"w1": partial(inline, "w1"), "w2": partial(inline, "w2"), "w3": partial(processes, "w3")}
