"""Sides: whose returns count where groups of agents have a policy each, and what each group's episodes brought.

It never reads a batch: episodes come as arrays, one value each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.spec.policy import PolicySpec

Ended = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]
"""Returns, lengths in steps and agents of episodes, [episodes] each."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The groups of an experiment.

    Attributes:
        groups: name to the numbers of its agents; {} where one policy plays all.
        counted: numbers of the agents whose returns say how good the policy is: those of groups that learn.
    """

    groups: Mapping[str, range] = field(default_factory=dict)
    counted: tuple[int, ...] = ()

    @classmethod
    def of(cls, policy: PolicySpec) -> "Sides":
        """Those that a spec names."""
        groups: dict[str, range] = {}
        begin = 0
        for group in policy.groups:
            groups[group.name] = range(begin, begin + len(group.members))
            begin = groups[group.name].stop
        learning = [group.name for group in policy.groups if group.learn]
        return cls(groups, tuple(agent for name in learning or groups for agent in groups[name]))

    def counting(self, ended: Ended) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Returns and lengths of the episodes that count, [k] each."""
        returns, lengths, agents = ended
        if not self.groups:
            return returns, lengths
        kept = np.isin(agents, self.counted)
        return returns[kept], lengths[kept]

    def mean_returns(self, returns: NDArray[np.float64], agents: NDArray[Any], word: str) -> dict[str, float]:
        """ "GROUP.word" to the mean return of its agents' episodes, of groups that had some.

        Args:
            returns, agents: [episodes], of each its return and whose it is.
        """
        means: dict[str, float] = {}
        for name, own in self.groups.items():
            theirs = returns[(agents >= own.start) & (agents < own.stop)]
            if len(theirs):
                means[f"{name}.{word}"] = float(theirs.mean())
        return means
