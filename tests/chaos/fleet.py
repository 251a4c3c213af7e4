"""The fleet under attack: server, coordinators, supervisors with workers, trainer host, each a process of its own.

It never decides what is done to them. Like an init system it starts again, after a moment, what was killed.
"""

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from heddle.broker import open_broker
from heddle.broker.server import LocalServer, restart, start_server
from heddle.broker.server_setup import Durability
from heddle.clock import SystemClock
from heddle.launch.process import Child
from heddle.producers.envs_spaces import describe
from heddle.spaces import Discrete, to_json
from heddle.spec import load_spec
from tests.chaos import procs
from tests.chaos.ledger_env import SNAPSHOTTABLE, Ledger
from tests.chaos.ledger_learner import NAME as LEARNER
from tests.chaos.short import WHAT
from tests.chaos.witness import WITNESS
from tests.e2e.shell import environment

WORKER_ID = "HEDDLE_WORKER_ID"
MARK = "CHAOS_FLEET"
"""Variable by which every process of a fleet is known, whoever started it."""
EXPERIMENT = "ledger"
"""How the names of a fleet's experiments begin."""
AGAIN_S = 0.1
COMMANDS = {
    "worker": " worker --pool",
    "forker": " forker --pool",
    "child": "/isolation/child.py ",
    "trainer": f" trainer {EXPERIMENT}",
}
"""Words by which those are known that no member of a fleet is."""
SHORT = (sys.executable, "-m", "tests.chaos.short")
FULL = (sys.executable, "-m", "heddle")


@dataclass(frozen=True, slots=True)
class Size:
    """How large a fleet is.

    Attributes:
        hosts: workers of each supervisor.
        durability: of its server.
        short: what lasts about a second instead of as long as shipped: seat, lead and restarts (all), or restarts.
        loopback: the server listens on a TCP port of 127.0.0.1, else on a socket file.
    """

    coordinators: int = 2
    hosts: tuple[int, ...] = (2,)
    trainer_hosts: int = 1
    durability: Durability = "fast"
    short: Literal["all", "restarts", "nothing"] = "all"
    loopback: bool = False
    bind: str | None = None


@dataclass(slots=True)
class Member:
    """One process that we keep running."""

    name: str
    arguments: tuple[str, ...]
    url: str
    prefix: tuple[str, ...] = ()
    child: Child | None = None
    start_at: float = 0.0
    starts: int = 0
    lines: list[str] = field(default_factory=list)


