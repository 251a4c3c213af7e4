"""Whether an environment can be snapshotted, tried out: before a run, and by whoever wants to know.

It never runs within a worker: it makes two environments of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heddle.errors import EnvError, NotSnapshottable, SnapshotError
from heddle.layout import make_layout
from heddle.producers.closing import close_env
from heddle.producers.contract import permitted, some_actions
from heddle.producers.envs import make_envs
from heddle.producers.envs_vector import make_vector, reset_all
from heddle.producers.snapshot import restore, take
from heddle.shard import ShardPlan, env_seed
from heddle.spaces import Space
from heddle.spec import ExperimentSpec
from heddle.spec.objects import describe_error, user_errors

STEPS = 16
"""Before the snapshot, and again behind it."""


@dataclass(frozen=True, slots=True)
class SnapshotTrial:
    """What became of one environment's snapshot.

    Attributes:
        size: bytes; 0 when there is none.
        reason: why it cannot be used, in one line; "" when it can.
    """

    size: int
    reason: str = ""


def try_snapshot(spec: ExperimentSpec, observation: Space, action: Space) -> SnapshotTrial:
    """Play a little, snapshot, bring it back in a second environment, and compare what both do next.

    Args:
        observation, action: its spaces.

    Raises:
        EnvError: the environment cannot be made at all.
    """
    seed = env_seed(spec.experiment.seed, 0, 0, 0)
    if spec.env.at_once:
        return _try_vector(spec, seed)
    layout = make_layout(observation, action, steps=1, outputs={}, info_keys=spec.rollout.info_keys)
    plan, made = ShardPlan(0, "train", 0, 1), list[Any]()
    try:
        made += make_envs(plan, spec, spec.experiment.seed, layout=layout)
        try:
            made += make_envs(plan, spec, spec.experiment.seed, layout=layout)
        except EnvError as error:
            return SnapshotTrial(0, f"a second one, to bring it back in, {error.problems[0].reason}")
        return _compare(*made, seed=seed, action=action)
    except NotSnapshottable as error:
        return SnapshotTrial(0, error.reason)
    finally:
        for env in made:
            close_env(env)


def _try_vector(spec: ExperimentSpec, seed: int) -> SnapshotTrial:
    n = spec.env.agents_each
    vector = make_vector(spec.env, first=0, num_envs=n, seeds=[seed] * n, groups=spec.policy.agents_of)
    try:
        reset_all(vector, [seed])
        return SnapshotTrial(len(take(vector)))
    except NotSnapshottable as error:
        return SnapshotTrial(0, error.reason)
    except user_errors() as error:  # noqa: BLE001  told by its own check
        return SnapshotTrial(0, f"it raised {describe_error(error)} before there was one")
    finally:
        close_env(vector)


def _compare(env: Any, other: Any, *, seed: int, action: Space) -> SnapshotTrial:
    actions = some_actions(action, 2 * STEPS, np.random.default_rng(seed))
    try:
        begin, _ = env.reset(seed=seed)
        _, last = _play(env, action, actions[:STEPS], begin)
        data = take(env)
        expected, _ = _play(env, action, actions[STEPS:], last)
    except NotSnapshottable:
        raise
    except user_errors() as error:  # noqa: BLE001  told by its own check
        return SnapshotTrial(0, f"it raised {describe_error(error)} before there was one")
    try:
        restore(other, data)
        found, _ = _play(other, action, actions[STEPS:], last)
    except SnapshotError as error:
        return SnapshotTrial(0, f"it {error.reason}")
    except user_errors() as error:  # noqa: BLE001  the user's, see above
        return SnapshotTrial(0, f"when it was brought back the environment raised {describe_error(error)}")
    for step, (one, another) in enumerate(zip(expected, found, strict=True), start=1):
        if one != another:
            return SnapshotTrial(0, f"when it was brought back the environment went another way, at step {step}")
    return SnapshotTrial(len(data))


def _play(env: Any, action: Space, choices: Sequence[Any], observation: Any) -> tuple[list[str], Any]:
    """What an environment shows after `observation`, bit for bit, and the last that it showed.

    Resets name no seed, so that its own chance shows as well.
    """
    seen = []
    for choice in choices:
        observation, reward, terminated, truncated, _ = env.step(permitted(choice, observation, action))
        text = f"{_exact(observation)} {float(reward).hex()} {bool(terminated)} {bool(truncated)}"
        if terminated or truncated:
            observation = env.reset()[0]
            text += _exact(observation)
        seen.append(text)
    return seen, observation


def _exact(observation: Any) -> str:
    if isinstance(observation, dict):
        return "".join(f"{key}: {_exact(value)} " for key, value in observation.items())
    if isinstance(observation, tuple):
        return "".join(f"{_exact(value)}, " for value in observation)
    array = np.asarray(observation)
    return f"{array.dtype} {array.shape} {array.tobytes().hex()}"
