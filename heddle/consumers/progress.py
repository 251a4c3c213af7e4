"""Progress: how far a run is, in numbers that a checkpoint carries over.

It never reads a clock or a file.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.checkpoint import Checkpoint
from heddle.consumers.budget import RETURN_WINDOW, Spent


def _window() -> deque[float]:
    return deque(maxlen=RETURN_WINDOW)


@dataclass(slots=True)
class Progress:
    """Counters of one run.

    Attributes:
        update: updates done.
        env_steps: steps trained on, over all runs that this one continues; what the budget counts.
        episodes: training episodes that ended in them.
        flow_batches, flow_steps: trained of this experiment's stream alone; the broker's counters say the same.
        wall_s: seconds of running.
        returns, lengths: of the last 100 training episodes.
        best_return: best one so far; None before there is one.
        eval_return: of the last evaluation; None before the first.
    """

    update: int = 0
    env_steps: int = 0
    episodes: int = 0
    flow_batches: int = 0
    flow_steps: int = 0
    wall_s: float = 0.0
    returns: deque[float] = field(default_factory=_window)
    lengths: deque[float] = field(default_factory=_window)
    best_return: float | None = None
    eval_return: float | None = None

    def add_batches(self, *, batches: int, steps: int) -> None:
        """One update was done on so much."""
        self.update += 1
        self.env_steps += steps
        self.flow_batches += batches
        self.flow_steps += steps

    def add_episodes(self, returns: NDArray[np.float64], lengths: NDArray[np.int64]) -> None:
        """Training episodes ended, one in each place: [episodes] undiscounted returns, and lengths in steps."""
        self.episodes += len(returns)
        self.returns.extend(float(value) for value in returns)
        self.lengths.extend(float(value) for value in lengths)

    @property
    def mean_return(self) -> float | None:
        """Of the last 100 training episodes, or as many as there were; None before the first."""
        return float(np.mean(self.returns)) if self.returns else None

    @property
    def mean_length(self) -> float | None:
        """Of the last 100 training episodes; None before the first."""
        return float(np.mean(self.lengths)) if self.lengths else None

    @property
    def whole_window_return(self) -> float | None:
        """Of the last 100 training episodes; None before there were as many, for fewer may be lucky ones."""
        return self.mean_return if len(self.returns) == RETURN_WINDOW else None

    def spent(self, *, evaluated: bool) -> Spent:
        """What the budget looks at; `evaluated` when the spec has an [eval] section."""
        mean = self.eval_return if evaluated else self.whole_window_return
        return Spent(env_steps=self.env_steps, wall_s=self.wall_s, mean_return=mean, updates=self.update)

    def counters(self) -> dict[str, float]:
        """For a manifest's counters."""
        return {"flow_batches": self.flow_batches, "flow_steps": self.flow_steps, "wall_s": self.wall_s}

    def extra(self) -> dict[str, Any]:
        """For a manifest's extra part."""
        return {"returns": list(self.returns), "lengths": list(self.lengths), "eval_return": self.eval_return}

    @classmethod
    def resumed(cls, checkpoint: Checkpoint, *, same_stream: bool) -> "Progress":
        """As the checkpoint left it.

        Args:
            same_stream: False when the checkpoint is of another experiment, which this one continues on a new stream.
        """
        counters, extra = checkpoint.counters, checkpoint.extra
        progress = cls(
            update=checkpoint.update,
            env_steps=checkpoint.env_steps,
            episodes=checkpoint.episodes,
            wall_s=float(counters.get("wall_s", 0.0)),
            best_return=checkpoint.best_return,
            eval_return=extra.get("eval_return"),
        )
        if same_stream:
            progress.flow_batches = int(counters.get("flow_batches", 0))
            progress.flow_steps = int(counters.get("flow_steps", 0))
        progress.returns.extend(extra.get("returns", ()))
        progress.lengths.extend(extra.get("lengths", ()))
        return progress


def carried_of(extra: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The batches that a manifest covers and that were trained on by nobody: batch -> (outcome, reason)."""
    return {str(batch): (str(outcome), str(reason)) for batch, (outcome, reason) in extra.get("owed", {}).items()}