class Fleet:
    """See the module; to be used from one thread, the main one.

    Args:
        folder: everybody's working directory.
        urls: address to give to a member instead of the server's own, by name; a proxy's.
        prefixes: words before a member's command, by name; e.g. to enter a network namespace.
        witness: where workers leave links to batches in shared memory.
    """

    def __init__(
        self,
        folder: Path,
        size: Size,
        *,
        urls: Mapping[str, str] | None = None,
        prefixes: Mapping[str, tuple[str, ...]] | None = None,
        server: LocalServer | None = None,
        witness: Path | None = None,
    ) -> None:
        self.folder = folder
        self._more = {} if witness is None else {WITNESS: str(witness)}
        self.size = size
        self.home = folder / "runs"
        self.clock = SystemClock()
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        self.server = server or serve(folder, size)
        self.server_is_down_until: float | None = None
        self.server_is_frozen = False
        self.on_dead_server: Callable[[], object] = lambda: None
        """Called when a killed server is dead for certain, before it is started again."""
        self.members = [self._member(*one, urls or {}, prefixes or {}) for one in _plan(size, self.home)]

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def step(self) -> None:
        """Start what is not running and due; call it often."""
        now = self.clock.monotonic()
        for member in self.members:
            if member.child is not None and member.child.poll() is not None:
                member.lines += member.child.tail(3)
                member.child, member.start_at = None, now + AGAIN_S
            if member.child is None and now >= member.start_at:
                self._start(member)
        if self.server_is_down_until is not None and now >= self.server_is_down_until:
            if self.server.is_running():  # it takes a moment to die
                return
            self.on_dead_server()
            self.server = restart(self.server, self.clock)
            self.server_is_down_until = None

    @property
    def server_answers(self) -> bool:
        """False while it is down, or frozen."""
        return self.server_is_down_until is None and not self.server_is_frozen

    def freeze_server(self) -> Callable[[], None]:
        """SIGSTOP; what lets it go on."""
        pid, self.server_is_frozen = self.server.pid, True
        os.kill(pid, signal.SIGSTOP)

        def go_on() -> None:
            os.kill(pid, signal.SIGCONT)
            self.server_is_frozen = False

        return go_on

    def kill_server(self, down_s: float) -> None:
        """SIGKILL; `step` starts it again after `down_s`."""
        os.kill(self.server.pid, signal.SIGKILL)
        self.server_is_down_until = self.clock.monotonic() + down_s

    def member(self, name: str) -> Member:
        """The member of that name."""
        return next(member for member in self.members if member.name == name)

    def pids(self, role: str) -> list[int]:
        """Processes of a role: server, coordinator, supervisor, its forker, host, worker, its children or trainer."""
        if role == "server":
            return [self.server.pid] if self.server_answers else []
        words = COMMANDS.get(role)
        if words is not None:
            return [one.pid for one in procs.marked(MARK, str(self.folder)) if words in one.command]
        return [m.child.pid for m in self.members if m.name.startswith(role) and m.child and m.child.code is None]

    def worker_id(self, pid: int) -> str:
        """Id of the worker with that pid, as its supervisor's log has it; "" for none.

        A forked process keeps showing the environment of the one that it was forked from.
        """
        found = ""
        for log in (self.folder / "logs").glob("supervisor-*.log*"):
            found = next(
                iter(re.findall(rf"started worker=(\S+) pid={pid}\n", log.read_text(errors="replace"))[-1:]), found
            )
        return found

    def end(self) -> None:
        """End everybody gently, then the server."""
        for member in self.members:
            if member.child is not None:
                member.child.terminate(20.0)
        for member in self.members:
            if member.child is not None:
                member.child.wait(25.0)
        self.server.stop()

    def submit(self, name: str, **sections: dict[str, Any]) -> str:
        """An experiment that the ledger learner trains; the id."""
        raw = {key: _merged(SPEC.get(key, {}), sections.get(key, {})) for key in {*SPEC, *sections}}
        raw["experiment"] = {**raw["experiment"], "name": name}
        spec = load_spec(raw).spec
        env = Ledger(**spec.env.kwargs)
        space = to_json(describe(env.observation_space))
        env.close()
        spaces = json.dumps({"observation": space, "action": to_json(Discrete(2, 0))})
        with open_broker(self.server.url, role="test") as broker:
            made = broker.experiments.submit(
                spec.canonical_json(), "", spec.sha256(), name, suffix=os.urandom(3).hex(), spaces=spaces
            )
        return made.id

    def _member(
        self, name: str, arguments: Sequence[str], urls: Mapping[str, str], prefixes: Mapping[str, tuple[str, ...]]
    ) -> Member:
        return Member(name, tuple(arguments), urls.get(name, self.server.url), prefixes.get(name, ()))

    def _start(self, member: Member) -> None:
        command = FULL if self.size.short == "nothing" else SHORT
        member.starts += 1
        member.child = Child(
            [*member.prefix, *command, *member.arguments],
            env=environment(member.url, {MARK: str(self.folder), WHAT: self.size.short, **self._more}),
            name=member.name,
            log_file=self.folder / "logs" / f"{member.name}.log",
            clock=self.clock,
        )


SPEC: dict[str, Any] = {
    "experiment": {"name": "ledger"},
    "env": {"id": SNAPSHOTTABLE, "num_envs": 8, "envs_per_shard": 2, "kwargs": {"step_s": 0.002}},
    "policy": {"hidden": [4]},
    "rollout": {"steps": 8, "max_policy_lag": 1_000_000},
    "trainer": {"learner": LEARNER, "minibatch": 1, "batch_steps": 64, "checkpoints_kept": 60},
    "budget": {"env_steps": 1_000_000_000},
    "faults": {"lease_ttl": 1.0, "barren_deaths": 1_000_000, "snapshot_every": 1},
    "limits": {"max_entries": 128},
}


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` on `under`, and so for kwargs within; None leaves a key out."""
    kwargs = {**under.get("kwargs", {}), **over.get("kwargs", {})}
    merged = {**under, **over, **({"kwargs": kwargs} if kwargs else {})}
    return {key: value for key, value in merged.items() if value is not None}


def serve(folder: Path, size: Size) -> LocalServer:
    """A server for a fleet of that size."""
    port = 0 if size.loopback or size.bind else None
    return start_server(folder / "server", durability=size.durability, port=port, bind=size.bind, maxmemory=256 << 20)


def names_of(size: Size) -> list[str]:
    """Of every member."""
    return [name for name, _ in _plan(size, Path())]


def _plan(size: Size, home: Path) -> list[tuple[str, list[str]]]:
    """Name and arguments of every member."""
    plan = [(f"coordinator-{i}", ["coordinator"]) for i in range(size.coordinators)]
    plan += [(f"supervisor-{i}", ["workers", "start", "-n", str(n)]) for i, n in enumerate(size.hosts)]
    plan += [(f"host-{i}", ["trainer", "--dir", str(home)]) for i in range(size.trainer_hosts)]
    return plan
