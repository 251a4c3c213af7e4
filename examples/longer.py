"""A word and some numbers: which is longer? An environment of no fixed size, and a torch module that reads it."""

from typing import Any

import gymnasium
import torch
from gymnasium import spaces
from torch import nn


class Longer(gymnasium.Env):
    """Action 1 is right when the word has more letters than there are numbers."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {"word": spaces.Text(12, min_length=0), "numbers": spaces.Sequence(spaces.Box(0.0, 1.0, (1,)))}
        )
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 10
        return self._show(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self._answer)
        self._left -= 1
        return self._show(), reward, self._left == 0, False, {}

    def _show(self) -> dict[str, Any]:
        letters, numbers = (int(n) for n in self.np_random.integers(0, 13, 2))
        self._answer = int(letters > numbers)
        shown = self.np_random.random((numbers, 1), dtype="float32")
        return {"word": "a" * letters, "numbers": tuple(shown)}


class Reads(nn.Module):
    """Means over the elements there are: padding is told apart by the lengths."""

    def __init__(self, observation: Any, action: Any) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 32), nn.Tanh())
        self.logits, self.value = nn.Linear(32, action.n), nn.Linear(32, 1)

    def forward(self, observations: dict[str, torch.Tensor], state: dict[str, torch.Tensor]) -> dict[str, Any]:
        numbers, count = observations["obs.numbers"], observations["obs.numbers:length"]
        letters = observations["obs.word:length"]
        there = torch.arange(numbers.shape[1]) < count.unsqueeze(1)
        mean = (numbers.squeeze(2) * there).sum(1) / count.clamp(min=1)
        hidden = self.body(torch.stack([letters / 12, count / 12, mean], dim=1).float())
        return {"logits": self.logits(hidden), "value": self.value(hidden).squeeze(1)}
