"""What replay tests share: a stream of experience whose every number tells where it was played."""

from dataclasses import dataclass, field

import numpy as np
import torch

from heddle.consumers.assemble import Assembler
from heddle.consumers.learners import TrainBatch
from heddle.layout import Segments, make_layout
from heddle.spaces import Box, Discrete

STEPS = 5
GAMMA = 0.5
LAYOUT = make_layout(Box((2,), "float32"), Discrete(3), steps=STEPS, outputs={})


@dataclass
class Step:
    """One step as it was played; `ended` is "", "terminated" or "truncated"."""

    seen: tuple[float, float]
    action: int
    reward: float
    ended: str
    led_to: tuple[float, float]


@dataclass
class World:
    """Environments that count their steps; each observation is (environment, count) and never comes twice."""

    envs: int = 2
    seed: int = 0
    counts: list[int] = field(default_factory=list)
    tracks: list[list[Step]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.counts = [0] * self.envs
        self.tracks = [[] for _ in range(self.envs)]
        self.assembler = Assembler(LAYOUT, device=torch.device("cpu"))

    def skip(self) -> None:
        """What is played now is lost on the way."""
        self.counts = [count + 10 for count in self.counts]

    def play(self, *, epoch: int = 1, lengths: list[int] | None = None) -> TrainBatch:
        """One segment of each environment."""
        segments = Segments.empty(LAYOUT, self.envs)
        arrays, finals = segments.arrays, []
        for env in range(self.envs):
            length = int(self.rng.integers(1, STEPS + 1)) if lengths is None else lengths[env]
            arrays["length"][env], arrays["env"][env] = length, env
            for step in range(length):
                end = ["", "", "", "terminated", "truncated"][self.rng.integers(5)]
                seen = (float(env), float(self.counts[env]))
                self.counts[env] += 1
                led_to = (float(env), float(self.counts[env]))
                arrays["obs"][env, step] = seen
                arrays["action"][env, step] = self.counts[env] % 3
                arrays["reward"][env, step] = reward = float(self.rng.integers(1, 9))
                if end:
                    arrays[end][env, step] = True
                    self.counts[env] += 1  # the next episode begins elsewhere
                if end == "truncated":
                    finals.append((env, step, {"obs": np.array(led_to, np.float32)}))
                self.tracks[env].append(Step(seen, int(arrays["action"][env, step]), reward, end, led_to))
            arrays["obs"][env, length] = (float(env), float(self.counts[env]))
        segments.set_finals(finals)
        return self.assembler.assemble([segments], [0], [epoch])


def target(track: list[Step], at: int, n: int, stop: int) -> tuple[float, float, tuple[float, float]]:
    """By hand: returns of up to n steps of `track` from `at` on, before `stop`; the discount; and what they led to."""
    total, discount = 0.0, 1.0
    for step in track[at : min(at + n, stop)]:
        total += discount * step.reward
        discount *= GAMMA
        if step.ended:
            return total, 0.0 if step.ended == "terminated" else discount, step.led_to
    last = track[min(at + n, stop) - 1]
    return total, discount, last.led_to
