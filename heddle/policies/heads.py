"""From a network's numbers to actions, in numpy: what `actions.py` describes, chosen by the numbers of a noise tape.

It never draws: chance comes in as numbers. `torch_heads.py` holds the same formulas for learning.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from heddle.policies.actions import Head, Heads
from heddle.policies.base import Array, Arrays

MASKED_LOGIT = np.float32(-1e9)
"""Logit of an action that is not allowed: its probability is exactly 0 in float32."""
HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
SQUASH_LIMIT = 1.0 - 1e-6
"""Where tanh is cut: beyond it float32 could not tell which number was squashed."""

Float32 = NDArray[np.float32]


def choose(
    heads: Heads, answer: Mapping[str, Array], observations: Mapping[str, Array], noise: Array | None
) -> tuple[Arrays, Float32]:
    """An action of every leaf.

    Args:
        answer: "logits", or "mean" and "log_std", each with the head's suffix: float32 [N, ...], log_std also [A].
        observations: for the masks among them.
        noise: [N, heads.noise.size]; None: the likeliest action.

    Returns:
        Actions by leaf as the player takes them, not clipped, and their log-probabilities [N] float32 together.
    """
    if noise is None or len(heads.all) == 1:
        parts = [noise] * len(heads.all)
    else:
        parts = list(heads.split_noise(noise))
    actions: Arrays = {}
    total: Float32 | None = None
    for head, chance in zip(heads.all, parts, strict=True):
        if head.continuous:
            chosen, log_prob = _continuous(head, answer, chance)
        else:
            chosen, log_prob = _discrete(head, answer, observations, chance)
        actions[head.leaf.name] = chosen
        total = log_prob if total is None else total + log_prob
    assert total is not None
    return actions, total


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


def multi_categorical(
    logits: Float32, sizes: Sequence[int], uniform: Array | None, mask: Array | None = None
) -> tuple[NDArray[np.int64], Float32]:
    """Choose every element of an action by logits of its own.

    Args:
        logits: [N, sum of sizes] float32, those of an element together.
        sizes: categories of each of k elements.
        uniform: [N, k] on [0, 1); None: the likeliest values.
        mask: [N, sum of sizes], non-zero where allowed.

    Returns:
        Indices [N, k] int64 and the log-probabilities [N] float32 of all elements together.
    """
    actions = np.empty((len(logits), len(sizes)), np.int64)
    total = np.zeros(len(logits), np.float32)
    begin = 0
    for place, size in enumerate(sizes):
        part = logits[:, begin : begin + size]
        if mask is not None:
            part = apply_mask(part, mask[:, begin : begin + size])
        chance = None if uniform is None else uniform[:, place : place + 1]
        actions[:, place], log_prob = categorical(part, chance)
        total += log_prob
        begin += size
    return actions, total


def bernoulli(logits: Float32, uniform: Array | None) -> tuple[NDArray[np.int8], Float32]:
    """Choose 0 or 1 for every element.

    Args:
        logits: [N, k] float32, of a 1.
        uniform: [N, k] on [0, 1); None: the likelier value.

    Returns:
        [N, k] int8 and the log-probabilities [N] float32 of all elements together.
    """
    ones = logits > 0 if uniform is None else uniform < 1.0 / (1.0 + np.exp(-logits.astype(np.float64)))
    signed = np.where(ones, -logits, logits)
    log_prob: Float32 = -np.logaddexp(np.float32(0), signed).sum(axis=1, dtype=np.float32)
    return ones.astype(np.int8), log_prob


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


def squashed(
    mean: Float32, log_std: Float32, normal: Array | None, *, low: Array, span: Array, dtype: str
) -> tuple[Array, Float32]:
    """Choose low + span * (tanh(mean + std * noise) + 1) / 2.

    The log-probability is that of the action as it is recorded, rounded to its dtype, so a learner finds it again.

    Args:
        mean, log_std, normal: as in `gaussian`.
        low, span: [A], of the bounds.
        dtype: of the actions.

    Returns:
        Actions [N, A] within the bounds, and their log-densities [N] float32, corrected for tanh and span.

    Source: Haarnoja et al. 2018, arXiv:1801.01290, appendix C.
    """
    wide = mean if normal is None else mean + np.exp(log_std) * np.asarray(normal, np.float32)
    squeezed = np.clip(np.tanh(wide.astype(np.float64)), -SQUASH_LIMIT, SQUASH_LIMIT)
    actions = np.clip(
        (low + span * (squeezed + 1.0) * 0.5).astype(dtype), low.astype(dtype), (low + span).astype(dtype)
    )
    found = np.clip(2.0 * (actions.astype(np.float64) - low) / span - 1.0, -SQUASH_LIMIT, SQUASH_LIMIT)
    scaled = (np.arctanh(found) - mean) * np.exp(-log_std.astype(np.float64))
    each = -0.5 * scaled * scaled - log_std - HALF_LOG_TAU - np.log1p(-found * found) - np.log(0.5 * span)
    return actions, each.sum(axis=1).astype(np.float32)


def _continuous(head: Head, answer: Mapping[str, Array], normal: Array | None) -> tuple[Array, Float32]:
    mean = answer[f"mean{head.suffix}"]
    mean = mean.reshape(len(mean), head.count)
    log_std = answer[f"log_std{head.suffix}"]
    space = head.leaf.space
    if head.low is not None and head.span is not None:
        flat, log_prob = squashed(mean, log_std, normal, low=head.low, span=head.span, dtype=space.dtype)
        return flat.reshape(len(flat), *space.shape), log_prob
    drawn, log_prob = gaussian(mean, log_std, normal)
    if space.dtype == "float16":  # what is recorded is rounded, and that is what a learner judges
        scaled = (drawn.astype(np.float16) - mean) * np.exp(-log_std)
        log_prob = (-0.5 * scaled * scaled - log_std - np.float32(HALF_LOG_TAU)).sum(axis=1)
    return drawn.reshape(len(drawn), *space.shape).astype(space.dtype, copy=False), log_prob


def _discrete(
    head: Head, answer: Mapping[str, Array], observations: Mapping[str, Array], uniform: Array | None
) -> tuple[Array, Float32]:
    logits = answer[f"logits{head.suffix}"]
    rows, shape = len(logits), head.leaf.space.shape
    logits = logits.reshape(rows, head.count)
    if head.kind == "bernoulli":
        ones, log_prob = bernoulli(logits, uniform)
        return ones.reshape(rows, *shape).astype(head.leaf.chosen_dtype, copy=False), log_prob
    mask = np.concatenate([observations[name].reshape(rows, -1) for name in head.masks], axis=1) if head.masks else None
    if len(head.sizes) == 1:
        actions, log_prob = categorical(logits if mask is None else apply_mask(logits, mask), uniform)
    else:
        actions, log_prob = multi_categorical(logits, head.sizes, uniform, mask)
    actions = actions.reshape(rows, *shape)
    if head.offset is not None:
        return (actions + head.offset).astype(head.leaf.chosen_dtype), log_prob
    return actions, log_prob
