"""What somebody puts into the stream or in a batch's place by hand: set aside with its reason, and nobody is held up.

A real server and a real trainer in each; the books balance and the stream is empty at the end.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from heddle.batch import checksum, encode
from heddle.broker import Broker, keys, open_broker
from heddle.broker.dead import NOT_OURS
from heddle.broker.server import LocalServer
from heddle.clock import SystemClock
from heddle.consumers.tap import Tap
from heddle.layout import Layout, Segments, make_layout
from heddle.spaces import Box
from tests import trainer_kit
from tests.helpers import eventually
from tests.trainer_kit import STEPS, Fleet, InThread, saved, seen_in, submit, trainers

HIGHEST = "18446744073709551615-18446744073709551615"


Start = Callable[[str], InThread]


@pytest.fixture
def broker(valkey_server: LocalServer, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker on one server; tests that depend on how a server keeps its streams ask for `redis_server` besides."""
    server = request.getfixturevalue("redis_server") if "redis_server" in request.fixturenames else valkey_server
    with open_broker(server.url, role="test") as connected:
        yield connected


@pytest.fixture
def start(broker: Broker, tmp_path: Path) -> Iterator[Start]:
    """Starts a trainer in a thread, and ends it."""
    with trainers(broker.conn.url_redacted, tmp_path / "home") as begin:
        yield begin


class Bench:
    """An asynchronous experiment of two shards, its trainer, and a hand that writes what it should not."""

    def __init__(self, broker: Broker, start: Start, home: Path) -> None:
        self.broker = broker
        self.start = start
        self.raw: Any = broker.conn.main
        self.home = home
        self.fleet = Fleet(broker, submit(broker, rollout={"sync": False}, trainer={"batch_steps": 16})).claim_all()
        self.trainer = self.start(self.fleet.experiment)
        self.stream = keys.experience(self.fleet.experiment, 0)
        self.given = 0
        self.fleet.version()
        self.good_round()

    def restart(self) -> None:
        """Another trainer takes over."""
        self.trainer = self.start(self.fleet.experiment)

    def good_round(self) -> None:
        """Each shard gives one batch, and an update is made of both."""
        for shard in (0, 1):
            self.fleet.give(shard, self.fleet.version())
        self.given += 2
        eventually(lambda: self.flow().trained.batches == self.given, what=f"{self.given} trained")

    def flow(self) -> Any:
        return self.fleet.flow()

    def fields(self, **changes: Any) -> dict[str, str]:
        """What the append script would write for the next batch of shard 0, with changes; None leaves a field out."""
        claim, seq = self.fleet.claims[0], self.fleet.seqs[0] + 1
        real: dict[str, Any] = {
            "shard": 0,
            "epoch": claim.lease.epoch,
            "nonce": claim.lease.nonce,
            "seq": seq,
            "kind": "train",
            "version_min": 1,
            "version_max": 1,
            "segments": 2,
            "steps": 8,
            "bytes": 100,
            "crc32": 1,
            "given": 0,
            "waited_ms": 0,
            "location": "redis",
            "blob": keys.blob(self.fleet.experiment, 0, 0, claim.lease.epoch, claim.lease.nonce, seq),
        }
        return {name: str(value) for name, value in (real | changes).items() if value is not None}

    def poison(self, fields: dict[Any, Any], entry: str = "*") -> None:
        """Write an entry by hand, as redis-cli would."""
        self.raw.xadd(self.stream, fields, id=entry)

    def settled(self, *, foreign: int = 0, dead: int = 0) -> None:
        """So much was set aside, both shards go on, nothing is left behind and the books balance."""
        eventually(lambda: self.flow().foreign == foreign and self.flow().dead.batches == dead, what="set aside")
        self.good_round()
        eventually(lambda: self.flow().entries == 0 == self.raw.xlen(self.stream), what="an empty stream")
        self.fleet.check_balance()
        assert self.trainer.error is None
        assert len(self.broker.dead.ls(self.fleet.experiment)) == foreign + dead
        assert self.raw.hlen(keys.accepted(self.fleet.experiment, 0)) == 0
        assert not list(self.raw.scan_iter(f"{keys.blobs(self.fleet.experiment, 0)}*")) or dead


