"""Reports: an error while a shard was played, with all that is known of where it happened.

It never decides what follows, and it asks the environments nothing: they are of no more use.
"""

import traceback
from collections.abc import Set as AbstractSet
from typing import Any, Literal

import numpy as np

from heddle.broker.failure_types import Cause, Failure, Replay
from heddle.errors import EnvError
from heddle.producers.contract import BadAnswer
from heddle.producers.mishap import Mishap, PlayError
from heddle.producers.reel import Reel
from heddle.producers.scrutiny import BadNumber
from heddle.producers.track import Spot, Track
from heddle.producers.vector_track import VectorTrack
from heddle.shard import ShardPlan
from heddle.spaces import ACTION, is_action
from heddle.spec import ExperimentSpec
from heddle.spec.objects import MOST_FRAMES, describe_error
from heddle.spec.variants import variant_of

ACTIONS_SHOWN = 8
TRACE_CHARS = 6_000


class Reporter:
    """Reports for one shard.

    Attributes:
        track: what its environments did.
        version: of the policy that plays; 0 before any does.
        finished: lanes that have ended an episode.
    """

    def __init__(
        self, plan: ShardPlan, spec: ExperimentSpec, track: Track | VectorTrack, finished: AbstractSet[int]
    ) -> None:
        self._plan, self._spec, self.finished = plan, spec, finished
        self.track: Track | VectorTrack = track
        self.version = 0

    def failed(
        self, error: BaseException, doing: Literal["step", "reset", "act"], env: int, row: int, reel: Reel | None
    ) -> PlayError:
        """What an environment or the policy raised at step `row` of the segment that `reel` records."""
        cause, what = cause_of(error)
        trace = error.traceback if isinstance(error, Mishap) else _trace(error)
        output = error.output if isinstance(error, Mishap) else ()
        if doing == "act":
            reason = f"failed to act for shard {self._plan.index} at step {row} of a segment{self._played()}: {what}"
            failure = self._failure(cause, what, doing, -1, None, trace, output)
            return self._error(reason, failure, key="policy.id", value=self._spec.policy.id)
        spot = self._spot(doing, env, row, reel)
        failure = self._failure(cause, what, doing, env, spot, trace, output)
        at = f", in call {row + 1} of a segment" if env < 0 and doing == "step" else ""
        is_all = not isinstance(error, BadAnswer) or error.env is None  # the game, not one agent of it
        reason = f"{self._name(env, is_all=is_all)} failed in {doing}{at}: {what}{self._where(failure)}"
        return self._error(reason, failure, _replay(spot), value=self._spec.env.id)

    def bad_number(self, problem: BadNumber, reel: Reel) -> PlayError:
        """A value that nobody can learn from, found when a segment was over."""
        if is_action(problem.name) or problem.name.startswith("out."):
            where = f"at step {problem.step} of a segment"
            which = "an action" if problem.name == ACTION else problem.name.removeprefix("out.")
            verb = "chose" if is_action(problem.name) else "gave"
            said = f"{verb} {which} = {problem.value}, which {problem.reason}, {where}"
            reason = f"{said}, in {self._name(problem.env)}{self._played()}"
            failure = self._failure("answer", reason, "act", problem.env, None, "", ())
            return self._error(reason, failure, key="policy.id", value=self._spec.policy.id)
        env, row = problem.env, problem.step  # the observation in row r is what step r - 1 gave, or a reset
        of_reset = problem.name != "reward" and not problem.is_final and self.track.reset(env, row) is not None
        spot = self.track.reset(env, row) if of_reset else None
        if not of_reset:
            spot = self.track.spot(env, row if problem.name == "reward" else row - 1, reel.arrays)
        value = f" = {problem.value}, which" if problem.value else " that"
        what = f"gave {problem.name}{value} {problem.reason}"
        failure = self._failure("answer", what, "reset" if of_reset else "step", env, spot, "", ())
        reason = f"{self._name(env)} {what}{self._where(failure)}"
        return self._error(reason, failure, _replay(spot), value=self._spec.env.id)

    def endless(self, env: int, most_steps: int) -> str:
        """For people: an evaluation waits no longer for `env`."""
        return (
            f"{self._name(env)} ended no episode of the evaluation within {most_steps:,} steps, so none of it counts; "
            "give its episodes an end, as the wrapper TimeLimit does, or raise eval.max_steps"
        )

    def nobody_moved(self, episodes: int) -> EnvError:
        """Of an evaluation without a single step: the agents that it waits for took no part in their games."""
        return EnvError(
            f"nobody of shard {self._plan.index} took a step in an evaluation: the agents whose {episodes} episodes it "
            "waits for took no part in their games",
            key="eval.episodes",
            value=None if self._spec.eval is None else self._spec.eval.episodes,
            hint="raise it, so that the other agents have episodes to play, too",
        )

    def hanging(self, doing: str, what: str, env: int, row: int, reel: Reel | None, trace: str) -> PlayError:
        """A call that lasts too long, told from another thread while it still lasts."""
        spot = self._spot(doing, env, row, reel)
        failure = self._failure("timeout", what, doing, -1 if spot is None else env, spot, trace, ())
        return self._error(what, failure, _replay(spot))

    def _error(self, reason: str, failure: Failure, replay: Replay | None = None, **problem: Any) -> PlayError:
        """As it is raised: what failed is early while it, or for all of the shard each of them, finished no episode."""
        agents, env = self._plan.agents, failure.env
        first = max(0, env - self._plan.first_env) * agents
        error = PlayError(reason, failure, replay, **problem)
        lanes = range(self._plan.lanes) if env < 0 else range(first, first + agents)
        error.early = failure.doing != "reset" and self.finished.isdisjoint(lanes)
        return error

    def _where(self, failure: Failure) -> str:
        if not failure.episode:
            return ""
        last = [round(action, 4) if isinstance(action, float) else action for action in failure.last_actions]
        where = f"seed {failure.seed}, episode {failure.episode}, step {failure.step}"
        return f"; {where}, last actions {last}{self._played()}"

    def _played(self) -> str:
        """Which policy played, where that is known."""
        return f", policy version {self.version}" if self.version else ""

    def _spot(self, doing: str, env: int, row: int, reel: Reel | None) -> Spot | None:
        if env < 0:  # one of them, or all
            return None
        if doing == "reset":
            return self.track.reset(env)
        return self.track.spot(env, row, reel.arrays) if doing == "step" and reel is not None else None

    def _failure(
        self,
        cause: Cause,
        what: str,
        doing: str,
        env: int,
        spot: Spot | None,
        trace: str,
        output: tuple[str, ...],
    ) -> Failure:
        known: dict[str, Any] = {}
        if spot is not None:
            shown = spot.actions[-ACTIONS_SHOWN:]
            known = {
                "seed": spot.seed,
                "episode": spot.count,
                "step": spot.step,
                "last_actions": self.track.rows.shown(shown),
            }
            known |= {"start": spot.start, "num_actions": 0 if spot.start == "unknown" else len(spot.actions)}
        return Failure(
            cause=cause,
            what=what,
            doing=doing,
            env=-1 if env < 0 else self._plan.first_env + env // self._plan.agents,
            traceback=trace,
            output=output,
            version=self.version,
            isolation=self._spec.env.isolation,
            **known,
        )

    def _name(self, env: int, *, is_all: bool = False) -> str:
        if env < 0:
            last = self._plan.first_env + self._plan.num_envs - 1
            return f"environments {self._plan.first_env} to {last}, which are shard {self._plan.index}, stepped as one,"
        number, agent = divmod(env, self._plan.agents)
        who = f"agent {agent} of " if self._plan.agents > 1 and not is_all else ""
        variant = variant_of(self._spec, self._plan.first_env + number)
        kind = "" if variant is None else f", variant {variant.name!r}"
        where = f"number {number} of shard {self._plan.index}{kind}"
        return f"{who}environment {self._plan.first_env + number} ({where})"


