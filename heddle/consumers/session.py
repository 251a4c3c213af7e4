"""A trainer of one's own: `with heddle.trainer(exp) as t: for batch in t: ...; t.publish(weights)`.

It never learns: the body of that loop does. The seat, fences, order, repeats, staleness, checkpoints, acks, evaluations
and the end of the run are the trainer's as ever, which runs in a thread and has the body as its learner.
"""

import _thread
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.broker import Broker
from heddle.broker.seats import SEAT_TTL_MS
from heddle.checkpoint import Checkpoint
from heddle.clock import Clock
from heddle.consumers.measured import NoMetric, numbers_of
from heddle.consumers.reader import Loaded
from heddle.consumers.session_body import LOOK_S, Body
from heddle.consumers.setting import Describe, Setting
from heddle.consumers.tensors import assembler
from heddle.consumers.trainer import Trainer
from heddle.errors import ExperimentFailed, UsageError
from heddle.layout import Segments
from heddle.policies.base import Array, Policy
from heddle.stop import StopFlag
from heddle.tracing import Tracing

if TYPE_CHECKING:
    from heddle.consumers.learners import TrainBatch


@dataclass(slots=True)
class SessionBatch:
    """What one update is made of.

    Attributes:
        segments: one for each batch of a shard; `heddle.layout` says which arrays it has. Read-only.
        shards, epochs: of each, which shard and which owner of it.
        num_steps: valid environment steps in all.
    """

    segments: list[Segments]
    shards: list[int]
    epochs: list[int]
    num_steps: int
    _session: "TrainerSession"

    def torch(self, device: str = "auto") -> "TrainBatch":
        """As tensors; good until the next batch is asked for. Raises MissingExtra."""
        return self._session.assemble(self, device)


class TrainerSession:
    """The seat of an experiment, and its train batches one after another.

    Use it as a context manager and iterate over it. A batch counts as trained once the next one is asked for. The
    iteration ends when the experiment's budget is used or somebody stopped it; leaving earlier, by break or by an
    exception, leaves the experiment to the next trainer (and the batch in hand untrained, after an exception).

    Args:
        directory: the experiment's own folder, for checkpoints.
        url, broker: one of them.
        tracing: takes spans, and is closed with the session; None when nobody traces.

    Raises:
        UsageError: neither is given.
    """

    def __init__(
        self,
        experiment: str,
        *,
        directory: Path,
        url: str = "",
        broker: Broker | None = None,
        describe: Describe | None = None,
        ttl_ms: int = SEAT_TTL_MS,
        clock: Clock | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        if not url and broker is None:
            raise UsageError("a trainer needs the URL of a broker")
        self.body = Body()
        self._stop = StopFlag()
        self._outcome = _Outcome()
        self._assemblers: dict[str, Any] = {}
        trainer = Trainer(
            url,
            experiment,
            directory=directory,
            stop=self._stop,
            describe=describe,
            train=self.body.attach,
            ttl_ms=ttl_ms,
            clock=clock,
            broker=broker,
            tracing=tracing,
        )
        given = (trainer, self.body, self._outcome, tracing)  # not this session: who drops it ends the training
        self._thread = threading.Thread(target=_run, args=given, name="trainer", daemon=True)
        weakref.finalize(self, _drop, self._stop, self.body).atexit = False

    # ---- what the user calls

    def __enter__(self) -> "TrainerSession":
        """Wait for the seat. Raises what `Trainer.run` does; ExperimentFailed when it cannot be trained."""
        self._thread.start()
        try:
            while not self.body.attached.wait(LOOK_S):
                if not self._thread.is_alive():
                    self._raise()
                    raise UsageError("this experiment is over: there is nothing to train")
        except BaseException:
            self._leave(trained=False)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(trained=kind is None)
        if kind is None:
            self._raise()

    def __iter__(self) -> Iterator[SessionBatch]:
        _ = self.setting  # says what to do first
        while (batches := self._next()) is not None:
            yield SessionBatch(
                segments=[item.segments.whole() for item in batches],
                shards=[item.pointer.shard for item in batches],
                epochs=[item.pointer.epoch for item in batches],
                num_steps=sum(item.pointer.steps for item in batches),
                _session=self,
            )

    def publish(self, weights: Mapping[str, Array]) -> None:
        """Have workers play these weights: before the first batch at once, later when the next one is asked for.

        Raises:
            WeightsError: they do not fit the policy.
        """
        self.policy.set_weights(weights)
        self.body.publish({name: np.array(array) for name, array in weights.items()})

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Add to the metrics of the update in hand: numbers by name, of Python's, numpy's or torch's.

        Raises:
            UsageError: one of them is not one number, by name; none is added then.
        """
        try:
            self.body.metrics.update(numbers_of(metrics))
        except NoMetric as error:
            raise UsageError(f"report() was given {error}") from error

    def keep(self, tensors: Mapping[str, Array], meta: Mapping[str, Any] | None = None) -> None:
        """What the next checkpoints hold beside the weights: an optimizer's arrays and JSON values."""
        self.body.kept = ({name: np.array(array) for name, array in tensors.items()}, dict(meta or {}))

    @property
    def resumed(self) -> Checkpoint | None:
        """The checkpoint that this run goes on from: its weights, `learner` and `learner_meta` are what `keep` kept."""
        return self.body.checkpoint

    @property
    def policy(self) -> Policy:
        """The spec's policy, with the weights published last. Raises UsageError before the session is entered."""
        if self.body.setting is None:
            raise UsageError("enter the session first: with heddle.trainer(...) as t")
        return self.body.setting.policy

    @property
    def setting(self) -> Setting:
        """Spec, spaces, layout and shards. Raises UsageError before the session is entered."""
        if self.body.setting is None:
            raise UsageError("enter the session first: with heddle.trainer(...) as t")
        return self.body.setting

    def assemble(self, batch: SessionBatch, device: str) -> "TrainBatch":
        """Tensors of a batch; see `SessionBatch.torch`."""
        if device not in self._assemblers:
            self._assemblers[device] = assembler(self.setting.layout, device)
        made: TrainBatch = self._assemblers[device](batch.segments, batch.shards, batch.epochs)
        return made

    # ---- inside

    def _next(self) -> Sequence[Loaded] | None:
        self.body.done()
        batches = self.body.wait_for_batches()
        if batches is None:
            self._thread.join()
            self._raise()
        return batches

    def _leave(self, *, trained: bool) -> None:
        self._stop.drain("the session was left")
        if trained:
            self.body.done()
        self.body.close()
        if self._thread.is_alive():
            self._thread.join()

    def _raise(self) -> None:
        told = self._outcome
        error, told.error = told.error, None
        if error is not None:
            raise error
        if told.code == 1:
            told.code = None
            raise ExperimentFailed("the experiment failed; `heddle status` says why")


@dataclass(slots=True)
class _Outcome:
    """What came of the trainer's thread."""

    code: int | None = None
    error: BaseException | None = None


def _run(trainer: Trainer, body: Body, outcome: _Outcome, tracing: Tracing | None) -> None:
    try:
        outcome.code = trainer.run()
    except BaseException as error:  # noqa: BLE001  top of a thread: raised again where the user waits
        outcome.error = error
    finally:
        if tracing is not None:
            tracing.close()
        body.end()


def _drop(stop: StopFlag, body: Body) -> None:
    """Nobody has the session any more. It was collected in the middle of anything, in any thread: what takes locks is
    left to another one."""

    def end() -> None:
        stop.drain("the session was dropped")
        body.close()

    _thread.start_new_thread(end, ())
