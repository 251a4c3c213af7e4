"""Memories: an LSTM or a GRU whose state starts anew where an episode ended, also within a segment.

They never see an observation: a torso stands before them.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]


class Memory(nn.Module):
    """One recurrent layer.

    Args:
        kind: "lstm" (Hochreiter and Schmidhuber 1997) or "gru" (Cho et al. 2014, arXiv:1406.1078).
        into: width of what comes in.
        size: of what is carried, and of what comes out.

    Attributes:
        parts: names of what is carried, each [N, size]: "h" and, of an LSTM, "c".

    Weights start orthogonal with gain 1 and biases at 0, as in Huang et al. 2022, "The 37 implementation details of
    PPO", LSTM detail 1.
    """

    def __init__(self, kind: str, into: int, size: int) -> None:
        super().__init__()
        self.parts = ("h", "c") if kind == "lstm" else ("h",)
        self.layer = (nn.LSTM if kind == "lstm" else nn.GRU)(into, size, batch_first=True)
        for name, parameter in self.layer.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
            else:
                nn.init.orthogonal_(parameter, 1.0)

    def step(self, features: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, Tensors]:
        """[N, L, into] and the state before, as [N, L, size] and the state after; no episode ends on the way."""
        carried = tuple(state[part].unsqueeze(0) for part in self.parts)
        out, after = self.layer(features, carried if len(carried) == 2 else carried[0])
        after = after if len(carried) == 2 else (after,)
        return out, {part: value.squeeze(0) for part, value in zip(self.parts, after, strict=True)}

    def unroll(self, features: Tensor, ended: Tensor, state: Mapping[str, Tensor]) -> tuple[Tensor, dict[int, Tensors]]:
        """As `step`, with episodes that end: [B, L] bool.

        Returns:
            [B, L, size], and the state after each step at which some episode ended, before it started anew.
        """
        last = ended.shape[1] - 1
        cuts = ended.any(dim=0).nonzero().squeeze(1).tolist()
        after: dict[int, Tensors] = {}
        pieces, begin = [], 0
        for stop in cuts if cuts and cuts[-1] == last else [*cuts, last]:
            out, state = self.step(features[:, begin : stop + 1], state)
            pieces.append(out)
            if stop in cuts:
                after[stop] = dict(state)
                state = renewed(state, ended[:, stop])
            begin = stop + 1
        return torch.cat(pieces, dim=1), after


def renewed(state: Mapping[str, Tensor], ended: Tensor) -> Tensors:
    """State [B, ...] with zeros where an episode ended, [B] bool."""
    kept = ~ended
    return {name: values * kept.view(-1, *[1] * (values.dim() - 1)).to(values.dtype) for name, values in state.items()}