@pytest.fixture
def bench(broker: Broker, start: Start, tmp_path: Path) -> Bench:
    return Bench(broker, start, tmp_path / "home")


BY_HAND: dict[str, dict[Any, Any]] = {
    "nothing that we know": {"hello": "world"},
    "a number missing": {"seq": None},
    "no bytes named": {"blob": None},
    "a word for a number": {"steps": "many"},
    "a number of 5000 digits": {"epoch": "9" * 5000},
    "an epoch beyond 64 bits": {"epoch": 1 << 70},
    "a negative seq": {"seq": -5},
    "a seq far ahead": {"seq": 1 << 60},
    "an old epoch": {"epoch": 1},
    "another nonce": {"nonce": "somebody"},
    "a shard that is none": {"shard": 77},
    "a size without measure": {"bytes": 1 << 62, "steps": 1 << 62, "segments": 1 << 62},
    "a version from the future": {"version_min": 1 << 50, "version_max": 1 << 50},
    "a place nobody knows": {"location": "file:///etc/passwd"},
    "bytes that are ctl": {"blob": "ctl"},
    "an unknown kind": {"kind": "lunch"},
    "an evaluation's batch": {"kind": "eval"},
    "all as it should be": {},
}


@pytest.mark.parametrize("what", BY_HAND)
def test_an_entry_that_no_worker_wrote_is_set_aside_and_holds_nobody_up(bench: Bench, what: str) -> None:
    # Given an entry written by hand, in the place of shard 0's next batch
    changes = dict(BY_HAND[what])
    if changes.get("blob") == "ctl":
        changes["blob"] = keys.ctl(bench.fleet.experiment)
    bench.poison(changes if "hello" in changes else bench.fields(**changes))
    # Then it is set aside for what it is, and the shard's own next batch is trained
    bench.settled(foreign=1)
    (dead,) = bench.broker.dead.ls(bench.fleet.experiment)
    assert (dead.foreign, dead.reason) == (True, NOT_OURS)
    assert bench.broker.experiments.ctl(bench.fleet.experiment).command == "run"
    assert seen_in(saved(bench.home)) == [(0, 1), (1, 1), (0, 2), (1, 2)]


def test_bytes_that_are_no_text_are_set_aside_too(bench: Bench) -> None:
    bench.poison({b"\xff\xfe": b"\x80" * 50, b"shard": b"\xc3\x28"})
    bench.settled(foreign=1)


def test_an_entry_of_many_and_long_fields_is_kept_short(bench: Bench) -> None:
    bench.poison({f"field{number}": "x" * 10_000 for number in range(200)})
    bench.settled(foreign=1)
    kept = bench.raw.xrange(keys.dead(bench.fleet.experiment, 0))[0][1]
    assert sum(len(name) + len(value) for name, value in kept.items()) < 20_000


def test_a_well_formed_entry_with_bytes_of_its_own_is_not_trained_and_its_bytes_are_kept(bench: Bench) -> None:
    # Given a batch that is perfect, but that no worker appended
    fleet = bench.fleet
    blob = bytes(encode(fleet.setting.layout, fleet.segments(0, 1)))
    fields = bench.fields(nonce="byhand", bytes=len(blob), crc32=checksum(blob))
    fields["blob"] = keys.blob(fleet.experiment, 0, 0, int(fields["epoch"]), "byhand", int(fields["seq"]))
    bench.raw.set(fields["blob"], blob)
    bench.poison(fields)
    bench.settled(foreign=1)
    (dead,) = bench.broker.dead.ls(fleet.experiment)
    assert bench.broker.dead.data(dead) == blob
    assert len(seen_in(saved(bench.home))) == 4


