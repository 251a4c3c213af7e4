"""What a module of the user's must answer: names and shapes, looked at when it is made, and shapes whenever it acts.

It never looks at a number, and works on the arrays of any library.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from heddle.policies.actions import Head, Heads
from heddle.policies.base import Arrays, OutputSpec
from heddle.spaces import Space, blank, leaves
from heddle.spaces.cells import blank_cell, boxed, numbers_of

ROWS = 2
"""Observations that a module is asked about."""


def answer_names(heads: Heads) -> list[str]:
    """What an answer must hold for these heads: "logits", or "mean" and "log_std", each with the head's suffix."""
    return [
        f"{word}{head.suffix}"
        for head in heads.all
        for word in (("mean", "log_std") if head.continuous else ("logits",))
    ]


def answer_problem(
    answer: Any, heads: Heads, state: Mapping[str, OutputSpec], *, call: str = "it", rows: int = ROWS
) -> str | None:
    """Why an answer to `rows` observations will not do, in one line; None when it will.

    Args:
        state: what the module says that it carries.
        call: the name of its method.
    """
    if not isinstance(answer, Mapping):
        return f"{call} gave a {type(answer).__name__}, expected a dict"
    needed = [*answer_names(heads), "value"] + (["state"] if state else [])
    if missing := [name for name in needed if name not in answer]:
        return f"{call} gave no {', '.join(missing)}"
    for head in heads.all:
        if problem := _head_problem(head, answer, rows):
            return f"{call} gave {problem}"
    value = tuple(answer["value"].shape)
    if value not in ((rows,), (rows, 1)):
        return f"{call} gave value {list(value)} for {rows} observations, expected [{rows}]"
    for name, spec in state.items():
        if name not in answer["state"] or tuple(answer["state"][name].shape) != (rows, *spec.shape):
            return f"{call} gave no state {name} of shape {[rows, *spec.shape]}"
    return None


def demand_shapes(numbers: Mapping[str, Any], heads: Heads, rows: int) -> None:
    """Look at every answer again: numpy would take too few logits or means for those of other actions.

    Args:
        numbers: by name, as `answer_names` gives them.

    Raises:
        ValueError: an answer to `rows` observations has another shape than the first one had.
    """
    for head in heads.all:
        if not head.continuous and numbers[f"logits{head.suffix}"].shape == (rows, head.count):
            continue
        if problem := _head_problem(head, numbers, rows):
            raise ValueError(f"the policy's module gave {problem}")


def blank_observations(observation: Space) -> Arrays:
    """Two observations by leaf, [2, ...], as numbers: zeros, the lowest integers of a leaf, or nothing at all."""
    every, blanks = leaves(observation), Arrays()
    for leaf in every:
        one = blank_cell(leaf) if leaf.ragged else blank(leaf.space)
        blanks[leaf.name] = boxed([one] * ROWS) if leaf.ragged else np.stack([one] * ROWS)
    return numbers_of(every, blanks)


def _head_problem(head: Head, answer: Mapping[str, Any], rows: int) -> str | None:
    name = f"{'mean' if head.continuous else 'logits'}{head.suffix}"
    shape = tuple(answer[name].shape)
    if shape[:1] != (rows,) or math.prod(shape) != rows * head.count:
        return f"{name} {list(shape)} for {rows} observations, expected [{rows}, {head.count}]"
    if not head.continuous:
        return None
    spread = tuple(answer[f"log_std{head.suffix}"].shape)
    if spread in ((head.count,), (rows, head.count)):
        return None
    wanted = f"[{head.count}] or [{rows}, {head.count}]"
    return f"log_std{head.suffix} {list(spread)} for {rows} observations, expected {wanted}"
