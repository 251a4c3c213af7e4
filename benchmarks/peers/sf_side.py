"""Sample Factory: its sampler alone, by its own sampling API; rollout processes, one process for the policy."""

import os
import tempfile
from functools import partial

from common import ENVS, MAKERS, RUNNERS, STEPS
from nets import seen
from sample_factory.algo.sampling.simplified_sampling_api import SyncSamplingAPI
from sample_factory.algo.utils.context import global_model_factory
from sample_factory.algo.utils.env_info import obtain_env_info_in_a_separate_process
from sample_factory.algo.utils.rl_utils import samples_per_trajectory
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.encoder import Encoder
from sample_factory.model.model_utils import create_mlp, nonlinearity

WORKERS = {"w1": RUNNERS, "w2": RUNNERS, "w3": 32}
"""Rollout processes; each steps half of its environments while the policy looks at the other half."""
BELOW = 10
"""Its rollout processes give way to everybody by so much, which no other side's do; only root can keep them from it."""


class Seen(Encoder):
    """64-64 over what the network sees; the heads are linear."""

    def __init__(self, cfg, space):
        super().__init__(cfg)
        size, self.pick = seen(space["obs"])
        self.body = create_mlp(cfg.encoder_mlp_layers, size, nonlinearity(cfg))

    def forward(self, observations):
        return self.body(self.pick(observations["obs"]))

    def get_out_size(self):
        return 64


def make(name, cfg, config, render_mode=None):
    """An environment by its workload."""
    return MAKERS[name](config.env_id if config and "env_id" in config else 0)


class Sampler:
    """The sampler of one workload."""

    def __init__(self, workload):
        register_env(workload, make)
        global_model_factory().register_encoder_factory(Seen)
        self._folder = tempfile.TemporaryDirectory(prefix="sf-")
        workers = WORKERS[workload]
        options = {
            "env": workload,
            "train_dir": self._folder.name,
            "device": "cpu",
            "benchmark": True,
            "default_niceness": os.nice(0) - BELOW if os.geteuid() == 0 else 0,
            "num_workers": workers,
            "num_envs_per_worker": ENVS[workload] // workers,
            "worker_num_splits": 2,
            "rollout": STEPS[workload],
            "batch_size": ENVS[workload] * STEPS[workload],
            "decorrelate_experience_max_seconds": 0,
            "decorrelate_envs_on_one_worker": False,
            "use_rnn": False,
            "normalize_input": False,
            "obs_scale": 1.0,
            "encoder_mlp_layers": [64, 64],
            "nonlinearity": "tanh",
        }
        argv = []
        for name, value in options.items():
            argv += [f"--{name}", *(map(str, value) if isinstance(value, list) else [str(value)])]
        parser, _ = parse_sf_args(argv)
        cfg = parse_full_cfg(parser, argv)
        self._sampler = SyncSamplingAPI(cfg, obtain_env_info_in_a_separate_process(cfg))
        self._sampler.start()

    def segment(self):
        """The next trajectory, of whichever environment."""
        return samples_per_trajectory(self._sampler.get_trajectories_sync())

    def close(self):
        """End its processes."""
        self._sampler.stop()
        self._folder.cleanup()


SIDES = {workload: partial(Sampler, workload) for workload in ("w1", "w2", "w3")}
