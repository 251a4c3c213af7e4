"""What kill -9 of the broker loses, with Heddle's own appends, under each setting of a server:

    python -m benchmarks.durability [--rounds 20] [--only fast-everysec ...] [--server redis] [--out FILE]

Each round: four writers append, another client reads and acks, the server is killed with SIGKILL at a random moment and
started again on its data. Lost is what a writer was told was accepted and the server does not remember. It fails when
what is remembered does not hang together, and never because of how much was lost.

`--slow-fsync MS` (needs a C compiler) has every fsync of the server take that long, like a disk that is busy. A kill is
not a power cut: what the system's page cache holds survives the one and not the other.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.machine import machine
from benchmarks.measure import CLOCK
from benchmarks.servers import binaries
from heddle.batch import checksum
from heddle.broker import Broker, keys, open_broker
from heddle.broker.binary import ServerBinary
from heddle.broker.server_setup import Address, config_text
from heddle.broker.types import AppendMeta, Claim, Lease, ShardState
from heddle.client import Client
from heddle.errors import BatchesForgotten, BrokerError, Gone
from heddle.shard import plan_shards
from heddle.spec import load_spec

WRITERS = 4
STEPS = 64
TTL_MS = 60_000
MEMORY = 2 << 30
IN_FLIGHT = "512MiB"

SETTINGS: dict[str, tuple[str, ...]] = {
    "strict-always": ("appendonly yes", "appendfsync always"),
    "always-rewriting": ("appendonly yes", "appendfsync always", "no-appendfsync-on-rewrite yes"),
    "fast-everysec": ("appendonly yes", "appendfsync everysec"),
    "everysec-rewriting": ("appendonly yes", "appendfsync everysec"),
    "fast-no": ("appendonly yes", "appendfsync no"),
    "memory-rdb": ("appendonly no", "save 1 1"),
    "memory": ("appendonly no", 'save ""'),
}
"""Name of a setting -> lines of the server's configuration."""

