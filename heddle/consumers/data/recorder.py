"""The recorder: a tap whose batches become episodes in a folder, each step once, whatever kills it.

It never holds the run up. It lets go of what it has taken only once that is durable: whoever comes after a death is
given again what was not, and passes over what was.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heddle.broker import Broker
from heddle.clock import Clock, SystemClock
from heddle.consumers.data.joiner import Joiner
from heddle.consumers.data.piece import Piece
from heddle.consumers.data.schema import columns_of
from heddle.consumers.data.store import ENDED, Manifest, Store
from heddle.consumers.patience import GivenUp
from heddle.consumers.setting import Describe, Setting
from heddle.consumers.tap import Tap, TapBatch
from heddle.errors import Conflict, Gone
from heddle.stop import StopFlag
from heddle.version import __version__

log = logging.getLogger("heddle.recorder")

COMMIT_S = 1.0
"""So long experience lies in memory at most; a recorder that dies may find it settled by then."""
COMMIT_BYTES = 64 * 2**20
BLOCK_MS = 250


@dataclass(frozen=True, slots=True)
class Options:
    """What to record.

    Attributes:
        folder: where to.
        episodes: enough when so many are whole; None: until the experiment is over.
        kinds: train, eval or both.
        max_bytes: enough when the files have so many; None for no bound.
        follow: wait for what comes; else only what is there now.
    """

    folder: Path
    episodes: int | None = None
    kinds: tuple[str, ...] = ("train",)
    max_bytes: int | None = None
    follow: bool = True


class Recorder:
    """Records one experiment into one folder, until there is enough, it is over, or it shall stop.

    Args:
        describe: makes one environment to see its spaces, where whoever submitted the spec did not.
        tell: called with the manifest after each commit.

    Raises:
        Conflict: another process records into the folder, or it holds another experiment.
        DataError: the folder cannot be written.
    """

    def __init__(
        self,
        broker: Broker,
        experiment: str,
        options: Options,
        *,
        stop: StopFlag | None = None,
        describe: Describe | None = None,
        tell: Callable[[Manifest], None] = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self._options = options
        self._broker = broker
        self._stop = stop or StopFlag()
        self._tell = tell
        self._clock = clock or SystemClock()
        self._store = Store(options.folder)
        manifest = self._store.manifest
        name = manifest.tap if manifest else f"recorder-{int(np.random.default_rng().integers(1 << 32)):08x}"
        try:
            _check_same(manifest, experiment, options.folder)
            self._tap = Tap(broker, experiment, name, describe=describe, clock=self._clock, check=self._check)
            if manifest is None:
                self._store.begin(_new(self._tap.setting, name))
            self._joiner = Joiner(
                self._tap.setting.layout, self._manifest.state, self._store.open_pieces() if manifest else ()
            )
        except BaseException:
            self._store.close()
            raise
        self._whole: list[Piece] = []
        self._bytes = 0
        self._committed_at = self._clock.monotonic()
        self._refused_before = self._manifest.refused

    def run(self) -> Manifest:
        """Record; the manifest at the end, `done` unless it was stopped before there was enough."""
        try:
            why = "" if self._manifest.done else self._record()
            if why:
                self._finish(why)
        except GivenUp:
            log.info("stopped while the broker was away")
        finally:
            self._store.close()
        return self._manifest

    # ---- inside

    @property
    def _manifest(self) -> Manifest:
        assert self._store.manifest is not None
        return self._store.manifest

    def _record(self) -> str:
        """Take and commit; why there is enough, "" when it was stopped."""
        dirty = False
        while not self._stop.draining:
            over = self._is_over()
            last = over or not self._options.follow
            batches = self._take(block_ms=0 if last else BLOCK_MS)
            for batch in batches:
                if batch.kind in self._options.kinds:
                    self._add(batch)
            dirty = dirty or bool(batches)
            if last and not batches:
                if dirty:
                    self._commit()
                return "the experiment is over" if over else "all that was there is recorded"
            if dirty and self._is_due():
                dirty = False
                if why := self._commit():
                    return why
        if dirty:
            self._commit()
        return ""

    def _take(self, *, block_ms: int) -> list[TapBatch]:
        try:
            return self._tap.take(block_ms=block_ms)
        except Gone:
            return []

    def _is_over(self) -> bool:
        try:
            return self._tap.over
        except Gone:  # removed: nothing more comes
            return True

    def _add(self, batch: TapBatch) -> None:
        self._whole += self._joiner.add(batch)
        self._bytes += sum(array.nbytes for array in batch.segments.arrays.values())

    def _is_due(self) -> bool:
        waited_s = self._clock.monotonic() - self._committed_at
        return waited_s >= COMMIT_S or self._bytes >= COMMIT_BYTES or self._reached_episodes()

    def _reached_episodes(self) -> bool:
        wanted = self._options.episodes
        return wanted is not None and self._manifest.episodes + _ended(self._whole) >= wanted

    def _commit(self) -> str:
        """Make durable what there is, then let go of it; why it is enough, "" when it is not."""
        manifest = self._manifest
        manifest.state = self._joiner.state
        manifest.refused = self._refused_before + self._tap.refused
        self._store.commit(self._whole, self._joiner.news(), self._joiner.under_way())
        self._tap.done()
        self._store.compact()
        self._whole, self._bytes, self._committed_at = [], 0, self._clock.monotonic()
        self._tell(manifest)
        if self._reached_episodes():
            return f"{manifest.episodes} episodes are whole"
        most = self._options.max_bytes
        if most is not None and manifest.size_bytes >= most:
            return f"the files have {manifest.size_bytes} bytes, of {most}"
        return ""

    def _finish(self, why: str) -> None:
        """Cut what is under way, and forget the tap: nothing more is recorded here."""
        manifest, cut = self._manifest, self._joiner.close()
        if self._is_over():
            self._joiner.state.missed += self._unseen()
        manifest.done, manifest.state = True, self._joiner.state
        self._store.commit(cut, [], {})
        self._tell(manifest)
        try:
            self._tap.remove()
        except Gone:
            log.info("the experiment was removed")
        log.info("recorded folder=%s because %s", self._options.folder, why)

    def _unseen(self) -> int:
        """Batches that shards gave after the last one of theirs that came here."""
        try:
            shards = self._broker.shards.shards(self._tap.setting.stored.experiment, 0)
        except Gone:
            return 0
        state = self._joiner.state
        wanted = [shard for shard in shards if shard.kind in self._options.kinds]
        return sum(max(0, shard.seq - state.seq(shard.shard)) for shard in wanted)

    def _check(self) -> None:
        """While the broker is away: end when asked to."""
        if self._stop.draining:
            raise GivenUp("asked to stop")


def _ended(pieces: list[Piece]) -> int:
    return sum(piece.end in ENDED for piece in pieces)


def _check_same(manifest: Manifest | None, experiment: str, folder: Path) -> None:
    """Raise Conflict where a folder holds another experiment's experience."""
    if manifest is not None and manifest.provenance["experiment"] != experiment:
        raise Conflict(
            f"{folder} holds experience of {manifest.provenance['experiment']}, not of {experiment};"
            " give another folder with --to"
        )


def _new(setting: Setting, tap: str) -> Manifest:
    stored, spec = setting.stored, setting.spec
    provenance: dict[str, Any] = {
        "experiment": stored.experiment,
        "name": stored.name,
        "env": spec.env.id,
        "seed": spec.experiment.seed,
        "sha256": stored.sha256,
        "owner": stored.owner,
        "code": stored.code,
        "commit": stored.commit,
        "recorded_by": __version__,
        "protocol": stored.protocol,
        "created_ms": stored.created_ms,
        "spec": spec.model_dump(mode="json"),
        "toml": stored.toml,
    }
    return Manifest(provenance, setting.spaces_json(), columns_of(setting.layout), tap)
