"""What is fuzzed: for each target, samples that are right, and a trial of one mutant that must not end badly.

A trial raises AssertionError for a broken promise; a crash, a hang or any other exception is one by itself.
"""

import atexit
import contextlib
import io
import json
import os
import signal
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from heddle.batch import checksum, decode, encode
from heddle.blocks import Blocks
from heddle.broker import keys, open_broker
from heddle.broker.server import start_server
from heddle.checkpoint import Checkpoint, load
from heddle.checkpoint import encode as encode_checkpoint
from heddle.clock import SystemClock
from heddle.errors import BatchError, CheckpointError
from heddle.layout import Layout, Segments
from heddle.policies.factory import make_policy
from heddle.policies.weights import WeightsError, pack, unpack
from heddle.spaces import Box, Discrete
from heddle.stacks import Stack
from tests.fuzz.lawful import unlawful
from tests.fuzz.mutate import mutated

CAP = 1 << 22


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to fuzz.

    Attributes:
        mutant: bytes from a generator; trial: what is done with them.
    """

    mutant: Callable[[np.random.Generator], bytes]
    trial: Callable[[bytes], None]


def _batches() -> list[tuple[Layout, Segments, bytes]]:
    """Batches of all kinds, compressed and not, with their segments."""
    from tests.space_zoo import everything, shown
    from tests.unit import test_stacks
    from tests.unit.test_batch import NESTED, PLAIN, layout_of, played
    from tests.unit.test_every_space import layout_of as layout_showing

    found: list[tuple[Layout, Segments, bytes]] = []
    codecs: tuple[Literal["lz4", "zstd"] | None, ...] = (None, None, "zstd", "lz4")
    every = everything()
    for seed, codec in enumerate(codecs):
        some = [played(layout_of(observation), rows=1 + seed, seed=seed) for observation in (PLAIN, NESTED)]
        some.append(played(layout_of(Discrete(5, 2)), rows=1 + seed, seed=seed))
        some.append(shown(layout_showing(every), every, 1 + seed, seed))
        layout = test_stacks.layout_of(k=2 + seed, beside=bool(seed % 2))
        stacking = test_stacks.played(layout, 1 + seed, seed=seed, ending=0.2)
        some.append(test_stacks.folded_of(stacking).gathered(Blocks().take))
        for segments in some:
            found.append((segments.layout, segments, bytes(encode(segments.layout, segments, compression=codec))))
    return found


def batch(_folder: Path) -> Target:
    """The decoder of batches: with the checksum announced, and with one that fits the mutant."""
    kinds = _batches()
    samples = [data for *_, data in kinds]

    def mutant(rng: np.random.Generator) -> bytes:
        """A third each: any bytes; bytes behind the schema, so that it is passed; values, with right bytes around."""
        which, how = int(rng.integers(len(kinds))), int(rng.integers(3))
        layout, segments, original = kinds[which]
        if how == 0:
            changed = mutated(original, rng, samples)
        elif how == 1:
            end = 8 + struct.unpack_from("<i", original, 4)[0]
            changed = original[:end] + mutated(original[end:], rng, [other[end:] for other in samples], front=1_200)
        else:
            changed = bytes(encode(layout, _spoiled(segments, rng)))
        return bytes([which]) + changed

    def trial(data: bytes) -> None:
        (layout, _, original), changed = kinds[data[0]], data[1:]
        if changed == original:
            return
        _refused(lambda: decode(layout, changed, crc32=checksum(original), size_cap=CAP))
        try:
            found = decode(layout, changed, crc32=checksum(changed), size_cap=CAP)
        except BatchError as refused:
            assert "\n" not in str(refused)
            return
        problem = unlawful(found)
        assert problem is None, f"accepted although {problem}"

    return Target(mutant, trial)


def _spoiled(segments: Segments, rng: np.random.Generator) -> Segments:
    """The same with one to three numbers that may well be wrong."""
    arrays = {name: array.copy() for name, array in segments.arrays.items()}
    stacks = {name: _copied(stack) for name, stack in segments.stacks.items()}
    every = [array for name, array in arrays.items() if array.size and name != "final_row"]
    every += 3 * [part for stack in stacks.values() for part in (stack.index, stack.finals, stack.frames) if part.size]
    for _ in range(1 + int(rng.integers(3))):
        array = every[int(rng.integers(len(every)))]
        if array.dtype == object:
            place = int(rng.integers(array.size))
            array.reshape(-1)[place] = _spoiled_cell(array.reshape(-1)[place], rng)
            continue
        flat = array.reshape(-1).view(np.uint8 if array.dtype == bool else array.dtype)
        _put_odd(flat, rng)
    return Segments(segments.layout, segments.rows, arrays, stacks=stacks)


def _copied(stack: Stack) -> Stack:
    return Stack(stack.frames.copy(), stack.counts.copy(), stack.index.copy(), stack.finals.copy())


def _put_odd(flat: Any, rng: np.random.Generator) -> None:
    odd = [np.nan, np.inf, -np.inf, 0, 1, 2, 99] if flat.dtype.kind == "f" else [-1, 0, 1, 2, 3, 5, 99, 127]
    value = odd[int(rng.integers(len(odd)))]
    with np.errstate(all="ignore"):
        flat[int(rng.integers(flat.size))] = np.asarray(value).astype(flat.dtype)


def _spoiled_cell(cell: Any, rng: np.random.Generator) -> Any:
    """Another text, one element more or less, or an odd number in one."""
    if isinstance(cell, str):
        return [cell[:-1], cell + "q", cell + "a", "a" * 99][int(rng.integers(4))]
    if isinstance(cell, tuple):
        if rng.random() < 0.3:
            return cell[:-1] if rng.random() < 0.5 else cell + cell[:1]
        return tuple(_spoiled_cell(inner, rng) for inner in cell)
    if not cell.size or rng.random() < 0.3:
        return (
            cell[:-1] if rng.random() < 0.5 else np.concatenate([cell, np.zeros_like(cell, shape=(1, *cell.shape[1:]))])
        )
    changed = cell.copy()
    _put_odd(changed.reshape(-1), rng)
    return changed


def _refused(call: Callable[[], object]) -> None:
    try:
        call()
    except BatchError:
        return
    raise AssertionError("accepted although the checksum differs")


def weights(_folder: Path) -> Target:
    """Published weights, up to a policy that plays with them."""
    from heddle.spec import PolicySpec

    policy = make_policy(PolicySpec(hidden=(4,)), Box((4,), "float32"), Discrete(2), seed=1)
    own = policy.get_weights()
    other = make_policy(PolicySpec(hidden=(3, 5)), Box((4,), "float32"), Discrete(2), seed=1).get_weights()
    samples = [pack(own, version=3, update=2), pack(other, version=4, update=3)]

    def trial(data: bytes) -> None:
        try:
            found, info = unpack(data)
            policy.set_weights(found)
        except WeightsError as refused:
            assert "\n" not in str(refused)
            return
        assert found.keys() == own.keys()
        assert all((found[name].shape, found[name].dtype) == (own[name].shape, own[name].dtype) for name in own)
        assert isinstance(info.version, int)

    return Target(lambda rng: _of(samples, rng), trial)


def checkpoint(folder: Path) -> Target:
    """Checkpoint files: a mutant is refused, or it is the original in all that is read of it."""
    made = Checkpoint(
        experiment="cartpole-1a2b",
        spec_json="{}",
        spec_sha256="0" * 64,
        spaces={"observation": {"type": "box"}},
        seat_epoch=5,
        update=7,
        policy_version=8,
        env_steps=900,
        weights={"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.zeros(3, np.float32)},
        learner={"adam.m": np.ones(12, np.float32)},
        learner_meta={"step": 7},
        marks={"0/0": [5, "n", 9, "1-1"]},
        rng={"state": [1, 2, 3]},
    )
    original = encode_checkpoint(made)
    path = folder / "checkpoint.safetensors"

    def trial(data: bytes) -> None:
        path.write_bytes(data)
        try:
            found = load(path)
        except CheckpointError as refused:
            assert "\n" not in str(refused)
            return
        assert _plain(found) == _plain(made), "another checkpoint than was written"

    return Target(lambda rng: mutated(original, rng, [original], front=2_048), trial)


def _plain(one: Checkpoint) -> Any:
    arrays = {part: getattr(one, part) for part in ("weights", "learner")}
    shown = {
        part: {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in found.items()}
        for part, found in arrays.items()
    }
    return {**asdict(one), **shown}


def snapshot(_folder: Path) -> Target:
    """Snapshots of environments that speak for themselves: plain values, no pickle; also with the checksums mended."""
    from heddle.errors import SnapshotError
    from heddle.producers.snapshot import MAGIC, restore_all, take_all
    from tests.fuzz.speaking import Speaking

    samples = []
    for number in (1, 2):
        envs = [Speaking() for _ in range(number)]
        for env in envs:
            env.reset(seed=number)
            env.step(1)
        samples.append(bytes(take_all(envs)))

    def mutant(rng: np.random.Generator) -> bytes:
        changed = bytearray(_of(samples, rng))
        if rng.random() < 0.8 and len(changed) > len(MAGIC) + 4:
            inner = changed.find(b"HEDDLE1\n")
            if inner > 0 and rng.random() < 0.8 and len(changed) > inner + 12:
                changed[inner + 8 : inner + 12] = struct.pack("<I", zlib.crc32(changed[inner + 12 :]))
            changed[len(MAGIC) : len(MAGIC) + 4] = struct.pack("<I", zlib.crc32(changed[len(MAGIC) + 4 :]))
        return bytes([1 + int(rng.integers(2))]) + bytes(changed)

    def trial(data: bytes) -> None:
        envs = [Speaking() for _ in range(data[0])]
        try:
            restore_all(envs, data[1:])
        except SnapshotError:
            return
        for env in envs:
            env.check()

    return Target(mutant, trial)


def spec(folder: Path) -> Target:
    """Specs: the file is loaded, or refused with the place and the reason."""
    from heddle.errors import NotFound, SpecError
    from heddle.spec import load_spec
    from tests.fuzz.words import spec_text

    path = folder / "exp.toml"

    def mutant(rng: np.random.Generator) -> bytes:
        text = spec_text(rng).encode("utf-8", "surrogatepass")
        return mutated(text, rng, [text], front=256) if rng.random() < 0.5 else text

    def trial(data: bytes) -> None:
        path.write_bytes(data)
        try:
            loaded = load_spec(path)
        except (SpecError, NotFound) as refused:
            problems = getattr(refused, "problems", [])
            assert all(str(problem) for problem in problems)
            return
        json.loads(loaded.spec.canonical_json())

    return Target(mutant, trial)


def cli(folder: Path) -> Target:
    """Command lines: an exit code that is documented and no traceback, whatever is typed, with and without a broker."""
    from heddle.cli.main import run
    from tests.fuzz.words import command_line

    os.chdir(folder)
    (folder / "exp.toml").write_text("[experiment]\nname = 'x'\n")
    server = start_server(folder / "server", durability="memory", maxmemory=64 << 20)
    atexit.register(server.stop)

    def trial(data: bytes) -> None:
        live, argv = json.loads(data)
        os.environ["HEDDLE_REDIS_URL"] = server.url if live else "redis://127.0.0.1:1/0"
        if live:
            _populate(server.url)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(argv)
        said = err.getvalue()
        assert code in (0, 1, 2, 3, 4, 5, 6, 7, 8), (code, argv)
        assert "fault of Heddle" not in said, (argv, said[-2_000:])
        asked = any(word.startswith(("-v", "--v")) for word in argv)
        assert asked or "Traceback" not in said, (argv, said[-2_000:])

    def mutant(rng: np.random.Generator) -> bytes:
        live = bool(rng.random() < 0.5)
        return json.dumps([live, command_line(rng, live=live)]).encode()

    return Target(mutant, trial)


def _populate(url: str) -> None:
    """An experiment `exp` of which a batch is dead, unless there is one."""
    from tests.trainer_kit import submit

    with open_broker(url, role="fuzz") as broker:
        if any(status.name == "exp" and not status.ended for status in broker.experiments.ls()):
            return
        made = submit(broker, experiment={"name": "exp"})
        seat = broker.seats.claim_seat(made, "fuzz", ttl_ms=60_000)
        assert seat is not None
        broker.policies.publish(made, seat, 1, pack({"w": np.zeros(3, np.float32)}, version=1, update=0), update=0)
        raw: Any = broker.conn.main
        raw.xadd(keys.experience(made, 0), {"hello": "world"})
        broker.experience.ensure_group(made, 0)
        broker.experience.read(made, 0, keys.TRAINER_GROUP, "1", count=10, block_ms=0)
        raw.xadd(keys.dead(made, 0), {"reason": "x", "blob": b"\xff"}, id="9999999999999-1")


def planted(_folder: Path) -> Target:
    """Faults for the fuzzer to find: its own test."""
    count = iter(range(1 << 30))
    first = int((_folder.parent / "index").read_text())

    def trial(_data: bytes) -> None:
        index = first + next(count)
        if index == 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        while index == 5:
            SystemClock().sleep(0.1)
        assert index != 8, "accepted although it is the eighth"

    return Target(lambda rng: rng.bytes(4), trial)


def _of(samples: Sequence[bytes], rng: np.random.Generator) -> bytes:
    return mutated(samples[int(rng.integers(len(samples)))], rng, samples, front=1_024)


TARGETS: dict[str, Callable[[Path], Target]] = {
    "batch": batch,
    "weights": weights,
    "checkpoint": checkpoint,
    "snapshot": snapshot,
    "spec": spec,
    "cli": cli,
    "planted": planted,
}
