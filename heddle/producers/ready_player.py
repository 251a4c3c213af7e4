"""The player without a barrier: acts for whichever environments are ready, while the others are still at their step.

Each environment fills its own segment at its own pace. Where shards must give a whole batch (`rollout.sync`,
evaluations) the batch leaves when every segment is full; else as soon as the first one is, so that nobody waits for the
slowest. A step that is still under way then becomes the first of the environment's next segment, with what the policy
answered when it was begun.

Chance is that of `player.py`, which is the reference this one is tested against: an episode is the same whoever else is
ready beside it, as far as the policy's arithmetic does not depend on how many act at once.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from heddle.clock import Clock
from heddle.layout import Layout, Segments
from heddle.policies.base import Arrays, Policy
from heddle.producers import lanes
from heddle.producers.action_rows import ActionRows
from heddle.producers.carried import Carried
from heddle.producers.envs import counter_of, make_envs
from heddle.producers.kinds import has_ended, number_kind
from heddle.producers.memory import copied, fresh_state
from heddle.producers.mishap import Mishap
from heddle.producers.noise import PacedTape
from heddle.producers.play import Play
from heddle.producers.reel import Reel, moved_only
from heddle.producers.scrutiny import BadAnswer, check_state, record_info
from heddle.producers.stepper_choice import stepper_for
from heddle.producers.steppers import Stepper
from heddle.producers.vector_answers import five_of
from heddle.producers.vector_track import VectorTrack
from heddle.shard import ShardPlan, root_seed
from heddle.spaces import index_range
from heddle.spec import ExperimentSpec

PATIENCE_S = 0.005
"""A wait that lasts longer lets other shards of this worker play."""
LOOK_S = 0.25
"""How often deadlines are looked at."""


class _Open(NamedTuple):
    """What an environment is at, and since when, monotonic seconds."""

    doing: Literal["step", "reset"]
    since: float


class ReadyPlayer(Play):
    """A shard whose environments are stepped beside each other.

    Args:
        envs: made already; by default they are made here, which may take long and raises EnvError.
        stepper: what steps them; by default as `env.stepping` says.
        seed: root of all chance; by default the experiment's, or the evaluation's for an evaluation shard.
        plan, spec, policy, layout, clock, first_episode: as of `Play`.
    """

    beside = True
    _tape_kind = PacedTape
    _tape: PacedTape

    def __init__(
        self,
        plan: ShardPlan,
        spec: ExperimentSpec,
        policy: Policy,
        layout: Layout,
        *,
        envs: Sequence[Any] | None = None,
        stepper: Stepper | None = None,
        clock: Clock | None = None,
        first_episode: int = 0,
        seed: int | None = None,
    ) -> None:
        root = root_seed(plan, spec) if seed is None else seed
        made = make_envs(plan, spec, root, layout=layout, clock=clock) if envs is None else envs
        self._track = VectorTrack(len(made), ActionRows(layout.action))
        begin = {"seed": root, "first_episode": first_episode}
        super().__init__(plan, spec, policy, layout, envs=made, track=self._track, clock=clock, **begin)
        self._stepper = stepper or stepper_for(spec, made)
        self._counters = [counter_of(env) for env in made]
        n = len(made)
        self._all, self._at = np.arange(n), np.zeros(n, np.intp)  # the row at which each environment stands
        self._open: dict[int, _Open] = {}
        self._uncounted: dict[int, int] = {}  # ended at that row; only the reset tells how long the episode was
        self._carried = Carried()
        self._before: Arrays = {}
        self._look_at = 0.0
        self._silent = set(range(n))  # gave no step yet

    def take_over(self, other: Play) -> None:
        super().take_over(other)
        if self.standing.now:
            self._silent.clear()

    def cut(self) -> None:
        super().cut()
        self._stepper.wake()

    def close(self) -> None:
        self._stepper.close()

    # ---- a segment

    def _begin_all(self) -> None:
        """Have fresh episodes begin everywhere; nobody waits for the first observations here."""
        self._drain()
        n = len(self._envs)
        reel, self.standing.state = Reel(self.layout, n), copied(fresh_state(self.policy, n, self.spec))
        for leaf in self.layout.observation_leaves:  # until it has shown something, each stands at a value of its space
            if (limits := index_range(leaf.space, chosen=False)) is not None:
                reel.arrays[leaf.name][:, 0] = limits[0]
        self._at[:] = 0
        self._uncounted.clear()
        self._carried.clear()
        for env in range(n):
            self._tally.clear(env)
            self._reset(env)
        self._stepper.flush()
        self.standing.now = [array[:, 0].copy() for _, array in reel.observations]
        self._spare.append(reel)

    def _segment(self, version: int, deterministic: bool) -> Segments:
        self.standing.state = copied(self.standing.state)
        self._before = copied(self.standing.state)
        reel = self._opened()
        self._carried.put(reel, self._before)
        self._at = np.zeros(len(self._envs), np.intp)
        self._roll(reel, deterministic)
        self.doing, at = None, self._at
        reel.lengths = at.tolist()
        self._silent -= set(np.flatnonzero(at).tolist())
        self.standing.now = [array[self._all, at] for _, array in reel.observations]
        self.standing.moving = bool(self._open)
        stepping = [env for env, one in self._open.items() if one.doing == "step"]
        self._carried.keep(reel, stepping, at, self._before)
        segments = self._closed(reel, version)
        self._episodes.shift(reel.lengths)
        self._track.shift(reel.lengths)
        return moved_only(segments)

    def _roll(self, reel: Reel, deterministic: bool) -> None:
        """The loop that all the time goes into. Fills `reel` and moves `_at`."""
        limit, clock = self.spec.rollout.max_seconds, self._clock
        deadline = None if limit is None else clock.monotonic() + limit
        ready = [env for env in self._episodes.active() if env not in self._open]
        while True:
            if ready:
                self._act(reel, ready, deterministic)
            if self._is_over(deadline):
                break
            ready = self._gather(reel, deadline)
        self._cut = False

    def _is_over(self, deadline: float | None) -> bool:
        if not self._open:
            return True  # every segment is full, or nothing more is wanted
        if self._uncounted or not self._at.any():
            return False
        if self._cut or (deadline is not None and self._clock.monotonic() >= deadline):
            return True
        waits_for_all = self.spec.rollout.sync or self._episodes.wanted is not None
        return not waits_for_all and bool(self._at.max() == self.layout.steps)

    def _act(self, reel: Reel, ready: list[int], deterministic: bool) -> None:
        """Ask the policy for those that are ready, record its answer, and have them step."""
        envs = np.array(ready, np.intp)
        rows = self._at[envs]
        self._row, self.doing = int(rows[0]), "act"
        seen = {name: array[envs, rows] for name, array in reel.observations}
        state = {name: array[envs] for name, array in self.standing.state.items()}
        noise = self._tape.silence[envs] if deterministic else self._tape.take_for(envs)
        acted = self.policy.act(seen, state, noise, deterministic=deterministic)
        self._moves += 1
        check_state(acted, self._fresh_state, len(envs))
        reel.record((envs, rows), acted, len(envs))
        for name in state:
            self._before[name][envs] = state[name]
            self.standing.state[name][envs] = acted.state[name]
        now = self._clock.monotonic()
        for env, choice in zip(ready, self._choose(acted.actions), strict=True):
            self._open[env] = _Open("step", now)
            self._stepper.step(env, choice)
        self._stepper.flush()
        self.doing = "step"

    # ---- answers

    def _gather(self, reel: Reel, deadline: float | None) -> list[int]:
        """Take in what comes, for as long as the spec gathers; who is ready to act now."""
        ready = self._taken(reel, self._wait(deadline))
        if (window := self.spec.env.gather) and ready:
            until = self._clock.monotonic() + window
            while self._open and (left := until - self._clock.monotonic()) > 0:
                self._stepper.flush()
                ready += self._taken(reel, self._stepper.answers(left, most=len(self._open)))
        self._stepper.flush()
        return ready

    def _wait(self, deadline: float | None) -> list[tuple[int, Any]]:
        """The next answers; after a while nothing, so that somebody looks around."""
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look(now)
        left_s = LOOK_S if deadline is None else min(LOOK_S, max(0.0, deadline - now))
        most = len(self._open)
        if found := self._stepper.answers(min(PATIENCE_S, left_s), most=most):
            return found
        with lanes.parked(self._stepper.abandon):
            return self._stepper.answers(left_s, most=most)

    def _taken(self, reel: Reel, answers: list[tuple[int, Any]]) -> list[int]:
        return [env for env, answer in answers if self._take(reel, env, answer)]

    def _take(self, reel: Reel, env: int, answer: Any) -> bool:
        """Write one answer down; whether `env` is ready to act."""
        doing = self._open.pop(env).doing
        self._env, self._row, self.doing = env, int(self._at[env]), doing
        self._moves += 1
        if isinstance(answer, BaseException):
            raise answer
        ready = self._begun(reel, env, answer) if doing == "reset" else self._stepped(reel, env, answer)
        self.doing = "step"
        return ready and bool(self._at[env] < self.layout.steps)

    def _begun(self, reel: Reel, env: int, answer: Any) -> bool:
        """A reset of `env` is done."""
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise BadAnswer(f"reset returned a {type(answer).__name__}, expected (observation, info)")
        reel.store(env, int(self._at[env]), answer[0])
        ended, counter = self._uncounted.pop(env, None), self._counters[env]
        finished = None if counter is None else counter.take()
        if finished is not None and ended is not None:  # else a caller left it half played, which is no episode
            reel.arrays["episode_return"][env, ended], reel.arrays["episode_length"][env, ended] = finished
            self._episodes.ended(env)
        return self._is_wanted(env)

    def _stepped(self, reel: Reel, env: int, answer: Any) -> bool:
        """A step of `env` is done; the next episode begins where it ended one."""
        observation, reward, terminated, truncated, info = five_of(answer)
        row = int(self._at[env])
        reel.store(env, row + 1, observation)
        number_kind(reward)
        reel.rewards[env, row] = reward
        if reel.infos:
            record_info(reel, env, row, info)
        self._at[env] = row + 1
        if not has_ended(terminated, truncated):
            return True
        reel.arrays["terminated"][env, row], reel.arrays["truncated"][env, row] = bool(terminated), bool(truncated)
        if truncated and not terminated:
            reel.keep_final(env, row)
        self._forget(env)
        if self._counters[env] is None:
            reel.ended.append((env, row))
            self._episodes.ended(env)
        else:
            self._uncounted[env] = row
        if self._is_wanted(env):
            self._reset(env)
        return False

    def _reset(self, env: int) -> None:
        """Have the next episode of `env` begin at the row at which it stands."""
        row = int(self._at[env])
        seed = self._episodes.begin(env, row)
        self._track.begin(env, row, seed)
        self._tape.begin(env, self._episodes.numbers[env])
        self._open[env] = _Open("reset", self._clock.monotonic())
        self._stepper.reset(env, seed)

    def _is_wanted(self, env: int) -> bool:
        return self._episodes.wanted is None or bool(self._episodes.wanted[env]) or env in self._uncounted

    def _row_of(self, env: int) -> int:
        return int(self._at[env])

    def _gave_nothing(self) -> bool:
        return self._env in self._silent

    def _look(self, now: float) -> None:
        """Raises Mishap when an environment is at one step or reset for longer than the spec allows."""
        if self._stepper.has_deadlines:
            return
        env, oldest = min(self._open.items(), key=lambda item: item[1].since)
        limit_s = self.spec.env.step_timeout if oldest.doing == "step" else self.spec.env.reset_timeout
        if now - oldest.since > limit_s:
            self._env, self._row, self.doing = env, int(self._at[env]), oldest.doing
            raise Mishap("timeout", f"lasts longer than {limit_s:g} s", env=env)

    def _drain(self) -> None:
        """Wait until no environment is stepped."""
        while self._open:
            for env, _ in self._wait(None):
                del self._open[env]
