"""Tensors on request: the door through which code without torch gets train batches.

It never loads torch before somebody asks for a tensor.
"""

import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from heddle.errors import MissingExtra
from heddle.layout import Layout, Segments

if TYPE_CHECKING:
    from heddle.consumers.learners import TrainBatch


Assemble = Callable[[Sequence[Segments], Sequence[int], Sequence[int]], "TrainBatch"]


def assembler(layout: Layout, device: str = "auto") -> Assemble:
    """A function from batches, their shards and their owners' epochs to one train batch, good until it is called again.

    Raises:
        MissingExtra: torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("a torch batch", "torch")
    from heddle.consumers.assemble import Assembler
    from heddle.consumers.learners import resolve_device

    return Assembler(layout, device=resolve_device(device)).assemble
