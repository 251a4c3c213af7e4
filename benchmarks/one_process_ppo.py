"""One process that plays and learns in turn: the player, policy and learner of a fleet, and nothing between them.

It never talks to a broker. A distributed run at lag 0 must match its curve; `--lag K` acts with weights K updates old.

    python benchmarks/one_process_ppo.py examples/cartpole.toml --seeds 1 2 3

prints one JSON line a seed: the curve, the mean return of fresh deterministic episodes, and where the time went.
"""

import argparse
import json
import platform
import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heddle.clock import SystemClock
from heddle.consumers.assemble import Assembler
from heddle.consumers.learners import make_learner
from heddle.layout import Segments, make_layout
from heddle.policies import make_policy
from heddle.producers.envs import check_env
from heddle.producers.player import Player
from heddle.shard import ShardPlan, plan_shards
from heddle.spec import ExperimentSpec, load_spec

EVAL_SEED = 1_000_003
EVAL_PLAN = ShardPlan(index=0, kind="eval", first_env=0, num_envs=10)


def train(spec: ExperimentSpec, *, lag: int, episodes: int) -> dict[str, Any]:
    """One run of `spec` by its budget of env_steps; returns what is printed."""
    clock, seed, budget = SystemClock(), spec.experiment.seed, spec.budget.env_steps or 0
    observation, action = check_env(spec)
    policy = make_policy(spec.policy, observation, action, seed=seed)
    learner = make_learner(spec, policy, device=torch.device("cpu"), seed=seed)
    layout = make_layout(
        observation,
        action,
        steps=spec.rollout.steps,
        outputs=policy.outputs,
        state=policy.state,
        info_keys=spec.rollout.info_keys,
    )
    assembler = Assembler(layout, device=torch.device("cpu"))
    plans = [plan for plan in plan_shards(spec) if plan.kind == "train"]
    players = [Player(plan, spec, policy, layout, clock=clock) for plan in plans]
    history = deque([learner.get_weights()], maxlen=lag + 1)
    returns: deque[float] = deque(maxlen=100)
    steps, updates, learning_s = 0, 0, 0.0
    curve: list[list[float]] = []
    started = clock.monotonic()
    while steps < budget:
        policy.set_weights(history[0])
        segments = [player.play(updates) for player in players]
        returns.extend(ended for batch in segments for ended in ends(batch))
        batch = assembler.assemble(segments, [plan.index for plan in plans])
        before = clock.monotonic()
        learner.update(batch, steps / budget)
        learning_s += clock.monotonic() - before
        for player, played in zip(players, segments, strict=True):
            player.recycle(played)
        steps, updates = steps + batch.num_steps, updates + 1
        history.append(learner.get_weights())
        if returns and steps * 20 // budget > len(curve):
            curve.append([steps, round(float(np.mean(returns)), 1)])
    wall_s = clock.monotonic() - started
    for player in players:
        player.close()
    policy.set_weights(history[-1])
    scores = evaluate(Player(EVAL_PLAN, spec, policy, layout, clock=clock, seed=EVAL_SEED), episodes)
    return {
        "env": spec.env.id,
        "seed": seed,
        "lag": lag,
        "steps": steps,
        "eval_return": float(np.mean(scores)),
        "eval_std": float(np.std(scores)),
        "eval_episodes": len(scores),
        "train_return": float(np.mean(returns)) if returns else None,
        "wall_s": round(wall_s, 2),
        "learning_s": round(learning_s, 2),
        "update_ms": round(1e3 * learning_s / updates, 2),
        "curve": curve,
    }


def evaluate(player: Player, episodes: int) -> list[float]:
    """Returns of fresh episodes played with the likeliest actions."""
    scores = [ended for segments, _ in player.play_episodes(0, episodes) for ended in ends(segments)]
    player.close()
    return scores


def ends(batch: Segments) -> list[float]:
    """Returns of the episodes that ended in `batch`, in the order of their steps."""
    ended = batch.arrays["episode_return"].T.reshape(-1)
    return [float(value) for value in ended[~np.isnan(ended)]]


def main() -> None:
    """Parse the command line, run each seed, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--lag", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    print(
        json.dumps({"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}),
        file=sys.stderr,
    )
    for seed in options.seeds:
        spec = load_spec(options.spec, overrides=[*options.set, f"experiment.seed={seed}"]).spec
        print(json.dumps(train(spec, lag=options.lag, episodes=options.episodes)), flush=True)


if __name__ == "__main__":
    main()
