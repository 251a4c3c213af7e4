"""Policy versions: published by the holder of the seat, fetched by workers.

This module never looks inside the weights: bytes in, the same bytes out, checked by sha256.

A version becomes the latest only after every byte of it can be read, in the script that checks the seat. Weights up
to `INLINE_BYTES` travel in that script; larger ones go before it as chunks with a TTL, whose names hold a digest of
the whole and which are never overwritten while they are whole, so an earlier holder cannot spoil a later one's. The
last `KEEP` versions and the one pinned for evaluation stay. One that cannot be read all the same is taken back.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from heddle.broker import keys
from heddle.broker.calls import Arg
from heddle.broker.connection import Connection
from heddle.broker.faults import NoNumber
from heddle.broker.records import integer, text
from heddle.broker.refusals import gone, seat_lost
from heddle.errors import BrokerFull, Conflict, NotFound, PolicyLost
from heddle.policies.weights import TornWeights

INLINE_BYTES = 256 << 10
"""Above this a script argument costs the server several times what a plain SET does."""

CHUNK_BYTES = 8 << 20
"""One GET of this size holds the server's thread for about 10 ms; 200 MB at once for 200 ms."""

CHUNK_TTL_MS = 120_000
"""How long the chunks of a publish that was never finished stay."""

KEEP = 3
"""Versions kept, the latest included: a worker may be fetching the one before."""

DIGEST = 16
"""Hex characters of the sha256 that name a chunk."""

TRIES = 5
"""Rounds of fetching the latest while it is replaced, or of sending chunks that ran out of time."""


Shared = Callable[[str, Callable[[], bytes | None]], bytes | None]
"""Bytes with a sha256, from elsewhere or by the given call: `HostWeights.get`."""


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """What is known of a kept version.

    Attributes:
        version, update: its number; the trainer's update that made it.
        size_bytes, sha256: of the weights.
        seat_epoch: of the trainer that published it.
    """

    version: int
    update: int
    size_bytes: int
    sha256: str
    seat_epoch: int


@dataclass(frozen=True, slots=True)
class _Kept:
    version: int
    chunks: int
    digest: str


_KEPT = re.compile(r"(\d{1,16}):(\d{1,6}):([0-9a-f]+)")


