"""Prefetch: the bytes of batches that will be read next, fetched from the broker by a thread while the learner works.

It never reads as the group, never decodes and settles nothing: an entry is read, named as loaded, checked and decoded
in its turn, and only finds its bytes here. Whatever becomes of what lies here, no batch is lost or trained twice; and
bytes that a decoder dies of are named before it sees them, as ever.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from heddle.broker.experience import Experience
from heddle.broker.experience_types import Pointer
from heddle.consumers.marks import entry_order
from heddle.consumers.setting import Setting
from heddle.errors import HeddleError

log = logging.getLogger("heddle.trainer")

MOST_BYTES = 64 << 20
"""And never more than a quarter of `limits.max_bytes`."""
LARGE_BYTES = 128 << 10
"""An experiment of smaller batches waits for round trips and not for bytes."""
AT_ONCE_BYTES = 4 << 20
"""Of so much one round trip is made, so that the end of an update waits for little."""
LOOK_COUNT = 64
LOOK_S = 0.05
"""With nothing new in the stream it is looked at again after so long."""
END_S = 1.0
"""For so long a round trip under way is waited for at the end of an update; later the broker does not answer anyway."""

Look = Callable[[str, int], list[Pointer]]
"""Entries behind an id, at most so many, without reading them."""
Fetch = Callable[[Sequence[Pointer]], list[bytes | memoryview | None]]


def prefetch_for(experience: Experience, experiment: str, partition: int, setting: Setting) -> "Prefetch | None":
    """Where batches are large, and come while an update is made: with a barrier none does. None elsewhere."""
    spec = setting.spec
    if spec.rollout.sync or spec.data is not None or setting.batch_bytes < LARGE_BYTES:
        return None

    def look(after: str, count: int) -> list[Pointer]:
        return experience.peek(experiment, partition, after, count=count)

    return Prefetch(look, experience.fetch_views, most_bytes=min(MOST_BYTES, spec.limits.max_bytes // 4))


@dataclass(frozen=True, slots=True)
class _Kept:
    pointer: Pointer
    data: bytes | memoryview


class Prefetch:
    """Fetches ahead, one thread, between the beginning and the end of each update.

    Attributes:
        held_bytes: of what lies here. used: how many batches found their bytes here.

    Args:
        most_bytes: never more of them, announced ones of a fetch under way counted.
    """

    def __init__(self, look: Look, fetch: Fetch, *, most_bytes: int) -> None:
        self._look, self._fetch, self._most = look, fetch, most_bytes
        self.held_bytes = self.used = 0
        self._kept: dict[str, _Kept] = {}
        self._changed = threading.Condition()
        self._round = 0  # odd while the learner works
        self._after = ""
        self._is_busy = self._is_closed = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def ahead(self, after: str) -> Iterator[None]:
        """Within it fetch what comes behind entry `after`, "" for nothing.

        Raises:
            Exception: what nobody expected of an earlier round.
        """
        self._begin(after)
        try:
            yield
        finally:
            self._end()

    def take(self, pointer: Pointer) -> bytes | memoryview | None:
        """The bytes behind `pointer`, once; None where they are not here, or of another batch of that id."""
        with self._changed:
            kept = self._kept.pop(pointer.entry_id, None)
            if kept is None:
                return None
            self.held_bytes -= kept.pointer.bytes
            if kept.pointer != pointer:
                return None
            self.used += 1
            return kept.data

    def close(self) -> None:
        """Fetch no more."""
        with self._changed:
            self._is_closed = True
            self._round += self._round % 2
            self._kept.clear()
            self.held_bytes = 0
            self._changed.notify_all()

    # ---- the trainer's thread

    def _begin(self, after: str) -> None:
        with self._changed:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            if not after or self._is_closed or self._is_busy:
                return
            self._forget_read(after)
            self._after, self._round = after, self._round + 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _end(self) -> None:
        with self._changed:
            self._round += self._round % 2
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_busy, END_S)

    def _forget_read(self, after: str) -> None:
        """What was read meanwhile and wanted its bytes from elsewhere, or none."""
        read = [entry for entry in self._kept if entry_order(entry) <= entry_order(after)]
        for entry in read:
            self.held_bytes -= self._kept.pop(entry).pointer.bytes

    # ---- its own thread

    def _run(self) -> None:
        while (began := self._next_round()) is not None:
            try:
                self._fetch_ahead(*began)
            except HeddleError as error:  # the trainer meets it itself, and knows what to do
                log.debug("cannot fetch ahead error=%s", error)
            except Exception as error:  # noqa: BLE001  top of a thread: told to the trainer
                self._failure = error
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(partial(self._is_after, began[0]))

    def _next_round(self) -> tuple[int, str] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._round % 2 == 1)
            self._is_busy = not self._is_closed
            return None if self._is_closed else (self._round, self._after)

    def _fetch_ahead(self, this: int, after: str) -> None:
        while self._goes_on(this):
            found = self._look(after, LOOK_COUNT)
            if not found:
                with self._changed:
                    self._changed.wait_for(lambda: self._round != this, LOOK_S)
            for some in self._in_runs(found):
                if not self._goes_on(this) or not self._fits(some):
                    return
                fetched = self._fetch(some)
                with self._changed:
                    if self._is_closed:
                        return
                    for pointer, data in zip(some, fetched, strict=True):
                        if data is not None and pointer.entry_id not in self._kept:
                            self._kept[pointer.entry_id] = _Kept(pointer, data)
                            self.held_bytes += pointer.bytes
            after = found[-1].entry_id if found else after

    def _is_after(self, this: int) -> bool:
        return self._is_closed or self._round != this

    def _goes_on(self, this: int) -> bool:
        with self._changed:
            return self._round == this

    def _fits(self, some: Sequence[Pointer]) -> bool:
        with self._changed:
            return self.held_bytes + sum(pointer.bytes for pointer in some) <= self._most

    def _in_runs(self, found: Sequence[Pointer]) -> Iterator[list[Pointer]]:
        """Those that lie in the broker and are not here, in order."""
        run: list[Pointer] = []
        with self._changed:
            wanted = [one for one in found if one.location == "redis" and one.entry_id not in self._kept]
        for pointer in wanted:
            if run and sum(one.bytes for one in run) + pointer.bytes > AT_ONCE_BYTES:
                yield run
                run = []
            run.append(pointer)
        if run:
            yield run