def test_a_pointer_written_twice_counts_once(bench: Bench) -> None:
    # Given a batch in flight whose entry somebody copies
    bench.trainer.leave()
    bench.fleet.give(0, bench.fleet.version())
    bench.given += 1
    (_, fields), *_ = bench.raw.xrevrange(bench.stream, count=1)
    for _ in range(3):
        bench.poison(fields)
    # Then the batch is trained once, the copies leave, and the batch's bytes were not touched
    bench.restart()
    eventually(lambda: bench.flow().foreign == 3)
    bench.fleet.give(1, bench.fleet.version())
    bench.given += 1
    eventually(lambda: bench.flow().trained.batches == bench.given)
    assert bench.flow().dropped.batches == 0
    bench.settled(foreign=3)
    seen = seen_in(saved(bench.home))
    assert len(seen) == len(set(seen)) == bench.given


def test_the_highest_id_there_is_does_not_end_the_stream(redis_server: LocalServer, bench: Bench) -> None:
    bench.poison({"hello": "world"}, HIGHEST)
    eventually(lambda: bench.flow().foreign == 1)
    with pytest.raises(redis.ResponseError, match="exhausted"):
        bench.raw.xadd(bench.stream, {"no": "more"})
    bench.settled(foreign=1)


def test_the_highest_id_among_batches_that_nobody_has_read_loses_none(redis_server: LocalServer, bench: Bench) -> None:
    bench.trainer.leave()
    bench.fleet.give(0, bench.fleet.version())
    bench.poison({"hello": "world"}, HIGHEST)
    bench.fleet.give(1, bench.fleet.version())
    bench.given += 2
    bench.restart()
    eventually(lambda: bench.flow().trained.batches == bench.given)
    assert (bench.flow().foreign, len(seen_in(saved(bench.home)))) == (1, 4)
    bench.fleet.check_balance()


def test_an_id_of_next_year_holds_nobody_up(redis_server: LocalServer, bench: Bench) -> None:
    bench.poison({"hello": "world"}, f"{bench.broker.conn.now_ms() + 365 * 86_400_000}-0")
    bench.settled(foreign=1)
    bench.good_round()


def test_a_flood_of_entries_is_kept_within_bounds(redis_server: LocalServer, bench: Bench) -> None:
    pipe = bench.raw.pipeline()
    for number in range(1_500):
        pipe.xadd(bench.stream, {"flood": str(number)})
    pipe.execute()
    eventually(lambda: bench.flow().foreign == 1_500, timeout_s=30, what="1,500 set aside")
    bench.good_round()
    bench.fleet.check_balance()
    assert bench.raw.xlen(keys.dead(bench.fleet.experiment, 0)) == 1_000


# ---- what workers appended, and somebody spoiled


def other_layout(layout: Layout, **changes: Any) -> Layout:
    kwargs: dict[str, Any] = {"observation": layout.observation, "action": layout.action, "steps": layout.steps}
    kwargs |= {"outputs": {"log_prob": ("float32", ()), "value": ("float32", ())}} | changes
    return make_layout(kwargs.pop("observation"), kwargs.pop("action"), **kwargs)


def spoil(change: Callable[[Segments], None]) -> Callable[[Fleet], bytes]:
    def make(fleet: Fleet) -> bytes:
        segments = fleet.segments(0, fleet.version())
        change(segments)
        return bytes(encode(fleet.setting.layout, segments))

    return make


def of_layout(**changes: Any) -> Callable[[Fleet], bytes]:
    def make(fleet: Fleet) -> bytes:
        layout = other_layout(fleet.setting.layout, **changes)
        segments = Segments.empty(layout, 2)
        segments.arrays["length"][:] = layout.steps
        segments.arrays["version"][:] = fleet.version()
        return bytes(encode(layout, segments))

    return make


def good(fleet: Fleet) -> bytes:
    return bytes(encode(fleet.setting.layout, fleet.segments(0, fleet.version())))


def setting(name: str, value: Any) -> Callable[[Segments], None]:
    def change(segments: Segments) -> None:
        segments.arrays[name][:] = value

    return change