SLOW_FSYNC_C = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
static void wait_(void) { usleep(1000 * atoi(getenv("HEDDLE_SLOW_FSYNC_MS"))); }
int fdatasync(int fd) { wait_(); return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd); }
int fsync(int fd) { wait_(); return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
"""


@dataclass(slots=True)
class Round:
    """What one kill showed.

    Attributes:
        accepted: appends that were answered OK.
        lost: of them, not remembered.
        lost_s: from the answer to the oldest lost one until the kill.
        told: of the lost, how many the server's answer to the next append told of.
        back_s: from starting the server to its answer.
        torn: what is remembered and does not hang together, in words.
    """

    accepted: int = 0
    lost: int = 0
    lost_s: float = 0.0
    told: int = 0
    back_s: float = 0.0
    torn: list[str] = field(default_factory=list)


class Server:
    """One folder of data, served again and again."""

    def __init__(self, folder: Path, binary: ServerBinary, lines: tuple[str, ...], env: dict[str, str]) -> None:
        self._folder = folder
        address = Address(socket_path=folder / "s.sock")
        self.url = address.url()
        self._argv = [str(binary.path), "-"]
        self._config = config_text(folder, address, "fast", MEMORY) + "\n".join(lines) + "\n"
        self._env = env

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, and return when it answers."""
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen(
                self._argv, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=self._folder, env=self._env
            )
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(self._config.encode())
        while True:
            if process.poll() is not None:
                raise RuntimeError(f"the server did not start: {(self._folder / 'log').read_text()[-500:]}")
            try:
                open_broker(self.url, role="bench").close()
                return process
            except BrokerError:
                CLOCK.sleep(0.005)


class Writer:
    """Appends one shard's batches until the server is gone; remembers when each was answered."""

    def __init__(self, url: str, lease: Lease, blob: bytes) -> None:
        self.lease = lease
        self.answered: list[float] = []
        self._broker = open_broker(url, role="bench")
        self._blob = blob
        self._meta = AppendMeta("train", 1, 1, 2, STEPS, len(blob), checksum(blob))
        self._ending = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._ending.is_set():
            with suppress(BrokerError):
                if self._append(len(self.answered) + 1) == "OK":
                    self.answered.append(CLOCK.monotonic())
                continue
            return

    def _append(self, seq: int) -> str:
        shards = self._broker.shards
        reply = shards.append(self.lease, seq=seq, blob=self._blob, meta=self._meta, ttl_ms=TTL_MS)
        if reply.status not in ("OK", "FULL"):
            raise RuntimeError(f"append of {seq} was answered {reply}")
        return reply.status

    def end(self) -> None:
        """Append no more."""
        self._ending.set()
        self.thread.join()
        self._broker.close()


def prepare(broker: Broker, url: str) -> tuple[str, int, list[Lease]]:
    """An experiment with a shard for each writer: id, seat epoch, leases."""
    spec = load_spec(
        {
            "experiment": {"name": "durability", "pool": "bench"},
            "env": {"id": "CartPole-v1", "num_envs": WRITERS, "envs_per_shard": 1},
            "limits": {"max_entries": 100_000, "max_bytes": IN_FLIGHT},
            "budget": {"env_steps": 10**12},
        }
    ).spec
    experiment = Client(broker, url).submit(spec).id
    leader = broker.coordinators.claim_leader("bench", ttl_ms=TTL_MS)
    assert leader is not None
    broker.shards.create(experiment, 0, plan_shards(spec), leader_epoch=leader)
    broker.experience.ensure_group(experiment, 0)
    broker.shards.queue_tickets(experiment, 0, range(WRITERS), "bench")
    seat = broker.seats.claim_seat(experiment, "bench", ttl_ms=TTL_MS)
    assert seat is not None
    leases = []
    for number in range(WRITERS):
        ticket = broker.shards.read_ticket("bench", "bench", block_ms=0)
        assert ticket is not None
        claim = broker.shards.claim(ticket, worker="bench", nonce=f"n{number}", ttl_ms=TTL_MS)
        assert isinstance(claim, Claim)
        leases.append(claim.lease)
    return experiment, seat, leases


def settle(url: str, experiment: str, seat: int, ending: threading.Event) -> None:
    """Read and ack all there is, until the server is gone."""
    with open_broker(url, role="bench") as broker, suppress(BrokerError):
        while not ending.is_set():
            found = broker.experience.read(experiment, 0, "trainer", "bench", count=64, block_ms=50)
            if found:
                broker.experience.ack(experiment, 0, seat, [(pointer, "trained") for pointer in found])


def rewrite(url: str, ending: threading.Event) -> None:
    """Keep the server rewriting its append-only file."""
    with open_broker(url, role="bench") as broker, suppress(BrokerError):
        while not ending.is_set():
            if not int(broker.conn.main.info("persistence")["aof_rewrite_in_progress"]):
                broker.conn.main.bgrewriteaof()
            ending.wait(0.05)


def play_round(server: Server, blob: bytes, rng: np.random.Generator, *, rewriting: bool) -> Round:
    """Append, kill, start again, compare."""
    process = server.start()
    ending, found = threading.Event(), Round()
    try:
        with open_broker(server.url, role="bench") as broker:
            experiment, seat, leases = prepare(broker, server.url)
        writers = [Writer(server.url, lease, blob) for lease in leases]
        others = [threading.Thread(target=settle, args=(server.url, experiment, seat, ending), daemon=True)]
        if rewriting:
            others.append(threading.Thread(target=rewrite, args=(server.url, ending), daemon=True))
        for thread in [writer.thread for writer in writers] + others:
            thread.start()
        CLOCK.sleep(float(rng.uniform(1.1, 3.2)))
        os.kill(process.pid, signal.SIGKILL)
        killed_at = CLOCK.monotonic()
        process.wait()
        ending.set()
        for writer in writers:
            writer.end()
        for thread in others:
            thread.join()
        began = CLOCK.monotonic()
        process = server.start()
        found.back_s = CLOCK.monotonic() - began
        with open_broker(server.url, role="bench") as broker:
            compare(broker, experiment, writers, killed_at, found)
    finally:
        ending.set()
        process.kill()
        process.wait()
    return found


def compare(broker: Broker, experiment: str, writers: list[Writer], killed_at: float, found: Round) -> None:
    """What is remembered against what was answered."""
    try:
        states = {state.shard: state for state in broker.shards.shards(experiment, 0)}
    except Gone:
        states = {}
    for writer in writers:
        answered = len(writer.answered)
        found.accepted += answered
        state = states.get(writer.lease.shard)
        known = min(answered, state.seq) if state is not None else 0
        found.lost += answered - known
        if known < answered:
            found.lost_s = max(found.lost_s, killed_at - writer.answered[known])
    if not states:
        found.told = found.lost  # the whole experiment is gone, and that is what everybody is told
        return
    look_whole(broker, experiment, states, found)
    for writer in writers:
        found.told += told_by_next(broker, writer)


def look_whole(broker: Broker, experiment: str, states: dict[int, ShardState], found: Round) -> None:
    """Scripts are there whole or not at all: counters, shards, entries and bytes fit each other."""
    raw, flow = broker.conn.main, broker.experience.flow(experiment, 0)
    entries = raw.xrange(keys.experience(experiment, 0))
    seqs = sum(state.seq for state in states.values())
    if flow.appended.batches != seqs:
        found.torn.append(f"appended {flow.appended.batches}, the shards say {seqs}")
    if flow.appended.batches != flow.trained.batches + len(entries) or flow.entries != len(entries):
        found.torn.append(f"{len(entries)} entries, the counters say {flow}")
    for _, fields in entries:
        if raw.strlen(fields[b"blob"]) != int(fields[b"bytes"]):
            found.torn.append(f"entry without its bytes: {fields[b'blob']!r}")


def told_by_next(broker: Broker, writer: Writer) -> int:
    """How many lost batches a writer that goes on hears of."""
    meta = AppendMeta("train", 1, 1, 2, STEPS, 4, checksum(b"next"))
    seq = len(writer.answered) + 1
    try:
        reply = broker.shards.append(writer.lease, seq=seq, blob=b"next", meta=meta, ttl_ms=TTL_MS)
    except (Gone, BatchesForgotten):
        return 0
    return seq - 1 - reply.seq if reply.status == "GAP" else 0


@contextmanager
def slow_fsync(milliseconds: int, folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which every fsync takes at least so long."""
    if not milliseconds:
        yield dict(os.environ)
        return
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SystemExit("--slow-fsync needs a C compiler (cc, gcc or clang) on PATH")
    source, shim = folder / "slow.c", folder / "slow.so"
    source.write_text(SLOW_FSYNC_C)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"], check=True)
    yield {**os.environ, "LD_PRELOAD": str(shim), "HEDDLE_SLOW_FSYNC_MS": str(milliseconds)}


def measure(binary: ServerBinary, setting: str, options: argparse.Namespace) -> list[Round]:
    """All rounds of one server and setting."""
    rng = np.random.default_rng(options.seed)
    blob = os.urandom(options.bytes)
    found = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="heddle-durability-") as folder:
            home = Path(folder)
            with slow_fsync(options.slow_fsync, home) as env:
                server = Server(home, binary, SETTINGS[setting], env)
                found.append(play_round(server, blob, rng, rewriting="rewriting" in setting))
    return found


def row(name: str, setting: str, rounds: list[Round]) -> str:
    """One line of the table."""
    accepted, lost = sum(one.accepted for one in rounds), sum(one.lost for one in rounds)
    kills = sum(1 for one in rounds if one.lost)
    longest = max(one.lost_s for one in rounds)
    told = "-" if not lost else f"{sum(one.told for one in rounds):,}"
    torn = sum(len(one.torn) for one in rounds)
    back = max(one.back_s for one in rounds)
    cells = (
        name,
        setting,
        len(rounds),
        f"{accepted:,}",
        f"{lost:,}",
        kills,
        f"{longest:.2f}",
        told,
        torn,
        f"{back:.2f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    """Measure, print a table, write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--bytes", type=int, default=16_384, help="of one batch (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow-fsync", type=int, default=0, metavar="MS")
    parser.add_argument("--only", nargs="+", choices=list(SETTINGS), default=list(SETTINGS), metavar="SETTING")
    parser.add_argument("--server", help="only servers whose name holds this, e.g. redis")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    facts = machine()
    print("| server | setting | kills | accepted | lost | kills that lost | longest, s | told | torn | back, s |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    results, torn = {}, []
    for binary in (one for one in binaries() if not options.server or options.server in str(one)):
        for setting in options.only:
            rounds = measure(binary, setting, options)
            print(row(str(binary), setting, rounds), flush=True)
            results[f"{binary}, {setting}"] = [asdict(one) for one in rounds]
            torn += [words for one in rounds for words in one.torn]
    print(f"\n{facts['processor']}, {facts['cores']} cores, {facts['system']}, {facts['date']}")
    print(f"{options.bytes} bytes a batch")
    if options.out:
        options.out.write_text(json.dumps({"machine": facts, "rounds": results}, indent=1) + "\n")
    for words in torn[:10]:
        print(f"does not hang together: {words}", file=sys.stderr)
    return 1 if torn else 0


if __name__ == "__main__":
    sys.exit(main())
