"""Failures: what a shard's environments did when they failed, so that people can see it and play it again. Part of
`broker.shards`.

This module never decides what follows from a failure: release and reap do. A record that the broker does not take is
lost, for it is there for people alone.
"""

import json
import logging
import zlib
from dataclasses import asdict
from typing import Any

import numpy as np
from redis.exceptions import ResponseError

from heddle.broker import keys
from heddle.broker.connection import Connection
from heddle.broker.counts import count
from heddle.broker.failure_types import REPLAY_BYTES, Failure, Replay
from heddle.broker.faults import Damaged
from heddle.broker.foreign import NO_SENSE
from heddle.broker.records import dump_json, mapping, moment, text
from heddle.errors import BrokerError

log = logging.getLogger("heddle.broker")

FAILURES_KEPT = 3
"""Records of one shard; the oldest makes room."""

RECORD_BYTES = 32 * 1024
"""Longest text of one record; its output and its traceback are cut first."""


class Failures:
    """The calls of `Shards` about failures."""

    _conn: Connection

    def note_failure(self, experiment: str, p: int, shard: int, failure: Failure, replay: Replay | None = None) -> bool:
        """Keep a failure, if the broker takes it now; False when it does not. Never raises for a broker that cannot.

        Raises:
            Damaged: somebody put something else in its place.
        """
        if replay is not None and replay.bytes > REPLAY_BYTES:
            failure, replay = _cut_short(failure), None
        fields: list[str | bytes] = ["record", _record(failure)]
        if replay is not None:
            fields += ["actions", zlib.compress(replay.actions, 1), "form", json.dumps([replay.dtype, *replay.shape])]
            fields += ["snapshot", replay.snapshot] if replay.snapshot else []
        own = [keys.ctl(experiment, p), keys.failure(experiment, p, shard)]
        try:
            reply = self._conn.script("failure_add", own, [FAILURES_KEPT, *fields])
        except Damaged:
            raise
        except (BrokerError, ResponseError) as error:
            log.info("could not keep failure of shard=%s/%d error=%s", experiment, shard, error)
            return False
        return text(reply[0]) == "OK"

    def failures(self, experiment: str, p: int, shard: int) -> list[Failure]:
        """The last failures of a shard, newest first; at most `FAILURES_KEPT`."""
        key = keys.failure(experiment, p, shard)
        last = count(self._conn.main.hget(key, "last"))
        numbers = [number for number in range(last, max(0, last - FAILURES_KEPT), -1)]
        if not numbers:
            return []
        names = [f"{number}:{field}" for number in numbers for field in ("record", "time")]
        found = self._conn.main.hmget(key, names)
        pairs = zip(numbers, found[::2], found[1::2], strict=True)
        read = [_failure(number, text(record), moment(count(time_ms))) for number, record, time_ms in pairs if record]
        return [failure for failure in read if failure is not None]

    def replay(self, experiment: str, p: int, shard: int, number: int) -> Replay | None:
        """What failure `number` of a shard needs to be played again; None when none is kept: only the newest has it."""
        names = [f"{number}:{field}" for field in ("actions", "form", "snapshot")]
        found: Any = self._conn.main.hmget(keys.failure(experiment, p, shard), names)
        actions, form, snapshot = found
        if actions is None or form is None:
            return None
        try:
            dtype, *shape = json.loads(text(form))
            unpacked = zlib.decompressobj().decompress(actions, REPLAY_BYTES)
            np.frombuffer(unpacked, np.dtype(str(dtype))).reshape([int(size) for size in shape])
        except (*NO_SENSE, zlib.error, MemoryError) as error:
            log.info("nothing to play again shard=%s/%d error=%s", experiment, shard, error)
            return None
        return Replay(unpacked, str(dtype), tuple(int(size) for size in shape), bytes(snapshot or b""))


def _cut_short(failure: Failure) -> Failure:
    fields = asdict(failure) | {"start": "unknown", "num_actions": 0}
    return Failure(**fields)


def _record(failure: Failure) -> str:
    """The record as text of at most `RECORD_BYTES`."""
    fields = {name: value for name, value in asdict(failure).items() if name not in ("time_ms", "number")}
    fields["what"] = failure.what[:2_000]
    while len(record := dump_json(fields)) > RECORD_BYTES:
        output, trace = list(fields["output"]), str(fields["traceback"])
        if len(trace) > 4_000:
            fields["traceback"] = trace[-4_000:]
        elif output:
            fields["output"] = [line[:400] for line in output[len(output) // 2 + 1 :]]
        else:
            fields |= {"last_actions": [], "traceback": trace[-1_000:]}
            return dump_json(fields)
    return record


def _failure(number: int, record: str, time_ms: int) -> Failure | None:
    """A record as it was noted; None for one that nobody of ours wrote."""
    fields = mapping(record)
    known = {name: value for name, value in fields.items() if name in Failure.__dataclass_fields__}
    try:
        known |= {"last_actions": tuple(fields.get("last_actions", ())), "output": tuple(fields.get("output", ()))}
        failure = Failure(**{**known, "number": number, "time_ms": time_ms})
    except TypeError:
        return None
    sound = all(isinstance(getattr(failure, name), str) for name in _WORDS)
    sound = sound and all(isinstance(getattr(failure, name), int) for name in _WHOLE)
    return failure if sound and isinstance(failure.seed, int | None) and all(map(_is_text, failure.output)) else None


def _is_text(line: object) -> bool:
    return isinstance(line, str)


_WORDS = ("cause", "what", "doing", "start", "traceback", "worker", "isolation")
_WHOLE = ("env", "episode", "step", "num_actions", "version", "attempt")
