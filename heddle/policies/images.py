"""Which leaves of an observation are images, and how their axes lie.

It never looks at a pixel and never imports torch.

An image is a Box of three dimensions, or of two when it is uint8 (grey, one channel), or of four when frames are
stacked in front (gymnasium.wrappers.FrameStackObservation); stacked frames become channels.
"""

from dataclasses import dataclass
from typing import Literal

from heddle.spaces import Box, LeafSpace

Order = Literal["auto", "hwc", "chw"]


@dataclass(frozen=True, slots=True)
class Image:
    """How one image becomes [channels, height, width].

    Attributes:
        permutation: of the axes of one observation, channels (and frames before them) first.
        channels, height, width: of the result; frames times channels.
    """

    permutation: tuple[int, ...]
    channels: int
    height: int
    width: int


def image_of(space: LeafSpace, order: Order = "auto") -> Image | None:
    """The layout of an image leaf; None for what is no image.

    Args:
        order: of the last three axes; "auto" takes the first of them for channels when it is smaller than the last.
    """
    if not isinstance(space, Box):
        return None
    shape = space.shape
    if len(shape) == 2 and space.dtype == "uint8":
        return Image((0, 1), 1, *shape)
    if len(shape) not in (3, 4):
        return None
    frames = shape[0] if len(shape) == 4 else 1
    first = len(shape) - 3
    chw = order == "chw" or (order == "auto" and shape[first] < shape[-1])
    axes = (first, first + 1, first + 2) if chw else (first + 2, first, first + 1)
    channels, height, width = (shape[axis] for axis in axes)
    return Image((*range(first), *axes), frames * channels, height, width)
