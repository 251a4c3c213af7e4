"""What trying a spec out has shown, as a value and as the JSON in which a trial's child tells it. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from heddle.spaces import Space, from_json, to_json
from heddle.spec.plan import Needs


@dataclass(frozen=True, slots=True)
class Checked:
    """What trying a spec out has shown.

    Attributes:
        observation, action: the spaces of its environment.
        needed: shards, sizes, memory.
        no_snapshot: why its environments cannot be snapshotted; "" when they can, None when that was not tried.
        vector_gain: how many times as many steps a second env.vector = true would play; 0 where that is not to be had,
            or was not tried.
    """

    observation: Space
    action: Space
    needed: Needs
    no_snapshot: str | None = None
    vector_gain: float = 0.0

    def numbers(self) -> dict[str, Any]:
        """`needed` as plain values."""
        return asdict(self.needed)

    def spaces_json(self) -> str:
        """The spaces as they stand in the stored spec."""
        return json.dumps(spaces_told(self.observation, self.action))

    def told(self) -> dict[str, Any]:
        """All of it as plain values, for `checked_of`."""
        spaces = spaces_told(self.observation, self.action)
        found = {"no_snapshot": self.no_snapshot, "vector_gain": self.vector_gain}
        return {"spaces": spaces, "needed": self.numbers(), **found}


def spaces_told(observation: Space, action: Space) -> dict[str, Any]:
    """Two spaces as plain values, for `spaces_of`."""
    return {"observation": to_json(observation), "action": to_json(action)}


def spaces_of(told: Mapping[str, Any]) -> tuple[Space, Space]:
    """Observation and action space, back from `spaces_told`."""
    return from_json(told["observation"]), from_json(told["action"])


def checked_of(told: Mapping[str, Any]) -> Checked:
    """Back from `Checked.told`."""
    return Checked(*spaces_of(told["spaces"]), Needs(**told["needed"]), told["no_snapshot"], told["vector_gain"])
