"""What the broker knows of shared memory: which broker it is, who shares what, and which files nobody will ask for.

This module never looks at a file; `heddle/plane/` does.
"""

import os
from collections.abc import Sequence
from typing import Any

from heddle.broker import keys
from heddle.broker.connection import Connection
from heddle.broker.records import text
from heddle.broker.refusals import check_seat, gone

FAR_MS = 30_000
"""How long producers remember a reader that cannot map; it says so again and again while it reads."""

Identity = tuple[int, int, str, int]
"""shard, epoch, nonce, seq"""


class Planes:
    """Every call about shared memory, on one connection."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def identity(self) -> str:
        """The broker's own name, made at the first call to any broker that has none: one that lost its data is another.

        Raises:
            BrokerFull: it has none and its memory is full.
        """
        known = self.known_identity()
        if not known:
            self._conn.main.set(keys.IDENTITY, os.urandom(8).hex(), nx=True)
            known = self.known_identity()
        return known

    def known_identity(self) -> str:
        """As `identity`; "" where nobody has asked yet."""
        return text(self._conn.main.get(keys.IDENTITY))

    def offer(self, experiment: str, p: int, seat_epoch: int, token: str) -> None:
        """Producers that see the same shared memory shall leave batches there, until another trainer takes the seat.

        Raises:
            SeatLost: another trainer holds the seat.
            Gone: the experiment was removed.
        """
        answer = text(self._conn.script("plane_offer", [keys.ctl(experiment, p)], [seat_epoch, token]))
        check_seat(experiment, seat_epoch, answer)

    def read_from_afar(self, experiment: str, p: int, *, ttl_ms: int = FAR_MS) -> None:
        """A reader is here that cannot map the trainer's shared memory: give it bytes for so long. Raises Gone."""
        if text(self._conn.script("plane_far", [keys.ctl(experiment, p)], [ttl_ms])) == "GONE":
            raise gone(experiment)

    def forgotten(self, experiment: str, p: int, batches: Sequence[Identity]) -> list[Identity]:
        """Those that no entry refers to and that nobody can append any more; all of a removed experiment's.

        Whoever asks has seen their files before: what is refused from then on is refused for good.
        """
        if not batches:
            return []
        shards = sorted({shard for shard, _, _, _ in batches})
        pipe = self._conn.pipeline()
        pipe.exists(keys.ctl(experiment, p))
        for shard in shards:
            pipe.hmget(keys.shard(experiment, p, shard), "state", "epoch", "nonce")
        exists, *found = pipe.execute()
        if not exists:
            return list(batches)
        owners = {shard: [text(field) for field in fields] for shard, fields in zip(shards, found, strict=True)}
        past = [one for one in batches if owners[one[0]] != ["leased", str(one[1]), one[2]]]
        names = [f"{shard}:{epoch}:{nonce}:{seq}" for shard, epoch, nonce, seq in past]
        entries: Any = self._conn.main.hmget(keys.accepted(experiment, p), names) if names else []
        return [one for one, entry in zip(past, entries, strict=True) if entry is None]
