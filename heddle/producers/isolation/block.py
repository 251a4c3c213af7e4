"""The block: memory that a worker and the child of a shard share, so that no step needs an encoding.

It holds numbers only: whatever a child writes there can be wrong, but not harmful; the player looks at it as at what
an environment returns. Each side writes its own part, and never while the other reads: the requests take turns.
"""

import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.producers import plain
from heddle.producers.contract import BadAnswer
from heddle.producers.reel import Part, part_of, plain_shape
from heddle.spaces import ACTION, Space, leaves, unflatten
from heddle.spaces.cells import blank_cell, boxed, to_cell

DONE, ENV, BUSY = 0, 1, 2
"""Cells: calls finished so far; the environment that is being called; 1 while a call into the user's code lasts."""

_CELLS = 8
_ALIGNMENT = 64


class Block:
    """One row an environment; sizes follow from the spaces.

    Attributes:
        cells: progress of the child, [8] uint64 as a memoryview: DONE, ENV, BUSY.
        mask: [n] uint8, environments to be stepped; actions: by leaf, [n, ...], what with, as they shall be given it.
        reward: [n] float64; flags: [n] uint8, 1 terminated, 2 truncated.
        finished, returns, lengths: [n], an episode of the innermost environment that ended, where one is counted.
        infos: [n, keys] float64, NaN where there was none.
        observations: by leaf, [n, ...]; those of cells are each side's own, and travel in frames.
    """

    def __init__(self, observation: Space, action: Space, n: int, info_keys: Sequence[str], memory: mmap.mmap) -> None:
        arrays: dict[str, NDArray[Any]] = {}
        for name, (offset, dtype, shape) in _places(observation, action, n, len(info_keys)).items():
            arrays[name] = np.frombuffer(memory, dtype, math.prod(shape), offset).reshape(shape)
        self.n, self.leaves, self._space = n, leaves(observation), observation
        self.cells = memoryview(memory).cast("B")[: 8 * _CELLS].cast("Q")
        self.mask, self.reward, self.flags = (arrays[k] for k in ("mask", "reward", "flags"))
        self._action_leaves = leaves(action, ACTION)
        self.actions = {leaf.name: arrays[leaf.name] for leaf in self._action_leaves}
        self.finished, self.returns, self.lengths = (arrays[k] for k in ("finished", "returns", "lengths"))
        self.infos = arrays["infos"]
        self.info_keys = tuple(info_keys)
        self._fixed = frozenset(leaf.name for leaf in self.leaves if not leaf.ragged)
        self.ragged = [leaf for leaf in self.leaves if leaf.ragged]
        arrays |= {leaf.name: boxed([blank_cell(leaf)] * n) for leaf in self.ragged}
        self.observations = {leaf.name: arrays[leaf.name] for leaf in self.leaves}

    @property
    def plain(self) -> NDArray[Any] | None:
        """[n, ...], the rows of an observation that is one Box array; None for all others."""
        return None if plain_shape(self.leaves) is None else self.observations[self.leaves[0].name]

    def parts(self, env: int) -> list[Part]:
        """Where the parts of an observation of `env` go, in row 0, as `Reel.parts` says."""
        return [part_of(leaf, self.observations[leaf.name][env : env + 1]) for leaf in self.leaves]

    def put_action(self, env: int, choice: Any) -> None:
        """Write what `env` shall be given."""
        for leaf in self._action_leaves:
            self.actions[leaf.name][env] = leaf.pick(choice)

    def view(self, env: int) -> Any:
        """The observation of `env`, as nested as its space: arrays of fixed shape change with the next call.

        A number of no dimensions is such an array, too: indexing by `env` alone would copy it.
        """
        return unflatten(self._space, lambda name: self.observations[name][(env, ...) if name in self._fixed else env])

    @property
    def is_fixed(self) -> bool:
        """True when a view stays good: no part of the observation is made anew."""
        return all(leaf.direct for leaf in self.leaves)

    def pack_cells(self, envs: Sequence[int]) -> bytes:
        """The cells of `envs`, for the other side; b"" where there are none."""
        if not self.ragged:
            return b""
        return plain.dump([[self.observations[leaf.name][env] for leaf in self.ragged] for env in envs])

    def take_cells(self, envs: Sequence[int], data: bytes) -> None:
        """What `pack_cells` gave. Raises BadAnswer for anything else."""
        if not self.ragged:
            return
        try:
            for env, cells in zip(envs, plain.load(data), strict=True):
                for leaf, cell in zip(self.ragged, cells, strict=True):
                    self.observations[leaf.name][env] = to_cell(leaf, cell)
        except (ValueError, TypeError) as error:
            raise BadAnswer(f"the observation cannot be read: {error}") from error


def size_of(observation: Space, action: Space, n: int, num_infos: int) -> int:
    """Bytes of a block."""
    offset, dtype, shape = list(_places(observation, action, n, num_infos).values())[-1]
    return offset + max(1, math.prod(shape)) * np.dtype(dtype).itemsize


def _places(observation: Space, action: Space, n: int, num_infos: int) -> dict[str, tuple[int, str, tuple[int, ...]]]:
    """Offset, dtype and shape of every array."""
    wanted: list[tuple[str, str, tuple[int, ...]]] = [
        ("cells", "uint64", (_CELLS,)),
        ("mask", "uint8", (n,)),
        ("reward", "float64", (n,)),
        ("flags", "uint8", (n,)),
        ("finished", "uint8", (n,)),
        ("returns", "float64", (n,)),
        ("lengths", "int64", (n,)),
        ("infos", "float64", (n, num_infos)),
    ]
    both = [*leaves(action, ACTION), *(leaf for leaf in leaves(observation) if not leaf.ragged)]
    wanted += [(leaf.name, leaf.space.dtype, (n, *leaf.space.shape)) for leaf in both]
    places, offset = {}, 0
    for name, dtype, shape in wanted:
        places[name] = (offset, dtype, shape)
        size = math.prod(shape) * np.dtype(dtype).itemsize
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT
    return places
