"""TorchRL: a MultiAsyncCollector of two processes over Gymnasium's vector environments; nobody learns.

A SerialEnv of single environments does the same at three times the CPU a step; an AsyncBatchedCollector of threads
gives a tenth of the steps at W3.
"""

from functools import partial

import torch
from common import ENVS, RUNNERS, STEPS, makers
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from nets import seen, tower
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical
from torchrl.collectors import MultiAsyncCollector
from torchrl.envs import GymWrapper
from torchrl.modules import ProbabilisticActor

torch.set_num_threads(1)


def vector(workload, part):
    """One part of the environments, stepped one after the other, or each in a process where a step waits."""
    make = makers(workload, part, RUNNERS)
    if workload == "w3":
        inner = AsyncVectorEnv(make, context="fork", autoreset_mode=AutoresetMode.SAME_STEP)  # episodes never end
    else:
        inner = SyncVectorEnv(make, autoreset_mode=AutoresetMode.DISABLED)  # which it says is preferred
    return GymWrapper(inner, categorical_action_encoding=True, device="cpu")


def actor(workload):
    """The network, sampled."""
    env = makers(workload)[0]()
    size, pick = seen(env.observation_space)
    network = torch.nn.Sequential(pick, tower(size, int(env.action_space.n)))
    module = TensorDictModule(network, in_keys=["observation"], out_keys=["logits"])
    return ProbabilisticActor(module, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True)


class Collected:
    """Batches as they come."""

    def __init__(self, workload):
        self._collector = MultiAsyncCollector(
            [partial(vector, workload, part) for part in range(RUNNERS)],
            actor(workload),
            frames_per_batch=ENVS[workload] * STEPS[workload] // RUNNERS,
            total_frames=-1,
            device="cpu",
        )
        self._batches = iter(self._collector)

    def segment(self):
        """The next batch of either."""
        return next(self._batches).numel()

    def close(self):
        """End the processes."""
        self._collector.shutdown()


SIDES = {workload: partial(Collected, workload) for workload in ("w1", "w2", "w3")}
