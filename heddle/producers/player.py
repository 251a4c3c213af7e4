"""The player: steps the environments of one shard, one by one, with a policy and records what happens as segments.

It never knows a broker, and it never yields a transition across episodes: the row behind an ending is the first
observation of the next episode, and the true last observation of a truncated episode is kept apart.

All chance comes from (seed, shard, environment, episode), so a shard's stream is the same whoever plays it and however
it is cut into segments.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.clock import Clock
from heddle.layout import Layout, Segments
from heddle.policies.base import Policy
from heddle.producers.action_rows import ActionRows
from heddle.producers.envs import counter_of, make_envs
from heddle.producers.kinds import array_kind, has_ended, number_kind
from heddle.producers.memory import copied, fresh_state
from heddle.producers.play import Play
from heddle.producers.reel import Reel
from heddle.producers.scrutiny import BadAnswer, check_state, record_info
from heddle.producers.track import Track
from heddle.shard import ShardPlan, root_seed
from heddle.spec import ExperimentSpec

Step = Callable[[Any], Any]
_Lane = tuple[int, Step, NDArray[Any], Any]  # env, step, rows for obs, for rewards


class Player(Play):
    """A shard whose environments are stepped one by one.

    Args:
        envs: made already; by default they are made here, which may take long and raises EnvError.
        seed: root of all chance; by default the experiment's, or the evaluation's for an evaluation shard.
        plan, spec, policy, layout, clock, first_episode: as of `Play`.
    """

    def __init__(
        self,
        plan: ShardPlan,
        spec: ExperimentSpec,
        policy: Policy,
        layout: Layout,
        *,
        envs: Sequence[Any] | None = None,
        clock: Clock | None = None,
        first_episode: int = 0,
        seed: int | None = None,
    ) -> None:
        root = root_seed(plan, spec) if seed is None else seed
        made = make_envs(plan, spec, root, layout=layout, clock=clock) if envs is None else envs
        self._track = track = Track(len(made), ActionRows(layout.action))
        begin = {"seed": root, "first_episode": first_episode}
        super().__init__(plan, spec, policy, layout, envs=made, track=track, clock=clock, **begin)
        self._ahead = getattr(made, "begin", None)  # those in a child are stepped all in one request
        self._steps: list[Step] = [env.step for env in made]
        self._is_timed = False
        self._counters = [counter_of(env) for env in made]
        self._dtype: Any = None
        self._number: Any = None  # of the last answers, so that others like them need no look

    def time_steps(self, around: Callable[[Step], Step] | None) -> None:
        """Between two segments: put `around` each environment's step from now on, once; None: nothing any more."""
        if self._is_timed != (around is not None):
            self._is_timed, plain = around is not None, [env.step for env in self._envs]
            self._steps = plain if around is None else [around(step) for step in plain]

    def _begin_all(self) -> None:
        """Fresh episodes everywhere; their first observations stand in `_now`."""
        n = len(self._envs)
        reel, self.standing.state = Reel(self.layout, n), fresh_state(self.policy, n, self.spec)
        for env in range(n):
            self._tally.clear(env)
            self._begin(env, reel, 0)
            if (counter := self._counters[env]) is not None:
                counter.take()  # what a caller left half played is no episode
        self.standing.now = [array[:, 0].copy() for _, array in reel.observations]
        self._spare.append(reel)

    def _begin(self, env: int, reel: Reel, row: int) -> None:
        """Start the next episode of `env`; its first observation becomes row `row`."""
        seed = self._episodes.begin(env, row)
        self._env, self.doing = env, "reset"
        self._track.begin(env, row, seed)
        answer = self._envs[env].reset(seed=seed)
        self._moves += 1
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise BadAnswer(f"reset returned a {type(answer).__name__}, expected (observation, info)")
        reel.store(env, row, answer[0])
        self._tape.begin(env, self._episodes.numbers[env])

    def _segment(self, version: int, deterministic: bool) -> Segments:
        reel = self._opened()
        active = self._episodes.active()
        reel.lengths = [0] * len(self._envs)
        for env in set(range(len(self._envs))).difference(active):
            reel.hold(env, 0)
        try:
            steps = self._roll(reel, active, deterministic)
        except (ValueError, TypeError) as error:
            trace = error.__traceback__
            if trace is None or trace.tb_next is None or trace.tb_next.tb_next is not None:
                raise
            wanted = "(observation, reward, terminated, truncated, info)"  # else the loop could not even take it apart
            raise BadAnswer(f"step returned no {wanted}: {error}") from error
        self.doing = None
        self.standing.now = [array[:, steps].copy() for _, array in reel.observations]
        self.standing.state = copied(self.standing.state)
        self._episodes.shift([steps] * len(self._envs))
        segments = self._closed(reel, version)
        self._track.keep(reel.arrays, steps)
        return segments

    def _roll(self, reel: Reel, active: list[int], deterministic: bool) -> int:
        """The loop that all the time goes into. Fills `reel`, returns how many steps were played."""
        tape, episodes, shape, ndarray = self._tape, self._episodes, reel.plain_shape, np.ndarray
        dtype, number, has_infos = self._dtype, self._number, bool(reel.infos)
        limit = self.spec.rollout.max_seconds
        deadline = None if limit is None else self._clock.monotonic() + limit
        lanes = [(env, self._steps[env], reel.parts[env][0][1], reel.reward_rows[env]) for env in active]
        noise = tape.silence if tape.is_silent or (deterministic and not tape.always) else None
        for t in range(self.layout.steps):
            choices = self._act(reel, t, tape.take() if noise is None else noise, deterministic)
            self.doing = "step"
            for env, step, rows, rewards in lanes:
                self._env = env
                observation, reward, terminated, truncated, info = step(choices[env])
                if shape is None:
                    reel.store(env, t + 1, observation)
                elif type(observation) is ndarray and observation.dtype is dtype and observation.shape == shape:
                    rows[t + 1] = observation
                else:
                    self._dtype = dtype = array_kind(observation, shape, rows.dtype, "the observation")
                    rows[t + 1] = observation
                if type(reward) is not number:
                    self._number = number = number_kind(reward)
                rewards[t] = reward
                if type(info) is not dict or has_infos:
                    record_info(reel, env, t, info)
                if (terminated is not False or truncated is not False) and has_ended(terminated, truncated):
                    self._end(reel, env, t, bool(terminated), bool(truncated))
                    self.doing = "step"
            if episodes.one_is_done:
                lanes = self._retire(reel, lanes, t)
            if self._cut or not lanes or (deadline is not None and self._clock.monotonic() >= deadline):
                self._cut = False
                break
        self._all_are_at(reel, lanes, t + 1)
        return t + 1

    def _all_are_at(self, reel: Reel, lanes: list[_Lane], steps: int) -> None:
        for lane in lanes:
            reel.lengths[lane[0]] = steps

    def _act(self, reel: Reel, t: int, noise: NDArray[Any], deterministic: bool) -> Sequence[Any]:
        """Ask the policy for step `t` and record its answer; what to give to each environment."""
        self._row, self.doing = t, "act"
        seen = {name: array[:, t] for name, array in reel.observations}
        acted = self.policy.act(seen, self.standing.state, noise, deterministic=deterministic)
        self._moves += 1
        if t == 0:
            check_state(acted, self._fresh_state, len(reel.lengths))
        reel.record((slice(None), t), acted)
        self.standing.state = acted.state
        choices = self._choose(acted.actions)
        if self._ahead is not None:
            self.standing.state = copied(acted.state)  # another shard may use the policy before the answer comes
            self._ahead(choices, self._episodes.active())
        return choices

    def _end(self, reel: Reel, env: int, t: int, terminated: bool, truncated: bool) -> None:
        """Step `t` ended an episode of `env`: note it and start the next one, unless no more are wanted."""
        arrays, counter = reel.arrays, self._counters[env]
        arrays["terminated"][env, t], arrays["truncated"][env, t] = terminated, truncated
        if truncated and not terminated:
            reel.keep_final(env, t)
        self._begin(env, reel, t + 1)
        finished = None if counter is None else counter.take()
        if counter is None:
            reel.ended.append((env, t))
        elif finished is not None:
            arrays["episode_return"][env, t], arrays["episode_length"][env, t] = finished
        if counter is None or finished is not None:
            self._episodes.ended(env)
        self._forget(env)

    def _retire(self, reel: Reel, lanes: list[_Lane], t: int) -> list[_Lane]:
        """The lanes that play on; the others' segments end with step `t`."""
        self._episodes.one_is_done, active = False, self._episodes.active()
        for lane in lanes:
            if lane[0] not in active:
                reel.lengths[lane[0]] = t + 1
                reel.hold(lane[0], t + 1)
        return [lane for lane in lanes if lane[0] in active]
