"""The tap: somebody's own look at an experiment's experience, beside the trainer's.

It never deletes, and never holds anything up: what the trainer's ack deleted before the tap came to it is missed, and
counted. One process at a time reads a tap; the next one of the same name goes on where it stood.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from heddle.broker import Broker
from heddle.broker.experience_types import Pointer
from heddle.clock import Clock, SystemClock
from heddle.consumers.opening import decode_as
from heddle.consumers.patience import Patience
from heddle.consumers.setting import Describe, Setting, read_setting
from heddle.consumers.shelf import Shelf, shares
from heddle.errors import BatchError, Conflict, UsageError
from heddle.layout import Segments
from heddle.plane import Plane, open_plane, why_missing

if TYPE_CHECKING:
    from heddle.consumers.learners import TrainBatch

log = logging.getLogger("heddle.tap")

BLOCK_MS = 500
READ_AT_ONCE = 16
PREFIX = "tap-"
CONSUMER = "tap"
SAY_SO_S = 10.0
"""How often a tap that cannot map the trainer's shared memory says that it is here."""


@dataclass(frozen=True, slots=True)
class TapBatch:
    """One batch as a tap sees it.

    Attributes:
        shard, epoch, nonce, seq: its identity; a shard below 0 is the line of replays of shard -1 - it.
        kind: train or eval.
        segments: its arrays; `heddle.layout` says which there are. Read-only.
        entry_id: in the stream.
    """

    shard: int
    epoch: int
    seq: int
    kind: str
    segments: Segments
    nonce: str
    entry_id: str

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """By name, shaped as `heddle.layout` says: obs [R, T + 1, ...], action, reward, terminated, out.log_prob ..."""
        return self.segments.arrays


