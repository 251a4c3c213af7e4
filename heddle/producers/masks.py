"""Masks: steps at which a mask of actions allowed nothing, told once for each mask.

It never looks at a mask that nobody acted on, as that of an episode's last observation, and it never decides what
follows: policies then take every action for allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from heddle.errors import EnvError
from heddle.layout import Layout, Segments
from heddle.policies.actions import find_masks
from heddle.policies.base import MASK_LEAF
from heddle.policies.groups import GROUP, are_apart
from heddle.producers.scrutiny import BadNumber
from heddle.spaces import ACTION, OBSERVATION, DictSpace, Discrete, MultiDiscrete, Space, leaves

INSTEAD = "every action is taken for allowed there"


@dataclass(frozen=True, slots=True)
class Mask:
    """What is allowed of one leaf of an action.

    Attributes:
        action: that leaf.
        leaves: of the observation, to be read one behind the other.
        begins: where in them the flags of each element of the action begin.
        group: place of the group of agents that it is about; None for all of them.
    """

    action: str
    leaves: tuple[str, ...]
    begins: tuple[int, ...]
    group: int | None = None

    def first_empty(self, segments: Segments) -> BadNumber | None:
        """The first step that was played although nothing was allowed."""
        rows, steps = segments.rows, segments.layout.steps
        parts = [segments.arrays[name][:, :steps].reshape(rows, steps, -1) for name in self.leaves]
        flags = (parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)) != 0
        allowed = np.logical_or.reduceat(flags, self.begins, axis=2)
        if allowed.all():
            return None
        counts = segments.valid()  # the rest is blank
        if self.group is not None:
            counts &= segments.arrays[f"out.{GROUP}"] == self.group
        empty = np.argwhere(~allowed & counts[:, :, None])
        return self._told(*(int(index) for index in empty[0])) if len(empty) else None

    def _told(self, env: int, step: int, element: int) -> BadNumber:
        what = "action" if (self.action, len(self.begins)) == (ACTION, 1) else f"value of {self.action}"
        place = f"[{element}]" if len(self.begins) > 1 else ""
        name = self.leaves[0] if len(self.leaves) == 1 else MASK_LEAF
        return BadNumber(name, env, step, f"allows no {what}{place}", instead=INSTEAD)


class Masks:
    """The masks of a layout that allowed something at every step so far.

    Args:
        groups: of agents with policies of their own, by name.
    """

    def __init__(self, layout: Layout, groups: Sequence[str] = ()) -> None:
        self._open = _masks_of(layout, groups)

    def empty(self, segments: Segments) -> list[BadNumber]:
        """The first step of each mask at which nothing was allowed; a mask that was told is not looked at again."""
        found = {mask: one for mask in self._open if (one := mask.first_empty(segments)) is not None}
        self._open = [mask for mask in self._open if mask not in found]
        return list(found.values())


def _masks_of(layout: Layout, groups: Sequence[str]) -> list[Mask]:
    """Of groups whose spaces stand beside each other each one's own."""
    seen, action = layout.observation, layout.action
    if not groups or not (are_apart(seen, groups) and are_apart(action, groups)):
        return _found(seen, action)
    assert isinstance(seen, DictSpace) and isinstance(action, DictSpace)
    found = []
    for place, group in enumerate(groups):
        for own in _found(seen.spaces[group], action.spaces[group]):
            names = tuple(_below(name, OBSERVATION, group) for name in own.leaves)
            found.append(Mask(_below(own.action, ACTION, group), names, own.begins, place))
    return found


def _found(observation: Space, action: Space) -> list[Mask]:
    try:
        masks = find_masks(observation, action)
    except EnvError:  # a policy of the user's own may mean something else by that name
        return []
    spaces = {leaf.name: leaf.space for leaf in leaves(action, ACTION)}
    found = []
    for name, parts in masks.items():
        space = spaces[name]
        assert isinstance(space, Discrete | MultiDiscrete)
        sizes = (space.n,) if isinstance(space, Discrete) else space.nvec
        found.append(Mask(name, parts, tuple(accumulate(sizes[:-1], initial=0))))
    return found


def _below(name: str, root: str, group: str) -> str:
    return f"{root}.{group}{name[len(root) :]}"