def cause_of(error: BaseException) -> tuple[Cause, str]:
    """What kind of failure an error is, and the error in one line."""
    if isinstance(error, Mishap):
        return error.cause, error.what
    if isinstance(error, BadAnswer):
        return "answer", str(error)
    if isinstance(error, SystemExit):
        return "exit", f"sys.exit({error.code!r})"
    return "memory" if isinstance(error, MemoryError) else "exception", describe_error(error)


def failure_of(error: EnvError) -> tuple[Failure, Replay | None]:
    """The record of an error with which a shard is given back; one that came before any step has little to tell."""
    if isinstance(error, PlayError):
        return error.failure, error.replay
    what = "; ".join(problem.reason for problem in error.problems) or str(error)
    mishap = error.__cause__
    if isinstance(mishap, Mishap):
        return Failure(mishap.cause, what, mishap.doing, traceback=mishap.traceback, output=mishap.output), None
    return Failure("exception", what, "make", traceback=_trace(error)), None


def _replay(spot: Spot | None) -> Replay | None:
    if spot is None or spot.start == "unknown":
        return None
    actions = np.ascontiguousarray(spot.actions)
    return Replay(actions.tobytes(), actions.dtype.name, actions.shape, spot.snapshot)


def _trace(error: BaseException) -> str:
    if isinstance(error, BadAnswer):
        return ""
    return "".join(traceback.format_exception(error, limit=-MOST_FRAMES))[-TRACE_CHARS:]
