"""The same task with Stable-Baselines3's PPO and the same hyperparameters, for a curve at equal steps.

It reads a spec of Heddle's and imports nothing of Heddle's, so it runs in an environment of its own:

    python3 -m venv /tmp/sb3 && /tmp/sb3/bin/pip install stable-baselines3 minatar
    /tmp/sb3/bin/python benchmarks/sb3.py examples/breakout.toml --seeds 1 2 3 --json runs.jsonl

Only what both have is mapped: environments, gamma, lambda, clip, passes, minibatch, entropy and value coefficients, the
linear schedules, hidden layers, and one convolution torso over images of channels last.
"""

import argparse
import json
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize


class Torso(BaseFeaturesExtractor):
    """Convolutions of [filters, kernel, stride], flattened; images [N, C, H, W] of 0 and 1 as bool or float."""

    def __init__(self, observation_space: gymnasium.spaces.Box, filters: list[list[int]]) -> None:
        channels, layers = observation_space.shape[0], []
        for count, kernel, stride in filters:
            layers += [torch.nn.Conv2d(channels, count, kernel, stride), torch.nn.ReLU()]
            channels = count
        layers.append(torch.nn.Flatten())
        body = torch.nn.Sequential(*layers)
        with torch.no_grad():
            width = body(torch.zeros(1, *observation_space.shape)).shape[1]
        super().__init__(observation_space, width)
        self.body = body

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.body(observations.float())


class Curve(BaseCallback):
    """Mean return of the last 100 episodes after each rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[list[float]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        episodes = self.model.ep_info_buffer
        if episodes:
            self.points.append([self.num_timesteps, float(np.mean([one["r"] for one in episodes]))])


class Image(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Channels first, float32: what the torso reads."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        height, width, channels = env.observation_space.shape or ()
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (channels, height, width), np.float32)

    def observation(self, observation: Any) -> Any:
        return np.ascontiguousarray(np.moveaxis(observation, -1, 0), dtype=np.float32)


def schedule(value: float | dict[str, float]) -> float | Callable[[float], float]:
    """SB3 counts what remains, from 1 to 0."""
    if isinstance(value, dict):
        start, end = value["start"], value["end"]
        return lambda remains: end + (start - end) * remains
    return value


def run(path: Path, seed: int, episodes: int) -> dict[str, Any]:
    """One run of the spec at `path`."""
    spec = tomllib.loads(path.read_text())
    env, rollout, trainer, policy = (spec.get(key, {}) for key in ("env", "rollout", "trainer", "policy"))
    filters = policy.get("filters")
    if env["id"].startswith("MinAtar/"):
        import minatar.gym

        minatar.gym.register_envs()

    def make() -> gymnasium.Env[Any, Any]:
        one = gymnasium.make(env["id"], **env.get("kwargs", {}))
        return Monitor(Image(one) if filters else one)

    envs: Any = DummyVecEnv([make] * env["num_envs"])
    if trainer.get("normalize_observations") or trainer.get("normalize_rewards"):
        normalize = {"norm_obs": bool(trainer.get("normalize_observations")), "gamma": trainer.get("gamma", 0.99)}
        envs = VecNormalize(envs, norm_reward=bool(trainer.get("normalize_rewards")), **normalize)
    hidden = policy.get("hidden", [64, 64])
    activation = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[policy.get("activation", "relu" if filters else "tanh")]
    shape: dict[str, Any] = {"net_arch": {"pi": hidden, "vf": hidden}, "activation_fn": activation}
    if filters:
        shape |= {"features_extractor_class": Torso, "features_extractor_kwargs": {"filters": filters}}
        shape |= {"normalize_images": False, "net_arch": hidden}
    model = PPO(
        "MlpPolicy",
        envs,
        seed=seed,
        device="cpu",
        policy_kwargs=shape,
        n_steps=rollout.get("steps", 32),
        batch_size=trainer.get("minibatch", 64),
        n_epochs=trainer.get("passes", 10),
        learning_rate=schedule(trainer.get("lr", 3e-4)),
        gamma=trainer.get("gamma", 0.99),
        gae_lambda=trainer.get("gae_lambda", 0.95),
        clip_range=schedule(trainer.get("clip", 0.2)),
        ent_coef=trainer.get("entropy", 0.0),
        vf_coef=trainer.get("value_coef", 0.5),
    )
    curve = Curve()
    began = time.perf_counter()
    model.learn(spec["budget"]["env_steps"], callback=curve)
    wall_s = time.perf_counter() - began
    fresh: Any = DummyVecEnv([make] * 4)
    if isinstance(envs, VecNormalize):
        fresh = VecNormalize(fresh, training=False, norm_obs=envs.norm_obs, norm_reward=False)
        fresh.obs_rms = envs.obs_rms
    fresh.seed(1_000_003)
    final, _ = evaluate_policy(model, fresh, n_eval_episodes=episodes, deterministic=True)
    return {
        "spec": path.name,
        "label": "Stable-Baselines3, one process",
        "seed": seed,
        "final": round(float(final), 1),
        "train": round(curve.points[-1][1], 1),
        "steps": int(model.num_timesteps),
        "wall_s": round(wall_s, 1),
        "curve": curve.points,
    }


def main() -> None:
    """Run each seed; one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--json", type=Path, help="append each run to this file, with its curve")
    options = parser.parse_args()
    for seed in options.seeds:
        result = run(options.spec, seed, options.episodes)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(result) + "\n")
        print(json.dumps({key: value for key, value in result.items() if key != "curve"}), flush=True)


if __name__ == "__main__":
    main()
