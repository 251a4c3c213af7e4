"""What is drawn from a replay buffer: steps with their n-step targets, never across an episode's end. Pure."""

from dataclasses import dataclass

import numpy as np

from heddle.consumers.learners.replay_chunk import SEEN, STEP, TERMINATED
from heddle.consumers.learners.sum_tree import Index
from heddle.policies.base import Array, Arrays


@dataclass(frozen=True, slots=True)
class Sample:
    """Steps drawn from the buffer.

    Attributes:
        rows: [M] int64, where they are, for `set_priorities`.
        leaves: "obs..." and "action..." leaf -> [M, ...], what was seen and done.
        returns: [M] float32, discounted rewards of up to n steps from there on.
        discount: [M] float32, of the value of what followed them: gamma to the number of steps, 0 after a termination.
        following: "obs..." leaf -> [M, ...], what followed them.
        weights: [M] float32, importance weights, the largest 1.
    """

    rows: Index
    leaves: Arrays
    returns: Array
    discount: Array
    following: Arrays
    weights: Array


def walk(
    rows: Index, *, reward: Array, kind: Array, after: Index, link: Index, n_step: int, gamma: float
) -> tuple[Array, Array, Index]:
    """Rewards of up to n steps, the discount of what followed them, and the row of that observation.

    Args:
        rows: [M] where to begin; the other arrays are those of the ring, by row.
        link: of a segment's last observation: the row where the next segment of its environment begins; -1 for none.
    """
    returns, discount = np.zeros(len(rows)), np.ones(len(rows))
    last, now = rows, rows
    going = np.ones(len(rows), bool)
    ended = np.zeros(len(rows), bool)
    for _ in range(n_step):
        returns += np.where(going, discount * reward[now], 0.0)
        discount = np.where(going, discount * gamma, discount)
        last = np.where(going, after[now], last)
        ended |= going & (kind[now] == TERMINATED)
        going = going & (kind[now] == STEP)
        beside = np.where(going, now + 1, now)
        beside = np.where(going & (kind[beside] == SEEN), link[beside], beside)
        going &= beside >= 0
        now = np.where(going, beside, now)
    return returns.astype(np.float32), np.where(ended, 0.0, discount).astype(np.float32), last
