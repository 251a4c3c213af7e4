"""What every player of a shard is between two batches, however it steps its environments.

It never steps one: `player.py` does so one by one, `vector_player.py` all at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np

from heddle.clock import Clock, SystemClock
from heddle.errors import EnvError
from heddle.layout import Layout, Segments
from heddle.policies.base import Policy
from heddle.producers.bounds import Bounds
from heddle.producers.choices import choices_for
from heddle.producers.closing import close_env
from heddle.producers.contract import BadAnswer, lane_of
from heddle.producers.endless import Endless
from heddle.producers.episodes import Episodes
from heddle.producers.kinds import Spaces
from heddle.producers.masks import Masks
from heddle.producers.memory import copied, fresh_state
from heddle.producers.mishap import PlayError
from heddle.producers.noise import NoiseTape
from heddle.producers.reel import Reel
from heddle.producers.report import Reporter
from heddle.producers.scrutiny import Numbers
from heddle.producers.seeds import EpisodeSeeds
from heddle.producers.standing import Standing, identity_of
from heddle.producers.tally import Tally
from heddle.producers.track import Track
from heddle.producers.vector_track import VectorTrack
from heddle.shard import ShardPlan
from heddle.spec import ExperimentSpec
from heddle.spec.models import MOST_EVAL_STEPS
from heddle.spec.objects import is_users

Doing = Literal["step", "reset", "act"]


class Play(ABC):
    """The environments of one shard between two batches.

    Args:
        plan: which shard.
        spec: names the environment, T, max_seconds and the seed.
        policy: acts; its weights may be changed between two calls of `play`, its outputs must fit `layout`.
        envs: what is snapshotted and closed.
        track: of what they do.
        seed: root of all chance.
        first_episode: number of each environment's first episode; one that no earlier owner reached repeats no seed.

    Attributes:
        doing: what the player waits for right now; None when it does not play.
        standing: where it stands between two calls of `play`, to be taken along or brought back before the first one.
        shared: gives the arrays of the next batch in shared memory; None where it shall have its own.
        beside: it steps environments beside each other, and looks at their deadlines itself.
        pace: how they are stepped and why, in words, where that was not the spec's to say; else "".
    """

    beside = False
    _tape_kind: type[NoiseTape] = NoiseTape

    def __init__(
        self,
        plan: ShardPlan,
        spec: ExperimentSpec,
        policy: Policy,
        layout: Layout,
        *,
        envs: Sequence[Any],
        track: Track | VectorTrack,
        seed: int,
        clock: Clock | None,
        first_episode: int,
    ) -> None:
        self.plan, self.spec, self.policy, self.layout = plan, spec, policy, layout
        self.doing: Doing | None = None
        self._clock = clock or SystemClock()
        self._envs, n = envs, plan.lanes
        self._chance = [EpisodeSeeds(seed, plan.index, env) for env in range(n)]
        self._choose = choices_for(layout.action)
        self._tape = tape = self._tape_kind(policy.noise, self._chance)
        self._tally = tally = Tally(n, layout.steps)
        self._episodes = episodes = Episodes(self._chance, first_episode)
        self._report = Reporter(plan, spec, track, episodes.finished)
        state, of = fresh_state(policy, n, spec), identity_of(plan, spec, seed, n)
        self.standing = Standing(of, layout, self._envs, tally, episodes, tape, state)
        self._fresh_state = fresh_state(policy, 1, spec)
        self._spaces, self._news = Spaces(envs), list[str]()
        self._numbers, self._bounds = Numbers(layout), Bounds(layout)
        self._masks = Masks(layout, [group.name for group in spec.policy.groups])
        self._endless = Endless(plan)
        self._reel: Reel | None = None  # the one being played
        self._spare, self._cut = list[Reel](), False
        self._lent: Reel | None = None  # in shared memory, until it is recycled
        self.shared: Callable[[], Reel | None] = _own
        self.pace = ""
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
        self._report.version = version
        with self._reporting():
            return self._segment(version, deterministic)

    def hear(self) -> list[str]:
        """What people should know of the last segments, told once."""
        news, self._news = self._news, []
        return news

    def prepare(self) -> None:
        """Begin the first episodes, if they have not begun. Raises as `play` does."""
        with self._reporting():
            if not self.standing.now:
                self._begin_all()

    def play_episodes(
        self,
        version: int,
        episodes: int,
        *,
        deterministic: bool = True,
        first_episode: int = 0,
        most_steps: int = MOST_EVAL_STEPS,
    ) -> Iterator[tuple[Segments, bool]]:
        """Play `episodes` fresh episodes, an equal number in every environment, so that long ones count as much.

        The same `first_episode` plays the same seeds again, so that evaluations can be compared. Who ends no episode
        within `most_steps` steps is not waited for, which `hear` tells.

        Yields:
            Segments with only the rows that have steps, and whether they are the last ones, which have some; others
            have none while nobody moves who is wanted. Raises as `play` does, and EnvError where nobody ever moved.
        """
        self._episodes.rewind(first_episode)
        self._episodes.want(episodes)
        self.standing.now = []
        self._endless.begin(most_steps)
        held = None
        while self._episodes.active():
            segments = self.play(version, deterministic=deterministic)
            picked = segments.select(np.flatnonzero(segments.arrays["length"]))
            self.recycle(segments)
            for lane in self._endless.among(self._episodes.active(), picked):
                self._episodes.give_up(lane)
            self._news += [self._report.endless(lane, most_steps) for lane in self._endless.news()]
            over = not self._episodes.active()
            if held is not None and (picked.rows or over):
                yield held, not picked.rows
                held = None
            elif over and not picked.rows:
                raise self._report.nobody_moved(episodes)
            if picked.rows and not over and self._nobody_moves():
                held = picked  # it is the last one, should nobody move any more
            elif picked.rows or not over:
                yield picked, over
        self._episodes.wanted = None
        self.standing.now = []  # whoever plays on begins anew

    def _nobody_moves(self) -> bool:
        """All that are wanted wait for a game of theirs."""
        return False

    def resume(self, snapshot: bytes) -> None:
        """Continue where `standing.pack` left another. Raises SnapshotError."""
        self._report.track.resume(self.standing.resume(snapshot), self._episodes.seeds, self._episodes.begun_at)

    def take_over(self, other: "Play") -> None:
        """Go on where `other`, of the same environments, stands between two segments; it is of no more use."""
        self.standing.take_over(other.standing)
        if self.standing.now:
            self._report.track.resume(b"", self._episodes.seeds, self._episodes.begun_at)
        self._bounds, self._masks = other._bounds, other._masks
        self._episodes.finished |= other._episodes.finished

    def recycle(self, segments: Segments) -> None:
        """Give back what `play` returned, to be overwritten: it has been encoded."""
        if isinstance(segments.owner, Reel):
            if segments.owner is self._lent:
                self._lent = None
            else:
                self._spare.append(segments.owner)
            segments.owner = None

    def cut(self) -> None:
        """From another thread: end the segment that is being played (else the next one) at the next step."""
        self._cut = True

    def close(self) -> None:
        """Close every environment."""
        if self._lent is not None and self._lent.slot is not None:
            self._lent.slot.discard()
        for env in self._envs:
            close_env(env)

    @abstractmethod
    def _begin_all(self) -> None:
        """Fresh episodes everywhere; their first observations stand in `standing.now`."""

    @abstractmethod
    def _segment(self, version: int, deterministic: bool) -> Segments:
        """Play one segment of every environment of which more is wanted."""

    def _opened(self) -> Reel:
        """A reel that begins where the last one ended."""
        reel = self._lent = self.shared()
        if reel is None:
            reel = self._spare.pop() if self._spare else Reel(self.layout, self.plan.lanes, self.plan.agents)
        self._reel = reel
        reel.rewind()
        for (_, array), now in zip(reel.observations, self.standing.now, strict=True):
            array[:, 0] = now
        for name, array in reel.states:
            array[...] = self.standing.state[name]
        return reel

    def _closed(self, reel: Reel, version: int) -> Segments:
        """What `reel` holds once every length is known."""
        self._tally.settle(reel.rewards, reel.lengths, reel.ended, reel.arrays)
        segments = reel.finish(version)
        if problem := self._numbers.first_bad(segments):
            raise self._report.bad_number(problem, reel)
        for problem in [*self._bounds.broken(segments), *self._masks.empty(segments)]:
            told = self._report.bad_number(problem, reel)
            if self.spec.env.bounds == "refuse":
                raise told
            self._news.append(f"{told.problems[0].reason}; {problem.instead}, env.bounds = refuse would fail")
        if (changed := self._spaces.changed()) is not None:
            place, what = changed
            self.doing = "step"
            env = self._env = place if len(self._envs) == len(reel.lengths) else -1
            self._row = max(0, reel.lengths[env] - 1)
            raise BadAnswer(what)
        return segments

    def _forget(self, env: int) -> None:
        """An episode of `env` is over: the policy's state is that of one that begins."""
        if self._fresh_state:
            self.standing.state = copied(self.standing.state)
            for name, fresh in self._fresh_state.items():
                self.standing.state[name][env] = fresh[0]

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """What an environment or policy raises in this block leaves it as a PlayError that says where it was."""
        try:
            yield
        except EnvError:
            raise
        except BaseException as error:
            if self.doing is None or not is_users(error):
                raise
            if (lane := lane_of(error)) is not None:
                self._env, self._row = lane, self._row_of(lane)
            if self.doing == "act" and self._reel is not None:  # what it was shown may be to blame
                rows = [self._row_of(lane) for lane in range(self.plan.lanes)]
                if (lie := self._numbers.bad_shown(self._reel.arrays, rows)) is not None:
                    raise self._report.bad_number(lie, self._reel) from error
            failed = self._report.failed(error, self.doing, self._env, self._row, self._reel)
            failed.stuck_env = failed.failure.env if failed.failure.env >= 0 and self._gave_nothing() else None
            raise failed from error
        finally:
            self.doing = None

    def _row_of(self, env: int) -> int:
        """The row of the segment at which `env` stands."""
        return self._row

    def _gave_nothing(self) -> bool:
        """The environment that is spoken of gave no step yet although others may have."""
        return False

    def hanging(self, what: str, trace: str) -> PlayError:
        """From another thread: what is known of a call that lasts too long, while it lasts."""
        return self._report.hanging(self.doing or "", what, self._env, self._row, self._reel, trace)


def _own() -> None:
    """No memory but the player's own."""
