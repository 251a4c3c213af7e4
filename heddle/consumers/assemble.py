"""From decoded batches to the tensors of one update: one copy of each column into buffers that are used again.

It never decides which batches belong together, and never changes a number that was played.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heddle.consumers.learners.base import AGENT_BITS, TrainBatch
from heddle.layout import Layout, Segments
from heddle.policies.base import Array
from heddle.spaces import Leaf, index_range
from heddle.spaces.cells import padded

_WIDER = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}
"""Types that torch cannot compute with, and what they become."""


class Assembler:
    """Buffers for the train batches of one experiment.

    Args:
        layout: of its batches.
        device: where the tensors shall be; buffers for CUDA are page-locked, so that their copies overlap.
    """

    def __init__(self, layout: Layout, *, device: torch.device) -> None:
        self.layout = layout
        self.device = device
        self._capacity = 0
        self._tensors: dict[str, Tensor] = {}
        self._views: dict[str, NDArray[Any]] = {}
        skipped = {"episode_return", "episode_length"}
        self._columns = [column for column in layout.columns if column.name not in skipped and column.leaf is None]
        self._ragged = [leaf for leaf in layout.observation_leaves if leaf.ragged]

    def assemble(
        self, batches: Sequence[Segments], shards: Sequence[int], epochs: Sequence[int] | None = None
    ) -> TrainBatch:
        """One train batch of the rows of `batches`, in this order.

        Args:
            batches: decoded batches; batches of one shard in the order of play.
            shards: the shard of each batch.
            epochs: of its owner; zeros when there are none.

        Returns:
            Tensors that are good until the next call.

        Raises:
            ValueError: no rows at all.
        """
        rows = sum(batch.rows for batch in batches)
        if not rows:
            raise ValueError("no segments to assemble")
        self._reserve(rows)
        start = 0
        for batch in batches:
            stop = start + batch.rows
            for column in self._columns:
                target = self._views[column.name][start:stop]
                if (stack := batch.stacks.get(column.name)) is not None:
                    stack.write(target)
                else:
                    np.copyto(target, batch.arrays[column.name], casting="unsafe")
            start = stop
        self._fill_unplayed(rows)
        columns = {column.name: self._tensors[column.name][:rows] for column in self._columns}
        counts = [batch.rows for batch in batches]
        owners = np.asarray([shards, [0] * len(batches) if epochs is None else epochs], np.int64)
        finals = self._finals(batches)
        padded = [self._padded(leaf, batches) for leaf in self._ragged]
        for seen, last in padded:
            columns |= seen
            finals[1].update(last)
        names = [name for seen, _ in padded for name in seen]
        return self._train_batch(columns, finals, np.repeat(owners, counts, axis=1), rows, names)

    def _train_batch(
        self,
        columns: dict[str, Tensor],
        finals: tuple[Tensor, dict[str, Tensor]],
        owners: Array,
        rows: int,
        padded: list[str],
    ) -> TrainBatch:
        env = self._views["env"][:rows].astype(np.int64) | self._views["agent"][:rows].astype(np.int64) << AGENT_BITS
        length = self._views["length"][:rows]
        kept = {name: tensor for name, tensor in columns.items() if name not in ("env", "agent")}
        on_device = {name: tensor.to(self.device, non_blocking=True) for name, tensor in kept.items()}
        valid = torch.arange(self.layout.steps, device=self.device) < on_device["length"].unsqueeze(1)
        observation_leaves = [leaf.name for leaf in self.layout.observation_leaves if not leaf.ragged] + padded
        return TrainBatch(
            observations={name: on_device[name] for name in observation_leaves},
            actions={leaf.name: on_device[leaf.name] for leaf in self.layout.action_leaves},
            reward=on_device["reward"],
            terminated=on_device["terminated"],
            truncated=on_device["truncated"],
            valid=valid,
            outputs=_under("out.", on_device),
            info=_under("info.", on_device),
            state=_under("state.", on_device),
            version=on_device["version"],
            final_index=finals[0],
            final_observations=finals[1],
            shard=owners[0],
            env=env,
            epoch=owners[1],
            num_steps=int(length.sum()),
        )

    def _fill_unplayed(self, rows: int) -> None:
        """Beyond a segment's length lie zeros: a network that looks up an index must not be shown one there is not."""
        for leaf in self.layout.observation_leaves:
            limits = None if leaf.ragged else index_range(leaf.space, chosen=False)
            if limits is not None and limits[0].any():
                beyond = np.arange(self.layout.steps + 1) > self._views["length"][:rows, None]
                self._views[leaf.name][:rows][beyond] = limits[0]

    def _finals(self, batches: Sequence[Segments]) -> tuple[Tensor, dict[str, Tensor]]:
        """Final observations of all batches, their rows counted through."""
        starts = np.cumsum([0, *(batch.rows for batch in batches)])
        index = np.concatenate(
            [
                np.stack([batch.arrays["final_row"] + start, batch.arrays["final_step"]], axis=1).astype(np.int64)
                for batch, start in zip(batches, starts, strict=False)
            ]
        )
        found: dict[str, Tensor] = {}
        for leaf in self.layout.observation_leaves:
            if leaf.ragged:
                continue
            joined = np.concatenate([batch.arrays[f"final.{leaf.name}"] for batch in batches])
            found[leaf.name] = torch.from_numpy(joined.astype(_dtype(leaf.space.dtype), copy=False)).to(self.device)
        return torch.from_numpy(index).to(self.device), found

    def _padded(self, leaf: Leaf, batches: Sequence[Segments]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The cells of a leaf as tensors of one width, [R, T+1, ...] and those of final observations, [K, ...]."""
        seen = np.concatenate([batch.arrays[leaf.name] for batch in batches])
        last = np.concatenate([batch.arrays[f"final.{leaf.name}"] for batch in batches])
        arrays = padded(leaf, np.concatenate([seen.reshape(-1), last]))
        tensors = {
            name: torch.from_numpy(array.astype(_dtype(array.dtype.name), copy=False)).to(self.device)
            for name, array in arrays.items()
        }
        return (
            {name: tensor[: seen.size].reshape(*seen.shape, *tensor.shape[1:]) for name, tensor in tensors.items()},
            {name: tensor[seen.size :] for name, tensor in tensors.items()},
        )

    def _reserve(self, rows: int) -> None:
        if rows <= self._capacity:
            return
        self._capacity = max(rows, self._capacity * 3 // 2)
        pinned = self.device.type == "cuda"
        for column in self._columns:
            dtype = getattr(torch, _dtype(column.dtype))
            shape = (self._capacity, *column.row_shape(self.layout.steps))
            self._tensors[column.name] = torch.zeros(shape, dtype=dtype, pin_memory=pinned)
            self._views[column.name] = self._tensors[column.name].numpy()


def _dtype(name: str) -> str:
    return _WIDER.get(name, name)


def _under(prefix: str, columns: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in columns.items() if name.startswith(prefix)}
