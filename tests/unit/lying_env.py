"""Environments that keep their contract for a while and then break it in one way: see LIES and PART_LIES."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from heddle.spaces import Box, DictSpace, Discrete, TupleSpace

Lie = Callable[[Any, Any], Any]
"""From the environment and what its step would have returned to what it does return."""
PLAIN = Box((2,), "float32", -1.0, 1.0)
NESTED = DictSpace({"color": Discrete(3, start=1), "pair": TupleSpace((PLAIN, Box((2,), "uint8", 0, 200)))})
EPISODE = 7


def _with(place: int, value: Any) -> Lie:
    return lambda env, answer: (*answer[:place], value, *answer[place + 1 :])


def _grown(env: Any, answer: Any) -> Any:
    env.action_space = spaces.Discrete(5)
    return answer


def _seen(env: Any, answer: Any) -> Any:
    env.observation_space = spaces.Box(-2.0, 2.0, (2,), np.float32)
    return answer


LIES: dict[str, tuple[Lie, str]] = {
    "shape": (_with(0, np.zeros(3, np.float32)), r"the observation has shape \(3,\), its space \(2,\)"),
    "list": (_with(0, [0.0, 0.0]), "the observation is a list, expected a numpy array"),
    "text": (_with(0, np.array(["0", "1"])), "the observation has dtype <U1, its space float32"),
    "nan": (_with(0, np.array([0, np.nan], np.float32)), r"gave obs = \[0, nan\], which is not a finite number"),
    "inf": (_with(0, np.array([-np.inf, 0], np.float32)), r"gave obs = \[-inf, 0\], which is not a finite number"),
    "reward None": (_with(1, None), "the reward None, expected one finite number"),
    "reward nan": (_with(1, float("nan")), "gave reward = nan, which is not a finite number"),
    "reward inf": (_with(1, np.float32(np.inf)), "gave reward = inf, which is not a finite number"),
    "reward text": (_with(1, "1.5"), "the reward '1.5', expected one finite number"),
    "reward array": (_with(1, np.array([1.5])), r"the reward array\(\[1\.5\]\), expected one finite number"),
    "terminated array": (_with(2, np.array([False])), r"terminated = array\(\[False\]\), expected a bool"),
    "terminated None": (_with(2, None), "terminated = None, expected a bool"),
    "truncated number": (_with(3, 0), "truncated = 0, expected a bool"),
    "info list": (_with(4, []), r"the info \[\], expected a dict"),
    "info None": (_with(4, None), "the info None, expected a dict"),
    "four": (lambda env, answer: answer[:4], "step returned (no .*expected 5, got 4|a tuple of 4, expected)"),
    "action space": (_grown, r"changed its action_space from Discrete\(3\) to Discrete\(5\) while it was played"),
    "observation space": (_seen, r"changed its observation_space from Box\(-1.0, 1.0.* to Box\(-2.0, 2.0"),
}


def _part(**changed: Any) -> Lie:
    return lambda env, answer: ({**answer[0], **changed}, *answer[1:])


def _pair(first: Any, second: Any) -> Lie:
    return _part(pair=(np.asarray(first), np.asarray(second)))


_FINE, _BYTES = np.zeros(2, np.float32), np.zeros(2, np.uint8)
PART_LIES: dict[str, tuple[Lie, str]] = {
    "fraction": (_part(color=1.5), "the observation's color is 1.5, expected one integer"),
    "no number": (_part(color=None), "the observation's color is None, expected one integer"),
    "outside": (_part(color=4), r"gave obs.color = 4, which is outside 1\.\.3"),
    "below": (_part(color=-1), r"gave obs.color = -1, which is outside 1\.\.3"),
    "missing": (lambda env, answer: ({"color": 1}, *answer[1:]), "the observation has no pair.0"),
    "part nan": (_pair(np.array([np.nan, 0], np.float32), _BYTES), r"gave obs.pair.0 = \[nan, 0\], which is not"),
    "part floats": (_pair(_FINE, np.zeros(2)), "the observation's pair.1 has dtype float64, its space uint8"),
    "part wraps": (_pair(_FINE, np.array([0, 300])), "the observation's pair.1 holds 300, which .* uint8 cannot hold"),
}


class Liar(gymnasium.Env[Any, Any]):
    """Counts its steps, over all episodes; from step `after` on it lies."""

    def __init__(self, lie: str = "", after: int = 20, nested: bool = False) -> None:
        self.observation_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space: Any = spaces.Discrete(3)
        if nested:
            pair = spaces.Tuple((self.observation_space, spaces.Box(0, 200, (2,), np.uint8)))
            self.observation_space = spaces.Dict({"color": spaces.Discrete(3, start=1), "pair": pair})
        self._nested, self._after, self._steps = nested, after, 0
        self._lie = ({**LIES, **PART_LIES}[lie] if lie else (None, ""))[0]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._show(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        answer: Any = self._show(), 1.0, self._steps % EPISODE == 0, False, {}
        return answer if self._lie is None or self._steps < self._after else self._lie(self, answer)

    def _show(self) -> Any:
        values = np.full(2, (self._steps % EPISODE) / EPISODE, np.float32)
        return {"color": 2, "pair": (values, np.array([self._steps % 200, 0], np.uint8))} if self._nested else values


class Counting(gymnasium.Env[Any, Any]):
    """Shows one integer of 0..2, and from step `after` on one above."""

    def __init__(self, after: int = 20) -> None:
        self.observation_space: Any = spaces.Discrete(3)
        self.action_space: Any = spaces.Discrete(3)
        self._after, self._steps = after, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return 1 + 2 * (self._steps >= self._after), 1.0, self._steps % EPISODE == 0, False, {}


class Coroutines:
    """`Liar`, as coroutines."""

    def __init__(self, *given: Any) -> None:
        self._liar = Liar(*given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._liar, name)

    async def reset(self, *, seed: int | None = None) -> Any:
        return self._liar.reset(seed=seed)

    async def step(self, action: Any) -> Any:
        return self._liar.step(action)


class Outside(Liar):
    """Leaves its bounds once, in one step of an episode that goes on, or is cut off there."""

    def __init__(self, after: int = 20, cut: bool = False) -> None:
        super().__init__()
        self._at, self._cut = after, cut

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if self._steps != self._at:
            return observation, reward, terminated, truncated, info
        return observation + np.float32(1.5) * np.array([0, 1], np.float32), reward, False, self._cut, info


ROWS_LIES: dict[str, tuple[Lie, str]] = {
    "shape": (_with(0, np.zeros((2, 3), np.float32)), r"obs has shape \(2, 3\), expected \(2, 2\)"),
    "text": (_with(0, np.full((2, 2), "0")), "obs has dtype <U1, its space float32"),
    "nan": (_with(0, np.full((2, 2), np.nan, np.float32)), r"environment 0 .* gave obs = \[nan, nan\], which is not"),
    "rewards text": (_with(1, ["1", "2"]), r"the rewards \['1', '2'\], expected 2 numbers"),
    "rewards None": (_with(1, [None, 1.0]), r"the rewards \[None, 1.0\], expected 2 numbers"),
    "flags": (_with(2, np.zeros(2)), "terminated = .*, expected 2 bools"),
    "info": (_with(4, None), "the info None, expected a dict"),
    "four": (lambda env, answer: answer[:4], "step returned a tuple of 4, expected"),
}


class LyingRows(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Two environments as one object, which lies from its call number `after` on."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, lie: str, after: int = 20) -> None:
        self.num_envs, self._calls, self._after, self._lie = 2, 0, after, ROWS_LIES[lie][0]
        self.single_observation_space, self.single_action_space = Liar().observation_space, spaces.Discrete(3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((2, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        self._calls += 1
        answer: Any = np.zeros((2, 2), np.float32), np.ones(2), np.zeros(2, np.bool_), np.zeros(2, np.bool_), {}
        return answer if self._calls < self._after else self._lie(self, answer)
