"""A trial: user code of a spec run in a child, so that what hangs in native code or crashes is an error like any other.

It never runs user code in this process, and leaves no process behind, whatever the child does.
"""

import collections
import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from heddle.clock import Clock, SystemClock
from heddle.errors import HeddleError, Problem, SpecError
from heddle.launch.hurry import ending_after_all
from heddle.launch.process import describe_exit
from heddle.producers.isolation.home import sweep_after_death
from heddle.spec import ExperimentSpec
from heddle.spec.objects import place_of

TRIES = 3
"""A child that something else ended (SIGKILL: also what a full machine does), or that never got to user code, is tried
again, so often in all: neither says anything about the spec."""
START_S = 60.0
"""A child may take this long to start, on a busy machine, before it begins with the first part."""
QUIET_S = 0.2
"""A stack of which nothing more comes for so long is whole."""
SPARE_S = 5.0
"""A part that outlasts its deadline is interrupted by the child itself first, which can tell more: it has this long."""
DUMP_S = 1.0
LOOK_S = 0.05
READ_BYTES = 1 << 16
_SCRIPT = str(Path(__file__).with_name("trial_child.py"))
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in ', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Request:
    """One spec to try.

    Attributes:
        what: "see" its spaces, or "try" all of it.
        limit_s: how long each part may take.
        with_snapshot: also whether its environments can be snapshotted, and what a vector form would gain.
    """

    what: Literal["see", "try"]
    spec: ExperimentSpec
    limit_s: float
    with_snapshot: bool = False

    def told(self) -> dict[str, Any]:
        """As the child reads it."""
        known = {"what": self.what, "limit_s": self.limit_s, "with_snapshot": self.with_snapshot}
        return {**known, "spec": self.spec.model_dump_json()}


class RemoteTraceback(Exception):
    """Where in the child an error was raised; shown with -v as its cause."""


def run_trials(requests: Sequence[Request], *, clock: Clock | None = None) -> "list[dict[str, Any] | HeddleError]":
    """What each request came to: what the child told, or the error that `check` raises of it.

    One child tries one after the other; where it dies or hangs another one goes on behind that request, or with it
    where that was no fault of the spec.
    """
    with ending_after_all():
        return _run_trials(requests, clock or SystemClock())


def _run_trials(requests: Sequence[Request], clock: Clock) -> "list[dict[str, Any] | HeddleError]":
    found: list[dict[str, Any] | HeddleError] = []
    tries: collections.Counter[int] = collections.Counter()
    while len(found) < len(requests):
        with _Trial(requests[len(found) :], clock) as trial:
            found += trial.answers()
        tries[len(found)] += 1
        if trial.is_unproven and tries[len(found)] < TRIES:
            found.pop()
    return found


