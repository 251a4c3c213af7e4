"""Roles as supervised child processes: started, started again when they end unasked, ended gently and then for good.

It never speaks to the broker, and never gives up on a role by itself: how often one may fail is for the caller to say.
"""

import logging
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heddle.clock import Clock, SystemClock
from heddle.launch import process
from heddle.launch.epitaph import exit_words
from heddle.launch.host import MemoryWatch
from heddle.launch.pacing import HEALTHY_S, restart_delay_s
from heddle.launch.process import Child
from heddle.launch.vigil import Patience, lost
from heddle.launch.waiting import Waiting
from heddle.spec.last_words import telling

log = logging.getLogger("heddle.launch")

URL_ENV = "HEDDLE_REDIS_URL"
SHOWN_LINES = 3
STAMP = re.compile(r"^\d\d:\d\d:\d\d (?:INFO +)?")
"""Of a line of a child's own log: ours has a time of its own."""
MOST_REMEMBERED = 100


@dataclass(frozen=True, slots=True)
class Ending:
    """One child that ended unasked.

    Attributes:
        role: its name, e.g. "trainer".
        code: exit status, negative for a signal.
        why: in words, with its last lines.
        of_memory: it was the system that killed it, for want of memory.
    """

    role: str
    code: int
    why: str
    of_memory: bool = False


class Role:
    """One process that shall run until it is told to end or ends in a way that counts as done.

    Args:
        name: for people, e.g. "coordinator".
        arguments: of the command `heddle`.
        url: the broker, given in the environment since it may hold a password.
        done: exit codes after which it is not started again.
        log_file: where its output goes besides the last lines.
        env: instead of this process's environment.
        patience: how long it may be stopped until it is killed and started again: whatever it leads or holds a seat of
            stands still meanwhile.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        url: str,
        done: Sequence[int] = (),
        log_file: Path | None = None,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[str], None] | None = None,
        patience: Patience | None = None,
        clock: Clock | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.name = name
        self.child: Child | None = None
        self.code: int | None = None
        self.failures = 0
        self.restarts = 0
        self.endings: deque[Ending] = deque(maxlen=MOST_REMEMBERED)
        self._argv = [*process.HEDDLE, *arguments]
        self._env = {"PYTHONUNBUFFERED": "1", **(os.environ if env is None else env), URL_ENV: url}
        self._done = frozenset(done)
        self._log_file = log_file
        self._on_line = on_line
        self._clock = clock or SystemClock()
        self._rng = rng or np.random.default_rng()
        self._start_at = self._clock.monotonic()
        self._ending = False
        self._patience = patience or Patience()
        self._lost = ""
        self._said: list[str] = []
        self._memory = MemoryWatch(self._clock)

    @property
    def finished(self) -> bool:
        """True once it will not be started again."""
        return self.code is not None

    def step(self) -> Ending | None:
        """Start it when it is due; look whether it ended. Returns how, when it ended unasked just now."""
        if self.finished:
            return None
        if self.child is None:
            if self._ending:
                self.code = 0
            elif self._clock.monotonic() >= self._start_at:
                self._start()
            return None
        code = self.child.poll()
        if code is None:
            self._watch(self.child)
            return None
        child, self.child = self.child, None
        self._said = child.tail(SHOWN_LINES)
        if self._ending or code in self._done:
            self.code = code
            return None
        return self._failed(child, code)

    def terminate(self, grace_s: float) -> None:
        """Ask it to end; after `grace_s` it is killed by a later `step`."""
        self._ending = True
        if self.child is not None:
            self.child.terminate(grace_s)

    def hurry(self) -> None:
        """Have it end at once."""
        self._ending = True
        if self.child is not None:
            self.child.hurry()

    def hold_off(self, failures: int) -> None:
        """It failed so often, however long it lived each time: start it again as late as that says."""
        self.failures = max(self.failures, failures)
        delay_s = restart_delay_s(self.failures, self._rng.random())
        self._start_at = max(self._start_at, self._clock.monotonic() + delay_s)

    def tail(self, lines: int = SHOWN_LINES) -> list[str]:
        """The last lines it printed, also once it has ended."""
        return self.child.tail(lines) if self.child is not None else self._said[-lines:]

    def _watch(self, child: Child) -> None:
        self._memory.look()
        self._lost = self._lost or ("" if self._ending else lost(child.stopped_s(), None, self._patience))
        if self._lost and not child.killed:
            log.warning("killing role=%s pid=%d: %s", self.name, child.pid, self._lost)
            child.kill()

    def _start(self) -> None:
        self._lost = ""
        self.child = Child(
            self._argv,
            env=self._env,
            name=self.name,
            log_file=self._log_file,
            on_line=self._on_line,
            clock=self._clock,
        )
        log.info("started role=%s pid=%d", self.name, self.child.pid)

    def _failed(self, child: Child, code: int) -> Ending:
        if child.lifetime_s() >= HEALTHY_S:
            self.failures = 0
        self.failures += 1
        self.restarts += 1
        delay_s = restart_delay_s(self.failures, self._rng.random())
        self._start_at = self._clock.monotonic() + delay_s
        said = " | ".join(STAMP.sub("", line) for line in telling(child.tail())[-SHOWN_LINES:])
        of_memory = code == -signal.SIGKILL and not child.killed and self._memory.has_killed()
        how = f"gave {self._lost}: killed" if self._lost else f"ended with {exit_words(child)}"
        how += ", by the system for want of memory" if of_memory else ""
        why = f"{self.name} {how}{f': {said}' if said and not self._lost else ''}"
        log.info("restarting role=%s in=%.1fs because %s", self.name, delay_s, why)
        ending = Ending(self.name, code, why, of_memory)
        self.endings.append(ending)
        return ending


def end_all(roles: Sequence[Role], *, grace_s: float, clock: Clock, hurried: Callable[[], bool]) -> None:
    """End `roles` together: SIGTERM, after `grace_s` or when `hurried` says so SIGKILL; returns when all are gone."""
    for role in roles:
        role.terminate(grace_s)
    was_hurried, waiting = False, Waiting(clock)
    while not all(role.finished for role in roles):
        if hurried() and not was_hurried:
            was_hurried = True
            for role in roles:
                role.hurry()
        for role in roles:
            role.step()
        waiting.look([role.child for role in roles if role.child is not None])
        clock.sleep(0.02)
