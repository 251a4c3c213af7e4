"""Gymnasium's contract, asked of a vector environment: made twice, played a few steps with the same seeds and actions.

It never decides what follows from a breach, except that an environment is refused with it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.errors import EnvError
from heddle.producers.choices import batched
from heddle.producers.closing import close_env
from heddle.producers.contract import BadAnswer, difference, flattened, observation_problem, permitted, some_actions
from heddle.producers.envs_spaces import describe, describe_action
from heddle.producers.envs_vector import (
    counter_in,
    keep_last_observations,
    make_vector,
    mode_of,
    reset_all,
    reset_some,
)
from heddle.producers.scrutiny import note_info
from heddle.producers.vector_answers import final_of, five_of, flags_of, info_of, rewards_of
from heddle.shard import env_seed, plan_shards
from heddle.spaces import Space, leaves
from heddle.spec import ExperimentSpec
from heddle.spec.objects import describe_error, user_errors

MOST_ENVS = 2
"""Made for a check: one could hide that rows are mixed up."""


def check_vector(spec: ExperimentSpec, *, steps: int = 16) -> tuple[Space, Space]:
    """The spaces of one environment of a vector environment that keeps the contract.

    Raises:
        EnvError: it cannot be made, has spaces that Heddle does not carry, raises, or breaks the contract.
    """
    name, n = spec.env.id, min(MOST_ENVS, plan_shards(spec)[0].num_envs) * spec.env.agents_each
    seeds = [env_seed(spec.experiment.seed, 0, env, 0) for env in range(n)]
    make = partial(make_vector, spec.env, first=0, num_envs=n, seeds=seeds, groups=spec.policy.agents_of)
    observation, action = _spaces_of(make, name)
    asked = partial(_play, observation=observation, action=action, seeds=seeds, steps=steps, spec=spec)
    try:
        first, second = _with(make, asked), _with(make, asked)
    except BadAnswer as breach:
        raise EnvError(str(breach), value=name) from breach
    if spec.env.deterministic and (found := difference(first, second)):
        what = f"is not deterministic: {found} differs between two runs with the same seed and the same actions"
        raise EnvError(f"{what}; where that is as it should be, say so: deterministic = false in [env]", value=name)
    return observation, action


def spaces_of(vector: Any, name: str) -> tuple[Space, Space]:
    """Observation and action space of one of its environments.

    Raises:
        EnvError: Heddle does not carry them.
    """
    observation = describe(vector.single_observation_space, value=name)
    for leaf in leaves(observation):
        if not leaf.direct:
            reason = (
                f"its {leaf.name} is part of a Text, Sequence, Graph or OneOf, carried from single environments only"
            )
            raise EnvError(reason, value=name, hint="leave vector out, or use a wrapper")
    return observation, describe_action(vector.single_action_space, value=name)


def _spaces_of(make: Callable[[], Any], name: str) -> tuple[Space, Space]:
    vector = make()
    try:
        return spaces_of(vector, name)
    finally:
        close_env(vector)


def _with(make: Callable[[], Any], play: Callable[[Any], list[NDArray[Any]]]) -> list[NDArray[Any]]:
    vector = make()
    try:
        return play(vector)
    finally:
        close_env(vector)


def _play(
    vector: Any, *, observation: Space, action: Space, seeds: Sequence[int], steps: int, spec: ExperimentSpec
) -> list[NDArray[Any]]:
    """Everything seen, one flat array a call, the first from reset."""
    n, mode, counter = len(seeds), mode_of(vector, spec.env.id), counter_in(vector)
    keep_last_observations(vector)
    choices = some_actions(action, steps * n, np.random.default_rng(seeds[0]))
    rows = _rows(_called("reset", partial(reset_all, vector, seeds)), observation, n, "reset")
    seen = [_flat(observation, rows)]
    for step in range(1, steps + 1):
        where, begin = f"step {step}", (step - 1) * n
        wanted = [permitted(choices[begin + env], rows[env], action) for env in range(n)]
        answer = five_of(_called(where, partial(vector.step, batched(wanted))))
        rows = _rows(answer[0], observation, n, where)
        rewards, ended, cut = (
            rewards_of(answer[1], n),
            flags_of(answer[2], n, "terminated"),
            flags_of(answer[3], n, "truncated"),
        )
        if not np.isfinite(rewards).all():
            raise BadAnswer(f"{where} returned the rewards {rewards.tolist()}, expected finite numbers")
        resets = ended | cut if counter is None else (ended | cut) & counter.over
        _expect_infos(answer[4], resets, mode, spec.rollout.info_keys)
        seen.append(np.concatenate([_flat(observation, rows), rewards, ended, cut]))
        for env in np.flatnonzero(cut & ~ended & resets) if mode == "SameStep" else ():
            final_of(answer[4], int(env), leaves(observation))
        if mode == "Disabled" and (ended | cut).any():
            again = partial(reset_some, vector, ended | cut, [seed + step for seed in seeds])
            rows = _rows(_called("reset", again), observation, n, "reset")
    return seen


def _called(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except BadAnswer:
        raise
    except user_errors() as error:
        raise BadAnswer(f"{what} raised {describe_error(error)}") from error


def _rows(observations: Any, space: Space, n: int, where: str) -> list[Any]:
    """The observation of each environment. Raises BadAnswer where one is not in the space."""
    found = []
    for env in range(n):
        try:
            row = _row(observations, env)
        except (TypeError, IndexError, KeyError) as error:
            raise BadAnswer(f"{where}: the observations are not {n} in one array") from error
        if problem := observation_problem(space, row):
            raise BadAnswer(f"{where}, environment {env}: {problem}")
        found.append(row)
    return found


def _row(observations: Any, env: int) -> Any:
    if isinstance(observations, Mapping):
        return {key: _row(value, env) for key, value in observations.items()}
    if isinstance(observations, tuple):
        return tuple(_row(value, env) for value in observations)
    return observations[env]


def _flat(space: Space, rows: Sequence[Any]) -> NDArray[Any]:
    return np.concatenate([flattened(space, row) for row in rows])


def _expect_infos(info: Mapping[str, Any], resets: NDArray[np.bool_], mode: str, keys: Sequence[str]) -> None:
    """Raises BadAnswer where a wanted value is not one number."""
    scratch = np.zeros((1, 1))
    for env in range(len(resets)) if keys else ():
        own = info_of(info, env, ended=bool(resets[env]) and mode == "SameStep")
        for key in keys:
            note_info(scratch, (0, 0), key, own)
