"""Trainers to kill by the dozen: forks of one process that has loaded everything, so that each is there at once.

It never restarts one. Their link is slow where it carries weights, so that a version is under way for a while. Run as a
program it is that process: for each line on standard input it forks a trainer, or waits for one to end.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from heddle.broker.calls import Client
from heddle.broker.policies import Policies
from heddle.clock import SystemClock
from heddle.consumers.trainer import Trainer
from heddle.errors import HeddleError
from heddle.stop import StopFlag, listen_to_signals

CHUNK_BYTES = 16 << 10
CHUNK_S = 0.01
SEAT_TTL_MS = 2_000
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""A policy's first weights take longer with several threads on busy cores than with one."""


class TrainerForks:
    """Of one experiment."""

    def __init__(self, url: str, experiment: str, home: Path, log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.trainer_forks", url, experiment, str(home)],
                cwd=Path(__file__).resolve().parents[2],
                env={**os.environ, **ONE_THREAD},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._running: set[int] = set()

    def start(self) -> int:
        """One more; its pid."""
        pid = self._ask("start")
        self._running.add(pid)
        return pid

    def wait(self, pid: int) -> int:
        """Its exit code, once it has ended; the number of a signal below 0."""
        code = self._ask(f"wait {pid}")
        self._running.discard(pid)
        return code

    def kill(self, pid: int) -> None:
        """SIGKILL, and it is gone."""
        os.kill(pid, signal.SIGKILL)
        assert self.wait(pid) == -signal.SIGKILL, "it had ended by itself"

    def end(self) -> None:
        """End all that are left."""
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        self._process.communicate()

    def _ask(self, what: str) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(what, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


def _slow_down() -> None:
    """Weights go in many chunks, and each takes its time."""
    made, clock = Policies.__init__, SystemClock()
    made.__kwdefaults__ = {**(made.__kwdefaults__ or {}), "chunk_bytes": CHUNK_BYTES}
    execute = Client.execute_command

    def slowly(self: Client, *args: Any, **options: Any) -> Any:
        if args[0] == "SET" and ":policy:" in str(args[1]):
            clock.sleep(CHUNK_S)
        return execute(self, *args, **options)

    Client.execute_command = slowly  # type: ignore[method-assign]


def _train(url: str, experiment: str, directory: Path) -> int:
    stop = StopFlag()
    listen_to_signals(stop)
    try:
        return Trainer(url, experiment, directory=directory, stop=stop, ttl_ms=SEAT_TTL_MS).run()
    except HeddleError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def main() -> None:
    import heddle.consumers.training  # noqa: F401  torch, before the first fork

    url, experiment, directory = sys.argv[1:]
    _slow_down()
    for line in sys.stdin:
        what, _, pid = line.strip().partition(" ")
        if what == "wait":
            print(os.waitstatus_to_exitcode(os.waitpid(int(pid), 0)[1]), flush=True)
            continue
        child = os.fork()
        if not child:
            os._exit(_train(url, experiment, Path(directory)))
        print(child, flush=True)


if __name__ == "__main__":
    main()
