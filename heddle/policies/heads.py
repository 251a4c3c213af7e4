"""From a network's numbers to actions, in numpy: categorical for Discrete, diagonal Gaussian for Box.

It never draws: chance comes in as numbers. `torch_heads.py` holds the same formulas for learning.
"""

import math

import numpy as np
from numpy.typing import NDArray

from heddle.policies.base import Array

MASKED_LOGIT = np.float32(-1e9)
"""Logit of an action that is not allowed: its probability is exactly 0 in float32."""
HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)

Float32 = NDArray[np.float32]


def apply_mask(logits: Float32, mask: Array) -> Float32:
    """Logits [N, n] with disallowed actions (mask == 0) pushed away; a row that allows nothing is left as it is."""
    allowed = mask.reshape(logits.shape) != 0
    allowed |= ~allowed.any(axis=1, keepdims=True)
    return np.where(allowed, logits, MASKED_LOGIT)


def categorical(logits: Float32, uniform: Array | None) -> tuple[NDArray[np.int64], Float32]:
    """Choose by inverse CDF.

    Args:
        logits: [N, n] float32.
        uniform: [N, 1] on [0, 1); None: the likeliest action.

    Returns:
        Actions [N] int64 and their log-probabilities [N] float32.
    """
    rows = np.arange(len(logits))
    shifted = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
    cumulative = np.add.accumulate(np.exp(shifted), axis=1)
    total = cumulative[:, -1:]
    if uniform is None:
        actions = shifted.argmax(axis=1)
    else:
        # "<=" never picks an action of probability 0; the second term keeps rounding from stepping over the last one.
        threshold = np.minimum(uniform * total, np.nextafter(total, np.float32(0)))
        actions = np.add.reduce(cumulative <= threshold, axis=1)
    log_prob: Float32 = shifted[rows, actions] - np.log(total[:, 0])
    return actions, log_prob


def gaussian(mean: Float32, log_std: Float32, normal: Array | None) -> tuple[Float32, Float32]:
    """Choose mean + std * noise.

    Args:
        mean: [N, A] float32.
        log_std: [A] or [N, A] float32.
        normal: [N, A] standard normal; None: the mean itself.

    Returns:
        Actions [N, A] float32, not clipped, and their log-probabilities [N] float32, summed over A.
    """
    size = mean.shape[1]
    constant = size * HALF_LOG_TAU
    if normal is None:
        peak = np.broadcast_to(-log_std.sum(axis=-1) - constant, len(mean))
        return mean, peak.astype(np.float32)
    noise: Float32 = np.asarray(normal, np.float32)
    spread: Float32 = np.exp(log_std)
    actions: Float32 = mean + spread * noise
    summed = -0.5 * np.einsum("na,na->n", noise, noise) - log_std.sum(axis=-1) - constant
    return actions, summed.astype(np.float32)
