"""Failures as values: what a shard's environments did when they failed, and what it takes to play it again.

This module never talks to a server; `failures.py` keeps them there.
"""

from dataclasses import dataclass
from typing import Any, Literal

REPLAY_BYTES = 1 << 20
"""Most bytes of the recorded actions (unpacked), and of the snapshot they start from; what is larger is left out."""

Cause = Literal["exception", "answer", "signal", "exit", "timeout", "memory"]
Start = Literal["reset", "snapshot", "unknown"]


@dataclass(frozen=True, slots=True)
class Failure:
    """One time that a shard's environments (or the policy acting for them) failed.

    Attributes:
        cause: it raised ("exception"), answered against its contract ("answer"), its process died of a signal
            ("signal") or ended ("exit"), took too long ("timeout"), or took too much memory ("memory").
        what: that in words, one line: exception with file:line, signal name, exit code, limit.
        doing: make, reset, step, act, close, save, restore or batch.
        env: index within the experiment; -1 when it cannot be told.
        seed: that its running episode was reset with; None when none had begun or it cannot be told.
        episode: which of this environment's episodes under this claim, from 1; 0 when none had begun.
        step: which step of that episode, from 1; 0 for the reset.
        last_actions: the last ones as the policy chose them, oldest first, the one that failed included.
        num_actions: how many actions are kept for a replay.
        start: what those actions start from: the reset with `seed`, a snapshot, or unknown, when the episode was
            too long to keep or its beginning was not seen: then it cannot be replayed exactly.
        output: last lines that the environment's process printed; () inline.
        traceback: of the exception, "" when there was none.
        version: of the policy that played; 0 when none did yet.
        worker, attempt: who played it, and the how manieth claim of the shard that was.
        isolation: inline or process.
        time_ms: server ms when it was recorded; 0 before.
        number: of this record within the shard, rising; 0 before it was recorded.
    """

    cause: Cause
    what: str
    doing: str
    env: int = -1
    seed: int | None = None
    episode: int = 0
    step: int = 0
    last_actions: tuple[Any, ...] = ()
    num_actions: int = 0
    start: Start = "unknown"
    output: tuple[str, ...] = ()
    traceback: str = ""
    version: int = 0
    worker: str = ""
    attempt: int = 0
    isolation: str = "inline"
    time_ms: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Replay:
    """What a failure needs to be played again.

    Attributes:
        actions: of the running episode since `Failure.start`, C order.
        dtype, shape: of them, [steps, ...].
        snapshot: the environment's state before the first of them; b"" when they follow a reset.
    """

    actions: bytes
    dtype: str
    shape: tuple[int, ...]
    snapshot: bytes = b""

    @property
    def bytes(self) -> int:
        """How much it takes."""
        return max(len(self.actions), len(self.snapshot))
