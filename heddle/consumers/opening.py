"""Opening a batch: from a pointer and bytes to arrays that are what the pointer says, of the shard that it names.

It never reads a stream and never decides what becomes of a batch that cannot be opened.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from heddle.batch import decode_stacks, spot_check
from heddle.broker.experience_types import Pointer
from heddle.errors import BatchError
from heddle.layout import Layout, Segments
from heddle.shard import ShardPlan

VERSIONS_AHEAD = 1_000_000
"""A batch may be that much newer than the latest known policy (a broker that was set back); a lie is farther away."""


def decode_as(pointer: Pointer, layout: Layout, blob: bytes | memoryview, *, size_cap: int) -> Segments:
    """`batch.decode_stacks`, with the checksum that the pointer announces.

    Raises:
        BatchError: as that does.
    """
    if pointer.location == "redis":
        return decode_stacks(layout, blob, crc32=pointer.crc32, size_cap=size_cap)
    if len(blob) <= size_cap and (found := spot_check(blob)) != pointer.crc32:
        raise BatchError(f"the checksum is {found:08x}, announced was {pointer.crc32:08x}")
    return decode_stacks(layout, blob, crc32=None, size_cap=size_cap)


@dataclass(frozen=True, slots=True)
class Opener:
    """What the batches of one experiment must be.

    Attributes:
        layout: their columns.
        plans: of every shard, by index.
        size_cap: most bytes of one, packed and unpacked.
    """

    layout: Layout
    plans: Mapping[int, ShardPlan]
    size_cap: int

    @classmethod
    def of(cls, layout: Layout, plans: Sequence[ShardPlan], size_cap: int) -> "Opener":
        """For shards in any order; `size_cap` in bytes."""
        return cls(layout, {plan.index: plan for plan in plans}, size_cap)

    def open(self, pointer: Pointer, blob: bytes | memoryview, *, latest: int | None = None) -> Segments:
        """The arrays of a batch, of which some observations may be stacks still: see `Segments.whole`.

        Args:
            latest: newest policy version that is known; None when it is not looked at.

        Raises:
            BatchError: anything at all is off; the message is one line that names it.
        """
        plan = self.plans.get(pointer.played_shard)
        if plan is None or plan.kind != pointer.kind:
            raise BatchError(f"the spec has no {pointer.kind} shard {pointer.played_shard}")
        if len(blob) > pointer.bytes:
            raise BatchError(f"the batch has more bytes than the {pointer.bytes} announced")
        segments = decode_as(pointer, self.layout, blob, size_cap=self.size_cap)
        announced = (pointer.segments, pointer.steps, pointer.version_min, pointer.version_max)
        found = (segments.rows, segments.num_steps, segments.version_min, segments.version_max)
        if announced != found:
            raise BatchError(f"segments, steps and versions are {found}, announced were {announced}")
        if latest is not None and segments.version_max > latest + VERSIONS_AHEAD:
            raise BatchError(f"policy version {segments.version_max} was never published, the latest is {latest}")
        env = segments.arrays["env"]
        if not 0 <= int(env.min()) <= int(env.max()) < plan.num_envs:
            raise BatchError(f"an environment outside of the shard's {plan.num_envs}")
        if int(segments.arrays["agent"].max()) >= plan.agents:
            raise BatchError(f"an agent outside of the environment's {plan.agents}")
        return segments
