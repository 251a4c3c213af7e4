"""The player: steps the environments of one shard with a policy and records what happens as segments.

It never knows a broker, and it never yields a transition across episodes: the row behind an ending is the first
observation of the next episode, and the true last observation of a truncated episode is kept apart.

All chance comes from (seed, shard, environment, episode), so a shard's stream is the same whoever plays it and however
it is cut into segments.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heddle.clock import Clock, SystemClock
from heddle.errors import EnvError
from heddle.layout import Layout, Segments
from heddle.policies.base import Arrays, Policy
from heddle.producers.action_rows import ActionRows
from heddle.producers.choices import choices_for
from heddle.producers.envs import close_env, counter_of, make_envs
from heddle.producers.episodes import Episodes
from heddle.producers.mishap import PlayError
from heddle.producers.noise import NoiseTape
from heddle.producers.reel import Reel
from heddle.producers.report import Reporter
from heddle.producers.scrutiny import BadAnswer, check_answer, first_bad_number, record_info
from heddle.producers.seeds import EpisodeSeeds
from heddle.producers.standing import Standing, identity_of
from heddle.producers.tally import Tally
from heddle.producers.track import Track
from heddle.shard import ShardPlan, root_seed
from heddle.spec import ExperimentSpec

Doing = Literal["step", "reset", "act"]

_Lane = tuple[int, Callable[[Any], Any], NDArray[Any], NDArray[np.float64]]  # env, step, rows for obs, for rewards


class Player:
    """The environments of one shard between two batches.

    Args:
        plan: which shard.
        spec: names the environment, T, max_seconds and the seed.
        policy: acts; its weights may be changed between two calls of `play`, its outputs must fit `layout`.
        envs: made already; by default they are made here, which may take long and raises EnvError.
        first_episode: number of each environment's first episode; one that no earlier owner reached repeats no seed.
        seed: root of all chance; by default the experiment's, or the evaluation's for an evaluation shard.

    Attributes:
        doing: what the player waits for right now; None when it does not play.
        standing: where it stands between two calls of `play`, to be taken along or brought back before the first one.
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
        self.plan, self.spec, self.policy, self.layout = plan, spec, policy, layout
        self.doing: Doing | None = None
        self._clock = clock or SystemClock()
        root = root_seed(plan, spec) if seed is None else seed
        self._envs = make_envs(plan, spec, root, layout=layout, clock=self._clock) if envs is None else envs
        self._ahead = getattr(self._envs, "begin", None)  # those in a child are stepped all in one request
        n = len(self._envs)
        chance = [EpisodeSeeds(root, plan.index, env) for env in range(n)]
        self._steps = [env.step for env in self._envs]
        self._counters = [counter_of(env) for env in self._envs]
        self._choose = choices_for(layout.action)
        self._report = Reporter(plan, spec, Track(n, ActionRows(layout.action)))
        self._tape = tape = NoiseTape(policy.noise, chance)
        self._tally = tally = Tally(n, layout.steps)
        self._episodes = episodes = Episodes(chance, first_episode)
        state, of = policy.initial_state(n), identity_of(plan, spec, root, n)
        self.standing = Standing(of, layout, self._envs, tally, episodes, tape, state)
        self._fresh_state = policy.initial_state(1)
        self._reel: Reel | None = None  # the one being played
        self._spare, self._cut = list[Reel](), False
        self._env = self._row = 0  # where the loop is, for the watchdog and for reports
        self._moves, self._seen, self._seen_at = 0, (-1, -1, -1), self._clock.monotonic()

    @property
    def last_progress(self) -> float:
        """Monotonic seconds when the loop was last seen to move; only polling makes it precise."""
        where = (self._moves, self._row, self._env)
        if where != self._seen or self.doing is None:
            self._seen, self._seen_at = where, self._clock.monotonic()
        return self._seen_at

    def play(self, version: int, *, deterministic: bool = False) -> Segments:
        """One segment of every environment: T steps, or fewer after `rollout.max_seconds` or `cut`.

        The arrays are the player's own until `recycle` gives them back; without it the next call takes new ones.

        Raises:
            PlayError: environment or policy raised or broke its contract; the player is then of no more use.
        """
        self.prepare()
        with self._reporting():
            return self._segment(version, deterministic)

    def prepare(self) -> None:
        """Begin the first episodes, if they have not begun. Raises as `play` does."""
        with self._reporting():
            if not self.standing.now:
                self._begin_all()

    def play_episodes(
        self, version: int, episodes: int, *, deterministic: bool = True, first_episode: int = 0
    ) -> Iterator[tuple[Segments, bool]]:
        """Play `episodes` fresh episodes, an equal number in every environment, so that long ones count as much.

        The same `first_episode` plays the same seeds again, so that evaluations can be compared.

        Yields:
            Segments with only the rows that have steps, and whether they are the last ones. Raises as `play` does.
        """
        self._episodes.rewind(first_episode)
        self._episodes.want(episodes)
        self.standing.now = []
        while self._episodes.active():
            segments = self.play(version, deterministic=deterministic)
            picked = segments.select(np.flatnonzero(segments.arrays["length"]))
            self.recycle(segments)
            yield picked, not self._episodes.active()
        self._episodes.wanted = None
        self.standing.now = []  # whoever plays on begins anew

    def resume(self, snapshot: bytes) -> None:
        """Continue where `standing.pack` left another. Raises SnapshotError."""
        self._report.track.resume(self.standing.resume(snapshot), self._episodes.seeds, self._episodes.begun_at)

    def recycle(self, segments: Segments) -> None:
        """Give back what `play` returned, to be overwritten: it has been encoded."""
        if isinstance(segments.owner, Reel):
            self._spare.append(segments.owner)
            segments.owner = None

    def cut(self) -> None:
        """From another thread: end the segment that is being played (else the next one) at the next step."""
        self._cut = True

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            close_env(env)

    def _begin_all(self) -> None:
        """Fresh episodes everywhere; their first observations stand in `_now`."""
        n = len(self._envs)
        reel, self.standing.state = Reel(self.layout, n), self.policy.initial_state(n)
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
        self._report.track.begin(env, row, seed)
        answer = self._envs[env].reset(seed=seed)
        self._moves += 1
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise BadAnswer(f"reset returned a {type(answer).__name__}, expected (observation, info)")
        reel.store(env, row, answer[0])
        self._tape.begin(env, self._episodes.numbers[env])

    def _segment(self, version: int, deterministic: bool) -> Segments:
        reel = self._reel = self._spare.pop() if self._spare else Reel(self.layout, len(self._envs))
        reel.rewind()
        for (_, array), now in zip(reel.observations, self.standing.now, strict=True):
            array[:, 0] = now
        for name, array in reel.states:
            array[...] = self.standing.state[name]
        active = self._episodes.active()
        for env in set(range(len(self._envs))).difference(active):
            reel.hold(env, 0)
        steps = self._roll(reel, active, deterministic)
        self.doing = None
        self.standing.now = [array[:, steps].copy() for _, array in reel.observations]
        self.standing.state = _copied(self.standing.state)
        self._episodes.shift(steps)
        self._tally.settle(reel.rewards, reel.lengths, reel.ended, reel.arrays)
        segments = reel.finish(version)
        if problem := first_bad_number(segments):
            raise self._report.bad_number(problem, reel)
        self._report.track.keep(reel.arrays, steps)
        return segments

    def _roll(self, reel: Reel, active: list[int], deterministic: bool) -> int:
        """The loop that all the time goes into. Fills `reel`, returns how many steps were played."""
        tape, clock = self._tape, self._clock
        limit = self.spec.rollout.max_seconds
        deadline = None if limit is None else clock.monotonic() + limit
        shape, infos = reel.plain_shape, reel.infos
        lanes = [(env, self._steps[env], reel.parts[env][0][1], reel.rewards[env]) for env in active]
        reel.lengths = [0] * len(self._envs)
        noise = tape.silence if deterministic or tape.is_silent else None
        for t in range(self.layout.steps):
            choices = self._act(reel, t, tape.take() if noise is None else noise, deterministic)
            self.doing = "step"
            for env, step, rows, rewards in lanes:
                self._env = env
                observation, reward, terminated, truncated, info = step(choices[env])
                if shape is None:
                    reel.store(env, t + 1, observation)
                elif observation.shape == shape:
                    rows[t + 1] = observation
                else:
                    raise BadAnswer(f"the observation has shape {observation.shape}, its space {shape}")
                rewards[t] = reward
                if infos:
                    record_info(reel, env, t, info)
                if terminated or truncated:
                    self._end(reel, env, t, bool(terminated), bool(truncated))
                    self.doing = "step"
            if self._episodes.one_is_done:
                lanes = self._retire(reel, lanes, t)
            if self._cut or not lanes or (deadline is not None and clock.monotonic() >= deadline):
                self._cut = False
                break
        for lane in lanes:
            reel.lengths[lane[0]] = t + 1
        return t + 1

    def _act(self, reel: Reel, t: int, noise: NDArray[Any], deterministic: bool) -> Sequence[Any]:
        """Ask the policy for step `t` and record its answer; what to give to each environment."""
        self._row, self.doing = t, "act"
        seen = {name: array[:, t] for name, array in reel.observations}
        acted = self.policy.act(seen, self.standing.state, noise, deterministic=deterministic)
        self._moves += 1
        if t == 0:
            check_answer(reel, acted, self._fresh_state)
        reel.record(t, acted)
        self.standing.state = acted.state
        choices = self._choose(acted.actions)
        if self._ahead is not None:
            self.standing.state = _copied(acted.state)  # another shard may use the policy before the answer comes
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
        if self._fresh_state:
            self.standing.state = _copied(self.standing.state)
            for name, fresh in self._fresh_state.items():
                self.standing.state[name][env] = fresh[0]

    def _retire(self, reel: Reel, lanes: list[_Lane], t: int) -> list[_Lane]:
        """The lanes that play on; the others' segments end with step `t`."""
        self._episodes.one_is_done, active = False, self._episodes.active()
        for lane in lanes:
            if lane[0] not in active:
                reel.lengths[lane[0]] = t + 1
                reel.hold(lane[0], t + 1)
        return [lane for lane in lanes if lane[0] in active]

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """What an environment or policy raises in this block leaves it as a PlayError that says where it was."""
        try:
            yield
        except EnvError:
            raise
        except (Exception, SystemExit) as error:
            if self.doing is None:
                raise
            raise self._report.failed(error, self.doing, self._env, self._row, self._reel) from error
        finally:
            self.doing = None

    def hanging(self, what: str, trace: str) -> PlayError:
        """From another thread: what is known of a call that lasts too long, while it lasts."""
        return self._report.hanging(self.doing or "", what, self._env, self._row, self._reel, trace)


def _copied(state: Arrays) -> Arrays:
    return {name: np.array(array) for name, array in state.items()}
