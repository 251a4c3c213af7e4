"""How each leaf of an action space is chosen: which distribution, how many numbers of a network, how much chance.

It never draws and never imports torch: `heads.py` chooses, `torch_heads.py` judges, both from these descriptions.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heddle.errors import EnvError
from heddle.policies.base import MASK_LEAF, Noise
from heddle.policies.chance import normal_of
from heddle.spaces import ACTION, Box, Discrete, Leaf, LeafSpace, MultiBinary, MultiDiscrete, Space, leaves

Kind = Literal["categorical", "bernoulli", "gaussian", "squashed"]
MOST_CATEGORIES = 1024
"""Values that one number of an integer Box may have for a policy to choose among them."""


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """One leaf of an action.

    Attributes:
        leaf: which, and its space.
        kind: categorical (each element by logits of its own), bernoulli (each element by one logit), gaussian, or
            squashed: a gaussian through tanh, stretched to the bounds.
        sizes: categories of each element in C order; () for the other kinds.
        count: numbers of one action: logits, or means.
        suffix: of this leaf's names in a module's answer: "" for a plain space, ".arm" for "action.arm".
        begin: where its numbers begin among those of all leaves.
        masks: leaves of the observation that say what is allowed, to be read one behind the other; () for none.
        low, span: float64 [count], the bounds of a squashed action: its least values, and from there to the greatest.
        offset: what is added to the indices of a categorical one, as an array of the shape of the space.
    """

    leaf: Leaf
    kind: Kind
    sizes: tuple[int, ...]
    count: int
    suffix: str
    begin: int
    masks: tuple[str, ...] = ()
    low: NDArray[np.float64] | None = None
    span: NDArray[np.float64] | None = None
    offset: NDArray[np.integer[Any]] | None = None

    @property
    def continuous(self) -> bool:
        """It has means and standard deviations."""
        return self.kind in ("gaussian", "squashed")

    @property
    def elements(self) -> int:
        """Random numbers that one action needs."""
        return len(self.sizes) or self.count


class Heads:
    """All leaves of an action space.

    Args:
        squash: continuous actions go through tanh and so never leave their bounds.

    Attributes:
        all: one for each leaf, in order.
        count: numbers of all leaves: logits and means.
        means: how many of them are means.
        noise: what a policy with these heads asks of the player.

    Raises:
        EnvError: a leaf that no policy can choose, a mask that does not fit, or nothing to squash.
    """

    def __init__(self, observation: Space, action: Space, *, squash: bool = False) -> None:
        self.all: list[Head] = []
        masks = find_masks(observation, action)
        begin = 0
        for leaf in leaves(action, ACTION):
            head = _head(leaf, begin, masks.get(leaf.name, ()), squash)
            self.all.append(head)
            begin += head.count
        self.count = begin
        self.means = sum(head.count for head in self.all if head.continuous)
        if squash and not self.means:
            raise EnvError(
                f"squashes actions to their bounds, and these have none: {action}",
                key="policy.squash",
                value=True,
                hint="remove it: only a Box of floats can be squashed",
            )
        self._uniforms = sum(head.elements for head in self.all if not head.continuous)
        self.noise = _noise(self._uniforms, self.means)

    def split_noise(self, noise: NDArray[np.floating[Any]]) -> list[NDArray[np.floating[Any]]]:
        """[N, noise.size] as one array [N, elements] a head: uniform on [0, 1), or normal for a continuous one.

        Where both kinds are needed all come as uniform numbers, and pairs become normal ones.
        """
        uniform, normal = noise[:, : self._uniforms], noise
        if self._uniforms and self.means:
            normal = normal_of(noise[:, self._uniforms :])
        found, places = [], {True: 0, False: 0}
        for head in self.all:
            begin = places[head.continuous]
            places[head.continuous] = begin + head.elements
            found.append((normal if head.continuous else uniform)[:, begin : begin + head.elements])
        return found


def find_masks(observation: Space, action: Space) -> dict[str, tuple[str, ...]]:
    """Action leaf -> the leaves of the observation that hold its mask, one number for each value that it can take.

    The mask of a plain Discrete or MultiDiscrete is "obs.action_mask", or, with one part for each element, the leaves
    below it; that of "action.arm" is "obs.action_mask.arm".

    Raises:
        EnvError: it does not hold one number for each.
    """
    seen = {leaf.name: leaf.space for leaf in leaves(observation)}
    found: dict[str, tuple[str, ...]] = {}
    for leaf in leaves(action, ACTION):
        if not isinstance(leaf.space, Discrete | MultiDiscrete):
            continue
        root = MASK_LEAF + leaf.name.removeprefix(ACTION)
        names = tuple(name for name in seen if name == root or name.startswith(f"{root}."))
        if not names:
            continue
        wanted = leaf.space.n if isinstance(leaf.space, Discrete) else sum(leaf.space.nvec)
        if sum(seen[name].size for name in names) != wanted or not all(_holds_flags(seen[name]) for name in names):
            shapes = " and ".join(str(list(seen[name].shape)) for name in names)
            raise EnvError(
                f"has an action_mask of shape {shapes} for {wanted} actions",
                hint="give it one number for each action, 0 where it is not allowed",
            )
        found[leaf.name] = names
    return found


def action_size(action: Space) -> int:
    """Numbers that a network gives for one action: logits, and means.

    Raises:
        EnvError: no policy can choose it.
    """
    return sum(_head(leaf, 0, (), squash=False).count for leaf in leaves(action, ACTION))


def _head(leaf: Leaf, begin: int, masks: tuple[str, ...], squash: bool) -> Head:
    space, suffix = leaf.space, leaf.name.removeprefix(ACTION)
    if isinstance(space, Discrete):
        return Head(leaf, "categorical", (space.n,), space.n, suffix, begin, masks)
    if isinstance(space, MultiDiscrete):
        return Head(leaf, "categorical", space.nvec, sum(space.nvec), suffix, begin, masks)
    if isinstance(space, MultiBinary) or space.dtype == "bool":
        return Head(leaf, "bernoulli", (), space.size, suffix, begin)
    if np.dtype(space.dtype).kind == "f":
        low, span = _stretch(leaf) if squash else (None, None)
        return Head(leaf, "squashed" if squash else "gaussian", (), space.size, suffix, begin, (), low, span)
    assert isinstance(space, Box)  # describe_action lets no text through
    least, most = space.limits()
    sizes = [int(last) - int(first) + 1 for first, last in zip(least.flat, most.flat, strict=True)]
    if max(sizes) > MOST_CATEGORIES:
        raise EnvError(
            f"has actions that this policy cannot choose: {leaf.name} of {space.dtype} has {max(sizes)} values,"
            f" at most {MOST_CATEGORIES} are chosen among",
            key="policy.id",
            hint="wrap the environment, or name a policy of your own",
        )
    return Head(leaf, "categorical", tuple(sizes), sum(sizes), suffix, begin, offset=least)


def _stretch(leaf: Leaf) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    assert isinstance(leaf.space, Box)
    low, high = (bound.reshape(-1) for bound in leaf.space.bounds())
    if not (np.isfinite(high - low).all() and (high > low).all()):
        raise EnvError(
            f"squashes actions to their bounds, and those of {leaf.name} are {leaf.space.low} to {leaf.space.high}",
            key="policy.squash",
            value=True,
            hint="remove it, or wrap the environment so that every action has a finite range",
        )
    return low, high - low


def _noise(uniforms: int, normals: int) -> Noise:
    if not uniforms:
        return Noise("normal", normals)
    return Noise("uniform", uniforms + 2 * normals)


def _holds_flags(space: LeafSpace) -> bool:
    return isinstance(space, Box | MultiBinary)