OF_A_WORKER: dict[str, tuple[Callable[[Fleet], bytes], str]] = {
    "noise": (lambda fleet: os.urandom(2_000), "Arrow"),
    "nothing but zeros": (lambda fleet: bytes(2_000), "Arrow"),
    "a cut batch": (lambda fleet: good(fleet)[:-300], "Arrow|cut"),
    "a batch and more": (lambda fleet: good(fleet) + bytes(8), "follow"),
    "more than the cap": (lambda fleet: bytes((1 << 20) + 1), "cap"),
    "other observations": (of_layout(observation=Box((5,), "float32")), "column obs"),
    "other actions": (of_layout(action=Box((2,), "float32")), "column action"),
    "longer segments": (of_layout(steps=STEPS + 1), "column obs"),
    "no log_prob": (of_layout(outputs={"value": ("float32", ())}), "log_prob"),
    "NaN rewards": (spoil(setting("reward", np.nan)), "reward is not a finite number"),
    "NaN observations": (spoil(setting("obs", np.nan)), "obs is not a finite number"),
    "infinite observations": (spoil(setting("obs", np.inf)), "obs is not a finite number"),
    "actions that are none": (spoil(setting("action", 7)), "action 7 is outside"),
    "environments of others": (spoil(setting("env", 5)), "environment outside"),
    "versions that are not announced": (spoil(setting("version", 77)), "announced were"),
    "too few rows": (
        lambda fleet: bytes(encode(fleet.setting.layout, fleet.segments(0, fleet.version(), rows=1))),
        "announced were",
    ),
    "shorter segments": (spoil(setting("length", STEPS - 1)), "announced were"),
}


