"""RLlib's new stack: two EnvRunners sample, the driver fetches whichever is ready as IMPALA does; nobody learns."""

from functools import partial

import gymnasium
import torch
from common import ENVS, MAKERS, RUNNERS, STEPS
from nets import seen, tower
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from ray.rllib.env.env_runner_group import EnvRunnerGroup
from ray.tune.registry import register_env
from ray_local import LocalRay

AHEAD = 2
"""Requests that each runner has before it, IMPALA's number."""
PATIENCE_S = 60.0


class Network(TorchRLModule):
    """Logits; RLlib asks for values while it learns, not while it samples."""

    def setup(self):
        torch.set_num_threads(1)
        size, self.pick = seen(self.observation_space)
        self.logits = tower(size, int(self.action_space.n))

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.logits(self.pick(batch[Columns.OBS]))}


class Runners:
    """Both, and what they have sent."""

    def __init__(self, workload):
        self._ray = LocalRay(RUNNERS)
        register_env(workload, lambda context: MAKERS[workload]())
        vectorize = gymnasium.VectorizeMode.ASYNC if workload == "w3" else gymnasium.VectorizeMode.SYNC
        config = (
            PPOConfig()
            .environment(workload)
            .env_runners(
                num_env_runners=RUNNERS,
                num_envs_per_env_runner=ENVS[workload] // RUNNERS,
                rollout_fragment_length=STEPS[workload],
                gym_env_vectorize_mode=vectorize,
                max_requests_in_flight_per_env_runner=AHEAD,
            )
            .rl_module(rl_module_spec=RLModuleSpec(module_class=Network))
        )
        config.freeze()
        self._group = EnvRunnerGroup(config=config, local_env_runner=False)

    def segment(self):
        """What is ready."""
        steps = 0
        for episodes in self._group.foreach_env_runner_async_fetch_ready(
            func="sample", tag="sample", timeout_seconds=PATIENCE_S
        ):
            steps += sum(len(episode) for episode in episodes)
        return steps

    def close(self):
        """End the runners and Ray."""
        self._group.stop()
        self._ray.close()


SIDES = {workload: partial(Runners, workload) for workload in ("w1", "w2", "w3")}
