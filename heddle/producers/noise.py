"""Action noise on a tape: every episode of every environment has its own generator, read in blocks.

It never depends on when a segment starts or ends, so an episode's noise is the same however it is cut.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.policies.base import Noise
from heddle.producers.seeds import EpisodeSeeds

_BLOCK = 128
"""Steps drawn at once: drawing costs microseconds a call and nanoseconds a number."""


class NoiseTape:
    """Noise of the environments of one shard.

    Args:
        noise: what the policy wants.
        seeds: of each environment.

    Attributes:
        silence: [n, size] zeros, for who looks at no noise.
        is_silent: the policy wants none.
        always: it wants them for its likeliest actions, too.
    """

    def __init__(self, noise: Noise, seeds: Sequence[EpisodeSeeds]) -> None:
        self._noise, self._seeds, n = noise, seeds, len(seeds)
        # float32 would round the largest uniform numbers up to 1, which the interval excludes
        self._tape: NDArray[Any] = np.zeros((_BLOCK, n, noise.size), np.float64)
        self._place = 0
        self._wrapped = 0  # steps taken before the block that the tape holds
        self._begun = [0] * n  # steps taken when the running episode began
        self._generators: list[np.random.Generator | None] = [None] * n
        self.silence: NDArray[Any] = np.zeros((n, noise.size), np.float64)
        self.always = noise.always
        self.is_silent = noise.kind == "none" or noise.size == 0

    def begin(self, env: int, episode: int) -> None:
        """From the next `take` on, environment `env` reads the noise of `episode`."""
        if not self.is_silent:
            self._generators[env] = self._seeds[env].noise_generator(episode)
            self._begun[env] = self._wrapped + self._place
            self._fill(env)

    def take(self) -> NDArray[Any]:
        """The next step's noise, [n, size]; valid until the tape wraps, so use it at once."""
        if self._place == _BLOCK:
            self._place, self._wrapped = 0, self._wrapped + _BLOCK
            for env in range(len(self._generators)):
                self._fill(env)
        self._place += 1
        row: NDArray[Any] = self._tape[self._place - 1]
        return row

    def taken(self) -> list[int]:
        """How many steps' noise the running episode of each environment has had."""
        return [self._wrapped + self._place - begun for begun in self._begun]

    def resume(self, episodes: Sequence[int], taken: Sequence[int]) -> None:
        """Stand where a tape stood that said `taken` in these episodes."""
        self._place = self._wrapped = 0
        for env, (episode, steps) in enumerate(zip(episodes, taken, strict=True)):
            self._begun[env] = -steps
            if self.is_silent:
                continue
            generator = self._generators[env] = self._seeds[env].noise_generator(episode)
            for begin in range(0, steps, _BLOCK):
                self._draw(generator, min(_BLOCK, steps - begin))
            self._fill(env)

    def _fill(self, env: int) -> None:
        generator = self._generators[env]
        if generator is not None:
            self._tape[self._place :, env] = self._draw(generator, _BLOCK - self._place)

    def _draw(self, generator: np.random.Generator, steps: int) -> NDArray[Any]:
        shape = (steps, self._noise.size)
        return generator.random(shape) if self._noise.kind == "uniform" else generator.standard_normal(shape)


class PacedTape(NoiseTape):
    """Noise of environments that go each at its own pace; the numbers are those of `NoiseTape`.

    Args:
        noise, seeds: as of `NoiseTape`.
    """

    def __init__(self, noise: Noise, seeds: Sequence[EpisodeSeeds]) -> None:
        super().__init__(noise, seeds)
        n = len(seeds)
        self._blocks: NDArray[Any] = np.zeros((n, _BLOCK, noise.size), np.float64)
        self._places: NDArray[np.intp] = np.zeros(n, np.intp)
        self._steps: NDArray[np.int64] = np.zeros(n, np.int64)  # that the running episode has had

    def begin(self, env: int, episode: int) -> None:
        self._steps[env] = 0
        if not self.is_silent:
            self._generators[env] = self._seeds[env].noise_generator(episode)
            self._refill(env)

    def take_for(self, envs: NDArray[np.intp]) -> NDArray[Any]:
        """The next step's noise of `envs`, [k, size]."""
        self._steps[envs] += 1
        if self.is_silent:
            return self.silence[envs]
        for env in envs[self._places[envs] == _BLOCK].tolist():
            self._refill(env)
        noise: NDArray[Any] = self._blocks[envs, self._places[envs]]
        self._places[envs] += 1
        return noise

    def taken(self) -> list[int]:
        return [int(steps) for steps in self._steps]

    def resume(self, episodes: Sequence[int], taken: Sequence[int]) -> None:
        self._steps[:] = taken
        if self.is_silent:
            return
        for env, (episode, steps) in enumerate(zip(episodes, taken, strict=True)):
            generator = self._generators[env] = self._seeds[env].noise_generator(episode)
            for begin in range(0, steps, _BLOCK):
                self._draw(generator, min(_BLOCK, steps - begin))
            self._refill(env)

    def _refill(self, env: int) -> None:
        generator = self._generators[env]
        assert generator is not None
        self._blocks[env] = self._draw(generator, _BLOCK)
        self._places[env] = 0
