"""An environment that says its state itself, and checks what it is told."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Speaking(gymnasium.Env[Any, Any]):
    """Keeps a position, a counter and a history; takes back only what it could have said."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.place = np.zeros(3, np.float32)
        self.steps = 0
        self.names = ["start"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.place, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = self.np_random.standard_normal(3).astype(np.float32)
        self.steps += 1
        self.names.append(f"step {self.steps}")
        return self.place, 1.0, False, False, {}

    def get_state(self) -> Any:
        return {"place": self.place, "steps": self.steps, "names": self.names}

    def set_state(self, state: Any) -> None:
        self.place = np.asarray(state["place"], np.float32).reshape(3)
        self.steps = int(state["steps"])
        self.names = [str(name) for name in state["names"]]

    def check(self) -> None:
        """Whatever was restored, it can be played on with."""
        self.step(0)
