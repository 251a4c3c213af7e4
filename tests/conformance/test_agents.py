"""What arrives of every agent of a game is, bit for bit, what a plain loop of one process sees."""

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from heddle.broker import Broker
from heddle.shard import env_seed
from heddle.spec import load_spec
from tests.conformance import plain_agents
from tests.conformance.pipeline import CHOOSER, SEGMENT, Experience, collect
from tests.conformance.plain import Stream
from tests.conformance.test_conformance import compare
from tests.fixtures import with_worker

SEED = 11
GAMES = 2


@dataclass(frozen=True, slots=True)
class Case:
    """One game.

    Attributes:
        id: as in [env], with `kwargs`; agents: how many there may be.
        least: steps that each agent of each game makes.
        is_quick: takes part when there is no time for all.
    """

    id: str
    agents: int
    least: int
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    is_quick: bool = False


CASES = [
    Case("tests.conformance.comings:comings", 4, 60, is_quick=True),
    Case("pettingzoo.sisl.pursuit_v5:parallel_env", 3, 100, {"n_pursuers": 3, "max_cycles": 30}, is_quick=True),
    Case("pettingzoo.sisl.multiwalker_v9:parallel_env", 3, 100, {"max_cycles": 60}),
    Case("pettingzoo.butterfly.knights_archers_zombies_v11:parallel_env", 4, 100, {"max_cycles": 40}),
]

broker = with_worker


@pytest.mark.parametrize("case", [case for case in CASES if case.is_quick or os.environ.get("HEDDLE_SOAK")], ids=str)
def test_experience_of_every_agent_equals_that_of_a_plain_loop_bit_for_bit(broker: Broker, case: Case) -> None:
    module, _, name = case.id.partition(":")
    if not os.environ.get("HEDDLE_ALL_SERVERS"):
        pytest.importorskip(module)
    # Given what arrived of every agent of the games of a shard
    env = {
        "id": case.id,
        "agents": case.agents,
        "num_envs": GAMES,
        "envs_per_shard": GAMES,
        "kwargs": dict(case.kwargs),
    }
    spec = load_spec(
        {
            "experiment": {"name": "conformance", "seed": SEED},
            "env": env,
            "policy": {"id": CHOOSER},
            "rollout": {"steps": SEGMENT},
            "trainer": {"minibatch": 1},
            "budget": {"env_steps": 1_000_000},
            "limits": {"max_entries": 16},
        }
    ).spec
    arrived = collect(broker, spec, case.least)
    # When a plain loop plays the same actions from the same seeds
    for place in range(GAMES):
        game = getattr(importlib.import_module(module), name)(**case.kwargs)
        own = arrived[place * case.agents : (place + 1) * case.agents]
        seed = env_seed(SEED, 0, 0, 0) + place
        expected = plain_agents.play(game, seed, [one.arrays["action"] for one in own])
        game.close()
        # Then nothing differs, as far as the actions reach
        for found, stream in zip(own, expected, strict=True):
            steps = len(stream.rewards)
            assert steps >= case.least / 2
            finals = {step: final for step, final in found.finals.items() if step < steps - 1}
            compare(
                Experience({n: array[: steps - 1] for n, array in found.arrays.items()}, finals), _cut(stream, steps)
            )
    ends = [int(stream.arrays["episode_length"].astype(bool).sum()) for stream in arrived]
    assert all(ends) and ("comings" not in case.id or len(set(ends)) > 1)


def _cut(stream: Stream, steps: int) -> Stream:
    """Without the last step: what is behind it is another agent's affair yet."""
    kept = steps - 1
    return Stream(
        stream.observations[:kept],
        stream.rewards[:kept],
        stream.terminated[:kept],
        stream.truncated[:kept],
        finals={step: final for step, final in stream.finals.items() if step < kept},
        returns={step: value for step, value in stream.returns.items() if step < kept},
        lengths={step: value for step, value in stream.lengths.items() if step < kept},
    )


def test_a_comparison_notices_an_agent_that_came_a_step_later() -> None:
    from tests.conformance.comings import Comings

    some = plain_agents.play(Comings(), 3, [np.ones(40, np.int64)] * 4)
    other = plain_agents.play(Comings(), 4, [np.ones(40, np.int64)] * 4)
    assert [len(one.rewards) for one in some] != [len(one.rewards) for one in other]
    assert len(some[2].rewards) < len(some[0].rewards) and some[3].lengths and some[1].lengths
