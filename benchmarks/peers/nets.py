"""The small network for those that use torch."""

from common import EVERY, HIDDEN
from torch import nn


class Glance(nn.Module):
    """Every so many-th number of an image [..., 84, 84, 4] uint8, from 0 to 1."""

    def forward(self, images):
        return images.flatten(-3)[..., ::EVERY].float() * (1 / 255)


def seen(space):
    """How many numbers the network sees of an observation, and what picks them."""
    size = 1
    for extent in space.shape:
        size *= extent
    return (size // EVERY, Glance()) if len(space.shape) == 3 else (size, nn.Identity())


def tower(inputs, outputs):
    """64-64 with tanh."""
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, outputs)
    )
