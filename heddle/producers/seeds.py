"""Seeds of many episodes at once: the numbers of `shard.env_seed` and `shard.noise_generator`, 64 for the price of two.

It never makes a stream of its own: a test holds every number against `heddle.shard`.

Short episodes would spend a tenth of their time in making seed sequences one by one. The mixing is that of numpy's
SeedSequence (NEP 19; M. O'Neill 2015, "Developing a seed_seq alternative"): numpy itself mixes all but the episode's
two words, and the rest is done here for a block of episodes in one go.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

FIRST, MOST = 16, 256
"""Episodes whose seeds are worked out at once: more and more the more of them an environment ends."""

_INIT_A, _MULT_A = 0x43B0D7E5, 0x931E8875
_INIT_B, _MULT_B = 0x8B51F9DD, 0x58F38DED
_MIX_L, _MIX_R = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_SHIFT, _POOL = np.uint32(16), 4
_RESET_STREAM, _NOISE_STREAM = 0, 1
_PCG_WORDS = 8  # PCG64 asks for four words of 64 bits
_PCG_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_MASK_128 = 2**128 - 1

Words = NDArray[np.uint32]


class EpisodeSeeds:
    """The seeds of one environment, episode by episode.

    Args:
        seed: of the experiment, or of the evaluation.
        shard, env: index of the shard, and of the environment within it.
    """

    def __init__(self, seed: int, shard: int, env: int) -> None:
        self._mixers = [_Mixer(seed, (stream, shard, env)) for stream in (_RESET_STREAM, _NOISE_STREAM)]
        self._first = 0
        self._resets: Words = np.zeros(0, np.uint32)
        self._noises: NDArray[np.uint64] | None = None
        self._bits = np.random.PCG64(0)
        self._generator = np.random.Generator(self._bits)

    def reset_seed(self, episode: int) -> int:
        """As `shard.env_seed`."""
        place = self._place(episode)  # first, for it may replace the list
        return int(self._resets[place])

    def noise_generator(self, episode: int) -> np.random.Generator:
        """As `shard.noise_generator`, but always the same object: the next call sets it to another episode."""
        place = self._place(episode)
        if self._noises is None:
            words = self._mixers[1].states(self._first, len(self._resets), _PCG_WORDS)
            self._noises = words.astype("<u4").view("<u8")
        # setting the state of one generator costs a third of making a new one
        self._bits.state = _pcg64_state(*self._noises[place].tolist())
        return self._generator

    def _place(self, episode: int) -> int:
        """Where `episode` stands in the block; another block is worked out when it is not there."""
        place = episode - self._first
        if 0 <= place < len(self._resets):
            return place
        is_next = place == len(self._resets) > 0
        words = self._mixers[0].states(episode, min(2 * place, MOST) if is_next else FIRST, 1)
        self._resets = words[:, 0] & np.uint32(0x7FFF_FFFF)
        self._first, self._noises = episode, None
        return 0


class _Mixer:
    """SeedSequence(seed, spawn_key=(*key, low, high)) for many episodes, whose low and high words come last."""

    def __init__(self, seed: int, key: tuple[int, ...]) -> None:
        prefix = np.random.SeedSequence(seed, spawn_key=key)
        self._pool = [np.uint32(word) for word in prefix.pool]
        words = max(_POOL, -(-seed.bit_length() // 32)) + sum(max(1, -(-part.bit_length() // 32)) for part in key)
        hashed = _POOL * _POOL + _POOL * (words - _POOL)  # calls of numpy's hashmix until here
        self._hash = _INIT_A * pow(_MULT_A, hashed, 2**32) % 2**32

    def states(self, first: int, count: int, n_words: int) -> Words:
        """[count, n_words] uint32: generate_state of episodes first, first + 1, ..."""
        episodes = np.arange(first, first + count, dtype=np.int64)
        low, high = (episodes & 0xFFFF_FFFF).astype(np.uint32), (episodes >> 32).astype(np.uint32)
        pool: list[Words] = [np.full(count, word, np.uint32) for word in self._pool]
        constant = self._hash
        for word in (low, high):
            for place in range(_POOL):
                hashed = word ^ np.uint32(constant)
                constant = constant * _MULT_A % 2**32
                hashed *= np.uint32(constant)
                hashed ^= hashed >> _SHIFT
                mixed = _MIX_L * pool[place] - _MIX_R * hashed
                pool[place] = mixed ^ (mixed >> _SHIFT)
        return _drawn(pool, n_words)


def _drawn(pool: list[Words], n_words: int) -> Words:
    drawn = np.empty((len(pool[0]), n_words), np.uint32)
    constant = _INIT_B
    for place in range(n_words):
        word = pool[place % _POOL] ^ np.uint32(constant)
        constant = constant * _MULT_B % 2**32
        word *= np.uint32(constant)
        drawn[:, place] = word ^ (word >> _SHIFT)
    return drawn


def _pcg64_state(state_high: int, state_low: int, stream_high: int, stream_low: int) -> Any:
    """The state in which numpy's PCG64 starts with these words (O'Neill 2014, pcg_setseq_128_srandom)."""
    increment = (((stream_high << 64 | stream_low) << 1) | 1) & _MASK_128
    state = ((increment + (state_high << 64 | state_low)) * _PCG_MULTIPLIER + increment) & _MASK_128
    return {"bit_generator": "PCG64", "state": {"state": state, "inc": increment}, "has_uint32": 0, "uinteger": 0}
