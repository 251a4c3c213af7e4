"""Stacked observations through the server: each frame once on the way, and for whoever reads them what was played."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heddle.batch import encode_folded, encode_into
from heddle.broker import Broker
from heddle.consumers.assemble import Assembler
from heddle.consumers.reader import Loaded
from heddle.consumers.salvage import examine
from heddle.consumers.session import TrainerSession
from heddle.consumers.tap import Tap
from heddle.folding import Folded
from heddle.producers import packing
from heddle.producers.envs import check_env
from heddle.stacks import Stack
from tests.fixtures import coordinated, on_url
from tests.frames_kit import NOISE, STACK
from tests.helpers import eventually
from tests.plane_kit import Consumer, plane_at
from tests.worker_kit import Running, submit, workers

Start = Callable[..., Running]
STEPS = 20

url = coordinated
broker = on_url


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Start]:
    """Starts workers in threads, and ends them."""
    with workers(url, plane=plane_at(tmp_path / "memory")) as begin:
        yield begin


def experiment_of(broker: Broker, name: str, **rollout: Any) -> str:
    return submit(
        broker,
        experiment={"name": name, "seed": 5},
        env={"id": NOISE, "wrappers": [STACK], "kwargs": {"spread": 30}},
        rollout={"steps": STEPS, "plane": "redis"} | rollout,
    )


def gather(consumer: Consumer, batches: int, tap: Tap | None = None) -> tuple[list[Loaded], dict[tuple[int, int], Any]]:
    """So many batches, acked as they come; and those that the tap saw."""
    found: list[Loaded] = []
    seen: dict[tuple[int, int], Any] = {}

    def enough() -> bool:
        loaded = consumer.poll()
        for batch in tap.poll(block_ms=0) if tap is not None else ():
            seen[batch.shard, batch.seq] = {name: np.array(array) for name, array in batch.arrays.items()}
        consumer.train(loaded)
        found.extend(loaded)
        return len(found) >= batches

    eventually(enough, timeout_s=60.0, what=f"{batches} batches; got {len(found)}")
    return found, seen


def has_some(consumer: Consumer) -> bool:
    """Some batches are in flight."""
    return int(consumer.flow().entries) > 3


def tensors_of(item: Loaded) -> dict[str, Any]:
    """What a learner is given of one batch."""
    segments, pointer = item.segments, item.pointer
    batch = Assembler(segments.layout, device=torch.device("cpu")).assemble([segments], [pointer.shard])
    found = {"obs": batch.observations["obs"], "final": batch.final_observations["obs"], "reward": batch.reward}
    return {name: tensor.numpy().copy() for name, tensor in found.items()}


def test_trainers_and_taps_see_what_was_played_and_the_server_holds_a_third_of_the_bytes(
    broker: Broker, start: Start, tmp_path: Path
) -> None:
    # Given one experiment, played with each frame once and with whole observations
    played: dict[str, dict[tuple[int, int], Any]] = {}
    sizes: dict[str, float] = {}
    for name, frames in (("once", "auto"), ("whole", "whole")):
        experiment = experiment_of(broker, name, frames=frames)
        consumer = Consumer(broker, experiment, plane_at(tmp_path / name))
        tap = Tap(broker, experiment, "looks-on", describe=check_env, plane=plane_at(tmp_path / name))
        consumer.publish()
        worker = start(name)
        loaded, tapped = gather(consumer, 30, tap)
        played[name] = {(item.pointer.shard, item.pointer.seq): tensors_of(item) for item in loaded}
        # Then a tap sees what a learner is given
        both = tapped.keys() & played[name].keys()
        assert len(both) >= 10
        for key in both:
            np.testing.assert_array_equal(tapped[key]["obs"], played[name][key]["obs"])
            np.testing.assert_array_equal(tapped[key]["final.obs"], played[name][key]["final"])
        sizes[name] = float(np.median([item.pointer.bytes for item in loaded]))
        eventually(partial(has_some, consumer), what="batches in flight")
        worker.end()
        flow = consumer.flow()
        blobs = [int(broker.conn.main.strlen(key)) for key in broker.conn.main.scan_iter(f"*{experiment}*:blob:*")]
        assert flow.bytes == sum(blobs)
        assert len(blobs) == flow.entries
        broker.experiments.set_command(experiment, "stop")
    # And what is learned from is the same, bit for bit
    common = played["once"].keys() & played["whole"].keys()
    assert len(common) >= 10
    for key in common:
        for name, array in played["whole"][key].items():
            np.testing.assert_array_equal(array, played["once"][key][name], err_msg=f"{key} {name}")
    assert sizes["once"] < 0.45 * sizes["whole"]


def test_a_batch_that_shows_a_frame_which_it_has_not_is_set_aside_and_its_shard_goes_on(
    broker: Broker, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a worker whose third batch is spoiled before it is encoded
    spoiled = list[int]()

    class Spoiling(Folded):
        def gathered(self, memory: Callable[[int], memoryview]) -> Any:
            made = super().gathered(memory)
            stack = made.stacks["obs"]
            index = stack.index.copy()
            index[0, 1, 1] = len(stack.frames) + 5
            made.stacks["obs"] = Stack(stack.frames, stack.counts, index, stack.finals)
            return made

    def sometimes(layout: Any, folded: Folded, *memory: Any) -> memoryview:
        spoiled.append(1)
        if len(spoiled) != 3:
            return encode_folded(layout, folded, *memory)
        return encode_into(layout, Spoiling(folded.segments, folded.parts).gathered(memory[1]), memory[0])

    monkeypatch.setattr(packing, "encode_folded", sometimes)
    experiment = experiment_of(broker, "poison")
    consumer = Consumer(broker, experiment, plane_at(tmp_path / "poison"))
    consumer.publish()
    start("poison")
    # Then it is set aside with its reason, and all others are trained
    gather(consumer, 20)
    eventually(lambda: consumer.flow().dead.batches == 1, what="one set aside")
    (dead,) = broker.dead.ls(experiment)
    assert "which its segment has not" in dead.reason
    assert dead.pointer is not None
    gather(consumer, 5)
    assert consumer.flow().dead.batches == 1


def test_a_dead_batch_of_stacks_is_shown_with_whole_observations(broker: Broker, start: Start, tmp_path: Path) -> None:
    # Given a sound batch that came as stacks, and was set aside
    experiment = experiment_of(broker, "shown")
    consumer = Consumer(broker, experiment, plane_at(tmp_path / "shown"))
    consumer.publish()
    start("shown")
    came: list[Loaded] = []

    def in_stacks() -> list[Loaded]:
        came.extend(consumer.poll())
        return [item for item in came if item.segments.stacks]

    eventually(in_stacks, what="a batch of stacks")
    item = in_stacks()[0]
    assert broker.experience.set_aside(experiment, 0, consumer.epoch, item.pointer, "for the test")
    # When somebody looks at it
    (dead,) = broker.dead.ls(experiment)
    found = examine(broker, experiment, dead.id, describe=check_env)
    # Then its observations are those that were played
    arrays = item.segments.whole().arrays
    shown = arrays["obs"]
    assert found.problem == ""
    assert found.columns.keys() == arrays.keys()
    values = ", ".join(map(str, shown.reshape(-1)[:4]))
    assert found.columns["obs"] == f"uint8{list(shown.shape)} {values}, ..."


def test_a_loop_of_ones_own_is_given_whole_observations(broker: Broker, start: Start, url: str, tmp_path: Path) -> None:
    experiment = experiment_of(broker, "own")
    begun = followed = 0
    with TrainerSession(experiment, directory=tmp_path / "home", url=url, describe=check_env, ttl_ms=2_000) as trainer:
        trainer.publish(trainer.policy.get_weights())
        start("own")
        for batch in trainer:
            for segments in batch.segments:
                arrays = segments.arrays
                over = arrays["terminated"] | arrays["truncated"]
                goes_on = ~over & (np.arange(STEPS) < arrays["length"][:, None])
                np.testing.assert_array_equal(arrays["obs"][:, 1:, :-1][goes_on], arrays["obs"][:, :-1, 1:][goes_on])
                followed, begun = followed + int(goes_on.sum()), begun + int(over[:, :-1].sum())
            if begun > 3:
                break
    assert followed > STEPS
