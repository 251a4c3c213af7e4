"""Chance that several policies share: one kind of noise that serves all of them, and what each reads of it.

It never draws.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.policies.base import Array, Noise


def normal_of(uniform: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """[N, k] standard normal numbers of [N, 2 k] uniform ones on [0, 1).

    Source: Box and Muller 1958, doi:10.1214/aoms/1177706645.
    """
    first, second = np.split(uniform, 2, axis=1)
    normal: NDArray[np.floating[Any]] = np.sqrt(-2.0 * np.log1p(-first)) * np.cos(2.0 * math.pi * second)
    return normal


def in_uniforms(noise: Noise) -> int:
    """Uniform numbers that serve as this noise: two for each normal one."""
    return noise.size * (2 if noise.kind == "normal" else 1)


def shared_noise(each: Sequence[Noise]) -> Noise:
    """What serves all: normal numbers where nobody asks for others, else uniform ones. Always drawn."""
    if all(noise.kind != "uniform" for noise in each):
        is_none = all(noise.kind == "none" for noise in each)
        return Noise("none" if is_none else "normal", max(noise.size for noise in each), always=True)
    return Noise("uniform", max(in_uniforms(noise) for noise in each), always=True)


def noise_for(wanted: Noise, given: Noise, noise: Array) -> Array:
    """[N, wanted.size] of [N, given.size], where `given` serves."""
    if wanted.kind == "normal" and given.kind == "uniform":
        return normal_of(noise[:, : in_uniforms(wanted)])
    return noise[:, : wanted.size]