class Tap:
    """A reader of one experiment's batches, in the order in which they were accepted.

    Iterate over it: batches come as they are accepted, until the experiment is over and all of its batches are read.

    Attributes:
        missed: batches that were deleted before this tap came to them.
        refused: batches that could not be decoded.

    Args:
        name: of the tap; where it stands is kept under it, in the broker.
        describe: makes one environment to see its spaces, where whoever submitted the spec did not.
        check: called before every call of the broker; what it raises ends the waiting for one that is away.
        plane: opens this host's shared memory.

    Raises:
        UsageError: the name is empty.
        Conflict: batches lie in the memory of another host, and the spec has them all there (rollout.plane = "shm").
    """

    def __init__(
        self,
        broker: Broker,
        experiment: str,
        name: str,
        *,
        partition: int = 0,
        describe: Describe | None = None,
        clock: Clock | None = None,
        check: Callable[[], None] = lambda: None,
        plane: Callable[[], Plane] = open_plane,
    ) -> None:
        if not name:
            raise UsageError("a tap needs a name")
        self.missed = 0
        self.refused = 0
        self._broker = broker
        self._experiment = experiment
        self._at = (experiment, partition)
        self._group = PREFIX + name
        self._clock = clock or SystemClock()
        self._patience = Patience(check=check, clock=self._clock)
        self._setting = read_setting(broker, experiment, describe=describe)
        self._last: dict[int, int] = {}
        self._taken: list[str] = []
        self._stranded = True
        setting = self._setting
        self._shelf: Shelf = self._patience.call(
            "open shared memory", lambda: Shelf.of(broker, experiment, setting, plane=plane)
        )
        self._say_so_at = 0.0 if shares(setting) else None
        self._say_so()
        self._patience.call("make the group", lambda: broker.experience.ensure_group(*self._at, self._group))

    def __iter__(self) -> Iterator[TapBatch]:
        while True:
            ended = self._is_over()
            batches = self.poll(block_ms=0 if ended else BLOCK_MS)
            yield from batches
            if ended and not batches:
                return

    def poll(self, *, block_ms: int = BLOCK_MS) -> list[TapBatch]:
        """The next batches, waiting at most `block_ms` for the first; [] when there is none."""
        found = self.take(block_ms=block_ms)
        self.done()
        return found

    def take(self, *, block_ms: int = BLOCK_MS) -> list[TapBatch]:
        """As `poll`, but the tap stays where it was until `done`: a process that dies before is given these again."""
        experience = self._broker.experience
        self._say_so()
        pointers = self._take_over() if self._stranded else []
        self._stranded = False
        pointers += self._patience.call(
            "read experience",
            lambda: experience.read(
                *self._at, self._group, CONSUMER, count=READ_AT_ONCE, block_ms=0 if pointers else block_ms
            ),
            on_trouble=self._strand,
        )
        if self._stranded:  # a lost answer held what comes before what was read since
            pointers, self._stranded = self._take_over(), False
        if not pointers:
            self._shelf.tidy()
        blobs = self._patience.call("fetch batches", lambda: self._shelf.fetch(pointers)) if pointers else []
        self._taken += [pointer.entry_id for pointer in pointers]
        return [batch for pair in zip(pointers, blobs, strict=True) if (batch := self._open(*pair)) is not None]

    def done(self) -> None:
        """What was taken is dealt with: the tap goes on behind it."""
        experience, ids = self._broker.experience, list(self._taken)
        if ids:
            self._patience.call("ack the tap", lambda: experience.ack_tap(*self._at, self._group, ids))
        self._taken.clear()

    @property
    def setting(self) -> Setting:
        """Spec, spaces and layout of what it reads."""
        return self._setting

    @property
    def over(self) -> bool:
        """Whether the experiment is."""
        return self._is_over()

    def torch(self, device: str = "cpu") -> Iterator["TrainBatch"]:
        """The same as torch tensors, train batches only; each is good until the next one is asked for.

        Raises:
            MissingExtra: torch is not installed.
        """
        from heddle.consumers.tensors import assembler

        assemble = assembler(self._setting.layout, device)
        for batch in self:
            if batch.kind == "train" and batch.segments.rows:
                yield assemble([batch.segments], [batch.shard], [batch.epoch])

    def remove(self) -> None:
        """Forget where this tap stands."""
        self._broker.experience.remove_tap(*self._at, self._group)

    def _say_so(self) -> None:
        """Where the trainer's memory is not this host's, have producers give their bytes to the broker while we read.

        What lies there already is missed, and counted.
        """
        now = self._clock.monotonic()
        if self._say_so_at is None or now < self._say_so_at:
            return
        self._say_so_at = now + SAY_SO_S
        theirs = self._patience.call("read ctl", lambda: self._broker.experiments.ctl(self._experiment)).plane
        if theirs in ("", self._shelf.token):
            return
        why = why_missing(theirs, self._shelf.token)
        if self._setting.spec.plane == "shm":
            raise Conflict(
                f'a tap cannot read {self._experiment}: {why}, and rollout.plane is "shm"; read it there, '
                'or use rollout.plane = "auto" or "redis"'
            )
        self._patience.call("say that a tap is here", lambda: self._broker.planes.read_from_afar(*self._at))

    def _open(self, pointer: Pointer, blob: bytes | memoryview | None) -> TapBatch | None:
        before = self._last.get(pointer.shard)
        self._last[pointer.shard] = max(pointer.seq, before or 0)
        if before is not None and pointer.seq > before + 1:
            self.missed += pointer.seq - before - 1
        if blob is None:
            self.missed += 1
            if pointer.location == "shm":
                log.info("missed a batch shard=%s: %s", pointer.named, self._shelf.why(pointer))
            return None
        size_cap = self._setting.spec.limits.batch_bytes
        try:
            segments = decode_as(pointer, self._setting.layout, blob, size_cap=size_cap).whole()
        except BatchError as error:
            self.refused += 1
            log.warning("passed over a batch shard=%s reason=%s", pointer.named, error)
            return None
        identity = (pointer.shard, pointer.epoch, pointer.seq, pointer.kind)
        return TapBatch(*identity, segments, nonce=pointer.nonce, entry_id=pointer.entry_id)

    def _take_over(self) -> list[Pointer]:
        """What was given out and not finished, by an earlier process or in an answer that was lost."""
        return self._patience.call(
            "take over pending entries",
            lambda: self._broker.experience.take_over(*self._at, self._group, CONSUMER),
        )

    def _strand(self) -> None:
        self._stranded = True

    def _is_over(self) -> bool:
        status = self._patience.call("read status", lambda: self._broker.experiments.status(self._experiment))
        return status.ended
