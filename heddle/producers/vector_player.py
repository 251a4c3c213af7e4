"""The player of vector environments: steps all environments of a shard with one call.

It never yields a transition across episodes, whatever the environment does when an episode ends:

- NEXT_STEP: the call behind an ending resets, and its action and reward mean nothing. That environment does not move
  on in that call: its segment has one step less than the others', and the observation that came stands where the
  ended episode's last one stood. When a segment ends in between, its last row is that true last observation.
- SAME_STEP: the ending call shows the next episode already; the true last observation is in the info.
- DISABLED: whoever ended is reset here, before the next call.

A wrapper of the first two may end an episode with which the environment beneath goes on, as at a lost life. Nothing is
reset then: what the ending call shows is the last observation of one episode and the first one of the next.

Environments that reset themselves are seeded once, when the shard begins. All else is as in `player.py`, which is the
reference this one is tested against.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.clock import Clock
from heddle.layout import Layout, Segments
from heddle.policies.base import Policy
from heddle.producers.action_rows import ActionRows
from heddle.producers.choices import batches_for
from heddle.producers.envs_spaces import demand_same
from heddle.producers.envs_vector import (
    counter_in,
    keep_last_observations,
    lanes_in,
    make_vector,
    mode_of,
    reset_all,
    reset_some,
    takes_seeds,
)
from heddle.producers.memory import copied, fresh_state
from heddle.producers.play import Play
from heddle.producers.reel import Reel, moved_only
from heddle.producers.scrutiny import BadAnswer, check_state, note_info
from heddle.producers.vector_answers import final_of, five_of, flags_of, info_of, rewards_of, store
from heddle.producers.vector_check import spaces_of
from heddle.producers.vector_track import VectorTrack
from heddle.shard import ShardPlan, env_seed, root_seed
from heddle.spec import ExperimentSpec

Indexes = NDArray[np.intp]
Mask = NDArray[np.bool_]
Step = tuple[int, int]
"""An environment and one of its steps."""


class VectorPlayer(Play):
    """A shard whose environments are one object.

    Args:
        vector: made already; by default it is made here, which may take long and raises EnvError.
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
        vector: Any = None,
        clock: Clock | None = None,
        first_episode: int = 0,
        seed: int | None = None,
    ) -> None:
        root = root_seed(plan, spec) if seed is None else seed
        n = plan.lanes
        if vector is None:
            seeds = [env_seed(root, plan.index, env, first_episode) for env in range(n)]
            vector = make_vector(spec.env, first=plan.first_env, num_envs=n, seeds=seeds, groups=spec.policy.agents_of)
            who, name = f"the vector environment of shard {plan.index}", spec.env.id
            demand_same(spaces_of(vector, name), (layout.observation, layout.action), who=who, name=name)
        keep_last_observations(vector)
        self._track = VectorTrack(n, ActionRows(layout.action))
        begin = {"seed": root, "first_episode": first_episode}
        super().__init__(plan, spec, policy, layout, envs=[vector], track=self._track, clock=clock, **begin)
        self._vector, self._mode, self._counter = vector, mode_of(vector, spec.env.id), counter_in(vector)
        self._lanes, self._nobody, self._everyone = lanes_in(vector), np.zeros(n, np.bool_), np.ones(n, np.bool_)
        self._batch = batches_for(layout.action)
        self._all = np.arange(n)
        self._steps = self._all * layout.steps  # where each one's steps begin when all are in one line
        self._rows = self._all * (layout.steps + 1)  # and its observations
        self._at = np.zeros(n, np.intp)  # the row at which each environment stands
        self._all_play = self._some_play = True
        self.standing.own["pending"] = np.zeros(n, np.bool_)  # those that the next call resets
        self._begun_with = [0] * n  # seeds

    def _begin_all(self) -> None:
        n = self.plan.lanes
        reel, self.standing.state = Reel(self.layout, n, self.plan.agents), fresh_state(self.policy, n, self.spec)
        self._env, self.doing = -1, "reset"
        self.standing.own["pending"] = np.zeros(n, np.bool_)
        seeds = [self._episodes.begin(env, 0) for env in range(n)]
        self._begun_with = seeds if takes_seeds(self._vector) else seeds[:1] * n
        observations = reset_all(self._vector, seeds)
        self._moves += 1
        if self._lanes is not None:
            self.standing.own["pending"] = self._lanes.idle.copy()  # who joins a game later begins then
        store(reel, observations, self._all, np.zeros(n, np.intp), n)
        for env in range(n):
            self._tally.clear(env)
            if not self.standing.own["pending"][env]:
                self._track.begin(env, 0, self._begun_with[env])
            self._tape.begin(env, self._episodes.numbers[env])
            if self._counter is not None:
                self._counter.take(env)  # what a caller left half played is no episode
        self.standing.now = [array[:, 0].copy() for _, array in reel.observations]
        self._spare.append(reel)

    def _segment(self, version: int, deterministic: bool) -> Segments:
        reel = self._opened()
        self._at = np.zeros(self.plan.lanes, np.intp)
        playing = np.zeros(self.plan.lanes, np.bool_)
        self._mark(playing)
        self._roll(reel, playing, deterministic)
        self.doing = None
        at = self._at
        reel.lengths = at.tolist()
        self.standing.now = [array[self._all, at] for _, array in reel.observations]
        self.standing.state = copied(self.standing.state)
        segments = self._closed(reel, version)
        self._episodes.shift(reel.lengths)
        self._track.shift(reel.lengths)
        return moved_only(segments)

    def _mark(self, playing: Mask) -> None:
        """Those of whom more is wanted."""
        active = self._episodes.active()
        playing[:] = False
        playing[active] = True
        self._all_play, self._some_play = len(active) == len(playing), bool(active)

    def _roll(self, reel: Reel, playing: Mask, deterministic: bool) -> None:
        """The loop that all the time goes into. Fills `reel` and moves `_at`."""
        limit, clock, tape = self.spec.rollout.max_seconds, self._clock, self._tape
        deadline = None if limit is None else clock.monotonic() + limit
        noise = tape.silence if tape.is_silent or (deterministic and not tape.always) else None
        call = 0
        while self._some_play:
            choices = self._act(reel, call, tape.take() if noise is None else noise, deterministic)
            self._env, self.doing = -1, "step"
            answer = self._vector.step(choices)
            self._moves += 1
            self._take(reel, answer, playing)
            call += 1
            is_late = self._cut or (deadline is not None and clock.monotonic() >= deadline)
            is_over = call >= self.layout.steps or is_late
            if is_over and (self._at.any() or self._nobody_moves()):  # a call may have reset them all
                break
        self._cut = False

    def _nobody_moves(self) -> bool:
        active = self._episodes.active()
        return self._lanes is not None and bool(active) and bool(self.standing.own["pending"][active].all())

    def _act(self, reel: Reel, call: int, noise: NDArray[Any], deterministic: bool) -> Any:
        """Ask the policy and record its answer; the actions as the environment takes them."""
        self._row, self.doing = call, "act"
        at = self._at
        if at[0] == at[-1] and np.logical_and.reduce(at == at[0]):
            where: Any = (slice(None), int(at[0]))
            seen = {name: array[where] for name, array in reel.observations}
        else:
            where = self._steps + at
            shown = self._rows + at
            seen = {name: flat.take(shown, axis=0) for name, flat in reel.flat_observations}
        acted = self.policy.act(seen, self.standing.state, noise, deterministic=deterministic)
        self._moves += 1
        if call == 0:
            check_state(acted, self._fresh_state, len(reel.lengths))
        reel.record(where, acted)
        self.standing.state = acted.state
        return self._batch(acted.actions)

    def _take(self, reel: Reel, answer: Any, playing: Mask) -> None:
        """Write down what one call gave, and begin episodes where others ended."""
        n, pending = self.plan.lanes, self.standing.own["pending"]
        idle = self._nobody if self._lanes is None else self._lanes.idle  # out, while others of their game go on
        observations, given, first, second, info = five_of(answer)
        rewards = rewards_of(given, n)
        terminated, truncated = flags_of(first, n, "terminated"), flags_of(second, n, "truncated")
        over = terminated | truncated
        some_over, some_pending = np.count_nonzero(over) > 0, np.count_nonzero(pending) > 0
        if some_over and some_pending:
            self._demand_apart(over, pending)
        moved, moving = self._everyone, self._all
        if some_pending or self._lanes is not None or not self._all_play:
            moved = playing & ~pending & ~idle
            moving = moved.nonzero()[0]
        self._write_rewards(reel, rewards, moving)
        at = self._at + moved
        envs = self._all if self._all_play else playing.nonzero()[0]
        store(reel, observations, envs, at if self._all_play else at[envs], n)
        resets = over if self._counter is None else over & self._counter.over
        if reel.infos:
            self._note_infos(reel, info, moving, resets)
        self._at = at
        if some_pending:
            self._begin_each(reel, (pending & ~idle & playing).nonzero()[0])
        if self._mode == "NextStep":
            self.standing.own["pending"] = resets if self._lanes is None else resets | (pending & idle)
        if some_over:
            ended = (over & playing).nonzero()[0]
            steps = list(zip(ended.tolist(), (at[ended] - 1).tolist(), strict=True))
            self._end_each(reel, steps, terminated, truncated, (info, resets))
            if self._mode == "Disabled":
                self._reset(reel, over, playing)  # which tells a counter beneath a wrapper that cut the episode off
            self._count_each(reel, steps)
            self._begin_each(reel, (over & playing & ~self.standing.own["pending"]).nonzero()[0])
        if self._lanes is not None:  # what it was not there for counts as well
            self._episodes.all_ended(np.flatnonzero(self._lanes.missed & playing).tolist())
        if self._episodes.one_is_done:
            self._episodes.one_is_done = False
            self._mark(playing)

    def _demand_apart(self, over: Mask, pending: Mask) -> None:
        if (over & pending).any():
            self._env = int(np.flatnonzero(over & pending)[0])
            self._row = int(self._at[self._env])
            raise BadAnswer("ended in the very step that resets it")

    def _write_rewards(self, reel: Reel, rewards: NDArray[np.float64], moving: Indexes) -> None:
        where = self._steps + self._at
        if moving is self._all:
            reel.flat_rewards[where] = rewards
        else:
            reel.flat_rewards[where[moving]] = rewards[moving]

    def _row_of(self, env: int) -> int:
        return int(self._at[env])

    def _note_infos(self, reel: Reel, info: Mapping[str, Any], moving: Indexes, resets: Mask) -> None:
        for env in moving.tolist():
            self._env, self._row = env, int(self._at[env])
            own = info_of(info, env, ended=bool(resets[env]) and self._mode == "SameStep")
            for key, array in reel.infos:
                note_info(array, (env, int(self._at[env])), key, own)

    def _end_each(
        self, reel: Reel, ended: list[Step], terminated: Mask, truncated: Mask, told: tuple[Mapping[str, Any], Mask]
    ) -> None:
        """These steps ended their episodes: note it; `told`: infos, and who is reset."""
        arrays, (info, resets) = reel.arrays, told
        for env, step in ended:  # of one or two at a time, which is usual, arrays of indexes cost five times as much
            arrays["terminated"][env, step] = is_end = terminated[env]
            arrays["truncated"][env, step] = is_cut = truncated[env]
            if is_cut and not is_end:
                self._env, self._row = env, step
                is_gone = self._mode == "SameStep" and resets[env]
                reel.keep_final(env, step, final_of(info, env, self.layout.observation_leaves) if is_gone else None)

    def _count_each(self, reel: Reel, ended: list[Step]) -> None:
        """Return and length of the episodes that these steps ended."""
        if self._counter is None:
            reel.ended += ended
            self._episodes.all_ended([env for env, _ in ended])
            return
        for env, step in ended:
            if (finished := self._counter.take(env)) is not None:
                reel.arrays["episode_return"][env, step], reel.arrays["episode_length"][env, step] = finished
                self._episodes.ended(env)

    def _reset(self, reel: Reel, over: Mask, playing: Mask) -> None:
        """Begin anew wherever an episode ended, in an environment that never does so by itself."""
        self._env, self.doing = -1, "reset"
        numbers = self._episodes.numbers
        seeds = [chance.reset_seed(number + 1) for chance, number in zip(self._chance, numbers, strict=True)]
        observations = reset_some(self._vector, over, seeds)
        self._moves += 1
        if takes_seeds(self._vector):
            self._begun_with = [seed if over[env] else self._begun_with[env] for env, seed in enumerate(seeds)]
        again = np.flatnonzero(over & playing)
        store(reel, observations, again, self._at[again], self.plan.lanes)

    def _begin_each(self, reel: Reel, envs: Indexes) -> None:
        """The next episode of `envs` begins at the rows at which they stand."""
        episodes, seeds = self._episodes, self._begun_with
        for env, row in zip(envs.tolist(), self._at[envs].tolist(), strict=True):
            episodes.begin(env, row)
            self._track.begin(env, row, seeds[env])
            self._tape.begin(env, episodes.numbers[env])
            if self._fresh_state:
                self._forget(env)
                if row == 0:  # the segment had been opened with the memory of the episode before
                    for name, array in reel.states:
                        array[env] = self._fresh_state[name][0]
