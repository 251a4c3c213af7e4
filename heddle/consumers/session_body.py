"""The body of a user's own training loop, as the trainer's thread sees it: a learner that takes a while.

It never reads experience and never writes: the trainer does, and hands over what it read.
"""

import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from heddle.checkpoint import Checkpoint
from heddle.consumers.evaluation import note_episodes
from heddle.consumers.progress import Progress
from heddle.consumers.reader import Loaded
from heddle.consumers.setting import Setting
from heddle.consumers.sides import Sides
from heddle.errors import Interrupted
from heddle.policies.base import Arrays

LOOK_S = 0.2


class Body:
    """The body of the user's loop, as the trainer's thread sees it: a learner that takes a while."""

    min_steps = 1

    def __init__(self) -> None:
        self.attached = threading.Event()
        self.setting: Setting | None = None
        self.checkpoint: Checkpoint | None = None
        self.metrics: dict[str, float] = {}
        self.kept: tuple[Arrays, dict[str, Any]] = ({}, {})
        self._weights, self._sides = Arrays(), Sides()
        self._given: queue.SimpleQueue[Sequence[Loaded] | None] = queue.SimpleQueue()
        self._is_in_hand = False
        self._ready = threading.Event()
        self._trained = threading.Event()
        self._closed, self._ended = threading.Event(), threading.Event()

    def attach(self, setting: Setting) -> "Body":
        """The trainer has the seat and knows the experiment."""
        self.setting = setting
        self._weights, self._sides = setting.policy.get_weights(), Sides.of(setting.spec.policy)
        return self

    # ---- from the user's thread

    def publish(self, weights: Arrays) -> None:
        self._weights = weights
        self._ready.set()

    def done(self) -> None:
        """The batch in hand, if there is one, is trained; the next may come. One that nobody took is not."""
        if self._is_in_hand:
            self._is_in_hand = False
            self._trained.set()
        self._ready.set()

    def wait_for_batches(self) -> Sequence[Loaded] | None:
        """None at the end, also of a session that was left: what was given by then counts as not trained."""
        while not self._closed.is_set() and not self._ended.is_set():
            with suppress(queue.Empty):
                batches = self._given.get(timeout=LOOK_S)  # short, so that Ctrl-C is heard
                self._is_in_hand = batches is not None
                return batches
        return None

    def close(self) -> None:
        """Nobody asks for batches any more."""
        self._closed.set()
        self._ready.set()

    def end(self) -> None:
        """The trainer's thread is over."""
        self._ended.set()
        self._given.put(None)

    # ---- from the trainer's thread

    def resume(self, checkpoint: Checkpoint) -> None:
        assert self.setting is not None
        self.setting.policy.set_weights(checkpoint.weights)
        self.checkpoint, self._weights = checkpoint, checkpoint.weights
        self.kept = (checkpoint.learner, checkpoint.learner_meta)

    def update(self, batches: Sequence[Loaded], progress: Progress) -> dict[str, float]:
        if self._closed.is_set():
            raise Interrupted("nobody trains any more")
        self._trained.clear()
        self.metrics = {}
        self._given.put(batches)
        while not self._trained.wait(LOOK_S):
            if self._closed.is_set() and not self._trained.is_set():
                raise Interrupted("the loop's body was left")
        progress.add_batches(batches=len(batches), steps=sum(item.pointer.steps for item in batches))
        return self.metrics | note_episodes(progress, [item.segments for item in batches], self._sides)

    def complaint(self) -> str:
        return ""

    def probe(self, loaded: Loaded, progress: Progress) -> None:
        """A body cannot be asked to forget: only decoding is tried alone."""

    def weights(self) -> Arrays:
        """Waits, at the very start, until the user has said what the first weights are, or asked for a batch."""
        self.attached.set()
        self._ready.wait()
        return dict(self._weights)

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        return self.kept

    def keep(self, metas: Sequence[Mapping[str, Any]]) -> None:
        """A body has none."""
