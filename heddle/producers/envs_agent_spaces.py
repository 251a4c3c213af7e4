"""What all agents of a game show and take as one space, and each agent's part of it.

Where all have equal spaces that is theirs. Where groups of agents differ it is a Dict with the space of each group, in
which an agent shows something at its own group's place and what means nothing at the others'.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from heddle.errors import EnvError


class AgentSpaces:
    """The observation spaces, or the action spaces, of a game's agents.

    Attributes:
        whole: of all.

    Args:
        each: by agent.
        groups: name to its agents; {} where one policy plays all.
        what: "observation_space" or "action_space"; name: as the spec names the environment; both for messages.

    Raises:
        EnvError: agents of one policy have different spaces.
    """

    def __init__(self, each: Mapping[str, Any], groups: Mapping[str, Sequence[str]], *, what: str, name: str) -> None:
        own = {group: _shared({agent: each[agent] for agent in agents}, what, name) for group, agents in groups.items()}
        first = next(iter(each.values()))
        self._place: dict[str, str] = {}
        if not groups or all(space == first for space in own.values()):
            self.whole = first if groups else _shared(each, what, name)
            if isinstance(self.whole, spaces.Dict) and set(self.whole.spaces) == set(groups):
                hint = "name a group otherwise"
                raise EnvError(f"has a Dict as {what} whose keys are the groups' names", value=name, hint=hint)
            return
        self.whole = spaces.Dict(own)
        self._place = {agent: group for group, agents in groups.items() for agent in agents}
        self._blank = {group: nothing_of(space) for group, space in own.items()}

    def shown(self, agent: str, value: Any) -> Any:
        """What `agent` shows, in the space of all."""
        return {**self._blank, self._place[agent]: value} if self._place else value

    def taken(self, agent: str, value: Any) -> Any:
        """What `agent` takes of a value of the space of all."""
        return value[self._place[agent]] if self._place else value


def _shared(each: Mapping[str, Any], what: str, name: str) -> Any:
    """The space that all agents have. Raises EnvError where they differ."""
    first, space = next(iter(each.items()))
    if other := next((agent for agent, found in each.items() if found != space), None):
        shown = f"{first} has {_short(space)}, {other} has {_short(each[other])}"
        hint = "one policy plays them all: give them policies of their own with [[policy.groups]], or pad their spaces"
        raise EnvError(f"has agents with different {what}s: {shown}", value=name, hint=hint)
    return space


def nothing_of(space: Any) -> Any:
    """A value of `space` that always is the same. Raises EnvError for a kind of space that has none."""
    match space:
        case spaces.Box():
            return np.clip(np.zeros(space.shape), space.low, space.high).astype(space.dtype)
        case spaces.Discrete():
            return space.dtype.type(space.start)
        case spaces.MultiDiscrete():
            return space.start.astype(space.dtype)
        case spaces.MultiBinary():
            return np.zeros(space.shape, space.dtype)
        case spaces.Dict():
            return {key: nothing_of(part) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(nothing_of(part) for part in space.spaces)
        case _:
            reason = f"shows a {type(space).__name__}, which groups with different spaces cannot have"
            raise EnvError(reason, hint="pad the agents' spaces to one with a wrapper in your own factory")


def _short(space: Any) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
