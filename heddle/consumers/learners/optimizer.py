"""Adam over one flat tensor that all parameters of a module are views of: a step is a few calls however many there are.

It never computes a gradient, and it makes no `torch.optim.Optimizer`: the first of those in a process loads torch's
compiler, seconds in which a trainer that shall take over does nothing.
"""

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from heddle.consumers.learners.base import to_numpy
from heddle.errors import CheckpointError, EnvError
from heddle.policies.base import Array, Arrays

ADAM_EPSILON = 1e-5
"""As in the reference PPO and Stable-Baselines3, not torch's 1e-8."""
BETAS = (0.9, 0.999)
FIRST_LR = 1e-3
_MOMENTS = ("exp_avg", "exp_avg_sq")


class FlatAdam:
    """Adam and clipping by global norm.

    Args:
        net: its parameters are moved into one tensor; they keep their names, values and shapes.

    Raises:
        EnvError: it has no parameters that need gradients, or they are not all float32 on one device.
    """

    def __init__(self, net: nn.Module) -> None:
        self.named = trained(net)
        kinds = {(item.dtype, item.device) for item in self.named.values()}
        if len(kinds) != 1 or next(iter(kinds))[0] != torch.float32:
            shown = ", ".join(sorted(str(kind[0]) for kind in kinds)) or "none"
            raise EnvError(f"needs float32 parameters on one device to be trained, found {shown}", key="policy.id")
        self.flat = nn.Parameter(flatten(self.named.values()))
        self.grad = torch.zeros_like(self.flat.data)
        self.flat.grad = self.grad
        for item, grads in zip(self.named.values(), self._views(self.grad), strict=True):
            item.grad = grads
        self._trained = list(self.named.values())
        self._lr = FIRST_LR
        self._steps = torch.zeros((), dtype=torch.float32, device=self.grad.device)
        self._moments = {moment: torch.zeros_like(self.grad) for moment in _MOMENTS}

    def set_lr(self, lr: float) -> None:
        """Learning rate from the next step on."""
        self._lr = lr

    def leap(self) -> float:
        """How far the next step moves each weight, about, beside what weights are (their root mean square, or 1).

        Adam's steps are as long as the learning rate however long the gradient is, so above 1 nothing is left of what
        was learned before. 0 where the learning rate is at most 1.
        """
        if self._lr <= 1.0:
            return 0.0
        return self._lr / max(1.0, float(self.flat.detach().square().mean().sqrt()))

    def zero_grad(self) -> None:
        """Before each backward pass."""
        self.grad.zero_()

    def backward(self, loss: Tensor) -> None:
        """The gradient of the loss, one number, by these parameters, instead of what was there; none by others that it
        runs through."""
        self.grad.zero_()
        loss.backward(inputs=self._trained)  # type: ignore[no-untyped-call]

    def norm(self) -> Tensor:
        """Length of the gradient, a scalar."""
        length: Tensor = torch.linalg.vector_norm(self.grad)
        return length

    def step(self, max_norm: float, norm: Tensor | None = None) -> Tensor:
        """Scale the gradient down to `max_norm` where it is longer, and take one step. Returns the norm before.

        Args:
            norm: of the gradient, one number, where it is known.
        """
        norm = self.norm() if norm is None else norm
        self.grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        with torch.no_grad():
            adam(
                [self.flat],
                [self.grad],
                [self._moments["exp_avg"]],
                [self._moments["exp_avg_sq"]],
                [],
                [self._steps],
                fused=True,
                amsgrad=False,
                beta1=BETAS[0],
                beta2=BETAS[1],
                lr=self._lr,
                weight_decay=0.0,
                eps=ADAM_EPSILON,
                maximize=False,
            )
        return norm

    def state(self) -> Arrays:
        """Moments by parameter name, shaped as the parameters, and the number of steps."""
        arrays: Arrays = {"adam.step": to_numpy(self._steps.to(torch.float64))}
        for moment in _MOMENTS:
            views = self._views(self._moments[moment])
            arrays |= {f"adam.{moment}.{name}": to_numpy(view) for name, view in zip(self.named, views, strict=True)}
        return arrays

    def load(self, arrays: Mapping[str, Array]) -> None:
        """The opposite of `state`.

        Raises:
            CheckpointError: the moments are of another module.
        """
        mine = {name: array.shape for name, array in self.state().items()}
        given = {name: array.shape for name, array in arrays.items() if name.startswith("adam.")}
        if mine != given:
            odd = sorted(name for name in mine.keys() | given.keys() if mine.get(name) != given.get(name))
            raise CheckpointError(f"the optimizer's state is of another policy: {', '.join(odd[:5])} differ")
        self._steps = torch.tensor(float(arrays["adam.step"]), dtype=torch.float32, device=self.grad.device)
        for moment in _MOMENTS:
            parts = [torch.from_numpy(arrays[f"adam.{moment}.{name}"].copy()).reshape(-1) for name in self.named]
            self._moments[moment] = torch.cat(parts).to(self.grad.device)

    def _views(self, flat: Tensor) -> list[Tensor]:
        return _views(flat, self.named.values())


def trained(net: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that need gradients, by name."""
    return {name: item for name, item in net.named_parameters() if item.requires_grad}


def flatten(parameters: Collection[nn.Parameter]) -> Tensor:
    """Move parameters into one flat tensor, which they are views of from now on."""
    flat = torch.cat([item.detach().reshape(-1) for item in parameters])
    for item, values in zip(parameters, _views(flat, parameters), strict=True):
        item.data = values
    return flat


def _views(flat: Tensor, parameters: Collection[nn.Parameter]) -> list[Tensor]:
    shapes = [item.shape for item in parameters]
    parts = torch.split(flat, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
