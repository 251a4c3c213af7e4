"""Environments, wrappers and a policy for tests of snapshots: each with a state of another kind."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import EzPickle
from gymnasium.wrappers import FrameStackObservation, TimeLimit, TransformObservation

from heddle.clock import SystemClock
from heddle.policies.base import Acted, Array, Arrays, Noise, OutputSpec, ScriptedPolicy
from heddle.spaces import Space

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class Dice(gymnasium.Env[Any, Any]):
    """Rolls at every step, ends by chance after about seven, and shows a dict."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Dict(
            {"roll": gymnasium.spaces.Box(-10.0, 10.0, (3,), np.float32), "count": gymnasium.spaces.Discrete(100)}
        )
        self.action_space = gymnasium.spaces.Discrete(3)
        self._count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = 0
        return self._look(), {}

    def step(self, action: Any) -> Step:
        self._count += 1
        look = self._look()
        reward = float(self.np_random.normal()) + float(action)
        return look, reward, bool(self.np_random.random() < 0.15), self._count >= 99, {}

    def _look(self) -> dict[str, Any]:
        return {"roll": self.np_random.random(3).astype(np.float32), "count": np.int64(self._count)}


class Walk(gymnasium.Env[Any, Any]):
    """A random walk of a thousand steps; its observation is a buffer that it overwrites."""

    observation_space = gymnasium.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, length: int = 1000) -> None:
        self._length, self._steps = length, 0
        self._place = np.zeros(2)
        self._shown = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._place[:] = self.np_random.normal(size=2)
        self._shown[:] = self._place
        return self._shown, {}

    def step(self, action: Any) -> Step:
        self._steps += 1
        self._place += self.np_random.normal(size=2) + float(action)
        self._shown[:] = self._place
        return self._shown, float(self._place[0]), self._steps >= self._length, False, {}


class Robot(Walk):
    """Cannot be pickled, and says itself what its state is: all but the generator of its chance."""

    def __init__(self, length: int = 11) -> None:
        super().__init__(length)
        self.handle = threading.Lock()

    def get_state(self) -> dict[str, Any]:
        return {"steps": self._steps, "place": self._place}

    def set_state(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]
        self._place[:] = state["place"]


class Handle(Walk):
    """Cannot be pickled and says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.handle = threading.Lock()


class Elsewhere(Walk):
    """Draws from numpy's global generator, which no snapshot of it can hold."""

    def step(self, action: Any) -> Step:
        self._place += np.random.normal(size=2)
        return super().step(action)


class Touchy(Robot):
    """Cannot be put anywhere."""

    def set_state(self, state: dict[str, Any]) -> None:
        raise OSError("no arm is connected")


class Single(Walk):
    """There is only one of it in a process."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Single.made += 1
        if Single.made > 1:
            raise OSError("the port is taken")

    def close(self) -> None:
        Single.made = 0


class Easy(Handle, EzPickle):
    """Pickles the arguments it was made with only."""

    def __init__(self) -> None:
        EzPickle.__init__(self)
        super().__init__()


class Clipped(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Clips rewards, so that an EpisodeCounter goes beneath it, and holds on to things of other layers."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.inner = env.unwrapped
        self.reset_inner = env.unwrapped.reset
        self.clip: Callable[[float], float] = lambda reward: max(-1.0, min(1.0, reward))
        self.total = 0.0

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.total += float(reward)
        return observation, self.clip(float(reward)), terminated, truncated, info


def layered() -> gymnasium.Env[Any, Any]:
    """A walk under a time limit, a wrapper that clips, a lambda, and a stack of frames."""
    env: Any = Clipped(TimeLimit(Walk(), 13))
    env = TransformObservation(env, lambda seen: seen / 2, env.observation_space)
    return FrameStackObservation(env, 3)


class Brooding(ScriptedPolicy):
    """Draws its action from noise, and carries a state that all it ever saw and drew has gone into."""

    noise = Noise("normal", 2)
    state: Mapping[str, OutputSpec] = {"mood": OutputSpec("float32", (2,))}
    outputs: Mapping[str, OutputSpec] = {"value": OutputSpec("float32"), "log_prob": OutputSpec("float32")}

    def __init__(self, observation: Space, action: Space, pace_s: float = 0.0) -> None:
        self._pace_s = pace_s
        self._mood = np.zeros((0, 2), np.float32)

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        if self._pace_s:
            SystemClock().sleep(self._pace_s)
        seen = sum(leaf.reshape(len(noise), -1)[:, :1].astype(np.float32) for leaf in observations.values())
        if len(self._mood) != len(noise):
            self._mood = np.zeros((len(noise), 2), np.float32)
        self._mood[:] = 0.9 * state["mood"] + np.tanh(seen) + noise  # its own buffer, as the contract allows
        actions = (self._mood[:, 0] > 0).astype(np.int64)
        outputs = {"value": self._mood[:, 1].copy(), "log_prob": noise[:, 0].astype(np.float32)}
        return Acted({"action": actions}, outputs, {"mood": self._mood})
