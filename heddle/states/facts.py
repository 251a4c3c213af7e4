"""Facts: everything of one experiment that its judgement follows from, as one value read at one moment.

It never judges; times are server milliseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from heddle.broker.coordinators import Leader
from heddle.broker.experience_types import Flow
from heddle.broker.pools import WorkerInfo
from heddle.broker.records import Status
from heddle.broker.seats import Sitter
from heddle.broker.types import Ctl, ShardState


@dataclass(frozen=True, slots=True)
class Sight:
    """Who looks, and since when it could have seen anything.

    Attributes:
        now_ms: the moment of the look.
        seen_for_ms: how long the broker has been up and in reach of whoever looks. A silence that is older proves
            nothing: failing to observe is not failing.
    """

    now_ms: int
    seen_for_ms: int


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """The workers of a pool.

    Attributes:
        name: which.
        workers: those it lists, by id.
        wanted: how many it shall have; None when nobody said and no supervisor is here.
        supervisors: ids of those that are here.
    """

    name: str
    workers: Mapping[str, WorkerInfo]
    wanted: int | None = None
    supervisors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """One experiment.

    Attributes:
        sight: when this was read.
        status, ctl, shards, flow: as the broker has them.
        ttl_ms: of its leases.
        room: shards that wait for room, and since when.
        pool: its workers.
        sitter: who has its seat, or had it last.
        leader: the coordinator that leads, or led last; None when the last one left or none ever was.
        updated_ms, update_s: when the last update was reported, and how long it took; 0 before the first.
        out_of_memory: the broker refuses writes that need memory.
        blocked: why it refuses every write; "" when it does not.
        damaged: what is wrong with a key of it that somebody put something else into; "" for nothing.
    """

    sight: Sight
    status: Status
    ctl: Ctl
    shards: tuple[ShardState, ...]
    flow: Flow
    ttl_ms: int
    pool: PoolFacts
    sitter: Sitter
    leader: Leader | None
    room: Mapping[int, int] = field(default_factory=dict)
    updated_ms: int = 0
    update_s: float = 0.0
    out_of_memory: bool = False
    blocked: str = ""
    damaged: str = ""

    @property
    def id(self) -> str:
        """Of the experiment."""
        return self.status.experiment
