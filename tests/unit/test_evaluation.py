"""What an evaluation counts, and how it survives a change of hands."""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heddle.consumers.evaluation import Collector, Evaluator, ended_episodes
from heddle.consumers.sides import Sides


@dataclass
class Pointer:
    """A pointer, as far as an evaluation looks at it."""

    shard: int
    given: int = 0
    epoch: int = 1
    nonce: str = "n"
    version_min: int = 7


@dataclass
class Segments:
    """Two segments of three steps, with episodes that ended where `returns` has a number."""

    returns: list[list[float]]
    arrays: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values = np.array(self.returns, np.float64)
        self.arrays = {"episode_return": values, "episode_length": (~np.isnan(values)).astype(np.int32) * 4}
        self.arrays["agent"] = np.arange(len(values), dtype=np.int32)


NAN = float("nan")
ONE = Segments([[NAN, 1.0, NAN], [NAN, NAN, NAN]])
TWO = Segments([[2.0, NAN, NAN], [NAN, NAN, 3.0]])


def add(collector: Collector, pointer: Pointer, segments: Segments) -> None:
    collector.add(pointer, segments)  # type: ignore[arg-type]


def test_episodes_are_found_where_they_ended() -> None:
    returns, lengths, agents = ended_episodes(TWO)  # type: ignore[arg-type]
    assert (returns.tolist(), lengths.tolist(), agents.tolist()) == ([2.0, 3.0], [4, 4], [0, 1])


def test_only_agents_of_groups_that_learn_count_and_every_group_is_told_apart() -> None:
    sides = Sides({"own": range(1), "rival": range(1, 2)}, counted=(0,))
    collector = Collector(version=7, update=3)
    add(collector, Pointer(4, given=7), TWO)
    finished = collector.finished(1, sides)
    assert finished is not None and finished.returns.tolist() == [2.0]
    assert finished.metrics()["own.eval_return"] == 2.0 and finished.metrics()["rival.eval_return"] == 3.0


def test_an_evaluation_is_over_when_every_shard_that_counts_gave_the_version() -> None:
    collector = Collector(version=7, update=3)
    add(collector, Pointer(4), ONE)
    add(collector, Pointer(5, given=7), TWO)
    assert collector.finished(2) is None
    add(collector, Pointer(4, given=7), ONE)
    finished = collector.finished(2)
    assert finished is not None
    assert (finished.version, finished.update, finished.mean_return) == (7, 3, 7 / 4)
    assert finished.metrics()["eval_episodes"] == 4.0
    assert collector.finished(0) is None


def test_a_shard_that_changed_hands_is_counted_by_the_owner_that_gave_it() -> None:
    collector = Collector(version=7, update=3)
    add(collector, Pointer(4, epoch=1), TWO)
    add(collector, Pointer(4, epoch=2, nonce="m"), ONE)
    add(collector, Pointer(4, epoch=2, nonce="m", given=7), ONE)
    finished = collector.finished(1)
    assert finished is not None
    assert finished.returns.tolist() == [1.0, 1.0]


def test_a_manifest_from_before_there_were_agents_is_read() -> None:
    again = Collector.from_json({"version": 7, "update": 3, "episodes": [[4, 1, "n", [2.0], [4]]], "gave": []})
    assert again.episodes[0].agents == (0,)


def test_what_came_so_far_survives_a_manifest() -> None:
    collector = Collector(version=7, update=3)
    add(collector, Pointer(4), TWO)
    add(collector, Pointer(5, given=7), ONE)
    again = Collector.from_json(json.loads(json.dumps(collector.to_json())))
    assert again == collector
    add(again, Pointer(4, given=7), ONE)
    finished = again.finished(2)
    assert finished is not None
    assert sorted(finished.returns.tolist()) == [1.0, 1.0, 2.0, 3.0]


class Pins:
    """A broker, as far as an evaluator asks it."""

    def __init__(self) -> None:
        self.policies = self
        self.pinned: list[int] = []

    def set_eval(self, experiment: str, seat_epoch: int, version: int) -> None:
        self.pinned.append(version)


def test_an_evaluation_without_the_end_of_an_episode_is_over_and_the_next_one_comes_in_its_time() -> None:
    evaluator = Evaluator(Pins(), "x", seat_epoch=1, every_updates=5)  # type: ignore[arg-type]
    assert evaluator.begin(7, 3, "checkpoint")
    assert evaluator.add(Pointer(4, given=7), Segments([[NAN, NAN, NAN], [NAN, NAN, NAN]]))  # type: ignore[arg-type]
    assert evaluator.finish(1) is None
    assert evaluator.fruitless == 3 and not evaluator.running and evaluator.evaluated(3)
    assert [evaluator.is_due(update) for update in (7, 8)] == [False, True]
