"""The same task with Stable-Baselines3's PPO, DQN or SAC and the same hyperparameters, for a curve at equal steps.

It reads a spec of Heddle's and imports nothing of Heddle's, so it runs in an environment of its own:

    python3 -m venv /tmp/sb3 && /tmp/sb3/bin/pip install stable-baselines3 minatar 'gymnasium[mujoco]'
    /tmp/sb3/bin/python benchmarks/sb3.py examples/breakout.toml --seeds 1 2 3 --json runs.jsonl
    /tmp/sb3/bin/python benchmarks/sb3.py examples/cartpole_dqn.toml --seeds 1 2 3
    /tmp/sb3/bin/python benchmarks/sb3.py examples/pendulum_sac.toml --seeds 1 2 3

prints one JSON line a run, then a row in Markdown as `benchmarks.results` prints them.

Only what both have is mapped: environments, gamma, the linear schedules, hidden layers; of PPO lambda, clip, passes,
minibatch, entropy and value coefficients, and one convolution torso over images of channels last; of DQN and SAC the
minibatch, how often each step is drawn, when learning starts, rewards in one target, the buffer's size, the target
network, epsilon, and the temperature. Stable-Baselines3's DQN is neither double nor dueling and knows no priorities.
"""

import argparse
import json
import time
import tomllib
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from statistics import mean
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3 import __version__ as version
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
    """Mean return of the last 100 episodes after each rollout, at most one in `every` steps."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.points: list[list[float]] = []
        self.every = every

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        episodes, last = self.model.ep_info_buffer, self.points[-1][0] if self.points else 0
        if episodes and self.num_timesteps - last >= self.every:
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


def changed(spec: dict[str, Any], sets: list[str]) -> dict[str, Any]:
    """`spec` with KEY=VALUE each, as Heddle's --set takes them."""
    for one in sets:
        key, _, value = one.partition("=")
        try:
            found = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found = value
        *path, last = key.split(".")
        table = spec
        for part in path:
            table = table.setdefault(part, {})
        table[last] = found
    return spec


def size_bytes(value: int | str) -> float:
    """A size such as "16MiB" in bytes."""
    units = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 1e3, "MB": 1e6, "GB": 1e9}
    found = next((unit for unit in units if str(value).endswith(unit)), "")
    return float(str(value).removesuffix(found)) * units.get(found, 1)


def of_ppo(spec: Mapping[str, Any], envs: Any) -> dict[str, Any]:
    """What PPO is called with besides the network."""
    trainer = spec.get("trainer", {})
    return {
        "n_steps": spec.get("rollout", {}).get("steps", 32),
        "batch_size": trainer.get("minibatch", 64),
        "n_epochs": trainer.get("passes", 10),
        "gae_lambda": trainer.get("gae_lambda", 0.95),
        "clip_range": schedule(trainer.get("clip", 0.2)),
        "ent_coef": trainer.get("entropy", 0.0),
        "vf_coef": trainer.get("value_coef", 0.5),
        "max_grad_norm": trainer.get("max_grad_norm", 0.5),
    }


def of_replay(spec: Mapping[str, Any], envs: Any, *, every: int) -> dict[str, Any]:
    """What both learners with a buffer are called with; they learn after `every` steps of each environment."""
    trainer = spec.get("trainer", {})
    replay, minibatch = trainer.get("replay", {}), trainer.get("minibatch", 64)
    seen, done = envs.observation_space, envs.action_space
    step = 2 * seen.dtype.itemsize * prod(seen.shape) + done.dtype.itemsize * prod(done.shape) + 6
    return {
        "buffer_size": int(min(spec["budget"]["env_steps"], size_bytes(replay.get("capacity", "256MiB")) / step)),
        "batch_size": minibatch,
        "learning_starts": replay.get("learning_starts", 1000),
        "n_steps": replay.get("n_step", 1),
        "train_freq": (every, "step"),
        "gradient_steps": max(1, round(every * drawn(spec, envs))),
    }


def drawn(spec: Mapping[str, Any], envs: Any) -> float:
    """Gradient steps for each step of all environments together."""
    trainer = spec.get("trainer", {})
    samples = trainer.get("replay", {}).get("samples_per_step", 8.0)
    return float(envs.num_envs * samples / trainer.get("minibatch", 64))


def of_dqn(spec: Mapping[str, Any], envs: Any) -> dict[str, Any]:
    """What DQN is called with.

    Its target network moves while it plays, Heddle's while it learns: one that follows slowly is only the same where
    both take turns often. One that jumps does so after as many gradient steps.
    """
    own = spec["trainer"].get("dqn", {})
    tau, jumps, each = own.get("tau", 1.0), own.get("target_every", 250), drawn(spec, envs)
    every = spec.get("rollout", {}).get("steps", 32) if tau == 1.0 else max(1, round(1 / each))
    wait = max(1, round(jumps / each))  # steps of all environments
    epsilon = own.get("epsilon", {"start": 1.0, "end": 0.05})
    first, last = (epsilon[end] if isinstance(epsilon, dict) else epsilon for end in ("start", "end"))
    return of_replay(spec, envs, every=every) | {
        "tau": 1.0 - (1.0 - tau) ** max(1.0, each * wait / jumps) if tau < 1.0 else 1.0,
        "target_update_interval": wait * envs.num_envs,
        "exploration_initial_eps": first,
        "exploration_final_eps": last,
        "exploration_fraction": own.get("epsilon_share", 0.2),
        "max_grad_norm": spec["trainer"].get("max_grad_norm", 0.5),
    }


