"""Past versions of a policy as one that acts: each game of a group meets one of them, from its first step to its last.

It never learns and never decides which versions are kept: the learner does, and publishes them among the weights.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from heddle.policies.base import Acted, Array, Arrays, Noise, OutputSpec, Policy
from heddle.policies.chance import in_uniforms, noise_for
from heddle.policies.weights import WeightsError

PAST = "past"
"""Output: the update whose weights acted. State: that plus 1, for 0 says that none is chosen yet."""
LEAST_KEPT = 8


class PastPolicy:
    """Acts with the weights of past updates, named "UPDATE/name".

    The first number of a game's noise, at its first step, chooses among the published ones. A game whose version is
    published no more goes on with it while it is remembered: twice as many are as are published, those used last. After
    that another one is chosen, and the output says so.

    Args:
        make: makes one policy; its first weights are those of update 0.
        agents: rows of one game, which stand one behind the other.
    """

    def __init__(self, make: Callable[[], Policy], *, agents: int) -> None:
        self._make, self._agents = make, agents
        first = self._first = make()
        self._known: OrderedDict[int, tuple[Policy, Arrays]] = OrderedDict({0: (first, first.get_weights())})
        self._published = [0]
        self.noise = Noise("uniform", 1 + in_uniforms(first.noise), always=True)
        self.outputs: Mapping[str, OutputSpec] = {**first.outputs, PAST: OutputSpec("int64")}
        self.state: Mapping[str, OutputSpec] = {**first.state, PAST: OutputSpec("int64")}

    def initial_state(self, n: int) -> Arrays:
        return self._first.initial_state(n) | {PAST: np.zeros(n, np.int64)}

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        updates = self._updates(state[PAST], noise[:, 0])
        chance = noise_for(self._first.noise, Noise("uniform", noise.shape[1] - 1), noise[:, 1:])
        whole: Acted | None = None
        for update in np.unique(updates).tolist():
            rows = np.flatnonzero(updates == update)
            self._known.move_to_end(update)
            seen = {name: values[rows] for name, values in observations.items()}
            own = {name: state[name][rows] for name in self._first.state}
            acted = self._known[update][0].act(seen, own, chance[rows], deterministic=deterministic)
            parts = acted.actions, acted.outputs, acted.state
            whole = whole or Acted(*(_room(part, len(updates)) for part in parts))
            for target, part in zip((whole.actions, whole.outputs, whole.state), parts, strict=True):
                for name, values in part.items():
                    target[name][rows] = values
        assert whole is not None
        whole.outputs[PAST], whole.state[PAST] = updates, updates + 1
        return whole

    def get_weights(self) -> Arrays:
        return named({update: self._known[update][1] for update in self._published})

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        parts = by_update(weights)
        if not parts:
            raise WeightsError("weights belong to another policy: there is no past version")
        fresh: dict[int, tuple[Policy, Arrays]] = {}
        for update, given in parts.items():
            known = self._known.get(update)
            if known is None or not _equal(known[1], given):
                policy = self._make()
                policy.set_weights(given)
                fresh[update] = policy, {name: np.array(array) for name, array in given.items()}
        self._known.update(fresh)
        self._published = sorted(parts)
        unused = [update for update in self._known if update not in parts]
        for update in unused[: max(0, len(self._known) - max(LEAST_KEPT, 2 * len(parts)))]:
            del self._known[update]

    def _updates(self, state: Array, chance: Array) -> NDArray[np.int64]:
        """[N] the update whose weights act on each row; one for all rows of a game."""
        before = state.reshape(-1, self._agents)[:, 0] - 1
        drawn = (chance.reshape(-1, self._agents)[:, 0] * len(self._published)).astype(np.int64)
        choices = np.array(self._published, np.int64)[np.minimum(drawn, len(self._published) - 1)]
        goes_on = np.isin(before, list(self._known))
        return np.repeat(np.where(goes_on, before, choices), self._agents)


def named(versions: Mapping[int, Mapping[str, Array]]) -> Arrays:
    """Weights by update as one: "UPDATE/name"."""
    return {f"{update}/{name}": array for update, part in versions.items() for name, array in part.items()}


def by_update(weights: Mapping[str, Array]) -> dict[int, Arrays]:
    """The opposite of `named`. Raises WeightsError."""
    parts: dict[int, Arrays] = {}
    for name, array in weights.items():
        update, _, rest = name.partition("/")
        if not update.isascii() or not update.isdigit() or not rest:
            raise WeightsError(f"weights belong to another policy: {name!r} names no past update")
        parts.setdefault(int(update), {})[rest] = array
    return parts


def _room(part: Mapping[str, Array], n: int) -> Arrays:
    return {name: np.zeros((n, *values.shape[1:]), values.dtype) for name, values in part.items()}


def _equal(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
