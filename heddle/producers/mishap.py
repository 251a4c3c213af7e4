"""Mishaps: what goes wrong with a shard's environments while they are played, as exceptions that carry the facts.

It never knows a broker's keys; the record of a failure is a plain value that whoever gives the shard back keeps there.
"""

from collections.abc import Sequence
from typing import Any

from heddle.broker.failure_types import Cause, Failure, Replay
from heddle.errors import EnvError

__all__ = ["Mishap", "PlayError"]


class Mishap(Exception):
    """Something happened to the process of an environment, or was told by it.

    Attributes:
        cause: as in `Failure`.
        doing: what was asked of the environment; "" for what the player knows itself.
        env: number within the shard; None for the one that the player waits for.
        traceback, output: of the environment's process.
    """

    def __init__(
        self,
        cause: Cause,
        what: str,
        *,
        doing: str = "",
        env: int | None = None,
        traceback: str = "",
        output: Sequence[str] = (),
    ) -> None:
        super().__init__(what)
        self.cause: Cause = cause
        self.what = what
        self.doing = doing
        self.env = env
        self.traceback = traceback
        self.output = tuple(output)


class PlayError(EnvError):
    """An environment or policy failed while it was played.

    Attributes:
        failure: what is known of it.
        replay: what playing it again takes; None when that is not known.
        stuck_env: the environment that it was, within the experiment, where that one gave no step since the shard was
            claimed although others may have; None where it gave some.
        early: what failed had not finished an episode since its environments were made.
    """

    def __init__(self, reason: str, failure: Failure, replay: Replay | None = None, **problem: Any) -> None:
        super().__init__(reason, **problem)
        self.failure = failure
        self.replay = replay
        self.stuck_env: int | None = None
        self.early = False