@pytest.fixture
def capped(broker: Broker, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose batches may have 1 MiB."""
    limits = {"limits": {"batch_bytes": "1MiB"}}
    monkeypatch.setattr(trainer_kit, "SPEC", {**trainer_kit.SPEC, **limits})
    return Bench(broker, start, tmp_path / "home")


@pytest.mark.parametrize("what", OF_A_WORKER)
def test_a_workers_batch_that_cannot_be_used_is_kept_with_its_reason_and_its_shard_goes_on(
    capped: Bench, what: str
) -> None:
    make, reason = OF_A_WORKER[what]
    data = make(capped.fleet)
    capped.fleet.give(0, capped.fleet.version(), data=data, steps=8)
    capped.settled(dead=1)
    (dead,) = capped.broker.dead.ls(capped.fleet.experiment)
    assert re.search(reason, dead.reason), dead.reason
    assert not dead.foreign
    assert capped.broker.dead.data(dead) == data


def test_a_version_that_was_never_published_is_not_followed(bench: Bench) -> None:
    bench.fleet.give(0, 1 << 45)
    bench.settled(dead=1)
    assert bench.fleet.version() < 100


def overwritten(bench: Bench, change: Callable[[str], object]) -> None:
    """Append a batch while nobody reads, and change what its blob's key holds."""
    bench.trainer.leave()
    bench.fleet.give(0, bench.fleet.version())
    (blob,) = bench.raw.keys(f"{keys.blobs(bench.fleet.experiment, 0)}*")
    change(blob.decode())
    bench.restart()


@pytest.mark.parametrize("size", [0, 1, 100, 64 << 20])
def test_bytes_that_somebody_put_in_a_batchs_place_are_refused_whatever_their_size(bench: Bench, size: int) -> None:
    overwritten(bench, lambda blob: bench.raw.set(blob, bytes(size)))
    if size:
        bench.settled(dead=1)
    else:
        eventually(lambda: bench.flow().dropped.batches == 1)
        bench.settled()


def test_one_changed_byte_is_found(bench: Bench) -> None:
    overwritten(bench, lambda blob: bench.raw.setrange(blob, 700, b"\x01\x02\x03"))
    bench.settled(dead=1)
    assert "checksum" in bench.broker.dead.ls(bench.fleet.experiment)[0].reason


def test_something_else_than_bytes_in_a_batchs_place_is_counted_as_dropped(bench: Bench) -> None:
    def change(blob: str) -> None:
        bench.raw.delete(blob)
        bench.raw.hset(blob, "a", "b")

    overwritten(bench, change)
    eventually(lambda: bench.flow().dropped.batches == 1)
    bench.settled()


def test_entries_written_into_the_dead_stream_by_hand_are_no_trouble(bench: Bench) -> None:
    dead = keys.dead(bench.fleet.experiment, 0)
    for fields in ({"a": "b"}, {"kept_bytes": "x", "kept": keys.ctl(bench.fleet.experiment)}, {"kept_bytes": "1" * 40}):
        bench.raw.xadd(dead, dict(fields))
    bench.raw.xtrim(dead, maxlen=1_000)
    bench.fleet.give(0, bench.fleet.version(), data=b"not a batch", steps=8)
    eventually(lambda: bench.flow().dead.batches == 1)
    assert len(bench.broker.dead.ls(bench.fleet.experiment)) == 4
    assert (
        bench.broker.dead.drop(bench.fleet.experiment, [one.id for one in bench.broker.dead.ls(bench.fleet.experiment)])
        == 4
    )
    assert bench.raw.exists(keys.ctl(bench.fleet.experiment))
    bench.good_round()


# ---- taps and evaluations


def test_a_tap_passes_by_what_no_worker_wrote_and_what_cannot_be_used(bench: Bench) -> None:
    tap = Tap(bench.broker, bench.fleet.experiment, "mine", clock=SystemClock())
    bench.trainer.leave()
    bench.poison({"hello": "world"})
    bench.poison(bench.fields(seq=1 << 60))
    bench.fleet.give(0, 1)
    bench.fleet.give(0, 1, data=b"not a batch", steps=8)
    bench.fleet.give(0, 1)
    got = [batch for _ in range(3) for batch in tap.poll(block_ms=0)]
    assert [(batch.shard, batch.seq) for batch in got] == [(0, 2), (0, 4)]
    assert (tap.refused, tap.missed) == (1, 0)


def test_a_tap_goes_on_when_the_stream_was_made_anew(redis_server: LocalServer, bench: Bench) -> None:
    tap = Tap(bench.broker, bench.fleet.experiment, "mine", clock=SystemClock())
    bench.trainer.leave()
    bench.fleet.give(0, 1)
    bench.poison({"hello": "world"}, HIGHEST)
    before = tap.poll(block_ms=0) + tap.poll(block_ms=0)
    bench.fleet.give(0, 1)
    after = tap.poll(block_ms=0) + tap.poll(block_ms=0)
    assert [batch.seq for batch in before] == [2]
    assert [batch.seq for batch in after] == [3]


def test_an_evaluation_is_not_finished_by_entries_that_no_worker_wrote(
    broker: Broker, start: Start, tmp_path: Path
) -> None:
    # Given a run whose first evaluation is under way
    evaluation = {"num_envs": 2, "episodes": 2, "every_updates": 1}
    fleet = Fleet(broker, submit(broker, eval=evaluation)).claim_all()
    trainer = start(fleet.experiment)
    shards = [shard for shard, claim in fleet.claims.items() if claim.kind == "train"]
    (mine,) = (shard for shard, claim in fleet.claims.items() if claim.kind == "eval")
    for shard in shards:
        fleet.give(shard, 1)
    pinned = eventually(lambda: broker.experiments.ctl(fleet.experiment).eval_policy)
    # When somebody writes what looks like its last batch
    lease = fleet.claims[mine].lease
    blob = bytes(encode(fleet.setting.layout, fleet.segments(mine, pinned, returns=[1e9])))
    key = keys.blob(fleet.experiment, 0, mine, lease.epoch, "byhand", 1)
    fields = {"shard": mine, "epoch": lease.epoch, "nonce": "byhand", "seq": 1, "kind": "eval", "version_min": pinned}
    fields |= {"version_max": pinned, "segments": 2, "steps": 8, "bytes": len(blob), "crc32": checksum(blob)}
    broker.conn.main.set(key, blob)
    raw: Any = broker.conn.main
    raw.xadd(keys.experience(fleet.experiment, 0), {**fields, "given": pinned, "location": "redis", "blob": key})
    eventually(lambda: fleet.flow().foreign == 1)
    # Then only what the shard gives counts
    fleet.give(mine, pinned, given=pinned, returns=[3.0])
    found = eventually(lambda: broker.events.metrics_last(fleet.experiment).get("eval_return"))
    assert found == 3.0
    fleet.check_balance()
    assert trainer.error is None
