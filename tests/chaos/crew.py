"""One process of every role on a broker, and when each was last seen to do its work.

It never restarts anybody: who ends has ended. One thread, the main one.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.broker import Broker, keys, open_broker
from heddle.broker.experience_types import Flow
from heddle.broker.pointers import read_flow
from heddle.broker.records import texts
from heddle.clock import SystemClock
from heddle.errors import HeddleError
from heddle.plane import root_folder
from tests.chaos import procs
from tests.chaos.breakable import Server
from tests.e2e.shell import HEDDLE, environment
from tests.helpers import eventually
from tests.worker_kit import COUNTING

MARK = "CHAOS_CREW"
WORKERS = 2
OUTCOMES = ("trained", "evaluated", "stale", "dead", "dropped", "rolled_back")
SPEC = """
[experiment]
name = "crew"
[env]
id = "{env}"
num_envs = 4
envs_per_shard = 2
kwargs = {{ step_s = {step_s} }}
[policy]
hidden = [4]
[rollout]
steps = 8
max_policy_lag = 1000000
plane = "{plane}"
[trainer]
passes = 1
minibatch = 32
batch_steps = 32
[budget]
env_steps = 1000000000
[faults]
lease_ttl = {ttl_s}
barren_deaths = 1000000
[limits]
max_entries = {max_entries}
max_bytes = {max_bytes}
batch_bytes = {max_bytes}
"""


@dataclass
class Actor:
    """A process with its output in a file."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def output(self) -> str:
        """All it has said."""
        return self.log.read_text(errors="replace")


@dataclass(frozen=True, slots=True)
class Seen:
    """What shows that a role does its work, as numbers that grow when it does; read at one moment."""

    now_ms: int
    seqs: tuple[int, ...]
    beats: tuple[int, ...]
    trained: int
    until_ms: int
    supervisor_ms: int
    tapped: int
    followed: int


