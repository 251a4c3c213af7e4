"""Outcomes: how a run ended, and that what happens while its parts are put away changes nothing about that.

It never ends anything and never asks a broker.
"""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heddle.cli.live import Facts

log = logging.getLogger("heddle.cli")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        experiment: its id; state: completed, stopped, failed, or "interrupted" when it was cut short.
        reason: why, in words; facts: the last ones; result: what the trainer left.
        accounting: of promise P2, by unit; {} when the broker could not be asked.
        line: the accounting as one line; adds_up: nothing is lost and nothing counted twice.
        restarts: why each child was started again, and workers ended; troubles: quarantined shards and the like, at
            the last look.
        directory: of its checkpoints.
        hurried: somebody waits for this process to be gone; failures: what its environments did, with worker and line.
        untracked: trackers that have not everything; `heddle track` of the directory gives it to them.
    """

    experiment: str
    state: str
    reason: str
    facts: Facts
    result: dict[str, Any]
    accounting: dict[str, dict[str, int]]
    line: str
    adds_up: bool
    restarts: tuple[str, ...]
    directory: Path
    troubles: tuple[str, ...] = ()
    hurried: bool = False
    failures: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Of the command."""
        if self.state == "interrupted":
            return 130
        return 0 if self.state in ("completed", "stopped") else 1


class Result:
    """The outcome of a run, once it is known."""

    def __init__(self) -> None:
        self._known: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        """As it is known; only behind `begin`."""
        assert self._known is not None, "nobody knows yet how it ended"
        return self._known

    def begin(self, outcome: Outcome) -> None:
        """So it ended."""
        self._known = outcome

    def add(self, **known: Any) -> None:
        """Fields of it that were learned later."""
        self._known = replace(self.outcome, **known)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Within it, what is raised once the outcome is known becomes one of its troubles.

        A run that completed does not fail over a socket, a process or a folder that could not be put away.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001  its parts are many, and the run is over, whatever they raise
            if self._known is None:
                raise
            log.info("met an error behind the end of a run", exc_info=error)
            said = " ".join(str(error).split())
            told = f"{type(error).__name__}: {said}" if said else type(error).__name__
            self.add(troubles=(*self._known.troubles, f"once it had ended: {told} (-v shows where)"))
