"""Episodes: which one each environment of a shard is in, its seed, and how many more are wanted.

It never touches an environment.
"""

from collections.abc import Sequence

from heddle.producers.seeds import EpisodeSeeds


class Episodes:
    """The running episode of each environment.

    Args:
        chance: the seeds of each environment.
        first: number of the first episode.

    Attributes:
        numbers: of the running episodes; first - 1 before the first one.
        begun_at: step of the running segment in which the running episode began; negative: in an earlier one.
        seeds: that the running episodes were reset with.
        wanted: episodes each environment has yet to end; None: it plays on for ever.
        one_is_done: since this was last set to False some environment has ended all that is wanted.
        finished: environments that have ended an episode.
    """

    def __init__(self, chance: Sequence[EpisodeSeeds], first: int) -> None:
        self._chance = chance
        self.begun_at = [0] * len(chance)
        self.seeds = [0] * len(chance)
        self.wanted: list[int] | None = None
        self.one_is_done = False
        self.finished: set[int] = set()
        self.rewind(first)

    def rewind(self, first: int) -> None:
        """The next episode of every environment is number `first`."""
        self.numbers = [first - 1] * len(self._chance)

    def resume(self, numbers: Sequence[int], begun_at: Sequence[int]) -> None:
        """These episodes are running."""
        self.numbers, self.begun_at = list(numbers), list(begun_at)
        self.seeds = [chance.reset_seed(number) for chance, number in zip(self._chance, numbers, strict=True)]

    def want(self, episodes: int) -> None:
        """From now on only `episodes` more, shared out equally."""
        n = len(self._chance)
        self.wanted = [episodes // n + (env < episodes % n) for env in range(n)]

    def begin(self, env: int, row: int) -> int:
        """The next episode of `env` begins at step `row` of the running segment: the seed to reset with."""
        self.numbers[env] += 1
        self.begun_at[env] = row
        self.seeds[env] = self._chance[env].reset_seed(self.numbers[env])
        return self.seeds[env]

    def ended(self, env: int) -> None:
        """One episode of `env` counts as played."""
        self.finished.add(env)
        if self.wanted is not None:
            self.wanted[env] = max(0, self.wanted[env] - 1)
            self.one_is_done |= not self.wanted[env]

    def all_ended(self, envs: Sequence[int]) -> None:
        """As `ended`, one of each."""
        if self.wanted is None:
            self.finished.update(envs)
        else:
            for env in envs:
                self.ended(env)

    def give_up(self, env: int) -> None:
        """No more of it is wanted."""
        if self.wanted is not None:
            self.wanted[env] = 0

    def active(self) -> list[int]:
        """Environments of which more is wanted."""
        return [env for env in range(len(self._chance)) if self.wanted is None or self.wanted[env]]

    def shift(self, steps: Sequence[int]) -> None:
        """A segment is over, of so many steps for each environment."""
        self.begun_at = [begun - played for begun, played in zip(self.begun_at, steps, strict=True)]
