"""Evaluation: a policy version pinned for the eval shards, and what their episodes returned.

It never trains on what it collects. An evaluation is over when every eval shard that counts gave its version; a shard
that changed hands in the middle is counted by its last owner's episodes only, since that one played all of them.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.broker import Broker
from heddle.broker.experience_types import Pointer
from heddle.consumers.progress import Progress
from heddle.consumers.sides import Ended, Sides
from heddle.errors import BrokerFull, BrokerUnreachable, Conflict, NotFound, SeatLost
from heddle.layout import Segments

log = logging.getLogger("heddle.trainer")

Owner = tuple[int, str]
"""(epoch, nonce) of whoever played a batch."""


@dataclass(frozen=True, slots=True)
class Finished:
    """One evaluation.

    Attributes:
        version, update: which policy, and the update that made it.
        returns: float64 [episodes]; lengths: int [episodes]; of agents whose returns count.
        by_group: mean return of each group of agents; {} where there are none.
    """

    version: int
    update: int
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    by_group: Mapping[str, float] = field(default_factory=dict)

    @property
    def mean_return(self) -> float:
        """Of the episodes that count, undiscounted."""
        return float(self.returns.mean())

    def metrics(self) -> dict[str, float]:
        """What to report."""
        return {
            "eval_return": self.mean_return,
            "eval_return_std": float(self.returns.std()),
            "eval_length": float(self.lengths.mean()),
            "eval_episodes": float(len(self.returns)),
            "eval_version": float(self.version),
            "eval_update": float(self.update),
            **self.by_group,
        }


def ended_episodes(segments: Segments) -> Ended:
    """Returns, lengths and agents of the episodes that ended in these segments, segment by segment."""
    ended = segments.arrays["episode_length"] > 0
    returns = segments.arrays["episode_return"][ended].astype(np.float64)
    agents = segments.arrays["agent"][np.nonzero(ended)[0]].astype(np.int64)
    return returns, segments.arrays["episode_length"][ended].astype(np.int64), agents


def note_episodes(progress: Progress, trained: Sequence[Segments], sides: Sides) -> dict[str, float]:
    """Count the episodes that ended in what an update was done on; mean returns by group, for its metrics."""
    ended = [ended_episodes(segments) for segments in trained]
    for one in ended:
        progress.add_episodes(*sides.counting(one))
    if not sides.groups:
        return {}
    returns, agents = (np.concatenate([one[place] for one in ended]) for place in (0, 2))
    return sides.mean_returns(returns, agents, "return")


@dataclass(frozen=True, slots=True)
class Episodes:
    """The episodes that ended in one batch of an eval shard.

    Attributes:
        shard, owner: whose; the owner is (epoch, nonce).
        returns, lengths, agents: of each.
    """

    shard: int
    owner: Owner
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    agents: tuple[int, ...]


@dataclass(slots=True)
class Collector:
    """What came of one version so far."""

    version: int
    update: int
    episodes: list[Episodes] = field(default_factory=list)
    gave: dict[int, Owner] = field(default_factory=dict)

    def add(self, pointer: Pointer, segments: Segments) -> None:
        """One batch of an eval shard; the one whose `given` is the version is its shard's last."""
        owner = (pointer.epoch, pointer.nonce)
        returns, lengths, agents = (tuple(values.tolist()) for values in ended_episodes(segments))
        if returns:
            self.episodes.append(Episodes(pointer.shard, owner, returns, lengths, agents))
        if pointer.given == self.version:
            self.gave[pointer.shard] = owner

    def is_whole(self, active: int) -> bool:
        """True once `active` shards gave it."""
        return 0 < active <= len(self.gave)

    def finished(self, active: int, sides: Sides | None = None) -> Finished | None:
        """The evaluation, once it is whole; None before, and when no episode ended at all."""
        sides = sides or Sides()
        if not self.is_whole(active):
            return None
        counted = [item for item in self.episodes if self.gave.get(item.shard) == item.owner]
        returns = np.array([value for item in counted for value in item.returns], np.float64)
        lengths = np.array([value for item in counted for value in item.lengths], np.int64)
        agents = np.array([value for item in counted for value in item.agents], np.int64)
        by_group = sides.mean_returns(returns, agents, "eval_return")
        returns, lengths = sides.counting((returns, lengths, agents))
        return Finished(self.version, self.update, returns, lengths, by_group) if len(returns) else None

    def to_json(self) -> dict[str, Any]:
        """For a manifest."""
        return {
            "version": self.version,
            "update": self.update,
            "episodes": [
                [item.shard, *item.owner, list(item.returns), list(item.lengths), list(item.agents)]
                for item in self.episodes
            ],
            "gave": [[shard, *owner] for shard, owner in self.gave.items()],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Collector":
        """The opposite of `to_json`."""
        episodes = [
            Episodes(int(shard), (int(epoch), str(nonce)), tuple(returns), tuple(lengths), tuple(agents))
            for shard, epoch, nonce, returns, lengths, agents in map(_with_agents, value["episodes"])
        ]
        gave = {int(shard): (int(epoch), str(nonce)) for shard, epoch, nonce in value["gave"]}
        return cls(int(value["version"]), int(value["update"]), episodes, gave)


def _with_agents(episodes: Sequence[Any]) -> Sequence[Any]:
    """As a manifest holds them; older ones had no agents."""
    return episodes if len(episodes) > 5 else [*episodes, [0] * len(episodes[3])]


class Evaluator:
    """When to evaluate, which version is being evaluated, and what came of it.

    What came so far travels in the manifest, so that its entries can be acked and a trainer that resumes goes on.

    Attributes:
        last: the last one that ended under this trainer. last_update: update of the last one that ended, ever.
        checkpoint: name of the file with the weights being evaluated; "" while none are.
        pinned: newest version that this trainer had evaluated: a shard that gave it does not play it again.
        fruitless: update of the newest evaluation in which no episode ended; None for none.

    Args:
        every_updates: updates between evaluations.
        state: what `state` gave to the manifest.
        sides: groups of agents.
    """

    def __init__(
        self,
        broker: Broker,
        experiment: str,
        *,
        seat_epoch: int,
        every_updates: int,
        state: Mapping[str, Any] | None = None,
        sides: Sides | None = None,
    ) -> None:
        state = state or {}
        self._sides = sides
        self.last: Finished | None = None
        self.last_update = int(state.get("last_update", 0))
        self.checkpoint = str(state.get("checkpoint", ""))
        self.pinned = 0
        self.fruitless: int | None = None
        self._broker = broker
        self._experiment = experiment
        self._seat_epoch = seat_epoch
        self._every = every_updates
        self._running: Collector | None = None
        if state.get("running"):
            self._running = Collector.from_json(state["running"])

    @property
    def running(self) -> bool:
        """True while an evaluation is under way."""
        return self._running is not None

    @property
    def version(self) -> int:
        """The version under evaluation; 0 for none."""
        return self._running.version if self._running is not None else 0

    def is_due(self, update: int) -> bool:
        """True when the weights of `update` should be evaluated."""
        return self._running is None and update - self.last_update >= self._every

    def evaluated(self, update: int) -> bool:
        """True when the weights of `update` were evaluated, if to no avail, and nothing came after them."""
        found = self.last is not None or self.fruitless == update
        return self._running is None and found and self.last_update == update

    def evaluating(self, update: int) -> bool:
        """True while the weights of `update` are being evaluated."""
        return self._running is not None and self._running.update == update

    def begin(self, version: int, update: int, checkpoint: str) -> bool:
        """Pin `version`, which is published and above `pinned`; `checkpoint` is the name of the file that holds it.

        Returns:
            False when it cannot be pinned now; ask again with the version that is then the latest.
        """
        try:
            self._broker.policies.set_eval(self._experiment, self._seat_epoch, version)
        except SeatLost:
            raise
        except (NotFound, Conflict, BrokerFull, BrokerUnreachable) as error:
            log.info("cannot begin an evaluation yet version=%d error=%s", version, error)
            return False
        self._running, self.pinned = Collector(version, update), version
        self.checkpoint = checkpoint
        return True

    def continue_or_drop(self, eval_policy: int) -> None:
        """An evaluation goes on only while its version is the pinned one: after a resume, or when the pin was lost."""
        if self._running is not None and self._running.version != eval_policy:
            self.drop()

    def drop(self) -> None:
        """Give up the evaluation under way."""
        self._running, self.checkpoint = None, ""

    def add(self, pointer: Pointer, segments: Segments) -> bool:
        """One batch of an eval shard; False when it belongs to no evaluation under way."""
        if self._running is None or pointer.version_min != self._running.version:
            return False
        self._running.add(pointer, segments)
        return True

    def finish(self, active: int) -> tuple[Finished, str] | None:
        """When it is over: the evaluation, and the name of the checkpoint with its weights.

        One without the end of any episode brings nothing, and the next one begins in its time.
        """
        running = self._running
        finished = running.finished(active, self._sides) if running else None
        if running is not None and finished is None and running.is_whole(active):
            self.drop()
            self.fruitless = self.last_update = running.update
        if finished is None:
            return None
        name = self.checkpoint
        self.drop()
        self.last, self.last_update = finished, finished.update
        return finished, name

    def state(self) -> dict[str, Any]:
        """For a manifest."""
        running = self._running.to_json() if self._running else None
        return {"running": running, "last_update": self.last_update, "checkpoint": self.checkpoint}
