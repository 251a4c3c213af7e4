"""The errors of Heddle, one tree; each carries the exit code of the command that meets it.

This module never formats for a terminal: the command line decides how an error is shown.

    HeddleError                     1
    ├── UsageError                  2   the call itself is wrong
    │   └── MissingExtra            2   an optional dependency is not installed
    ├── SpecError                   3   exp.toml is wrong: carries every problem found
    │   └── EnvError                3   the environment or policy does not keep its contract
    ├── NotFound                    4   no such experiment, worker, file
    ├── BrokerError                 5   the broker cannot be used
    │   ├── BrokerUnreachable       5   no answer; may pass
    │   ├── BrokerUnfit             5   answers, but below the floor or evicting
    │   ├── BrokerFull              5   nothing was stored, for it is out of memory; may pass
    │   │   └── BrokerBlocked       5   nothing was stored, for its disk or replicas fail it; may pass
    │   └── BrokerAmiss             5   a key that all experiments share holds something else; passes once it is removed
    ├── Denied                      6   wrong password or missing right
    ├── TimedOut                    7   a deadline passed
    ├── Conflict                    8   the name, seat or state is taken by another
    │   ├── FolderTaken             8   a server already runs in that folder
    │   ├── LeaseLost               8   the shard belongs to another owner now
    │   ├── SeatLost                8   another trainer holds the seat now
    │   └── LeaderLost              8   another coordinator leads now
    ├── Gone                        4   the experiment was removed
    ├── BatchError                  1   bytes that are not a valid batch
    ├── BatchesForgotten            1   the broker lost batches that it had accepted
    ├── CheckpointError             1   a checkpoint that cannot be loaded
    ├── DataError                   1   recorded experience that cannot be written, or read
    ├── TrackerDown                 1   TensorBoard, W&B or MLflow take nothing now; may pass
    ├── PlaneError                  1   shared memory that cannot be used; bytes go through the broker then
    ├── NotSnapshottable            1   an environment whose state cannot be kept
    ├── SnapshotError               1   bytes that do not bring an environment's state back
    └── ExperimentFailed            1   the experiment ended badly
"""

from collections.abc import Sequence
from dataclasses import dataclass

MOST_SHOWN = 300
"""Characters of a value in an error."""


class HeddleError(Exception):
    """Base of every error that Heddle raises on purpose."""

    exit_code = 1


class UsageError(HeddleError):
    """The command or call cannot mean anything."""

    exit_code = 2


class MissingExtra(UsageError):
    """An optional dependency is needed here.

    Args:
        what: what was asked for, e.g. "heddle trainer".
        extra: name of the extra that brings it, e.g. "torch".
    """

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency: pip install 'heddle-rl[{extra}]'")
        self.what = what
        self.extra = extra


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a spec.

    Attributes:
        key: dotted key, e.g. "rollout.steps"; "" when the whole file is meant.
        value: the offending value as written, None when a key is missing.
        reason: what is wrong, in lower case, without a full stop.
        hint: what to do, e.g. "did you mean steps?"; "" when there is nothing to say.
        file: where it stands; None for a spec that did not come from a file.
        line, column: from 1; 0 when unknown.
    """

    key: str
    value: object
    reason: str
    hint: str = ""
    file: str | None = None
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        where = f"{self.file or '<spec>'}:{self.line}:{self.column}" if self.line else f"{self.file or '<spec>'}"
        shown = "" if self.value is None else f" = {shortened(repr(self.value))}"
        hint = f"  ({shortened(self.hint)})" if self.hint else ""
        what = f"{self.key}{shown}: " if self.key else ""
        return f"{where}  {what}{self.reason}{hint}"


def shortened(text: str) -> str:
    """A value as a line can hold it."""
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 20]}... ({len(text):,} characters)"


class SpecError(HeddleError):
    """A spec is wrong; `problems` holds everything found, in file order."""

    exit_code = 3

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class EnvError(SpecError):
    """An environment, policy or learner of the user's cannot be made or breaks its contract."""

    def __init__(self, reason: str, *, key: str = "env.id", value: object = None, hint: str = "") -> None:
        super().__init__([Problem(key=key, value=value, reason=reason, hint=hint)])


class NotFound(HeddleError):
    """The thing named does not exist."""

    exit_code = 4


class PolicyLost(NotFound):
    """A policy version that ctl tells of is not there, or not whole.

    Attributes:
        version: which.
    """

    def __init__(self, reason: str, *, version: int) -> None:
        super().__init__(reason)
        self.version = version


class BrokerError(HeddleError):
    """The broker cannot be used."""

    exit_code = 5


class BrokerUnreachable(BrokerError):
    """No answer from the broker: the write may or may not have happened."""


class BrokerUnfit(BrokerError):
    """The broker answers but must not be used: too old, or it evicts keys."""


class BrokerFull(BrokerError):
    """The broker is out of memory and refused the write: nothing was stored."""


class BrokerBlocked(BrokerFull):
    """The broker refuses every write, renewals too: it cannot write its disk, or misses replicas it must have."""


class BrokerAmiss(BrokerError):
    """Somebody put something else in the place of a key that belongs to no experiment; until it is removed this fails.

    Attributes:
        key: its name; "" where that could not be told.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class Denied(HeddleError):
    """Wrong password, or a right is missing."""

    exit_code = 6


class TimedOut(HeddleError):
    """A deadline passed before the awaited fact came true."""

    exit_code = 7


class Interrupted(HeddleError):
    """What was done or waited for was given up half way, for whoever wanted it was asked to end, or left."""

    exit_code = 130


class Conflict(HeddleError):
    """The name, seat or state is taken."""

    exit_code = 8


class FolderTaken(Conflict):
    """Another process's server runs in the folder, or is being started there."""


class LeaseLost(Conflict):
    """The shard was reaped or claimed anew: the caller may not write it any more."""


class SeatLost(Conflict):
    """Another trainer took the seat: the caller may not ack or publish any more."""


class LeaderLost(Conflict):
    """Another coordinator leads: the caller's decisions no longer count.

    Attributes:
        key: the one that says so; "" where it was no key.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class Gone(HeddleError):
    """The experiment was removed while the caller worked on it."""

    exit_code = 4


class BatchError(HeddleError):
    """Bytes that are not a valid batch of this experiment."""


class BatchesForgotten(HeddleError):
    """The broker lost batches that it had accepted from the caller.

    Attributes:
        seq: the last one of that shard that it still knows.
    """

    def __init__(self, message: str, *, seq: int) -> None:
        super().__init__(message)
        self.seq = seq


class DataError(HeddleError):
    """A folder of recorded experience cannot be written, or holds something else."""


class CheckpointError(HeddleError):
    """A checkpoint file is torn, foreign or of another format."""


class TrackerDown(HeddleError):
    """A tracker takes nothing now: its disk, its server or the way there fails."""


class PlaneError(HeddleError):
    """Shared memory of this host that cannot be used, or has no room."""


class NotSnapshottable(HeddleError):
    """This environment cannot be snapshotted; `reason` says which part of it and why, in one line."""

    def __init__(self, reason: str) -> None:
        self.reason = " ".join(reason.split())[:300]
        super().__init__(self.reason)


class SnapshotError(HeddleError):
    """Bytes that do not bring back the state of these environments; `reason` says why, in one line."""

    def __init__(self, reason: str) -> None:
        self.reason = " ".join(reason.split())[:300]
        super().__init__(self.reason)


class ExperimentFailed(HeddleError):
    """The experiment ended in state failed; the message says why."""
