"""Oddities: numbers of an update that somebody should hear of although nothing fails over them.

It never ends anything, and tells of each metric once.
"""

import math
from collections.abc import Iterable, Mapping

EXPLODED = 1e6
"""A gradient longer than this is worth a line, whatever it is scaled down to."""
_SHOWN = 8


def where_of(update: int, shards: Iterable[int]) -> str:
    """An update and what it was done on, for messages."""
    own = sorted(set(shards))
    return f"update {update} on shards {', '.join(map(str, own[:_SHOWN]))}{'...' * (len(own) > _SHOWN)}"


class Oddities:
    """The metrics that were told of."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def among(self, metrics: Mapping[str, float]) -> list[str]:
        """What is odd about these and was not told yet, in words."""
        found = {name: words for name, value in metrics.items() if (words := _odd(name, value))}
        news = [words for name, words in found.items() if name not in self._told]
        self._told |= found.keys()
        return news


def _odd(name: str, value: float) -> str:
    if not math.isfinite(value):
        return f"the learner gives {name} = {value:g}; its weights are finite, so it trains on"
    if name.rpartition(".")[2] == "grad_norm" and value >= EXPLODED:
        return (
            f"the gradient exploded, {name} = {value:g}, and was scaled down to trainer.max_grad_norm; lower trainer.lr"
            ", look for extreme rewards, or set trainer.grad_limit to fail, skip or pause as trainer.on_bad_step says"
        )
    return ""