class Crew:
    """A coordinator, a supervisor with two workers, a trainer host with a trainer, one that follows and a tap."""

    def __init__(self, server: Server, folder: Path, **spec: Any) -> None:
        self.server = server
        self.folder = folder
        self.clock = SystemClock()
        self.actors: dict[str, Actor] = {}
        self._in_memory: set[Path] = set()
        self.numbers = {
            "step_s": 0.005,
            "ttl_s": 10.0,
            "max_entries": 1024,
            "max_bytes": 1 << 26,
            "plane": "auto",
            **spec,
        }

    def start(self) -> None:
        """Start everybody, with an experiment to work on."""
        self.start_coordinator()
        self._start("supervisor", "workers", "start", "-n", str(WORKERS))
        self._start("host", "trainer", "--dir", "runs")
        self.begin()

    def start_coordinator(self) -> None:
        """Start one, maybe in the place of one that is gone."""
        self._start("coordinator", "coordinator")

    def begin(self) -> None:
        """Submit an experiment, follow it and tap it."""
        text = SPEC.format(env=COUNTING, **self.numbers)
        (self.folder / "exp.toml").write_text(text)
        follower = self._start("follower", "enqueue", "exp.toml", "--follow", "--no-check")
        said = eventually(lambda: follower.output().split("\n")[:-1], timeout_s=60, what="an id")
        assert re.fullmatch(r"crew-\w+", said[0]), said
        self.experiment = said[0]
        self.broker = self._connect()
        self._in_memory.add(root_folder() / self.broker.planes.identity())
        self._run("tap", [sys.executable, "-m", "tests.chaos.tap_process", self.server.url, self.experiment])

    def end(self) -> None:
        """End everybody who is left."""
        for actor in self.actors.values():
            if actor.process.poll() is None:
                actor.process.terminate()
        for actor in self.actors.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                actor.process.wait(20)
        for left in procs.marked(MARK, str(self.folder)):
            os.kill(left.pid, 9)
        for folder in self._in_memory:  # their broker goes with everybody who would have swept it
            shutil.rmtree(folder, ignore_errors=True)

    # ---- who is here

    def pids(self) -> dict[int, str]:
        """Every living process of the crew, with what it is."""
        return {one.pid: _role(one.command) for one in procs.marked(MARK, str(self.folder))}

    def pid(self, role: str) -> int:
        """The process that is `role`; the first of several."""
        return min(pid for pid, found in self.pids().items() if found == role)

    def cpu_s(self) -> dict[int, float]:
        """Processor seconds that each process of the crew has used."""
        ticks = os.sysconf("SC_CLK_TCK")
        used = {}
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                used[pid] = (int(fields[11]) + int(fields[12])) / ticks
        return used

    def warnings(self) -> dict[str, list[str]]:
        """Every line of trouble that each process has logged."""
        return {
            name: [line for line in actor.output().splitlines() if re.search(r"\b(WARNING|ERROR|CRITICAL)\b", line)]
            for name, actor in self.actors.items()
        }

    # ---- what they do

    def seen(self) -> Seen:
        """How far everybody is."""
        raw: Any = self.broker.conn.main
        leader = self.broker.coordinators.leader()
        supervisors = raw.zrange(keys.pool_supervisors("default"), 0, -1, withscores=True)
        workers = self.broker.pools.workers()
        followed = [int(steps) for steps in re.findall(r" steps (\d+)/", self.actors["follower"].output())]
        return Seen(
            now_ms=self.broker.conn.now_ms(),
            seqs=tuple(shard.seq for shard in self.broker.shards.shards(self.experiment, 0)),
            beats=tuple(sorted(worker.seen_ms for worker in workers if worker.alive)),
            trained=self.broker.experience.flow(self.experiment, 0).trained.batches,
            until_ms=leader.until_ms if leader is not None else 0,
            supervisor_ms=max((int(score) for _, score in supervisors), default=0),
            tapped=self.actors["tap"].output().count("batch "),
            followed=followed[-1] if followed else 0,
        )

    def play(self, timeout_s: float = 90.0) -> None:
        """Wait until everybody does their work."""
        eventually(lambda: self._look() is not None, timeout_s=timeout_s, what="the broker can be asked")
        eventually(lambda: (now := self._look()) is not None and now.trained > 0, timeout_s=timeout_s, what="an update")
        self.await_progress(self.seen(), timeout_s)

    def await_progress(self, since: Seen, timeout_s: float) -> dict[str, float]:
        """Seconds from now until each role was seen to work on from `since`; the trainer twice, so not of old data."""
        began = self.clock.monotonic()
        times: dict[str, float] = {}
        while len(times) < len(DOES_WORK):
            now = self._look()
            for role, does in DOES_WORK.items():
                if now is not None and role not in times and does(since, now):
                    times[role] = self.clock.monotonic() - began
            if self.clock.monotonic() - began > timeout_s:
                missing = sorted(set(DOES_WORK) - set(times))
                raise AssertionError(
                    f"after {timeout_s:g} s these do not work: {missing}; {since}; {now}; {self.tails()}"
                )
            self.clock.sleep(0.02)
        return times

    def check_books(self) -> None:
        """The counters and the stream agree, at one moment."""
        pipe = self.broker.conn.main.pipeline(transaction=True)
        pipe.hgetall(keys.flow(self.experiment, 0))
        pipe.xrange(keys.experience(self.experiment, 0))
        counters, entries = pipe.execute()
        flow = read_flow(texts(counters), 0)
        in_flight = {"batches": len(entries), "steps": sum(int(fields[b"steps"]) for _, fields in entries)}
        assert (flow.entries, flow.steps) == (in_flight["batches"], in_flight["steps"])
        assert flow.bytes == sum(int(fields[b"bytes"]) for _, fields in entries)
        for unit, open_ in in_flight.items():
            settled = sum(getattr(getattr(flow, name), unit) for name in OUTCOMES)
            assert getattr(flow.appended, unit) == settled + open_, flow

    def stop_experiment(self) -> Flow:
        """Have it end well; its counters at the end."""
        self.broker.experiments.set_command(self.experiment, "stop")
        eventually(
            lambda: self.broker.experiments.status(self.experiment).state == "stopped", timeout_s=60, what="it stops"
        )
        self.check_books()
        return self.broker.experience.flow(self.experiment, 0)

    def tails(self) -> str:
        """The last lines of everybody."""
        return "\n".join(f"--- {name}\n{actor.output()[-1500:]}" for name, actor in self.actors.items())

    def _look(self) -> Seen | None:
        try:
            return self.seen()
        except HeddleError:
            return None

    # ---- inside

    def _connect(self) -> Broker:
        return open_broker(f"{self.server.url}?socket_timeout=1", role="test")

    def _start(self, name: str, *arguments: str) -> Actor:
        return self._run(name, [*HEDDLE, *arguments])

    def _run(self, name: str, argv: list[str]) -> Actor:
        log = self.folder / f"{name}-{len(list(self.folder.glob(f'{name}-*.out')))}.out"
        with log.open("wb") as out:
            process = subprocess.Popen(
                argv,
                cwd=self.folder,
                env=environment(self.server.url, {MARK: str(self.folder)}),
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        self.actors[name] = Actor(name, process, log)
        return self.actors[name]


DOES_WORK: dict[str, Callable[[Seen, Seen], bool]] = {
    "workers": lambda a, b: len(b.seqs) == len(a.seqs) and all(y > x + 1 for x, y in zip(a.seqs, b.seqs, strict=True)),
    "heartbeats": lambda a, b: len(b.beats) >= WORKERS and b.beats[-WORKERS] > a.now_ms,
    "trainer": lambda a, b: b.trained > a.trained + 8,
    "coordinator": lambda a, b: b.until_ms > a.now_ms + 2_500,
    "supervisor": lambda a, b: b.supervisor_ms > a.now_ms,
    "tap": lambda a, b: b.tapped > a.tapped + 1,
    "follower": lambda a, b: b.followed > a.followed,
}


def _role(command: str) -> str:
    words = ("coordinator", "workers start", "worker --pool", "trainer crew", "trainer", "enqueue", "tap_process")
    return next((word for word in words if word in command), command)


@contextlib.contextmanager
def crew_on(server: Server, folder: Path, **spec: Any) -> Iterator[Crew]:
    """A crew that works, while inside."""
    crew = Crew(server, folder, **spec)
    try:
        crew.start()
        crew.play()
        yield crew
    finally:
        crew.end()
