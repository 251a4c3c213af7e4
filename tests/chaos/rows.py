"""Rows: what a segment of the ledger environment says about itself, read from its observations.

It never needs torch, Arrow or a broker: arrays in, plain values out.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.chaos.ledger_env import WIDTH

_STEP_ON = np.array([0, 0, 0, 1, 1], np.int64)  # env, high, low stay; count and life go up by one
_WATCHED = [0, 1, 2, 5, 6]


@dataclass(frozen=True, slots=True)
class Row:
    """The steps of one segment.

    Attributes:
        env, nonce: whose; first, length: counts of its steps; life: of the first.
    """

    env: int
    nonce: int
    first: int
    length: int
    life: int


def rows_of(obs: NDArray[Any], reward: NDArray[Any] | None, lengths: NDArray[Any]) -> tuple[list[Row], list[str]]:
    """The rows of a batch, and what is wrong with it.

    Args:
        obs: [B, T+1, >= WIDTH]; row t is what step t acted on.
        reward: [B, T], or None not to look at it.
        lengths: [B] steps of each.
    """
    rows, problems = [], []
    for place, length in enumerate(lengths.tolist()):
        if not length:
            continue
        numbers = obs[place, : length + 1, :WIDTH].astype(np.int64)
        env, high, low, _, _, count, life = numbers[0].tolist()
        row = Row(env, (high << 24) + low, count, int(length), life)
        watched = numbers[:, _WATCHED]
        if not (np.diff(watched, axis=0) == _STEP_ON).all():
            problems.append(f"steps do not follow each other: {row}: {numbers.tolist()}")
        if reward is not None and not (reward[place, :length] == numbers[:length, 5] % 1000).all():
            problems.append(f"rewards are of other steps: {row}: {reward[place, :length].tolist()}")
        rows.append(row)
    return rows, problems
