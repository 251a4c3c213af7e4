"""The services of one terminal: server, coordinator, workers and trainer as supervised children of this process.

It never prints, never submits an experiment and never outlives them: whatever way this process ends, they end too.
"""

import contextlib
import logging
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from heddle.broker import open_broker
from heddle.broker.plane_sweep import drop_broker
from heddle.broker.server import LocalServer, restart, start_server
from heddle.broker.server_setup import Durability
from heddle.clock import Clock, SystemClock
from heddle.errors import BrokerError, Denied, Gone, HeddleError, Interrupted
from heddle.launch import left_behind
from heddle.launch.children import Ending, Role, end_all
from heddle.launch.cut_short import remembers, remove
from heddle.launch.pacing import HEALTHY_S, restart_delay_s
from heddle.launch.process import describe_exit
from heddle.launch.role_host import OnLine
from heddle.launch.supervisor import ChildInfo, Supervisor
from heddle.plane import root_folder
from heddle.plane.sweep import brokers
from heddle.stop import StopFlag
from heddle.tracing import check_tracing

log = logging.getLogger("heddle.launch")

GRACE_S = 30.0
LAUNCHER_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks a launcher to end: Ctrl-C, kill, the terminal being closed."""
SERVER_PATIENCE_S = 600.0
"""How long a server that cannot be started again is tried for: a full disk may get room."""
SERVER_DELAY_S = 2.0
"""Longest pause between two tries: whoever makes room is not kept waiting."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What shall run.

    Attributes:
        url: the broker to use; None starts one.
        folder: where a server of our own keeps its data.
        keep_data: leave the folder when it ends; else it is removed, with a run that goes on only once it is settled.
        bind, port, maxmemory, durability: of a server of our own, as `start_server` takes them.
        workers: processes that play; pool: the pool they join.
        log_dir: one log file a process; None keeps the last lines only.
        on_line: told every line of a child and what it is about; None for nobody.
    """

    url: str | None
    folder: Path
    keep_data: bool = False
    bind: str | None = None
    port: int | None = None
    maxmemory: int | None = None
    durability: Durability | None = None
    workers: int = 1
    pool: str = "default"
    log_dir: Path | None = None
    on_line: OnLine | None = None


class Local:
    """The services, from `start` to `end`; both, and `step` between them, from the same thread.

    Attributes:
        url: of the broker, once started.
        server: ours; None when the broker was given.
        endings: of children that ended unasked, oldest first; whoever shows them takes them out.
        settled: what became of the run that the folder remembers is known; until then its data are kept, whatever
            error ends this.

    Args:
        stop: asked a second time it makes `end` hurry.
    """

    def __init__(self, setup: Setup, *, stop: StopFlag, clock: Clock | None = None) -> None:
        self.setup = setup
        self.server: LocalServer | None = None
        self.url = setup.url or ""
        self.roles: list[Role] = []
        self.endings: list[Ending] = []
        self.settled = False
        self.server_restarts = 0
        self._stop = stop
        self._clock = clock or SystemClock()
        self._supervisor: Supervisor | None = None
        self._supervisor_stop = StopFlag()
        self._supervisor_thread: threading.Thread | None = None
        self._supervisor_error: HeddleError | None = None
        self._server_at = 0.0
        self._server_failures = 0
        self._server_lost_at = 0.0
        self._server_up_at: float | None = None

    def start_server(self) -> None:
        """Start the server, when none was given.

        Raises:
            BrokerUnfit, BrokerUnreachable, Conflict: it cannot be started; the message says why.
            Interrupted: somebody asked to end before it served.
            UsageError: HEDDLE_TRACE says what no role could do.
        """
        check_tracing()
        if self.setup.url is not None:
            return
        setup = self.setup
        self.server = start_server(
            setup.folder,
            bind=setup.bind,
            port=setup.port,
            maxmemory=setup.maxmemory,
            durability=setup.durability,
            clock=self._clock,
            given_up=lambda: self._stop.draining,
        )
        self.url = self.server.url
        self._server_up_at = self._clock.monotonic()

    def start_roles(self) -> None:
        """Start coordinator and workers; on a server of our own nobody waits for what a killed run held there."""
        if self.server is not None:
            self._free_what_was_left()
        self.add_service("coordinator", ["coordinator"])
        if self.setup.workers:
            self._start_supervisor()

    def add_service(self, name: str, arguments: Sequence[str]) -> Role:
        """Run one more role of the fleet, whose output goes where that of all does."""
        on_line = None if self.setup.on_line is None else partial(self.setup.on_line, {})
        return self.add(Role(name, arguments, url=self.url, log_file=self._log_file(name), on_line=on_line))

    def add(self, role: Role) -> Role:
        """Run one more role beside the others."""
        self.roles.append(role)
        role.step()
        return role

    def log_file(self, name: str) -> Path | None:
        """Where the output of a role goes; None when nobody asked for files."""
        return self._log_file(name)

    def step(self) -> None:
        """Look at everything once and start again what ended unasked.

        Raises:
            HeddleError: what cannot be repaired: the server or the workers' supervisor.
        """
        self._mind_server()
        if self._supervisor_error is not None:
            raise self._supervisor_error
        for role in self.roles:
            ending = role.step()
            if ending is not None:
                self.endings.append(ending)

    def workers(self) -> list[ChildInfo]:
        """The worker processes that run here now."""
        return self._supervisor.children() if self._supervisor is not None else []

    def wake(self) -> None:
        """Have what was stopped go on, so that it can give back what it holds."""
        for role in self.roles:
            if role.child is not None:
                role.child.wake()
        if self._supervisor is not None:
            self._supervisor.wake()

    def end(self) -> None:
        """End everything: workers deliver what they have, then the rest, then the server; at once when hurried."""
        hurry = threading.Event()
        try:
            self._end_supervisor(hurry)
            end_all(self.roles, grace_s=GRACE_S, clock=self._clock, hurried=lambda: self._stop.now)
        finally:
            self._end_server()

    # ---- inside

    def _free_what_was_left(self) -> None:
        try:
            with open_broker(self.url, role="launcher") as broker:
                freed = left_behind.free(broker, self.setup.pool)
        except (BrokerError, Denied) as error:
            log.info("cannot look for what was left error=%s", error)
            return
        if freed:
            log.info("freed what killed processes held: %s", ", ".join(freed))

    def _forget_memory(self, server: LocalServer) -> None:
        """What this server's experiments left in shared memory goes with its data."""
        if not brokers(root_folder()):
            return
        try:
            with open_broker(server.url, role="launcher") as broker:
                drop_broker(broker.planes)
        except (BrokerError, Denied) as error:
            log.info("left shared memory to a later sweep error=%s", error)

    def _log_file(self, name: str) -> Path | None:
        if self.setup.log_dir is None:
            return None
        self.setup.log_dir.mkdir(parents=True, exist_ok=True)
        return self.setup.log_dir / f"{name}.log"

    def _start_supervisor(self) -> None:
        self._supervisor = Supervisor(
            self.url,
            self.setup.pool,
            wants=self.setup.workers,
            stop=self._supervisor_stop,
            log_dir=self.setup.log_dir,
            grace_s=GRACE_S,
            on_line=None if self.setup.on_line is None else self._hear_worker,
            clock=self._clock,
        )
        # Not a daemon: its children are told when the thread that made them ends, so it must be joined.
        self._supervisor_thread = threading.Thread(target=self._supervise, args=(self._supervisor,), name="supervisor")
        self._supervisor_thread.start()

    def _hear_worker(self, worker: str, line: str) -> None:
        if self.setup.on_line is not None:
            self.setup.on_line({"worker": worker}, line)

    def _supervise(self, supervisor: Supervisor) -> None:
        try:
            supervisor.run()
        except HeddleError as error:
            self._supervisor_error = error

    def _end_supervisor(self, hurry: threading.Event) -> None:
        thread = self._supervisor_thread
        if thread is None:
            return
        self._supervisor_stop.drain("ending")
        while thread.is_alive():
            if self._stop.now and not hurry.is_set():
                hurry.set()
                self._supervisor_stop.request("hurried")
                for role in self.roles:  # while the workers end
                    role.hurry()
            thread.join(0.02)
        self._supervisor_thread = None

    def _mind_server(self) -> None:
        server, now = self.server, self._clock.monotonic()
        if server is None or server.is_running() or now < self._server_at:
            return
        if self._server_up_at is not None:  # it has just ended; one that does so again and again is given time
            lived_s, self._server_up_at = now - self._server_up_at, None
            self._server_failures = 0 if lived_s >= HEALTHY_S else self._server_failures + 1
            self._server_at = now + self._server_delay_s() if self._server_failures else 0.0
            self._server_lost_at = now
        else:
            self._restart_server(server)

    def _restart_server(self, server: LocalServer) -> None:
        said, code = server.last_words(2), server.process.returncode()
        was_draining = self._stop.draining

        def given_up() -> bool:
            return self._stop.now or self._stop.draining is not was_draining

        try:
            self.server = restart(server, self._clock, given_up=given_up)
        except Interrupted:
            return  # the end is not kept waiting for a server that loads
        except HeddleError as error:
            now = self._clock.monotonic()
            if isinstance(error, Gone) or now - self._server_lost_at >= SERVER_PATIENCE_S:
                raise
            self._server_failures += 1
            self._server_at = now + self._server_delay_s()
            log.warning("cannot restart the server, will again error=%s", error)
            return
        self._server_up_at = self._clock.monotonic()
        self.server_restarts += 1
        why = f"server ended with {describe_exit(code or 0)}: {said}"
        log.info("restarted the server because %s", why)
        self.endings.append(Ending("server", code or 0, why))

    def _server_delay_s(self) -> float:
        return min(SERVER_DELAY_S, restart_delay_s(self._server_failures, 0.5))

    def _end_server(self) -> None:
        server, self.server = self.server, None
        if server is None:
            return
        is_ours = server.has_folder()  # else that path and its socket are another run's, or nobody's
        keeps = self.setup.keep_data or (is_ours and remembers(self.setup.folder) and not self.settled)
        if is_ours and not keeps:
            self._forget_memory(server)
        server.stop()
        if keeps:
            return
        remove(self.setup.folder, own=server.folder_id)
        with contextlib.suppress(OSError):  # other things in it are not ours
            self.setup.folder.parent.rmdir()
