"""Repro: plays a recorded failure again, in a child with the limits that the experiment's own has.

It never talks to a broker; whoever calls brings the record.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heddle.broker.failure_types import Failure, Replay
from heddle.errors import EnvError, NotFound
from heddle.producers.action_rows import ActionRows
from heddle.producers.choices import choices_for
from heddle.producers.contract import observation_problem
from heddle.producers.isolation import frames
from heddle.producers.isolation.shard import IsolatedEnvs
from heddle.producers.mishap import Mishap
from heddle.producers.report import cause_of
from heddle.producers.snapshot import restore_all
from heddle.shard import ShardPlan, env_seed
from heddle.spaces import Space
from heddle.spec import ExperimentSpec


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of playing a failure again.

    Attributes:
        happened: it failed again, in the same call and for the same cause.
        doing, step: the call in which it failed, or the last one that went well.
        cause, what: of the failure now; "" when it did not fail.
        traceback, output: of it.
    """

    happened: bool
    doing: str
    step: int
    cause: str = ""
    what: str = ""
    traceback: str = ""
    output: Sequence[str] = ()


@dataclass(slots=True)
class _Place:
    doing: str = "make"
    step: int = 0
    outcome: Outcome | None = field(default=None)


def play_again(
    spec: ExperimentSpec,
    plan: ShardPlan,
    failure: Failure,
    replay: Replay | None,
    *,
    seed: int,
    observation: Space,
    action: Space,
    on_step: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """Make the environment, bring it where the failure began, repeat its actions.

    Args:
        plan, seed: the failed shard, and the root of its chance.
        on_step: told before each step which one it is.

    Raises:
        NotFound: the record does not hold what that takes; the message says why.
    """
    _check(failure, replay)
    number = max(0, failure.env - plan.first_env)
    whole = failure.env < 0 or (replay is not None and bool(replay.snapshot))
    wanted = range(plan.num_envs) if whole else [number]
    envs = [(plan.first_env + env, env_seed(seed, plan.index, env, 0)) for env in wanted]
    place = _Place()
    with _noting(place, failure):
        made = IsolatedEnvs(spec, observation, action, envs).make()
        try:
            with _noting(place, failure):
                _play(made, wanted.index(number), place, failure, replay, (observation, action), on_step)
        finally:
            made.close()
    return place.outcome or Outcome(False, place.doing, place.step)


def _check(failure: Failure, replay: Replay | None) -> None:
    if failure.doing in ("make", "reset"):
        return
    if failure.doing == "act":
        raise NotFound("it was the policy that failed, not an environment: there is nothing to play again")
    if failure.start == "unknown" or replay is None:
        why = (
            "its episode was longer than what is kept of it" if failure.episode else "its process died with its worker"
        )
        hint = 'set isolation = "process" under [env]: then every failure is recorded' if not failure.episode else ""
        raise NotFound(f"it cannot be played again: {why}{'; ' if hint else ''}{hint}")


def _play(
    envs: IsolatedEnvs,
    number: int,
    place: _Place,
    failure: Failure,
    replay: Replay | None,
    spaces: tuple[Space, Space],
    on_step: Callable[[int], None],
) -> None:
    observation, action = spaces
    if failure.doing == "make":
        return
    env = envs[number]
    if replay is not None and replay.snapshot:
        _restore(envs, replay.snapshot, failure)
        place.doing, place.step = "step", failure.step - failure.num_actions
    else:
        place.doing = "reset"
        first, _ = env.reset(seed=failure.seed)
        _look(observation, first, 0.0)
    if replay is None or failure.doing == "reset":
        return
    recorded = np.frombuffer(replay.actions, replay.dtype).reshape(replay.shape)
    for choice in choices_for(action)(ActionRows(action).unpack(recorded)):
        place.doing, place.step = "step", place.step + 1
        on_step(place.step)
        value, reward, *_ = env.step(choice)
        _look(observation, value, reward)


def _restore(envs: IsolatedEnvs, snapshot: bytes, failure: Failure) -> None:
    if failure.isolation == "process":
        restore_all(envs, snapshot)
        return
    limit_s = len(envs) * envs.limits.reset_s
    envs.process.ask(frames.RESTORE, payload=snapshot, doing="restore", limit_s=limit_s)


def _look(space: Space, value: Any, reward: float) -> None:
    """Numbers that a player would not take."""
    if (problem := observation_problem(space, value)) is not None and "finite" in problem:
        raise Mishap("answer", f"gave {problem}")
    if not np.isfinite(reward):
        raise Mishap("answer", "gave reward that is not a finite number")


@contextmanager
def _noting(place: _Place, failure: Failure) -> Iterator[None]:
    """What fails in this block is the outcome."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  whatever the environment does is what was asked for
        if place.outcome is not None:
            return
        found = error.__cause__ if isinstance(error, EnvError) and isinstance(error.__cause__, Mishap) else error
        cause, what = cause_of(found if isinstance(found, Mishap) else error)
        if isinstance(error, EnvError) and not isinstance(found, Mishap):
            what = error.problems[0].reason
        same = (place.doing, place.step, cause) == (failure.doing, failure.step, failure.cause)
        trace = found.traceback if isinstance(found, Mishap) else ""
        output = found.output if isinstance(found, Mishap) else ()
        place.outcome = Outcome(same, place.doing, place.step, cause, what, trace, output)