class Policies:
    """Every call about policy versions, on one connection."""

    def __init__(self, conn: Connection, *, inline_bytes: int = INLINE_BYTES, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._conn = conn
        self._inline_bytes = inline_bytes
        self._chunk_bytes = chunk_bytes
        self._shared: Shared | None = None

    def share(self, shared: Shared) -> None:
        """Fetch the chunks of large weights only where `shared` does not have them."""
        self._shared = shared

    def publish(self, experiment: str, seat_epoch: int, version: int, data: bytes | memoryview, *, update: int) -> int:
        """Make `data` policy `version`, the latest one; the same call again is no mistake.

        Returns:
            `version`.

        Raises:
            SeatLost: another trainer holds the seat.
            Conflict: the latest version is not lower; versions only rise.
            BrokerFull: out of memory, nothing changed; an ack does not have to wait for this.
            Gone: the experiment was removed.
        """
        view = memoryview(data).cast("B")
        digest = hashlib.sha256(view).hexdigest()
        for _ in range(TRIES):
            chunks = self._send_chunks(experiment, version, digest, view)
            own = [keys.ctl(experiment), keys.policy(experiment, version), *chunks]
            args: list[Arg] = [
                seat_epoch,
                version,
                digest,
                len(view),
                update,
                keys.news(experiment),
                b"" if chunks else view,
            ]
            reply = self._conn.script("policy_publish", own, args)
            answer = text(reply[0])
            if answer == "OK":
                self._forget_old(experiment, seat_epoch, text(reply[1]))
                return version
            if answer != "NOCHUNK":
                raise _refusal(experiment, answer, seat_epoch, version, text(reply[-1]))
        raise BrokerFull(f"{experiment}: the chunks of policy {version} ran out of time {TRIES} times; publish again")

    def set_eval(self, experiment: str, seat_epoch: int, version: int) -> None:
        """Ask the eval shards to play `version`, and keep it until the next call.

        Raises:
            SeatLost: another trainer holds the seat.
            NotFound: that version is not kept any more.
            Conflict: a higher version is pinned; versions only rise.
            Gone: the experiment was removed.
        """
        own = [keys.ctl(experiment), keys.policy(experiment, version)]
        answer = text(self._conn.script("eval_set", own, [seat_epoch, version, keys.news(experiment)]))
        if answer == "MISSING":
            raise NotFound(f"{experiment}: policy {version} is not kept; pin one right after publishing it")
        if answer != "OK":
            raise _refusal(experiment, answer, seat_epoch, version, "the pinned one")

    def fetch(self, experiment: str, version: int | None = None) -> tuple[int, bytes]:
        """The weights of a version, or of the latest one.

        Raises:
            NotFound: nothing is published yet.
            PolicyLost: that version is not kept any more, or the latest is gone.
            TornWeights: the bytes are not those that were published.
            Gone: the experiment was removed.
        """
        wanted = version
        for _ in range(TRIES):
            latest = self.latest(experiment)
            wanted = latest if version is None else version
            if wanted == 0:
                raise NotFound(f"{experiment}: no policy is published yet")
            data = self._read(experiment, wanted)
            if data is not None:
                return wanted, data
            if version is not None:
                reason = f"{experiment}: policy {version} is not kept any more; the latest is {latest}"
                raise PolicyLost(reason, version=version)
        raise PolicyLost(
            f"{experiment}: policy {wanted} went away while it was read, {TRIES} times", version=wanted or 0
        )

    def take_back(self, experiment: str, version: int) -> bool:
        """Have its trainer publish a version again that was not to be read.

        Returns:
            False when ctl tells of it no more, or it can be read by now: its trainer may have been quicker.

        Raises:
            BrokerError, Damaged: the broker cannot be asked, or what it holds is no version.
        """
        named = keys.policy(experiment, version)
        try:
            if self._read(experiment, version) is not None:
                return False
            chunks, digest = self._conn.main.hmget(named, "chunks", "sha256")
            sha256, count, how = text(digest or b""), integer(chunks or 0), "gone"
        except TornWeights:
            sha256, count, how = "", 0, "torn"
        own = [keys.policy_chunk(experiment, version, sha256[:DIGEST], index) for index in range(count)]
        return (
            integer(self._conn.script("policy_lost", [keys.ctl(experiment), named, *own], [version, sha256, how])) == 1
        )

    def latest(self, experiment: str) -> int:
        """The latest version; 0 before the first. Raises Gone."""
        policy = self._conn.main.hget(keys.ctl(experiment), "policy")
        if policy is None:
            raise gone(experiment)
        return integer(policy)

    def kept(self, experiment: str) -> list[PolicyInfo]:
        """Every version that can be fetched, the oldest first. Raises Gone."""
        main = self._conn.main
        command, versions = main.hmget(keys.ctl(experiment), "command", "versions")
        if command is None:
            raise gone(experiment)
        found = _parse(text(versions))
        pipe = self._conn.pipeline()
        for kept in found:
            pipe.hmget(keys.policy(experiment, kept.version), "update", "bytes", "sha256", "seat")
        replies = pipe.execute() if found else []
        return [
            PolicyInfo(kept.version, integer(update), integer(size), text(digest), integer(seat))
            for kept, (update, size, digest, seat) in zip(found, replies, strict=True)
            if digest is not None
        ]

    # ---- inside

    def _send_chunks(self, experiment: str, version: int, digest: str, view: memoryview) -> list[str]:
        """Store large weights before they are announced; the chunks' keys, none for small weights."""
        if len(view) <= self._inline_bytes:
            return []
        starts = range(0, len(view), self._chunk_bytes)
        names = [keys.policy_chunk(experiment, version, digest[:DIGEST], index) for index in range(len(starts))]
        # What an earlier try stored stays while it is tried: where memory is scarce each part finds room alone.
        pipe = self._conn.pipeline()
        for name in names:
            pipe.pexpire(name, CHUNK_TTL_MS, gt=True)  # what is published already has no end and gets none
        pipe.execute()
        for name, start in zip(names, starts, strict=True):
            chunk = view[start : start + self._chunk_bytes]
            is_there = not self._conn.main.set(name, chunk, px=CHUNK_TTL_MS, nx=True)
            if is_there and not self._is_whole(name, chunk):
                # with the TTL that it has, or none: by now it may be what a later trainer has published
                self._conn.main.set(name, chunk, xx=True, keepttl=True)
        return names

    def _is_whole(self, name: str, chunk: memoryview) -> bool:
        """Whether a chunk that was stored before is what it should be: somebody may have put something else there."""
        try:
            found: Any = self._conn.main.get(name)
            return bool(found == chunk)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            return False

    def _forget_old(self, experiment: str, seat_epoch: int, versions: str) -> None:
        """Delete all but the last versions; the script itself spares the one pinned for evaluation."""
        for old in _parse(versions)[:-KEEP]:
            own = [keys.ctl(experiment), keys.policy(experiment, old.version)]
            own += [keys.policy_chunk(experiment, old.version, old.digest, index) for index in range(old.chunks)]
            self._conn.script("policy_forget", own, [seat_epoch, old.version])

    def _read(self, experiment: str, version: int) -> bytes | None:
        """The bytes of a version; None when it is not kept."""
        try:
            return self._read_whole(experiment, version)
        except ResponseError as error:
            if "WRONGTYPE" not in str(error) and not isinstance(error, NoNumber):
                raise
            reason = f"{experiment}: somebody put something else in the place of policy {version}"
            raise TornWeights(reason, version=version) from error

    def _read_whole(self, experiment: str, version: int) -> bytes | None:
        chunks, digest, inline = self._conn.main.hmget(keys.policy(experiment, version), "chunks", "sha256", "weights")
        if digest is None:
            return None
        sha256 = text(digest)
        if integer(chunks) == 0:
            return _checked(experiment, version, sha256, inline or b"")

        def ask() -> bytes | None:
            names = [keys.policy_chunk(experiment, version, sha256[:DIGEST], i) for i in range(integer(chunks))]
            # One GET at a time: many at once would hold the server's thread for all of them.
            parts: list[Any] = [self._conn.main.get(name) for name in names]
            return (
                None if any(part is None for part in parts) else _checked(experiment, version, sha256, b"".join(parts))
            )

        return ask() if self._shared is None else self._shared(sha256, ask)


def _checked(experiment: str, version: int, sha256: str, data: Any) -> bytes:
    if hashlib.sha256(data).hexdigest() != sha256:
        reason = f"{experiment}: the bytes of policy {version} do not match their sha256 {sha256}"
        raise TornWeights(reason, version=version)
    return bytes(data)


def _parse(versions: str) -> list[_Kept]:
    """ctl's `versions`, "version:chunks:digest ...", in order of publishing; not what somebody wrote between."""
    found = (_KEPT.fullmatch(entry) for entry in versions.split())
    return [_Kept(int(one[1]), int(one[2]), one[3]) for one in found if one is not None]


def _refusal(experiment: str, answer: str, seat_epoch: int, version: int, latest: str) -> Exception:
    if answer == "GONE":
        return gone(experiment)
    if answer == "FENCED":
        return seat_lost(experiment, seat_epoch)
    return Conflict(f"{experiment}: policy {version} is not above {latest}; versions only rise")
