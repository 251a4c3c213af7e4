"""The same environments through everything: server, coordinator, worker, appender, stream, decoder."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heddle.batch import decode
from heddle.broker import Broker, keys
from heddle.clock import SystemClock
from heddle.layout import Segments
from heddle.policies import weights
from heddle.producers.stage import Stage
from heddle.spec import ExperimentSpec, load_spec
from tests.conformance.cases import Case
from tests.helpers import eventually

SEGMENT = 37
"""Steps of a segment: episodes and segments shall not end together."""
CHOOSER = "tests.conformance.chooser:Chooser"
WAIT_S = 100.0


@dataclass(slots=True)
class Experience:
    """What arrived of one environment, its segments joined.

    Attributes:
        arrays: by column, [steps, ...]; observations [steps + 1, ...].
        finals: step -> final observation by leaf.
    """

    arrays: dict[str, Any] = field(default_factory=dict)
    finals: dict[int, dict[str, Any]] = field(default_factory=dict)


def spec_of(case: Case, seed: int, **sections: Any) -> ExperimentSpec:
    """The spec of a case."""
    env = {
        "id": case.id,
        "num_envs": case.num_envs,
        "envs_per_shard": case.num_envs,
        "vector": case.is_vector,
        "kwargs": dict(case.kwargs),
        "wrappers": [{"id": id, "kwargs": dict(kwargs)} for id, kwargs in case.wrappers],
    }
    raw = {
        "experiment": {"name": "conformance", "seed": seed},
        "env": env | sections.pop("env", {}),
        "policy": {"id": CHOOSER},
        "rollout": {"steps": SEGMENT, "info_keys": list(case.info_keys)},
        "trainer": {"minibatch": 1},
        "budget": {"env_steps": 1_000_000},
        "limits": {"max_entries": 16},
    }
    return load_spec(raw | sections).spec


def collect(broker: Broker, spec: ExperimentSpec, steps: int) -> list[Experience]:
    """Submit a spec, read what a worker plays until every environment has `steps` steps, and stop it.

    Returns:
        One for each environment of the only shard, of `steps` steps; where agents play, one for each agent of each
        game, of as many as it made.
    """
    name = spec.experiment.name
    submitted = broker.experiments.submit(spec.canonical_json(), "", spec.sha256(), name, suffix=os.urandom(3).hex()).id
    stage = Stage(broker.experiments.spec(submitted), broker.policies.fetch, clock=SystemClock())
    seat = broker.seats.claim_seat(submitted, "reader", ttl_ms=600_000)
    assert seat is not None
    broker.experience.ensure_group(submitted, 0)
    broker.policies.publish(submitted, seat, 1, weights.pack({}, version=1, update=1), update=1)
    each = spec.env.agents_each
    pieces: list[list[tuple[Segments, int]]] = [[] for _ in range(spec.env.num_envs * each)]

    def enough() -> bool:
        pointers = broker.experience.read(submitted, 0, keys.TRAINER_GROUP, "reader", count=16, block_ms=100)
        for pointer, data in zip(pointers, broker.experience.fetch(pointers), strict=True):
            assert data is not None
            segments = decode(stage.layout(), data, crc32=pointer.crc32, size_cap=1 << 28)
            for row in range(segments.rows):
                pieces[segments.arrays["env"][row] * each + segments.arrays["agent"][row]].append((segments, row))
        broker.experience.ack(submitted, 0, seat, [(pointer, "trained") for pointer in pointers])
        errors = [shard.last_error for shard in broker.shards.shards(submitted, 0) if shard.last_error]
        assert not errors, errors
        return min(sum(int(s.arrays["length"][row]) for s, row in some) for some in pieces) >= steps

    eventually(enough, timeout_s=WAIT_S, what=f"{steps} steps of {spec.env.id}")
    broker.experiments.set_command(submitted, "stop")
    made = [sum(int(segments.arrays["length"][row]) for segments, row in some) for some in pieces]
    return [_joined(some, steps if each == 1 else own) for some, own in zip(pieces, made, strict=True)]


def _joined(pieces: Sequence[tuple[Segments, int]], steps: int) -> Experience:
    joined, found = Experience(), dict[str, list[Any]]()
    begin = 0
    for segments, row in pieces:
        length = int(segments.arrays["length"][row])
        for column in segments.layout.columns:
            if column.per != "segment":
                values = segments.arrays[column.name][row]
                found.setdefault(column.name, []).append(values[:length])
        for place in np.flatnonzero(segments.arrays["final_row"] == row):
            step = begin + int(segments.arrays["final_step"][place])
            if step < steps:
                leaves = segments.layout.observation_leaves
                joined.finals[step] = {leaf.name: segments.arrays[f"final.{leaf.name}"][place] for leaf in leaves}
        begin += length
    joined.arrays = {name: np.concatenate(values)[:steps] for name, values in found.items()}
    _add_last(joined, pieces, steps)
    return joined


def _add_last(joined: Experience, pieces: Sequence[tuple[Segments, int]], steps: int) -> None:
    """The observation behind the last step, and that behind every segment, which the next one begins with."""
    begin = 0
    for (segments, row), follower in zip(pieces, [*pieces[1:], None], strict=True):
        length = int(segments.arrays["length"][row])
        for leaf in segments.layout.observation_leaves:
            values = segments.arrays[leaf.name][row]
            if follower is not None and not _is_over(segments, row, length):
                np.testing.assert_array_equal(values[length], follower[0].arrays[leaf.name][follower[1]][0])
            if begin < steps <= begin + length:
                joined.arrays[leaf.name] = np.concatenate([joined.arrays[leaf.name], values[None, steps - begin]])
        begin += length


def _is_over(segments: Segments, row: int, length: int) -> bool:
    """Whether an episode ended with the segment: a vector environment may show the next one only later."""
    arrays = segments.arrays
    return bool(arrays["terminated"][row, length - 1] or arrays["truncated"][row, length - 1])
