"""The shelf: the bytes of batches, from wherever their pointers say they lie: the broker, or this host's shared memory.

It never decodes and never decides what becomes of a batch without bytes; it tells why there are none.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from heddle.broker import Broker
from heddle.broker.experience_types import Pointer
from heddle.consumers.prefetch import Prefetch
from heddle.consumers.setting import Setting
from heddle.errors import BrokerFull, Denied, PlaneError
from heddle.plane import Home, Plane, file_of, open_plane, why_missing
from heddle.spec.sharing import is_shared

log = logging.getLogger("heddle.trainer")

GONE = "its bytes are gone"


class Shelf:
    """Where the bytes of one experiment's batches are.

    Attributes:
        home: its shared memory on this host; None where it uses none, or none can be used.
        trouble: why none can be used; "" when it can, or need not be.
        prefetch: has the bytes of some that lie in the broker; None where nobody fetches ahead.
    """

    def __init__(self, broker: Broker, home: Home | None = None, *, trouble: str = "") -> None:
        self.home = home
        self.trouble = trouble
        self.prefetch: Prefetch | None = None
        self._experience = broker.experience

    @classmethod
    def of(
        cls, broker: Broker, experiment: str, setting: Setting, *, plane: Callable[[], Plane] = open_plane
    ) -> "Shelf":
        """As the spec wants it; shared memory that cannot be opened is no error. Raises BrokerUnreachable."""
        if not shares(setting):
            return cls(broker)
        try:
            opened = plane()
            if opened.on_disk and setting.spec.plane == "auto":
                return cls(broker, trouble=f"{opened.root} lies on a disk: here is no /dev/shm that can be written to")
            return cls(broker, Home(opened, broker.planes.identity(), experiment))
        except (PlaneError, BrokerFull, Denied) as error:
            return cls(broker, trouble=str(error))

    @property
    def token(self) -> str:
        """Of the shared memory that can be read here; "" for none."""
        return "" if self.home is None else self.home.token

    def fetch(self, pointers: Sequence[Pointer]) -> list[bytes | memoryview | None]:
        """The bytes behind pointers, in order, not copied where they are shared; None where there are none."""
        found = {pointer.entry_id: self._here(pointer) for pointer in pointers}
        asked = [pointer for pointer in pointers if pointer.location == "redis" and found[pointer.entry_id] is None]
        if asked:
            fetched = self._experience.fetch_views(asked)
            found |= {pointer.entry_id: data for pointer, data in zip(asked, fetched, strict=True)}
        return [found[pointer.entry_id] for pointer in pointers]

    def _here(self, pointer: Pointer) -> bytes | memoryview | None:
        if pointer.location != "redis":
            return self.view(pointer)
        return None if self.prefetch is None else self.prefetch.take(pointer)

    def view(self, pointer: Pointer) -> memoryview | None:
        """The bytes of a batch in shared memory; None for any other, and where they are not."""
        if self.home is None or pointer.place != self.home.token:
            return None
        return self.home.view(_file(pointer), pointer.bytes)

    def why(self, pointer: Pointer) -> str:
        """Why a batch has no bytes here."""
        return why_missing(pointer.place, self.token) if pointer.location == "shm" else GONE

    def remove(self, pointer: Pointer) -> None:
        """No entry refers to its bytes any more."""
        if self.home is not None and pointer.place == self.home.token:
            self.home.remove(_file(pointer))

    def tidy(self) -> None:
        """Nothing came: no memory is held that its writer has left."""
        if self.home is not None:
            self.home.tidy()


def shares(setting: Setting) -> bool:
    """Whether any batch is large enough to lie in shared memory."""
    return is_shared(setting.spec, setting.batch_bytes)


def offered_shelf(
    broker: Broker,
    experiment: str,
    setting: Setting,
    *,
    seat_epoch: int,
    plane: Callable[[], Plane],
    call: Callable[[str, Callable[[], Any]], Any],
) -> Shelf:
    """The shelf of a trainer that has the seat: producers of its host are told that they may leave batches there.

    Args:
        call: calls the broker, for as long as it takes.
    """
    shelf: Shelf = call("open shared memory", lambda: Shelf.of(broker, experiment, setting, plane=plane))
    if shelf.home is not None:
        call("offer shared memory", lambda: broker.planes.offer(experiment, 0, seat_epoch, shelf.token))
    elif shelf.trouble:
        level = logging.INFO if setting.spec.plane == "auto" else logging.WARNING
        log.log(level, "batches go through the broker because %s", shelf.trouble)
    return shelf


def _file(pointer: Pointer) -> str:
    return file_of(pointer.shard, pointer.epoch, pointer.nonce, pointer.seq)
