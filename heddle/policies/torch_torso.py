"""Torsos: from observations to features, by layers of neurons or by convolutions.

They never choose actions and never keep a state between steps.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from heddle.errors import EnvError
from heddle.policies.features import IMAGE_SCALE, Features, Part
from heddle.policies.images import Image, Order, image_of
from heddle.spaces import Discrete, LeafSpace, MultiDiscrete
from heddle.spec import PolicySpec

IMPALA_CHANNELS = (16, 32, 32)
GAIN = math.sqrt(2)
Filters = Sequence[tuple[int, int, int]]


def orthogonal(layer: nn.Module, gain: float) -> None:
    """Orthogonal weights and zero biases of a Linear or Conv2d (Saxe et al. 2014, arXiv:1312.6120)."""
    assert isinstance(layer, nn.Linear | nn.Conv2d) and layer.bias is not None
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)


def nature(image: Image, filters: Filters) -> nn.Sequential:
    """Plain convolutions, each with a ReLU: channels, kernel and stride of each; then flat.

    Source: Mnih et al. 2015, doi:10.1038/nature14236, with the default filters; first weights as in Huang et al. 2022,
    "The 37 implementation details of PPO", detail 2.
    """
    layers: list[nn.Module] = []
    channels = image.channels
    for out, kernel, stride in filters:
        conv = nn.Conv2d(channels, out, kernel, stride)
        orthogonal(conv, GAIN)
        layers += [conv, nn.ReLU()]
        channels = out
    return nn.Sequential(*layers, nn.Flatten())


class Residual(nn.Module):
    """Two convolutions around which the input is led."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, given: Tensor) -> Tensor:
        """[N, channels, height, width], as what comes in."""
        out: Tensor = given + self.second(torch.relu(self.first(torch.relu(given))))
        return out


def impala(image: Image) -> nn.Sequential:
    """The deep residual network: three sections of a convolution, a pooling and two residual blocks; then flat.

    Source: Espeholt et al. 2018, arXiv:1802.01561, figure 3 (right); first weights are torch's own.
    """
    layers: list[nn.Module] = []
    channels = image.channels
    for out in IMPALA_CHANNELS:
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [Residual(out), Residual(out)]
        channels = out
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten())


class Torso(nn.Module):
    """Every leaf of an observation, as features [N, width].

    Images go through convolutions, one tower a leaf; what they give is joined with the vector of all other leaves (as
    `Features` lays it out) and goes through the hidden layers.

    Args:
        kind: "mlp" (everything is part of the vector), "cnn" or "impala".

    Raises:
        EnvError: there is no image where one is needed, or it is too small for the filters.
    """

    def __init__(self, features: Features, spec: PolicySpec, kind: str) -> None:
        super().__init__()
        self.images: dict[str, Image] = {}
        if kind != "mlp":
            self.images = _images(features.parts, spec.image, spec.id)
        self.parts = [part for part in features.parts if part.leaf.name not in self.images]
        self.scaled = {part.leaf.name for part in features.parts if part.leaf.space.dtype == "uint8"}
        towers, width = [], sum(part.stop - part.start for part in self.parts)
        for name, image in self.images.items():
            if kind == "cnn":
                _check_filters(name, image, spec)
            tower = nature(image, spec.filters) if kind == "cnn" else impala(image)
            with torch.no_grad():
                width += tower(torch.zeros(1, image.channels, image.height, image.width)).shape[1]
            towers.append(tower)
        self.towers = nn.ModuleList(towers)
        self.hidden = nn.ModuleList()
        for size in spec.hidden:
            layer = nn.Linear(width, size)
            orthogonal(layer, GAIN)
            self.hidden.append(layer)
            width = size
        self.width = width
        self.activation: Callable[[Tensor], Tensor] = torch.tanh if spec.activation == "tanh" else torch.relu

    def forward(self, observations: Mapping[str, Tensor]) -> Tensor:
        """[N, width] float32 of leaf -> [N, ...]."""
        columns = [
            tower(self._pixels(name, image, observations[name]))
            for (name, image), tower in zip(self.images.items(), self.towers, strict=True)
        ]
        if self.parts:
            columns.append(encode(self.parts, observations))
        hidden = columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)
        for layer in self.hidden:
            hidden = self.activation(layer(hidden))
        return hidden

    def _pixels(self, name: str, image: Image, values: Tensor) -> Tensor:
        """[N, ...] in the leaf's order becomes [N, channels, height, width] float32; uint8 is divided by 255."""
        ordered = values.permute(0, *(axis + 1 for axis in image.permutation)).float()
        if name in self.scaled:
            ordered = ordered * float(IMAGE_SCALE)
        return ordered.reshape(values.shape[0], image.channels, image.height, image.width)


def encode(parts: Sequence[Part], observations: Mapping[str, Tensor]) -> Tensor:
    """leaf -> [N, ...] becomes [N, width] float32, as `Features.encode`; normalising was done before."""
    columns = [_columns(part.leaf.space, observations[part.leaf.name]) for part in parts]
    return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)


def _columns(space: LeafSpace, values: Tensor) -> Tensor:
    if isinstance(space, Discrete):
        return nn.functional.one_hot(values - space.start, space.n).float()
    if isinstance(space, MultiDiscrete):
        indexes = values.reshape(values.shape[0], -1).long() - torch.tensor(space.start, device=values.device)
        each = [nn.functional.one_hot(indexes[:, place], n) for place, n in enumerate(space.nvec)]
        return torch.cat(each, dim=1).float()
    flat = values.reshape(values.shape[0], -1).float()
    return flat * float(IMAGE_SCALE) if space.dtype == "uint8" else flat


def _images(parts: Sequence[Part], order: Order, policy: str) -> dict[str, Image]:
    found = {part.leaf.name: image for part in parts if (image := image_of(part.leaf.space, order)) is not None}
    if not found:
        shown = ", ".join(f"{part.leaf.name} {part.leaf.space.dtype}{list(part.leaf.space.shape)}" for part in parts)
        raise EnvError(
            f"needs an image to look at, and there is none among the observations: {shown}",
            key="policy.id",
            value=policy,
            hint="use mlp, or lstm and gru with torso = mlp, for vectors",
        )
    return found


def _check_filters(name: str, image: Image, spec: PolicySpec) -> None:
    height, width = image.height, image.width
    for _, kernel, stride in spec.filters:
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        if height < 1 or width < 1:
            raise EnvError(
                f"cannot look at {name}, {image.height} x {image.width} pixels: too small for its filters",
                key="policy.id",
                value=spec.id,
                hint="use impala, or smaller filters, e.g. filters = [[16, 3, 1]]",
            )
