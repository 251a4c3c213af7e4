"""Playing in the simulation: environments that only count, and batches that say what is in them.

Every environment of every player has a name of its own, and a batch names the steps it holds: what reaches a model
twice, or never, can be told from the bytes alone.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.errors import BatchError, EnvError
from heddle.layout import Layout
from heddle.policies.base import Array, Arrays, Noise
from heddle.shard import ShardPlan
from heddle.spec import ExperimentSpec
from tests.simulation.hub import Hub


@dataclass(slots=True)
class SimSegments:
    """What the shipped code asks of `Segments`; the bytes travel along.

    Attributes:
        name: (player, first step): no two batches that were played share it.
        owner: of its arrays; nobody's are used again.
        num_finals: final observations; it has none of its own.
    """

    rows: int
    num_steps: int
    version_min: int
    version_max: int
    arrays: dict[str, NDArray[Any]]
    payload: bytes
    name: tuple[int, int]
    owner: None = None
    num_finals: int = 0

    def whole(self) -> "SimSegments":
        return self


@dataclass(slots=True)
class Nature:
    """What environments of one world are like.

    Attributes:
        hub: whose time they take.
        step_s: seconds a step takes, by shard; others take `usual_s`.
        broken: shards whose environment raises at every step.
        deadly: shards whose environment kills its process at every step.
        poison: first steps of batches that kill whoever trains on them.
        sizes: bytes of a batch, at least and at most.
    """

    hub: Hub
    usual_s: float = 0.05
    step_s: dict[int, float] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)
    deadly: set[int] = field(default_factory=set)
    sizes: tuple[int, int] = (100, 400)
    poison: frozenset[int] = frozenset()
    players: Iterator[int] = field(default_factory=lambda: count(1))


class SimPolicy:
    """A policy that nothing acts with; its weights are one number, which says what was trained."""

    noise = Noise("none", 0)
    outputs: Mapping[str, Any] = {}
    state: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self._weights: Arrays = {"what": np.zeros(1, np.int64)}

    def get_weights(self) -> Arrays:
        return dict(self._weights)

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        self._weights = dict(weights)


class SimPlayer:
    """Stands for `Player`: a shard's environments."""

    beside, pace = False, ""

    def __init__(
        self, nature: Nature, plan: ShardPlan, spec: ExperimentSpec, policy: Any, layout: Layout, **_: Any
    ) -> None:
        self.plan = plan
        self.doing: str | None = None
        self.last_progress = 0.0
        self._nature = nature
        self.spec = spec
        self.number = next(nature.players)
        self.steps = 0
        self.standing = SimStanding(self)

    def prepare(self) -> None:
        """The first episodes begin without taking time."""

    def play(self, version: int) -> SimSegments:
        """One segment of every environment."""
        length = self.spec.rollout.steps
        self._pass(length)
        return self._made(version, length, ended=self._nature.hub.rng.random() < 0.3)

    def play_episodes(
        self, version: int, episodes: int, *, deterministic: bool, most_steps: int | None = None
    ) -> Iterator[tuple[SimSegments, bool]]:
        """An evaluation of two segments."""
        for last in (False, True):
            self._pass(self.spec.rollout.steps)
            yield self._made(version, self.spec.rollout.steps, ended=True), last

    def resume(self, snapshot: bytes) -> None:
        """Go on where another one stood."""
        self.standing.resume(snapshot)

    def recycle(self, segments: SimSegments) -> None:
        """Nothing is kept."""

    def hear(self) -> list[str]:
        """There is nothing to say."""
        return []

    def cut(self) -> None:
        """A segment is a single wait, which nothing shortens."""

    def close(self) -> None:
        """Nothing is open."""

    def _pass(self, steps: int) -> None:
        nature, process = self._nature, self._nature.hub.task().process
        self.doing, self.last_progress = "step", process.monotonic()
        try:
            self._nature.hub.wait(nature.step_s.get(self.plan.index, nature.usual_s) * steps)
            if self.plan.index in nature.broken:
                raise EnvError("broke, as it always does", value=self.spec.env.id)
            if self.plan.index in nature.deadly:
                process.kill()
                process.check()
        finally:
            self.doing = None

    def _made(self, version: int, length: int, *, ended: bool) -> SimSegments:
        rows, steps, rng = self.plan.num_envs, self.plan.num_envs * length, self._nature.hub.rng
        facts = (self.plan.index, version, rows, steps, self.number, self.steps, int(ended))
        self.steps += length
        head = "|".join(map(str, facts)).encode() + b"|"
        return _segments(facts, head.ljust(rng.randint(*self._nature.sizes), b"."))


@dataclass(frozen=True, slots=True)
class SimIdentity:
    """What a snapshot is of, as far as the shipped code says so."""

    spec: str = ""


class SimStanding:
    """Stands for `Standing`: where a player is, as bytes."""

    def __init__(self, player: SimPlayer) -> None:
        self._player = player
        self.identity = SimIdentity()

    def pack(self) -> bytes:
        return b"%d|%d" % (self._player.number, self._player.steps)

    def resume(self, snapshot: bytes) -> None:
        number, steps = snapshot.split(b"|")
        self._player.number, self._player.steps = int(number), int(steps)


def encode(layout: Layout, segments: SimSegments, *, compression: str | None = None) -> memoryview:
    """Stands for `batch.encode`."""
    return memoryview(segments.payload)


def decode(layout: Layout, data: bytes | memoryview, *, crc32: int | None, size_cap: int) -> SimSegments:
    """Stands for `batch.decode_stacks`. Raises BatchError."""
    if len(data) > size_cap:
        raise BatchError(f"the batch has {len(data)} bytes, more than the cap of {size_cap}")
    if crc32 is not None and zlib.crc32(data) != crc32:
        raise BatchError("the checksum differs")
    facts = tuple(int(word) for word in bytes(data).split(b"|")[:7])
    return _segments(facts, bytes(data))


def name_of(data: bytes) -> tuple[int, int]:
    """The name of a batch, from its bytes."""
    words = data.split(b"|", 6)
    return (int(words[4]), int(words[5]))


def _segments(facts: tuple[int, ...], payload: bytes) -> SimSegments:
    _, version, rows, steps, player, first, ended = facts
    lengths = np.zeros((rows, 1), np.int32)
    if ended:
        lengths[0, 0] = 1
    arrays: dict[str, NDArray[Any]] = {
        "env": np.arange(rows, dtype=np.int32),
        "agent": np.zeros(rows, np.int32),
        "version": np.full(rows, version, np.int64),
        "episode_length": lengths,
        "episode_return": lengths.astype(np.float64),
    }
    return SimSegments(rows, steps, version, version, arrays, payload, (player, first))
