"""The observer: a thread that follows the server's log and every checkpoint of some experiments, and checks them.

It never talks to the fleet; what it reads are files, and the counters over a plain connection.
"""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import redis

from heddle.broker.server import LocalServer
from heddle.clock import SystemClock
from tests.chaos.aof import Tap
from tests.chaos.checker import Checker, books
from tests.chaos.history import History
from tests.chaos.manifest import Archive, Manifest

EVERY_S = 0.02
MOST_HELD = 400
LAST_LOOK_S = 10.0


@dataclass(slots=True)
class Watched:
    """One experiment under observation."""

    history: History
    checker: Checker
    archive: Archive
    waiting: list[Manifest] = field(default_factory=list)

    def violations(self) -> list[str]:
        """All found so far."""
        return [*self.history.violations, *self.checker.violations, *self.archive.torn]


class Observer:
    """See the module.

    Args:
        server: whose log; its folder stays the same over restarts.
        home: folder of all experiments' checkpoints.
        kept: where links to checkpoints are put while they wait for their check.
        witness: where links to batches in shared memory are.
    """

    def __init__(
        self, server: LocalServer, home: Path, kept: Path, *, may_forget: bool = False, witness: Path | None = None
    ) -> None:
        self.watched: dict[str, Watched] = {}
        self.forgotten_bytes = 0
        self.lock = threading.RLock()
        self._may_forget = may_forget
        self._home = home
        self._witness = witness
        self._kept = kept
        self._tap = Tap(server.settings.folder)
        self._clock = SystemClock()
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)

    def watch(self, experiment: str, *, envs_per_shard: int = 2, continuous: bool = False) -> Watched:
        """Follow an experiment from its first batch on."""
        history = History(experiment, continuous=continuous, witness=self._witness)
        checker = Checker(history, envs_per_shard=envs_per_shard, may_forget=self._may_forget)
        archive = Archive(self._home / experiment / "checkpoints", self._kept / experiment)
        with self.lock:
            self.watched[experiment] = Watched(history, checker, archive)
        return self.watched[experiment]

    def start(self) -> "Observer":
        self._thread.start()
        return self

    def server_was_killed(self) -> None:
        """To be called when it is dead and before it is started again."""
        with self.lock:
            self._look()
            self.forgotten_bytes += self._tap.resume()

    def stop(self) -> None:
        """End the thread; a last look. Raises what the thread raised.

        In a fleet that still works a checkpoint may be newer than what was just read of the log: it is looked at once
        the log has what it names.
        """
        self._end.set()
        self._thread.join(30)
        if self._error is not None:
            raise self._error
        self._look()
        last = [(one, manifest) for one in self.watched.values() for manifest in one.waiting]
        deadline = self._clock.monotonic() + LAST_LOOK_S
        while any(manifest in one.waiting for one, manifest in last) and self._clock.monotonic() < deadline:
            self._clock.sleep(EVERY_S)
            self._look()
        for one, manifest in last:
            if manifest in one.waiting:
                one.checker.check(manifest)
        for one in self.watched.values():
            one.waiting.clear()
        self._tap.close()

    def settle(self, server: LocalServer) -> None:
        """At the end of a run, with nothing in flight: compare with the counters."""
        for experiment, one in self.watched.items():
            flow, entries = read_flow(server.url, experiment)
            one.checker.violations += books(flow, one.history, entries=entries)
            one.checker.settle(flow)

    def _run(self) -> None:
        try:
            while not self._end.wait(EVERY_S):
                with self.lock:
                    self._look()
        except BaseException as error:  # noqa: BLE001  raised again by `stop`
            self._error = error

    def _look(self) -> None:
        groups = self._tap.poll()
        for one in self.watched.values():
            one.history.take(groups)
            left, one.history.left = one.history.left, []
            new = one.archive.poll()
            one.checker.note(new, left)
            one.waiting += new
            ripe = [manifest for manifest in one.waiting if one.checker.is_ripe(manifest)]
            if len(one.waiting) > MOST_HELD:
                ripe = list(one.waiting)
            for manifest in ripe:
                one.waiting.remove(manifest)
                if one.checker.check(manifest):
                    Archive.forget(manifest)


def read_flow(url: str, experiment: str) -> tuple[dict[str, int], int]:
    """The counters and the length of the stream, at one moment."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        pipe = client.pipeline(transaction=True)
        pipe.hgetall(f"heddle:{{{experiment}.0}}:flow")
        pipe.xlen(f"heddle:{{{experiment}.0}}:experience")
        flow, entries = pipe.execute()
    return {name: int(value) for name, value in flow.items()}, int(entries)
