"""The workloads: W1 is CartPole-v1 under a small network, in large and in small batches; W2 is images made for nothing.

It never talks to a broker.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks import image_env
from benchmarks.measure import CLOCK, Played, own_cpu_s
from heddle.broker.server_setup import Durability
from heddle.layout import Layout, make_layout
from heddle.policies import make_policy
from heddle.policies.base import Policy
from heddle.producers.envs import check_env, make_envs
from heddle.producers.player import Player
from heddle.shard import ShardPlan, plan_shards
from heddle.spec import ExperimentSpec, load_spec

PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """A workload, and how it is cut.

    Attributes:
        name: for the table.
        shards: in all; envs: of each; steps: T.
        env, policy: ids of what is played and of what plays it.
        plane: how batches travel.
        durability: of the server.
        stepping: of a shard's environments.
        frames: how stacked observations travel.
        wrappers: put around the environment.
    """

    name: str
    shards: int
    envs: int
    steps: int
    env: str = "CartPole-v1"
    policy: str = "mlp"
    plane: str = "redis"
    durability: Durability = "fast"
    stepping: str = "inline"
    frames: str = "auto"
    wrappers: tuple[str, ...] = ()

    @property
    def batch(self) -> int:
        """Environment steps in one batch."""
        return self.envs * self.steps


LARGE = Shape("batches of 4,096 steps", shards=PROCESSES, envs=32, steps=128)
SMALL = Shape("batches of 64 steps", shards=2 * PROCESSES, envs=2, steps=32)
SHAPES = {"large": LARGE, "small": SMALL}
IMAGES = Shape(
    "images, batches of 512", PROCESSES, 8, 64, env=image_env.ID, policy=image_env.POLICY, durability="memory"
)
STACKED = replace(IMAGES, env=image_env.STACKED)
WRAPPED = replace(IMAGES, env=image_env.FRAMES_ALONE, wrappers=("FrameStackObservation",))
PLANES = {"shm": replace(IMAGES, plane="shm"), "redis": IMAGES, "once": STACKED, "wrapped": WRAPPED}
"""Of images that share nothing, and of stacks of which each frame is sent once: made for nothing, and by Gymnasium."""
ONCE_SHARED = replace(STACKED, plane="shm", frames="once")
WAITING = Shape(
    "64 environments that wait 10 ms", PROCESSES, 32, 32, env="benchmarks.waiting_env:Waiting", stepping="threads"
)
ALL = SHAPES | PLANES | {"waiting": WAITING, "once-shm": ONCE_SHARED}


def w1_source(shape: Shape) -> dict[str, Any]:
    """W1 as a mapping; its budget is never reached."""
    return {
        "experiment": {"name": "bench", "seed": 1},
        "env": {
            "id": shape.env,
            "num_envs": shape.shards * shape.envs,
            "envs_per_shard": shape.envs,
            "stepping": shape.stepping,
            "wrappers": [{"id": id, "kwargs": {"stack_size": image_env.SHAPE[-1]}} for id in shape.wrappers],
        },
        "policy": {"id": shape.policy},
        "rollout": {"steps": shape.steps, "plane": shape.plane, "frames": shape.frames},
        "trainer": {"learner": "none"} if shape.policy != "mlp" else {},
        "budget": {"env_steps": 10**12},
    }


def w1(shape: Shape, *, isolation: str = "inline") -> ExperimentSpec:
    """The spec of W1."""
    return load_spec(w1_source(shape), overrides=[f"env.isolation={isolation}"]).spec


@dataclass(frozen=True, slots=True)
class Scene:
    """What it takes to play a spec.

    Attributes:
        plans: of its shards.
    """

    spec: ExperimentSpec
    policy: Policy
    layout: Layout
    plans: tuple[ShardPlan, ...]

    def player(self, index: int) -> Player:
        """Heddle's player of one shard."""
        return Player(self.plans[index], self.spec, self.policy, self.layout, clock=CLOCK)


def scene(spec: ExperimentSpec) -> Scene:
    """Policy with fresh weights, layout, shards."""
    observation, action = check_env(spec)
    policy = make_policy(spec.policy, observation, action, seed=spec.experiment.seed)
    layout = make_layout(
        observation, action, steps=spec.rollout.steps, outputs=policy.outputs, state=policy.state, info_keys=()
    )
    return Scene(spec, policy, layout, plan_shards(spec))


class BareLoop:
    """What one writes by hand: environments in a list, arrays made once, no checks, one stream of noise, no books.

    Args:
        seeded: give every reset a seed, as one must to be able to play an episode again.
    """

    def __init__(self, scene: Scene, index: int, *, seeded: bool = False) -> None:
        plan, spec = scene.plans[index], scene.spec
        self.envs = make_envs(plan, spec, spec.experiment.seed)
        self.policy, self.steps = scene.policy, spec.rollout.steps
        self.rng = np.random.default_rng(spec.experiment.seed)
        self.seeds: Iterator[int | None] = itertools.count() if seeded else itertools.repeat(None)
        n, t = plan.num_envs, self.steps
        self.now = np.stack([env.reset(seed=index)[0] for index, env in enumerate(self.envs)])
        self.obs = np.zeros((n, t + 1, *self.now.shape[1:]), np.float32)
        self.action = np.zeros((n, t), np.int64)
        self.log_prob, self.value, self.reward = (np.zeros((n, t), np.float32) for _ in range(3))
        self.terminated, self.truncated = (np.zeros((n, t), np.bool_) for _ in range(2))

    def play(self) -> None:
        """One segment of every environment."""
        now, reward, envs = self.now, self.reward, self.envs
        steps = [env.step for env in envs]
        for t in range(self.steps):
            self.obs[:, t] = now
            acted = self.policy.act({"obs": now}, {}, self.rng.random((len(envs), 1)))
            actions = acted.actions["action"]
            self.action[:, t] = actions
            self.log_prob[:, t] = acted.outputs["log_prob"]
            self.value[:, t] = acted.outputs["value"]
            for index, action in enumerate(actions.tolist()):
                observation, reward[index, t], terminated, truncated, _ = steps[index](action)
                self.terminated[index, t], self.truncated[index, t] = terminated, truncated
                if terminated or truncated:
                    observation, _ = envs[index].reset(seed=next(self.seeds))
                now[index] = observation
        self.obs[:, self.steps] = now

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()


def play_for(players: list[Any], seconds: float, batch: int) -> Played:
    """Play whole segments with each player in turn until `seconds` are over; nothing is done with what comes out."""
    steps, cpu_s, began = 0, own_cpu_s(), CLOCK.monotonic()
    while (wall_s := CLOCK.monotonic() - began) < seconds:
        for player in players:
            segments = player.play(1) if isinstance(player, Player) else player.play()
            if isinstance(player, Player):
                player.recycle(segments)
            steps += batch
    return Played(steps, wall_s, own_cpu_s() - cpu_s)
