"""The process of one shard's environments, seen from its worker: started, asked, watched, ended.

It never decides what a failure means; it says what happened, as a `Mishap`, and by then the process is gone.

One request at a time. While an answer is awaited, what the process prints is read into a small ring, so that a flood
costs only the shard that prints it, and its deadlines and its memory are looked at.
"""

import contextlib
import mmap
import os
import select
import signal
import socket
import weakref
from dataclasses import dataclass
from typing import Any, Never

from heddle.clock import Clock, SystemClock
from heddle.lease import Action, StuckTimer
from heddle.producers import lanes
from heddle.producers.isolation import census, frames
from heddle.producers.isolation.block import BUSY, DONE, ENV
from heddle.producers.isolation.home import HOME_ENV, Home
from heddle.producers.isolation.output import Output
from heddle.producers.isolation.pace import Pace
from heddle.producers.isolation.printed import Printed
from heddle.producers.isolation.spawn import greeting, shared_memory, signal_name, spawn
from heddle.producers.isolation.telling import error_of
from heddle.producers.mishap import Mishap
from heddle.subject import here

LOOK_S = 0.25
"""How often deadlines and memory are looked at while an answer is awaited."""
EXIT_S = 1.0
CLOSE_S = 5.0
"""Closing the environments of a shard may last so long, or `step_timeout` if that is less."""
START_S = 60.0
"""Starting Python and importing Heddle."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may take.

    Attributes:
        step_s, reset_s: seconds for one step; for making or resetting one environment.
        memory: bytes, None for no limit.
        files: open descriptors.
    """

    step_s: float
    reset_s: float
    memory: int | None = None
    files: int = 1024


_living: "weakref.WeakSet[EnvProcess]" = weakref.WeakSet()


def end_children() -> None:
    """End every child of this process and remove their homes; for a process about to end without further ado."""
    for child in list(_living):
        child.kill()


