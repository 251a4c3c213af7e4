"""A trainable module together with what a learner needs to know of it: spaces, mask, state, statistics.

It never updates anything by itself.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heddle.errors import EnvError, ExperimentFailed
from heddle.policies.actions import Heads
from heddle.policies.answers import answer_problem
from heddle.policies.base import Array, Arrays, OutputSpec, Policy
from heddle.policies.normalise import CLIP, Normaliser
from heddle.policies.torch_heads import judge, value_of
from heddle.policies.torch_memory import renewed
from heddle.policies.weights import check, split_norm
from heddle.spaces import ACTION, Space
from heddle.spec.objects import describe_error, user_errors

Tensors = dict[str, Tensor]
Actions = Mapping[str, Tensor] | Tensor
"""By leaf, or those of a plain action space alone."""
PIECE_ROWS = 4096
"""Observations valued in one call: bounds the memory that a large network needs between its layers."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What a module thinks of actions that were taken; tensors of one shape."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


class ActorCritic:
    """A policy's torch module on one device: in training mode but for `values`, which looks at it as workers do.

    Attributes:
        net: the module; its `state_dict` names are the weights' names.
        observation, action: the spaces.
        state_spec: recurrent state per environment, {} when memoryless.
        normaliser: statistics of observations, None when they are not normalised.

    Args:
        compiled: by `torch.compile`, at the first call of each shape; a recurrent module's `unroll` stays as it is.
    """

    def __init__(
        self, net: nn.Module, observation: Space, action: Space, *, device: torch.device, compiled: bool = False
    ) -> None:
        self.net = net.to(device).train()
        if compiled:
            self.net.compile()  # in place: the names of its weights stay
        self._hint = "; or set trainer.compile = false" if compiled else ""
        self.device = device
        self.observation, self.action = observation, action
        self.heads = Heads(observation, action, squash=bool(getattr(net, "squash", False)))
        self.state_spec: Mapping[str, OutputSpec] = dict(getattr(net, "state_spec", {}))
        self.normaliser: Normaliser | None = None

    @property
    def recurrent(self) -> bool:
        """It carries a state from step to step."""
        return bool(self.state_spec)

    def zero_state(self, n: int) -> Tensors:
        """State of `n` environments whose episode starts: by name, [n, ...]."""
        return {
            name: torch.zeros((n, *spec.shape), dtype=getattr(torch, spec.dtype), device=self.device)
            for name, spec in self.state_spec.items()
        }

    def normalise(self, observations: Mapping[str, Tensor]) -> Tensors:
        """Observations, [..., *leaf] with any leading dimensions, float leaves normalised by the current statistics."""
        done = dict(observations)
        for name in self.normaliser.moments if self.normaliser else ():
            factors = self.normaliser.factors(name) if self.normaliser else None
            if factors is not None:
                mean, scale = (torch.as_tensor(factor, device=self.device) for factor in factors)
                done[name] = ((done[name].float() - mean) * scale).clamp_(-CLIP, CLIP)
        return done

    def answer(self, observations: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """The module's answer to [N, ...] normalised observations.

        Raises:
            ExperimentFailed: the module, the user's code maybe, raised.
        """
        try:
            answer: Mapping[str, Any] = self.net(observations, state)
        except user_errors() as error:
            raise ExperimentFailed(f"the policy's forward raised {describe_error(error)}{self._hint}") from error
        return answer

    def _fitting(self, observations: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """As `answer`, of a module that judges actions: torch would take other shapes for what they are not.

        Raises:
            ExperimentFailed: it raised, or answers otherwise than when it was made.
        """
        answer = self.answer(observations, state)
        return self._fits(answer, self.state_spec, len(next(iter(observations.values()))))

    def _fits(self, answer: Mapping[str, Any], state: Mapping[str, OutputSpec], rows: int) -> Mapping[str, Any]:
        if problem := answer_problem(answer, self.heads, state, call="the policy's forward", rows=rows):
            raise ExperimentFailed(problem)
        return answer

    def evaluate(self, observations: Mapping[str, Tensor], actions: Actions) -> Evaluated:
        """Judge [N, ...] actions in normalised observations; for memoryless modules."""
        answer = self._fitting(observations, {})
        log_prob, entropy = judge(answer, self.heads, _by_leaf(actions), observations)
        return Evaluated(log_prob, entropy, value_of(answer))

    def evaluate_sequence(
        self, observations: Mapping[str, Tensor], actions: Actions, ended: Tensor, state: Mapping[str, Tensor]
    ) -> Evaluated:
        """Judge [B, T, ...] actions of a recurrent module, stepping through time with gradients.

        Args:
            observations: leaf -> [B, >= T, ...], normalised.
            actions: leaf -> [B, T, ...], or the one leaf of a plain action space.
            ended: [B, T] bool; the state starts anew after such a step.
            state: name -> [B, ...] before step 0.

        A module with `unroll`, as the built-in ones have it, does all steps at once.
        """
        chosen, (rows, steps) = _by_leaf(actions), ended.shape
        if (unroll := getattr(self.net, "unroll", None)) is not None:
            shown = {name: values[:, :steps] for name, values in observations.items()}
            answer, _ = unroll(shown, ended, state)
            self._fits(answer, {}, rows * steps)
            judged = judge(answer, self.heads, _flat(chosen), _flat(shown))
            done = (part.view(rows, steps) for part in (*judged, value_of(answer)))
            return Evaluated(*done)
        columns: list[tuple[Tensor, Tensor, Tensor]] = []
        for step in range(steps):
            now = {name: values[:, step] for name, values in observations.items()}
            answer = self._fitting(now, state)
            taken = {name: values[:, step] for name, values in chosen.items()}
            log_prob, entropy = judge(answer, self.heads, taken, now)
            columns.append((log_prob, entropy, value_of(answer)))
            state = renewed(answer["state"], ended[:, step])
        log_prob, entropy, value = (torch.stack(parts, dim=1) for parts in zip(*columns, strict=True))
        return Evaluated(log_prob, entropy, value)

    @torch.no_grad()
    def values(
        self,
        observations: Mapping[str, Tensor],
        *,
        ended: Tensor,
        state: Mapping[str, Tensor],
        final_index: Tensor,
        final_observations: Mapping[str, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Values of every observation and of every final one, without gradients.

        Args:
            observations: leaf -> [B, T+1, ...], normalised.
            ended: [B, T] bool.
            state: name -> [B, ...] before step 0.
            final_index: [K, 2] (segment, step).
            final_observations: leaf -> [K, ...], normalised; valued from the state after their step.

        Returns:
            [B, T+1] and [K] float32.
        """
        self.net.eval()
        try:
            if self.recurrent:
                return self._values_through_time(observations, ended, state, final_index, final_observations)
            some = next(iter(observations.values()))
            value = torch.cat([value_of(self._fitting(part, {})) for part in _pieces(_flat(observations))]).view(
                some.shape[:2]
            )
            final = value_of(self._fitting(final_observations, {})) if len(final_index) else value.new_zeros(0)
            return value, final
        finally:
            self.net.train()

    def _values_through_time(
        self,
        observations: Mapping[str, Tensor],
        ended: Tensor,
        state: Mapping[str, Tensor],
        final_index: Tensor,
        final_observations: Mapping[str, Tensor],
    ) -> tuple[Tensor, Tensor]:
        columns: list[Tensor] = []
        after = self.zero_state(len(final_index))
        if (unroll := getattr(self.net, "unroll", None)) is not None:
            answer, kept = unroll(observations, nn.functional.pad(ended, (0, 1)), state)
            for name, finals in after.items():
                for index, (row, step) in enumerate(final_index.tolist()):
                    finals[index] = kept[step][name][row]
            value = value_of(answer).view(len(ended), -1)
            return value, value_of(self._fitting(final_observations, after)) if len(final_index) else value.new_zeros(0)
        for step in range(next(iter(observations.values())).shape[1]):
            answer = self._fitting({name: values[:, step] for name, values in observations.items()}, state)
            columns.append(value_of(answer))
            if step == ended.shape[1]:
                break
            for name, kept in after.items():
                here = final_index[:, 1] == step
                kept[here] = answer["state"][name][final_index[here, 0]]
            state = renewed(answer["state"], ended[:, step])
        value = torch.stack(columns, dim=1)
        final = value_of(self._fitting(final_observations, after)) if len(final_index) else value.new_zeros(0)
        return value, final

    def get_weights(self) -> Arrays:
        """Copies by name, with the statistics under "norm."."""
        norm = self.normaliser.weights() if self.normaliser else {}
        return module_weights(self.net) | norm

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """The opposite of `get_weights`.

        Raises:
            WeightsError: they are of another policy.
        """
        proper, norm = split_norm(weights)
        load_module_weights(self.net, proper)
        if norm:
            self.normaliser = self.normaliser or Normaliser(self.observation)
            self.normaliser.load(norm)


def make_module(policy: Policy, *, device: torch.device, compiled: bool = False) -> ActorCritic:
    """The trainable side of a policy: the built-in one, a torch module's, or one that offers `module()`.

    Raises:
        EnvError: it has none, so it cannot be trained.
    """
    make = getattr(policy, "module", None)
    if not callable(make):
        raise EnvError(
            f"cannot be trained: {type(policy).__name__} offers no torch module",
            key="policy.id",
            hint="use policy.id = mlp, a torch module, or a class with module(), observation and action",
        )
    missing = [name for name in ("observation", "action") if not hasattr(policy, name)]
    if missing:
        raise EnvError(f"cannot be trained: {type(policy).__name__} lacks {', '.join(missing)}", key="policy.id")
    spaces: Any = policy
    try:
        made = make()
    except user_errors() as error:
        raise EnvError(f"cannot be trained: module() raised {describe_error(error)}", key="policy.id") from error
    return ActorCritic(made, spaces.observation, spaces.action, device=device, compiled=compiled)


def module_weights(net: nn.Module) -> Arrays:
    """Copies of a module's parameters and buffers by name."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in net.state_dict().items()}


def load_module_weights(net: nn.Module, weights: Mapping[str, Array]) -> None:
    """Copy arrays into a module's parameters and buffers, in place.

    Raises:
        WeightsError: names, shapes or dtypes differ.
    """
    own = net.state_dict()
    check(weights, {name: tensor.detach().cpu().numpy() for name, tensor in own.items()})
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.from_numpy(weights[name].copy()))


def _pieces(observations: Mapping[str, Tensor]) -> Iterator[Tensors]:
    """Observations [N, ...] in pieces of at most PIECE_ROWS."""
    parts = {name: torch.split(values, PIECE_ROWS) for name, values in observations.items()}
    for index in range(len(next(iter(parts.values())))):
        yield {name: pieces[index] for name, pieces in parts.items()}


def _by_leaf(actions: Actions) -> Mapping[str, Tensor]:
    return {ACTION: actions} if isinstance(actions, Tensor) else actions


def _flat(values: Mapping[str, Tensor]) -> Tensors:
    """[B, T, ...] becomes [B * T, ...]."""
    return {name: value.flatten(0, 1) for name, value in values.items()}