def of_sac(spec: Mapping[str, Any], envs: Any) -> dict[str, Any]:
    """What SAC is called with; it scales no gradient down."""
    own = spec["trainer"].get("sac", {})
    heat, aim = own.get("temperature", "auto"), own.get("target_entropy", "auto")
    return of_replay(spec, envs, every=spec.get("rollout", {}).get("steps", 32)) | {
        "tau": own.get("tau", 0.005),
        "ent_coef": f"auto_{own.get('first_temperature', 1.0)}" if heat == "auto" else heat,
        "target_entropy": aim,
    }


LEARNERS = {"ppo": (PPO, of_ppo), "dqn": (DQN, of_dqn), "sac": (SAC, of_sac)}


def shape_of(spec: Mapping[str, Any], learner: str) -> dict[str, Any]:
    """The networks: Heddle's defaults for each learner."""
    policy = spec.get("policy", {})
    filters = policy.get("filters")
    hidden = policy.get("hidden", {"ppo": [64, 64], "dqn": [128, 128], "sac": [256, 256]}[learner])
    usual = "tanh" if learner == "ppo" and not filters else "relu"
    shape: dict[str, Any] = {"net_arch": {"pi": hidden, "vf": hidden} if learner == "ppo" else hidden}
    shape["activation_fn"] = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[policy.get("activation", usual)]
    if filters:
        shape |= {"features_extractor_class": Torso, "features_extractor_kwargs": {"filters": filters}}
        shape |= {"normalize_images": False, "net_arch": hidden}
    return shape


def run(path: Path, seed: int, episodes: int, sets: list[str]) -> dict[str, Any]:
    """One run of the spec at `path`."""
    spec = changed(tomllib.loads(path.read_text()), sets)
    env, trainer = spec["env"], spec.get("trainer", {})
    learner, gamma = trainer.get("learner", "ppo"), trainer.get("gamma", 0.99)
    if env["id"].startswith("MinAtar/"):
        import minatar.gym

        minatar.gym.register_envs()

    def make() -> gymnasium.Env[Any, Any]:
        one = gymnasium.make(env["id"], **env.get("kwargs", {}))
        return Monitor(Image(one) if spec.get("policy", {}).get("filters") else one)

    envs: Any = DummyVecEnv([make] * env["num_envs"])
    if trainer.get("normalize_observations") or trainer.get("normalize_rewards"):
        normalize = {"norm_obs": bool(trainer.get("normalize_observations")), "gamma": gamma}
        envs = VecNormalize(envs, norm_reward=bool(trainer.get("normalize_rewards")), **normalize)
    kind, options_of = LEARNERS[learner]
    shown = {"policy_kwargs": shape_of(spec, learner), "seed": seed, "device": "cpu", "gamma": gamma}
    rate = schedule(trainer.get("lr", 3e-4))
    model = kind("MlpPolicy", envs, learning_rate=rate, **shown, **options_of(spec, envs))
    curve = Curve(every=spec.get("rollout", {}).get("steps", 32) * env["num_envs"])
    began = time.perf_counter()
    model.learn(spec["budget"]["env_steps"], callback=curve)
    wall_s = time.perf_counter() - began
    return {
        "spec": path.name,
        "set": sets,
        "label": f"Stable-Baselines3 {version}, one process",
        "seed": seed,
        "final": round(score(model, make, envs, episodes), 1),
        "train": round(curve.points[-1][1], 1) if curve.points else None,
        "steps": int(model.num_timesteps),
        "wall_s": round(wall_s, 1),
        "curve": curve.points,
    }


def score(model: Any, make: Callable[[], Any], envs: Any, episodes: int) -> float:
    """Mean return of fresh episodes with the likeliest actions."""
    fresh: Any = DummyVecEnv([make] * 4)
    if isinstance(envs, VecNormalize):
        fresh = VecNormalize(fresh, training=False, norm_obs=envs.norm_obs, norm_reward=False)
        fresh.obs_rms = envs.obs_rms
    fresh.seed(1_000_003)
    final, _ = evaluate_policy(model, fresh, n_eval_episodes=episodes, deterministic=True)
    return float(final)


def row(results: list[dict[str, Any]]) -> str:
    """The runs as one row of Markdown: arrangement, seeds, final policy, best checkpoint, training, steps, seconds."""

    def spread(name: str) -> str:
        values = [one[name] for one in results if one[name] is not None]
        return f"{mean(values):.1f} ({min(values):.0f} to {max(values):.0f})" if values else ""

    steps, wall_s = max(one["steps"] for one in results), mean(one["wall_s"] for one in results)
    cells = (
        results[0]["label"],
        str(len(results)),
        spread("final"),
        "",
        spread("train"),
        f"{steps:,}",
        f"{wall_s:.0f}",
    )
    return f"| {' | '.join(cells)} | | |"


def main() -> None:
    """Run each seed; one line each, then the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a value of the spec")
    parser.add_argument("--threads", type=int, help="of torch; else as many as it takes by itself")
    parser.add_argument("--json", type=Path, help="append each run to this file, with its curve")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    results = []
    for seed in options.seeds:
        results.append(result := run(options.spec, seed, options.episodes, options.set))
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(result) + "\n")
        print(json.dumps({key: value for key, value in result.items() if key != "curve"}), flush=True)
    print(row(results))


if __name__ == "__main__":
    main()