class EnvProcess:
    """One child.

    Attributes:
        memory: shared with it, `size` bytes.
        output: what it printed last.
        lost: what ended it; None while it is well.
        pid: of it.
    """

    def __init__(self, size: int, limits: Limits, *, clock: Clock | None = None) -> None:
        self.limits = limits
        self.lost: Mishap | None = None
        self._clock = clock or SystemClock()
        self._home = Home()
        self._intake = frames.Intake()
        self._look_at = 0.0
        self._pace = Pace()
        self._ended = False
        block = shared_memory(size)
        self.memory = mmap.mmap(block, size)
        self._cells = memoryview(self.memory).cast("B")[:64].cast("Q")
        self._link, theirs = socket.socketpair()
        out, printed = os.pipe()
        try:
            self._process = spawn(theirs.fileno(), block, printed, home=self._home)
        except BaseException:
            os.close(out)
            self._link.close()
            self._home.remove()
            raise
        finally:
            theirs.close()
            os.close(printed)
            os.close(block)
        self.pid = self._process.pid
        self._printed = Printed(here(), self._clock)
        self.output = Output(out, self._printed.take)
        _living.add(self)
        self._watch()
        self._send(greeting(), "make", START_S)

    def ask(self, kind: int, *, env: int = frames.NOBODY, payload: bytes = b"", doing: str, limit_s: float) -> bytes:
        """Send a request and wait for its answer.

        Args:
            limit_s: each single call into the user's code may last so long.

        Raises:
            Mishap: the process is gone; or it told of an error, then `lost` is None and it still answers.
        """
        if self.lost is not None:
            raise self.lost
        self._send(frames.pack(kind, env, payload), doing, limit_s)
        frame = self._await(doing, limit_s)
        if frame.kind == frames.DONE:
            return frame.payload
        raise self._told(frame, doing)

    def close(self) -> None:
        """End it: gently if it is well and answers, then for good with all that it started; its home goes too."""
        if self.lost is None:
            with contextlib.suppress(Mishap):
                self.ask(frames.CLOSE, doing="close", limit_s=min(CLOSE_S, self.limits.step_s))
                self.lost = Mishap("exit", "it was closed")
                self._exited(EXIT_S)
        self._end()

    def _stab(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()  # whoever waits for it sees that, and clears up

    def kill(self) -> None:
        """End it from another thread, though somebody may be waiting for its answer."""
        census.end_all(self.pid, f"{HOME_ENV}={self._home.path}")
        self._home.remove()

    # ---- beginning

    def _watch(self) -> None:
        self._link.setblocking(False)
        self._fd = self._link.fileno()
        self._poll = select.poll()
        self._poll.register(self._link, select.POLLIN)
        self._poll.register(self.output.fd, select.POLLIN)
        self._pidfd: int | None = None
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._pidfd = os.pidfd_open(self.pid)
                self._poll.register(self._pidfd, select.POLLIN)

    # ---- one request

    def _send(self, data: bytes, doing: str, limit_s: float) -> None:
        view, deadline = memoryview(data), self._clock.monotonic() + limit_s
        while view:
            try:
                view = view[self._link.send(view) :]
            except BlockingIOError:
                if self._clock.monotonic() > deadline:
                    self._overdue(Action(doing, 0.0, limit_s))
                select.select([], [self._link], [], LOOK_S)
            except OSError:
                self._died(doing)

    def _await(self, doing: str, limit_s: float) -> frames.Frame:
        """The answer. One that does not come soon lets other shards of this worker play meanwhile."""
        began = self._clock.monotonic()
        if self.limits.memory is not None and began >= self._look_at:
            self._weigh(doing, began)
        ready = self._poll.poll(self._pace.patience_ms)
        frame = self._arrived(ready, doing) if ready else None
        if frame is None:
            with lanes.parked(self._stab):
                frame = self._await_long(doing, limit_s, began)
        if doing == "step":
            self._pace.note(1000 * (self._clock.monotonic() - began))
        return frame

    def _await_long(self, doing: str, limit_s: float, began: float) -> frames.Frame:
        """The answer; deadlines and memory are looked at every so often."""
        every_s = min(LOOK_S, limit_s / 4)
        timer, now = StuckTimer(every_s), self._clock.monotonic()
        timer.look(self._action(doing, limit_s), began)
        next_look = now
        while True:
            if now >= next_look:
                next_look = now + every_s
                if timer.look(action := self._action(doing, limit_s), now):
                    self._overdue(action)
                self._weigh(doing, now)
            ready = self._poll.poll(max(0.0, next_look - now) * 1000)
            if ready and (frame := self._arrived(ready, doing)) is not None:
                return frame
            now = self._clock.monotonic()

    def _action(self, doing: str, limit_s: float) -> Action:
        """What the child does now; each finished call makes it another action."""
        starting = doing in ("make", "check") and not self._cells[DONE]
        return Action(doing, float(self._cells[DONE]), max(limit_s, START_S) if starting else limit_s)

    def _arrived(self, ready: list[tuple[int, int]], doing: str) -> frames.Frame | None:
        """Take in what came; the answer if it is whole."""
        came = {fd for fd, _ in ready}
        if self.output.fd in came and not self.output.read():
            self._poll.unregister(self.output.fd)
        over = self._pidfd in came if self._pidfd is not None else self._code() is not None
        if self._fd in came or over:
            try:
                data = self._link.recv(1 << 20)
                frame = self._intake.take(data)
            except BlockingIOError:
                data, frame = b"-", None
            except (OSError, frames.BrokenFrame):
                data, frame = b"", None
            if frame is not None:
                return frame
            if over or not data:
                self._died(doing)
        return None

    def _told(self, frame: frames.Frame, doing: str) -> Exception:
        """The error that the child tells of."""
        self.output.read()
        return error_of(frame, doing, limit=self.limits.memory, output=self.output.lines())

    # ---- the end of it

    def _weigh(self, doing: str, now: float) -> None:
        self._look_at = now + LOOK_S
        if (limit := self.limits.memory) is None:
            return
        held = census.memory_of(self.pid)
        if held is not None and held > limit:
            self._lose("memory", f"held {held >> 20} MiB, above env.memory = {limit >> 20} MiB", doing)

    def _overdue(self, action: Action) -> Never:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)  # faulthandler prints where it is
        deadline = self._clock.monotonic() + LOOK_S
        while self._clock.monotonic() < deadline and select.select([self.output.fd], [], [], 0.05)[0]:
            if not self.output.read():
                break
        self._lose("timeout", f"{action.words} lasted longer than {action.limit_s:g} s", action.what)

    def _died(self, doing: str) -> Never:
        """It closed its line or ended by itself: say how."""
        code = self._exited(EXIT_S)
        if code in (None, frames.HUNG_UP):
            self._lose("exit", "it closed its line to the worker", doing)
        if code == frames.OUT_OF_MEMORY:
            limit = self.limits.memory or 0
            self._lose("memory", f"had no memory left, env.memory = {limit >> 20} MiB", doing)
        if code >= 0:
            self._lose("exit", f"its process ended with exit code {code}", doing)
        self._lose("signal", f"its process was ended by {signal_name(-code)}", doing)

    def _lose(self, cause: Any, what: str, doing: str) -> Never:
        env = int(self._cells[ENV]) if self._cells[BUSY] else None
        self._end()
        at = self.output.place()
        what = f"{what}, at {at}" if at else what
        self.lost = Mishap(cause, what, doing=doing, env=env, output=self.output.lines())
        raise self.lost

    def _exited(self, within_s: float) -> int | None:
        """Its exit status, without reaping it: its pid stays its own; None when it has not ended within that time."""
        deadline = self._clock.monotonic() + within_s
        while True:
            if (code := self._code()) is not None:
                return code
            if self._clock.monotonic() >= deadline:
                return None
            self.output.read()
            self._clock.sleep(0.002)

    def _code(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self._process.poll()
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _end(self) -> None:
        """Kill what is left of it, reap it, and let everything go; again is no mistake."""
        if self._ended:
            return
        self._ended = True
        census.end_all(self.pid, f"{HOME_ENV}={self._home.path}")
        self._process.wait()
        self.output.close()
        self._printed.close()
        self._link.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        self._home.remove()
