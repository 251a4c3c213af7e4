"""Forks: workers that a forker makes in milliseconds, children of this process like any other; fresh ones where that
cannot be.

They never depend on the forker once they run: it may die, and another one is started. `forker.py` is its own side.

The forker's copies are orphans for a moment and become ours because we say that we take orphans in, and only for that
moment: other ones that come to us then are buried when they end.
"""

import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO

from heddle.clock import Clock, SystemClock
from heddle.errors import UsageError
from heddle.launch.forker import LINK_ENV
from heddle.launch.orphans import Orphans
from heddle.launch.process import Child, Started, describe_exit, spawn

log = logging.getLogger("heddle.launch")

START_ENV = "HEDDLE_START"
"""How workers are started: `fork`, or `spawn` for a fresh interpreter each."""
BIRTH_S = 30.0
"""A forker that takes longer to load is not waited for."""
ANSWER_S = 10.0
SLICE_S = 0.1
"""Between two looks whether a forker that has not answered yet still can."""
STOPPED_S = 1.0
"""A forker that is stopped for so long is replaced: whoever asked it would wait, and see to no worker meanwhile."""
RETRY_S = (0.0, 1.0, 5.0, 30.0)
"""Until a forker that ended is started again, by how often that was in a row."""
STOPPED = "it is stopped (SIGSTOP)"
PATIENT_FAILURES = 1
"""With more than that, workers are started without one meanwhile."""
NO_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Arrow's allocator would start a thread when it is loaded, and a process with threads is not copied."""


class ForkerLost(OSError):
    """The forker cannot be used any more."""


@dataclass(slots=True)
class Forked:
    """A copy of the forker; its pid stays its own until `wait`."""

    pid: int
    stdout: IO[bytes]
    code: int | None = None

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        code = self._reap(0)
        assert code is not None
        return code

    def _reap(self, options: int) -> int | None:
        if self.code is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # somebody in this process waits for whatever ends
                pid, status = self.pid, 0
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code


def may_fork(env: Mapping[str, str]) -> bool:
    """Whether workers are forked: where the kernel gives orphans away, unless the environment says otherwise.

    Raises:
        UsageError: it says something else.
    """
    said = env.get(START_ENV, "fork")
    if said not in ("fork", "spawn"):
        raise UsageError(f"{START_ENV} is {said!r}; say fork, or spawn for a fresh interpreter for each worker")
    return said == "fork" and sys.platform.startswith("linux")


