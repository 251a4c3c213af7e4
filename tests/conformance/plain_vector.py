"""The loop that anybody would write for a vector environment that resets itself in the step after an ending.

It knows nothing of Heddle. What it shares with a run are the actions, and the seeds of the very beginning.
"""

import importlib
from collections.abc import Sequence
from typing import Any, TypeVar

import gymnasium
import numpy as np

from tests.conformance.cases import Case
from tests.conformance.plain import Stream

T = TypeVar("T")


def make(case: Case, seeds: Sequence[int]) -> Any:
    """The vector environment of a case."""
    kwargs = dict(case.kwargs)
    if case.package == "envpool":
        envpool = importlib.import_module("envpool")
        task = case.id.removeprefix("envpool:")
        return envpool.make_gymnasium(task, num_envs=case.num_envs, seed=list(seeds), **kwargs)
    return gymnasium.make_vec(case.id, num_envs=case.num_envs, vectorization_mode="vector_entry_point", **kwargs)


def play(case: Case, seeds: Sequence[int], actions: Sequence[Any], steps: int) -> list[Stream]:
    """Play until every environment has made `steps` steps.

    Args:
        seeds, actions: of each environment.
    """
    vector = make(case, seeds)
    streams = [Stream() for _ in seeds]
    totals, lengths = np.zeros(len(seeds)), np.zeros(len(seeds), int)
    resets = np.zeros(len(seeds), bool)
    observations, _ = vector.reset() if case.package == "envpool" else vector.reset(seed=seeds[0])
    for env, stream in enumerate(streams):
        stream.observations.append(observations[env].copy())
    while min(len(stream.rewards) for stream in streams) < steps:
        chosen = [actions[env][len(stream.rewards)] for env, stream in enumerate(streams)]
        space = vector.single_action_space
        given = [int(one) if np.ndim(one) == 0 else np.clip(one, space.low, space.high) for one in chosen]
        observations, rewards, terminated, truncated, infos = vector.step(np.array(given))
        for env, stream in enumerate(streams):
            if resets[env]:
                stream.observations[-1] = observations[env].copy()
                totals[env], lengths[env] = 0.0, 0
                continue
            step = len(stream.rewards)
            stream.rewards.append(rewards[env])
            stream.terminated.append(bool(terminated[env]))
            stream.truncated.append(bool(truncated[env]))
            stream.infos.append({key: infos[key][env] for key in case.info_keys})
            stream.observations.append(observations[env].copy())
            totals[env], lengths[env] = totals[env] + float(rewards[env]), lengths[env] + 1
            if terminated[env] or truncated[env]:
                stream.returns[step], stream.lengths[step] = totals[env], int(lengths[env])
                if not terminated[env]:
                    stream.finals[step] = observations[env].copy()
        resets = terminated | truncated
    return [_cut(stream, steps) for stream in streams]


def _cut(stream: Stream, steps: int) -> Stream:
    return Stream(
        stream.observations[:steps],
        stream.rewards[:steps],
        stream.terminated[:steps],
        stream.truncated[:steps],
        finals=_before(steps, stream.finals),
        returns=_before(steps, stream.returns),
        lengths=_before(steps, stream.lengths),
        infos=stream.infos[:steps],
    )


def _before(steps: int, by_step: dict[int, T]) -> dict[int, T]:
    return {step: value for step, value in by_step.items() if step < steps}
