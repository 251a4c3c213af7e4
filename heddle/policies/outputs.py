"""What the last layer of a built-in network gives, cut into the named numbers that heads choose by.

It works on numpy arrays and torch tensors alike, and imports no torch.
"""

from typing import Any

from heddle.policies.actions import Heads

LOG_STD_RANGE = (-20.0, 2.0)
"""Where a network's own log standard deviations are cut, as in Haarnoja et al. 2018's code of arXiv:1801.01290."""


def network_size(heads: Heads, std: str) -> int:
    """Numbers that the network gives for one action: those of the heads, and with "state" a spread for every mean."""
    return heads.count + (heads.means if std == "state" else 0)


def split_output(heads: Heads, output: Any, log_std: Any | None) -> dict[str, Any]:
    """The answer that `torch_heads` describes, without the value.

    Args:
        output: [N, network_size].
        log_std: [heads.means], the weight; None where the network gives it behind all else.
    """
    answer: dict[str, Any] = {}
    spread, place = log_std, 0
    for head in heads.all:
        part = output[:, head.begin : head.begin + head.count]
        if not head.continuous:
            answer[f"logits{head.suffix}"] = part
            continue
        if spread is None:
            spread = output[:, heads.count :].clip(*LOG_STD_RANGE)
        answer[f"mean{head.suffix}"] = part
        answer[f"log_std{head.suffix}"] = spread[..., place : place + head.count]
        place += head.count
    return answer