class Forks:
    """Starts workers, from one thread, which lives as long as they do.

    Args:
        argv: the command of a worker, which calls `fork_on_demand` before anything else of weight.
        env: what workers' environments have in common.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], *, clock: Clock | None = None) -> None:
        self._argv = list(argv)
        self._env = dict(env)
        self._clock = clock or SystemClock()
        self._forker: Child | None = None
        self._link: socket.socket | None = None
        self._is_ready = False
        self._is_unfit = False
        self._failures = 0
        self._next_at = 0.0
        self._orphans = Orphans()

    @property
    def pid(self) -> int | None:
        """Of the forker, when one is there to be asked."""
        return self._forker.pid if self._forker is not None and self._is_ready else None

    def look(self) -> bool:
        """Keep a forker at hand. Whether a worker can be started now; else it will be in a moment."""
        self._orphans.bury()
        if self._is_unfit:
            return True
        if self._forker is None and self._clock.monotonic() >= self._next_at:
            self._launch()
        if self._forker is not None and self._forker.poll() is not None:
            self._lose(f"it ended with {describe_exit(self._forker.code or 0)}")
        elif self._forker is not None and self._forker.stopped_s() >= STOPPED_S:
            self._lose(STOPPED)
        elif self._forker is not None and not self._is_ready:
            self._hear()
        is_late = self._forker is not None and self._forker.lifetime_s() > BIRTH_S
        return self._is_ready or self._is_unfit or is_late or self._failures > PATIENT_FAILURES

    def start(self, argv: Sequence[str], env: Mapping[str, str]) -> Started:
        """Start one worker, as `Start` says.

        Raises:
            OSError: not this time.
        """
        if not self._is_ready:
            return spawn(argv, env)
        try:
            forked = self._fork(env)
        except ForkerLost as error:
            self._lose(str(error))
            raise
        self._failures = 0
        return forked

    def stop(self) -> None:
        """End the forker; workers go on."""
        forker = self._forker
        self._forget()
        if forker is not None:
            forker.kill()
            forker.wait(ANSWER_S)
        self._orphans.bury()

    # ---- the forker

    def _launch(self) -> None:
        ours, its = socket.socketpair()
        env = {**NO_THREADS, **self._env, LINK_ENV: str(its.fileno())}
        try:
            start = partial(spawn, inherited=(its.fileno(),))
            self._forker = Child(self._argv, env=env, name="forker", start=start, clock=self._clock)
        except OSError as error:
            ours.close()
            self._lose(str(error))
            return
        finally:
            its.close()
        self._link = ours

    def _hear(self) -> None:
        """Whether it has loaded what it needs."""
        assert self._link is not None
        self._link.setblocking(False)
        try:
            told = self._answer(self._link)
        except BlockingIOError:
            return
        except ForkerLost:
            return  # it ends, and will be seen to have ended
        if self._fits(told):
            self._is_ready = True
            log.info("workers are forked from pid=%d", self._forker.pid if self._forker else 0)

    def _fits(self, told: Mapping[str, object]) -> bool:
        """False for a forker that has threads, as any other one would."""
        threads = told.get("threads")
        if threads:
            self._give_up(f"the process that is to be copied has other threads: {threads}")
        return not threads

    def _give_up(self, why: str) -> None:
        log.warning("workers are started one by one, each loading everything for itself: %s", why)
        self._is_unfit = True
        self.stop()

    def _lose(self, why: str) -> None:
        said = " | ".join(self._forker.tail(3)) if self._forker is not None else ""
        wait_s = RETRY_S[min(self._failures, len(RETRY_S) - 1)]
        self._failures += 1
        self._next_at = self._clock.monotonic() + wait_s
        log.warning("lost the process that workers are forked from, another in=%.0fs: %s %s", wait_s, why, said)
        self.stop()

    def _forget(self) -> None:
        if self._link is not None:
            self._link.close()
        self._forker, self._link, self._is_ready = None, None, False

    # ---- one copy

    def _fork(self, env: Mapping[str, str]) -> Forked:
        with contextlib.ExitStack() as stack:
            reading, writing = os.pipe()
            stack.callback(os.close, writing)
            output = os.fdopen(reading, "rb")
            on_failure = stack.enter_context(contextlib.ExitStack())
            on_failure.callback(output.close)
            leave, leaves = os.pipe()
            stack.callback(os.close, leave)
            stack.callback(os.close, leaves)
            folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
            stack.callback(os.close, folder)
            with self._orphans.adopting(self.pid):
                told = self._ask(env, [writing, folder, leave])
            if not self._fits(told):
                raise OSError("it is started without one")
            if "pid" not in told:
                raise OSError(told.get("error", "no pid"))
            pid = int(str(told["pid"]))
            if not _is_child(pid):
                self._give_up("this system does not give orphans to who takes them in")
                raise OSError("it is started without one")
            self._orphans.strays.discard(pid)
            os.write(leaves, b".")
            on_failure.pop_all()
        return Forked(pid, output)

    def _ask(self, env: Mapping[str, str], fds: Sequence[int]) -> dict[str, object]:
        link = self._link
        assert link is not None
        data = json.dumps(dict(env)).encode()
        try:
            link.settimeout(ANSWER_S)
            socket.send_fds(link, [len(data).to_bytes(4, "little")], list(fds))
            link.sendall(data)
            return self._await(link)
        except OSError as error:
            raise ForkerLost(f"it does not answer: {error}") from error

    def _await(self, link: socket.socket) -> dict[str, object]:
        """Its answer, for as long as it can give one."""
        deadline = self._clock.monotonic() + ANSWER_S
        link.settimeout(SLICE_S)
        while True:
            try:
                return self._answer(link)
            except TimeoutError:
                if self._forker is not None and self._forker.poll() is None and self._forker.stopped_s() >= STOPPED_S:
                    raise ForkerLost(STOPPED) from None
                if self._clock.monotonic() >= deadline:
                    raise

    @staticmethod
    def _answer(link: socket.socket) -> dict[str, object]:
        """The next line; short ones come whole."""
        line = link.recv(64 * 1024)
        if not line.endswith(b"\n"):
            raise ForkerLost("it closed the line")
        told: dict[str, object] = json.loads(line)
        return told


def _is_child(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
