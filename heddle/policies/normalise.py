"""Running mean and variance: of observations, learned by the trainer and published, and of discounted returns.

It never sees an environment; what is raw stays raw on the wire, and only these numbers travel.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from heddle.policies.base import MASK_LEAF, Array, Arrays
from heddle.policies.weights import NORM_PREFIX, WeightsError
from heddle.spaces import Box, Space, leaves

CLIP = 10.0
"""Normalised values are cut at this many standard deviations, as in Stable-Baselines3's VecNormalize."""
EPSILON = 1e-8
"""Added to a variance before its root is taken."""

Float64 = NDArray[np.float64]


class RunningMoments:
    """Mean and variance of everything seen so far.

    Attributes:
        mean, var: float64 of `shape`; 0 and 1 before anything was seen.
        count: how many values were seen.

    Source: Chan, Golub and LeVeque 1979, the pairwise update.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.mean: Float64 = np.zeros(shape)
        self.var: Float64 = np.ones(shape)
        self.count = 0.0

    def update(self, values: Array) -> None:
        """Take in [M, *shape] values; nothing happens at M = 0."""
        number = len(values)
        if not number:
            return
        wide = np.asarray(values, dtype=np.float64)
        mean, var = wide.mean(axis=0), wide.var(axis=0)
        total = self.count + number
        delta = mean - self.mean
        squares = self.var * self.count + var * number + delta**2 * (self.count * number / total)
        self.mean = np.asarray(self.mean + delta * (number / total))
        self.var = np.asarray(squares / total)
        self.count = total

    def scale(self) -> Float64:
        """1 / standard deviation, of `shape`."""
        return np.asarray(1.0 / np.sqrt(self.var + EPSILON))


class Normaliser:
    """Moments of every float leaf of an observation; integer leaves, images and the action mask are left alone."""

    def __init__(self, observation: Space) -> None:
        self.moments = {
            leaf.name: RunningMoments(leaf.space.shape)
            for leaf in leaves(observation)
            if isinstance(leaf.space, Box)
            and np.dtype(leaf.space.dtype).kind == "f"
            and not _is_mask(leaf.name)
            and not leaf.ragged
        }

    def update(self, observations: Mapping[str, Array]) -> None:
        """Take in leaf name -> [M, ...]."""
        for name, moments in self.moments.items():
            moments.update(observations[name])

    def weights(self) -> Arrays:
        """The statistics as "norm.<leaf>.mean" and ".var", shaped as the leaf, and ".count", a number; float64."""
        named: Arrays = {}
        for name, moments in self.moments.items():
            named[f"{NORM_PREFIX}{name}.mean"] = moments.mean.copy()
            named[f"{NORM_PREFIX}{name}.var"] = moments.var.copy()
            named[f"{NORM_PREFIX}{name}.count"] = np.array(moments.count)
        return named

    def load(self, norm: Mapping[str, Array]) -> None:
        """The opposite of `weights`.

        Raises:
            WeightsError: they are of another observation space.
        """
        expected = self.weights()
        if expected.keys() != norm.keys():
            odd = sorted(expected.keys() ^ norm.keys())
            raise WeightsError(f"statistics of other observations: {', '.join(odd)} missing or unknown")
        for name, moments in self.moments.items():
            parts = (f"{NORM_PREFIX}{name}.{part}" for part in ("mean", "var", "count"))
            mean, var, count = (np.asarray(norm[part], np.float64) for part in parts)
            if mean.shape != moments.mean.shape or var.shape != mean.shape or count.shape != ():
                raise WeightsError(f"statistics of other observations: {name} has shape {list(mean.shape)}")
            moments.mean, moments.var, moments.count = mean.copy(), var.copy(), float(count)

    def factors(self, name: str) -> tuple[Array, Array] | None:
        """Mean and 1 / standard deviation as float32 of the leaf's shape; None for a leaf that is left alone."""
        moments = self.moments.get(name)
        if moments is None:
            return None
        return moments.mean.astype(np.float32), moments.scale().astype(np.float32)


def _is_mask(name: str) -> bool:
    return name == MASK_LEAF or name.startswith(f"{MASK_LEAF}.")


class RewardScaler:
    """Divides rewards by the standard deviation of the discounted return, kept per (shard, env).

    Source: Engstrom et al. 2020, arXiv:2005.12729, section 2; VecNormalize of Stable-Baselines3.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.moments = RunningMoments()
        self.returns: dict[tuple[int, int], float] = {}
        self.epochs: dict[tuple[int, int], int] = {}

    def scale(
        self,
        reward: Array,
        ended: Array,
        valid: Array,
        *,
        keys: Sequence[tuple[int, int]],
        epochs: Sequence[int] | None = None,
    ) -> NDArray[np.float32]:
        """Update the statistics with [B, T] raw rewards and return them scaled, float32.

        Args:
            reward: [B, T] float.
            ended: [B, T] bool, an episode ended with this step.
            valid: [B, T] bool.
            keys: (shard, env) of each segment; segments of one key are in the order of play.
            epochs: of the shard's owner, of each segment; a new owner begins new episodes. None = always the same.
        """
        epochs = [0] * len(keys) if epochs is None else epochs
        trail = np.zeros(reward.shape)
        for rows in _rounds(keys):
            running = np.array([self._return_before(keys[row], epochs[row]) for row in rows])
            for step in range(reward.shape[1]):
                played = valid[rows, step]
                running = np.where(played, running * self.gamma + reward[rows, step], running)
                trail[rows, step] = running
                running = np.where(played & ended[rows, step], 0.0, running)
            self.returns.update({keys[row]: float(value) for row, value in zip(rows, running, strict=True)})
            self.epochs.update({keys[row]: epochs[row] for row in rows})
        self.moments.update(trail[valid])
        return np.clip(reward * self.moments.scale(), -CLIP, CLIP).astype(np.float32)

    def state(self) -> Arrays:
        """Everything, as arrays: moments [3] float64; keys [k, 2] int64, returns [k] float64, epochs [k] int64."""
        keys = sorted(self.returns)
        return {
            "moments": np.array([self.moments.mean, self.moments.var, self.moments.count], np.float64),
            "keys": np.array(keys, np.int64).reshape(-1, 2),
            "returns": np.array([self.returns[key] for key in keys], np.float64),
            "epochs": np.array([self.epochs[key] for key in keys], np.int64),
        }

    def load(self, state: Mapping[str, Array]) -> None:
        """The opposite of `state`. Raises KeyError or ValueError on anything else."""
        mean, var, count = (float(value) for value in state["moments"])
        self.moments.mean, self.moments.var, self.moments.count = np.array(mean), np.array(var), count
        keys = [(int(shard), int(env)) for shard, env in state["keys"]]
        self.returns = dict(zip(keys, map(float, state["returns"]), strict=True))
        self.epochs = dict(zip(keys, map(int, state["epochs"]), strict=True))

    def _return_before(self, key: tuple[int, int], epoch: int) -> float:
        """Of the episode that goes on; 0 when an owner left it unfinished."""
        return self.returns.get(key, 0.0) if self.epochs.get(key, epoch) == epoch else 0.0


def _rounds(keys: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Rows grouped so that no key is twice in a group and the n-th row of a key is in group n."""
    seen: dict[tuple[int, int], int] = {}
    rounds: list[list[int]] = []
    for row, key in enumerate(keys):
        turn = seen.get(key, 0)
        seen[key] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(row)
    return rounds