class _Trial:
    """One child, from its start to its end.

    Attributes:
        part: what it does now: `what`, `key`, `value`, `hint` of the error if it never answers.
        is_unproven: it gave no last answer, and nothing says that this was the spec's fault.
    """

    def __init__(self, requests: Sequence[Request], clock: Clock) -> None:
        self._requests, self._clock = requests, clock
        self._part: dict[str, Any] = {}
        self.is_unproven = False
        self._deadline = clock.monotonic() + START_S
        self._lines, self._stacks = b"", b""
        told, child_told = os.pipe()
        stacks, child_stacks = os.pipe()
        self._told, self._stack = told, stacks
        try:
            self._process = _spawn(child_told, child_stacks)
        except BaseException:
            os.close(told)
            os.close(stacks)
            raise
        finally:
            os.close(child_told)
            os.close(child_stacks)

    def __enter__(self) -> "_Trial":
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it, with whatever it started, and let everything go."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.wait():
            sweep_after_death()  # its environments may have been isolated
        os.close(self._told)
        os.close(self._stack)

    def answers(self) -> "list[dict[str, Any] | HeddleError]":
        """One for each request, in their order; fewer when the child died or hung at the last of them."""
        found: list[dict[str, Any] | HeddleError] = []
        self._ask()
        while len(found) < len(self._requests):
            line = self._next_line()
            if line is None:
                found.append(self._lost(self._requests[len(found)]))
                break
            if "part" in line:
                self._part = line["part"]
                self._deadline = self._clock.monotonic() + self._requests[len(found)].limit_s + SPARE_S
            else:
                found.append(_error_of(line) if "error" in line else line["found"])
                self._part, self._deadline = {}, self._clock.monotonic() + START_S
        return found

    def _ask(self) -> None:
        here = str(Path.cwd())
        asked = {"path": [entry or here for entry in sys.path], "requests": [one.told() for one in self._requests]}
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died already: that is told when nothing can be read
            self._process.stdin.write(json.dumps(asked).encode())
            self._process.stdin.close()

    def _next_line(self) -> dict[str, Any] | None:
        """The next thing that it tells; None when it died, or its time is up."""
        while b"\n" not in self._lines:
            ended = self._process.poll() is not None
            if not self._read(0.0 if ended else LOOK_S) and ended:
                return None
            if self._clock.monotonic() > self._deadline and b"\n" not in self._lines:
                return None
        line, _, self._lines = self._lines.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told

    def _read(self, wait_s: float) -> bool:
        """Take what has come within `wait_s`; False when nothing did."""
        came = False
        for fd in select.select([self._told, self._stack], [], [], wait_s)[0]:
            data = os.read(fd, READ_BYTES)
            came = came or bool(data)
            if fd == self._told:
                self._lines += data
            else:
                self._stacks += data
        if not came and wait_s:  # both ends are closed: it is about to end
            self._clock.sleep(0.005)
        return came

    def _lost(self, request: Request) -> SpecError:
        """It told nothing more: how it ended, or that it hangs, and where the user's code was."""
        code = self._process.poll()
        self.is_unproven = not self._part or code == -signal.SIGKILL
        if code is None:
            self._ask_where()
            how = f" within {request.limit_s:g} s"
        else:
            how = f": its process ended with {describe_exit(code)}"
        place = place_of((frame["file"], int(frame["line"])) for frame in _FRAME.finditer(self._stacks.decode()))
        stood = f"; it was at {place}" if place else ""
        part = self._part or {"what": "was not tried out", "key": "env.id", "value": request.spec.env.id, "hint": ""}
        hint = part["hint"] if code is None else "is there memory enough?" if code == -signal.SIGKILL else ""
        return SpecError([Problem(part["key"], part["value"], f"{part['what']}{how}{stood}", hint)])

    def _ask_where(self) -> None:
        """Have it print its stack, which works in native code, too."""
        self._process.send_signal(signal.SIGUSR1)
        until = self._clock.monotonic() + DUMP_S
        while self._clock.monotonic() < until:
            came = self._read(QUIET_S if self._stacks else LOOK_S)
            if self._stacks and not came:  # a stack comes in many small pieces
                return


def _spawn(told: int, stacks: int) -> "subprocess.Popen[bytes]":
    """Start a child, the first of its session; what user code prints goes to standard error."""
    return subprocess.Popen(
        [sys.executable, "-P", _SCRIPT, str(told), str(stacks), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=_standard_error(),
        pass_fds=(told, stacks),
        start_new_session=True,
    )


def _standard_error() -> int:
    """Its descriptor, wherever `sys.stderr` leads; nowhere when this process has none."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


def _error_of(line: dict[str, Any]) -> HeddleError:
    """The error that the child met."""
    error: HeddleError
    if line["problems"] is not None:
        error = SpecError([Problem(**problem) for problem in line["problems"]])
    else:
        error = HeddleError(line["error"])
        error.exit_code = line["exit_code"]
    error.__cause__ = RemoteTraceback(f"\n{line['traceback']}")
    return error
