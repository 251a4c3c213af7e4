"""Rows: what a segment of the ledger environment says about itself, read from its observations.

It never needs torch, Arrow or a broker: arrays in, plain values out.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.chaos.ledger_env import WIDTH

_ENV, _HIGH, _LOW, _COUNT, _LIFE = 0, 1, 2, 5, 6
SHOWN = 300


@dataclass(frozen=True, slots=True)
class Row:
    """Steps that follow each other, under one nonce.

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

    A segment with which an owner continues from a snapshot gives two: its first observation is still the one that the
    former owner's last step led to.

    Args:
        obs: [B, T+1, >= WIDTH]; row t is what step t acted on.
        reward: [B, T], or None not to look at it.
        lengths: [B] steps of each.
    """
    rows: list[Row] = []
    problems: list[str] = []
    for place, length in enumerate(lengths.tolist()):
        if not length:
            continue
        numbers = obs[place, : length + 1, :WIDTH].astype(np.int64)
        rows += _split(numbers)
        if not _follow(numbers):
            problems.append(f"steps do not follow each other: {numbers.tolist()}"[:SHOWN])
        if reward is not None and not (reward[place, :length] == numbers[:length, _LIFE] % 1000).all():
            problems.append(f"rewards are of other steps: {numbers[0].tolist()}: {reward[place].tolist()}"[:SHOWN])
    return rows, problems


def _split(numbers: NDArray[np.int64]) -> list[Row]:
    """[T+1, WIDTH] to one row, or two when the nonce changes after the first step."""
    last = len(numbers) - 1
    changes = last > 0 and bool((numbers[0, [_HIGH, _LOW]] != numbers[1, [_HIGH, _LOW]]).any())
    cuts = [(0, 1), (1, last)] if changes else [(0, last)]
    return [
        Row(
            env=int(numbers[begin, _ENV]),
            nonce=(int(numbers[begin, _HIGH]) << 24) + int(numbers[begin, _LOW]),
            first=int(numbers[begin, _COUNT]),
            length=end - begin,
            life=int(numbers[begin, _LIFE]),
        )
        for begin, end in cuts
        if end > begin
    ]


def _follow(numbers: NDArray[np.int64]) -> bool:
    """Life goes up by one at each step, and so does count, but that a new owner's first step leads to 1."""
    steps = np.diff(numbers, axis=0)
    steady = steps[1:, [_ENV, _HIGH, _LOW]] == 0
    one_env, lives = (steps[:, _ENV] == 0).all(), (steps[:, _LIFE] == 1).all()
    handed_over = bool((steps[0, [_HIGH, _LOW]] != 0).any())
    first = numbers[1, _COUNT] == 1 if handed_over else steps[0, _COUNT] == 1
    return bool(one_env and lives and steady.all() and first and (steps[1:, _COUNT] == 1).all())
