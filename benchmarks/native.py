"""W1 with CartPole's own vector environment, which steps all of a shard in one numpy call: Heddle's player beside a
loop written by hand around the same object. The call that only resets an environment is no step of it, on either side.
"""

from typing import Any

import numpy as np

from benchmarks.measure import CLOCK, Played, Row, alternate, compare, own_cpu_s
from benchmarks.workload import LARGE, Scene, scene, w1_source
from heddle.producers.envs_vector import make_vector
from heddle.producers.vector_player import VectorPlayer
from heddle.spec import load_spec

SECTION = "native vector environment, 32 envs x 128"
ROUNDS = 7
SECONDS = 0.6
WITHIN_S = 20.0


def run() -> list[Row]:
    """Rows of both and their ratios."""
    return rows(rounds=ROUNDS, seconds=SECONDS)


def rows(*, rounds: int, seconds: float) -> list[Row]:
    """As `run`, in so many rounds of so many seconds."""
    stage = scene(load_spec(w1_source(LARGE), overrides=["env.vector=true"]).spec)
    hosted, bare = Hosted(stage), Bare(stage)
    try:
        for one in (hosted, bare):
            one.play(0.1)
        pairs = alternate(rounds, lambda: hosted.play(seconds), lambda: bare.play(seconds), within_s=WITHIN_S)
    finally:
        hosted.close()
        bare.close()
    return compare(SECTION, ("player", "bare loop"), pairs)


class Hosted:
    """Heddle's player of one shard."""

    def __init__(self, stage: Scene) -> None:
        self._player = VectorPlayer(stage.plans[0], stage.spec, stage.policy, stage.layout, clock=CLOCK)

    def play(self, seconds: float) -> Played:
        """Batches until `seconds` are over."""
        steps, cpu_s, began = 0, own_cpu_s(), CLOCK.monotonic()
        while (wall_s := CLOCK.monotonic() - began) < seconds:
            segments = self._player.play(1)
            steps += segments.num_steps
            self._player.recycle(segments)
        return Played(steps, wall_s, own_cpu_s() - cpu_s)

    def close(self) -> None:
        """Close every environment."""
        self._player.close()


class Bare:
    """Arrays made once, one stream of noise, no checks, no books."""

    def __init__(self, stage: Scene) -> None:
        self._policy, self._steps = stage.policy, stage.spec.rollout.steps
        n = self._n = stage.plans[0].num_envs
        self._vector: Any = make_vector(stage.spec.env, first=0, num_envs=n, seeds=list(range(n)))
        self._now = self._vector.reset(seed=1)[0]
        self._rng = np.random.default_rng(1)
        self._obs = np.zeros((self._steps + 1, *self._now.shape), np.float32)
        self._action = np.zeros((self._steps, n), np.int64)
        self._log_prob, self._value, self._reward = (np.zeros((self._steps, n), np.float32) for _ in range(3))
        self._terminated, self._truncated = (np.zeros((self._steps, n), np.bool_) for _ in range(2))
        self._over = np.zeros(n, np.bool_)

    def play(self, seconds: float) -> Played:
        """Segments until `seconds` are over."""
        steps, cpu_s, began = 0, own_cpu_s(), CLOCK.monotonic()
        while (wall_s := CLOCK.monotonic() - began) < seconds:
            steps += self._segment()
        return Played(steps, wall_s, own_cpu_s() - cpu_s)

    def _segment(self) -> int:
        resets, n = 0, self._n
        for t in range(self._steps):
            self._obs[t] = self._now
            acted = self._policy.act({"obs": self._now}, {}, self._rng.random((n, 1)))
            self._action[t] = actions = acted.actions["action"]
            self._log_prob[t], self._value[t] = acted.outputs["log_prob"], acted.outputs["value"]
            resets += int(self._over.sum())
            self._now, self._reward[t], self._terminated[t], self._truncated[t], _ = self._vector.step(actions)
            self._over = self._terminated[t] | self._truncated[t]
        self._obs[self._steps] = self._now
        return n * self._steps - resets

    def close(self) -> None:
        """Close every environment."""
        self._vector.close()
