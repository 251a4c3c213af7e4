"""A trained policy as a file that runs without Heddle: TorchScript, torch.export or ONNX.

It never says that a file is good before it has run what is in it: the answers to random observations must be those of
the policy itself.

Such a file takes the leaves of an observation, [N, ...] each and raw as the environment gives them, then the policy's
state, and answers, in this order: the likeliest action of every leaf, the numbers that actions are drawn by ("logits",
"mean", "log_std"), "value", and the state to give it next ("next_state.NAME", for ONNX wants no name twice). Statistics
of normalised observations are part of it.
"""

import io
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heddle.errors import MissingExtra
from heddle.policies.actions import Head, Heads
from heddle.policies.answers import answer_names
from heddle.policies.base import Arrays, OutputSpec, Policy
from heddle.policies.normalise import CLIP, Normaliser
from heddle.policies.torch_heads import mask_logits, value_of
from heddle.policies.weights import NORM_PREFIX, split_norm
from heddle.spaces import Box, LeafSpace, index_range, leaves

FORMATS = ("torchscript", "torch-export", "onnx")
Run = Callable[[Arrays], Sequence[Any]]
"""Inputs by name, in order, to outputs in order."""
BATCHES = (1, 2, 7)
"""Numbers of observations that a file is tried with."""


class Portable(nn.Module):
    """A policy's network with everything around it: statistics, masks, likeliest actions.

    Attributes:
        inputs, outputs: names, in order.
    """

    def __init__(self, net: nn.Module, policy: Any) -> None:
        super().__init__()
        self.net = net.cpu().eval()
        self.heads: Heads = policy.heads
        self.state_spec: Mapping[str, OutputSpec] = policy.state
        self.leaves = [leaf.name for leaf in leaves(policy.observation)]
        self.inputs = [*self.leaves, *(f"state.{name}" for name in self.state_spec)]
        self.names = answer_names(self.heads)
        actions = [head.leaf.name for head in self.heads.all]
        self.outputs = [*actions, *self.names, "value", *(f"next_state.{name}" for name in self.state_spec)]
        self.factors = _factors(policy)

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        raw = dict(zip(self.leaves, given, strict=False))
        state = dict(zip(self.state_spec, given[len(self.leaves) :], strict=True))
        seen = dict(raw)
        for name, (mean, scale) in self.factors.items():
            seen[name] = ((raw[name].float() - mean) * scale).clamp(-CLIP, CLIP)
        answer = self.net(seen, state)
        actions = [_likeliest(head, answer, raw) for head in self.heads.all]
        numbers = [answer[name].float() for name in self.names]
        after = [answer["state"][name] for name in self.state_spec]
        return (*actions, *numbers, value_of(answer).float(), *after)


def export(policy: Policy, kind: str, file: Path, *, about: Mapping[str, Any]) -> float:
    """Write the policy to `file` and run what was written: ONNX from the file, the others as they were written.

    Args:
        kind: one of FORMATS.
        about: what the file shall tell of itself, as JSON.

    Returns:
        The largest difference between what the file and the policy answered.

    Raises:
        MissingExtra: a library is not installed.
        ValueError: the policy has no torch module, cannot be written so, or the file answers otherwise.
    """
    make = getattr(policy, "module", None)
    lacks = (
        "no torch module" if not callable(make) else "" if hasattr(policy, "heads") else "no heads that are known here"
    )
    if lacks or make is None:
        raise ValueError(f"{type(policy).__name__} has {lacks}; its weights can be exported as safetensors")
    spaces: Any = policy
    if ragged := [leaf.name for leaf in leaves(spaces.observation) if leaf.ragged]:
        raise ValueError(f"{', '.join(ragged)} of no fixed size cannot be the input of such a file; use safetensors")
    whole = Portable(make(), policy).eval()
    example = tuple(torch.from_numpy(array) for array in random_inputs(policy, 2, np.random.default_rng(0)).values())
    write = {"torchscript": _write_torchscript, "torch-export": _write_exported, "onnx": _write_onnx}[kind]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of libraries about themselves; what counts is looked at below
        try:
            run = write(whole, example, file, json.dumps({**about, "inputs": whole.inputs, "outputs": whole.outputs}))
        except MissingExtra:
            raise
        except Exception as error:  # whatever the exporter, or the user's module in it, raises
            reason = " ".join(str(error).split())[:300]
            raise ValueError(f"cannot be written as {kind}: {type(error).__name__}: {reason}") from error
        return max(_difference(policy, whole, run, rows) for rows in BATCHES)


def random_inputs(policy: Any, rows: int, rng: np.random.Generator) -> Arrays:
    """Observations and states by input name, [rows, ...], drawn within the spaces."""
    drawn = {leaf.name: draw(leaf.space, rows, rng) for leaf in leaves(policy.observation)}
    for name, spec in policy.state.items():
        drawn[f"state.{name}"] = rng.standard_normal((rows, *spec.shape)).astype(spec.dtype)
    return drawn


def draw(space: LeafSpace, rows: int, rng: np.random.Generator) -> Any:
    """[rows, ...] values of a leaf."""
    shape = (rows, *space.shape)
    limits = index_range(space, chosen=False)
    if limits is not None:
        return rng.integers(limits[0], limits[1], shape, endpoint=True).astype(space.dtype)
    assert isinstance(space, Box)
    low, high = space.bounds()
    if np.dtype(space.dtype).kind == "f":
        bounded = np.isfinite(low) & np.isfinite(high) & (high - low < 1e6)
        inside = np.where(bounded, low, 0.0) + rng.random(shape) * np.where(bounded, high - low, 1.0)
        return np.where(bounded, inside, rng.standard_normal(shape).clip(low, high)).astype(space.dtype)
    return np.floor(low + rng.random(shape) * np.minimum(high - low + 1.0, 256.0)).astype(space.dtype)


def _factors(policy: Any) -> dict[str, tuple[Tensor, Tensor]]:
    _, norm = split_norm(policy.get_weights())
    if not any(name.startswith(NORM_PREFIX) for name in norm):
        return {}
    normaliser = Normaliser(policy.observation)
    normaliser.load(norm)
    found = {name: normaliser.factors(name) for name in normaliser.moments}
    return {name: (torch.from_numpy(pair[0]), torch.from_numpy(pair[1])) for name, pair in found.items() if pair}


def _likeliest(head: Head, answer: Mapping[str, Tensor], observations: Mapping[str, Tensor]) -> Tensor:
    shape, dtype = (-1, *head.leaf.space.shape), getattr(torch, head.leaf.chosen_dtype)
    if head.continuous:
        mean = answer[f"mean{head.suffix}"].reshape(-1, head.count)
        if head.low is not None and head.span is not None:
            low, span = torch.from_numpy(head.low), torch.from_numpy(head.span)
            mean = low + span * (torch.tanh(mean.double()) + 1.0) * 0.5
        return mean.reshape(shape).to(dtype)
    logits = answer[f"logits{head.suffix}"].reshape(-1, head.count)
    if head.kind == "bernoulli":
        return (logits > 0).reshape(shape).to(dtype)
    masks = [observations[name].flatten(1) for name in head.masks]
    parts = torch.split(logits, list(head.sizes), dim=1)
    allowed = torch.split(torch.cat(masks, dim=1), list(head.sizes), dim=1) if masks else [None] * len(parts)
    picks = [mask_logits(part, mask).argmax(dim=1) for part, mask in zip(parts, allowed, strict=True)]
    chosen = torch.stack(picks, dim=1).reshape(shape)
    if head.offset is not None:
        chosen = chosen + torch.from_numpy(head.offset.astype(np.int64))
    return chosen.to(dtype)


def _write_torchscript(whole: nn.Module, example: tuple[Tensor, ...], file: Path, about: str) -> Run:
    traced = torch.jit.trace(whole, example, check_trace=False)  # type: ignore[no-untyped-call]
    torch.jit.save(traced, str(file), _extra_files={"heddle.json": about})
    return _runner(traced)


def _write_exported(whole: nn.Module, example: tuple[Tensor, ...], file: Path, about: str) -> Run:
    program = torch.export.export(whole, example, dynamic_shapes=_dynamic(example))
    packed = io.BytesIO()  # torch wants its own suffix of a path
    torch.export.save(program, packed, extra_files={"heddle.json": about})
    file.write_bytes(packed.getvalue())
    return _runner(program.module())


def _write_onnx(whole: Portable, example: tuple[Tensor, ...], file: Path, about: str) -> Run:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  torch needs it
    except ImportError as error:
        raise MissingExtra("an export as onnx", "export") from error
    program = torch.onnx.export(
        whole,
        example,
        dynamo=True,
        input_names=whole.inputs,
        output_names=whole.outputs,
        dynamic_shapes=_dynamic(example),
        verbose=False,
    )
    assert program is not None
    model = program.model_proto
    model.metadata_props.add(key="heddle", value=about)
    onnx.save(model, str(file))
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    wanted = {one.name for one in session.get_inputs()}  # what no output depends on is not among them
    return lambda arrays: session.run(None, {name: array for name, array in arrays.items() if name in wanted})


def _runner(made: Any) -> Run:
    """What was written, run in memory: a file of torch's is never read, for reading one may run what is in it."""
    return lambda arrays: [part.numpy() for part in made(*map(torch.from_numpy, arrays.values()))]


def _dynamic(example: Sequence[Tensor]) -> tuple[tuple[dict[int, Any], ...]]:
    rows = torch.export.Dim("rows", min=1)
    return (tuple({0: rows} for _ in example),)


def _difference(policy: Any, whole: Portable, run: Run, rows: int) -> float:
    """Between the file's answer and the policy's own to `rows` random observations. Raises ValueError."""
    arrays = random_inputs(policy, rows, np.random.default_rng(rows))
    given = dict(zip(whole.outputs, run(arrays), strict=True))
    seen = {name: arrays[name] for name in whole.leaves}
    state = {name: arrays[f"state.{name}"] for name in whole.state_spec}
    noise = np.zeros((rows, policy.noise.size))
    acted = policy.act(seen, state, noise, deterministic=True)
    expected = {**acted.actions, "value": acted.outputs["value"]}
    expected |= {f"next_state.{name}": array for name, array in acted.state.items()}
    largest = 0.0
    for name, own in expected.items():
        found = np.asarray(given[name])
        if found.shape != own.shape or not np.allclose(found, own, rtol=1e-3, atol=1e-4):
            raise ValueError(f"answers {rows} observations otherwise than the policy: {name} differs")
        largest = max(largest, float(np.abs(found.astype(np.float64) - own.astype(np.float64)).max()))
    return largest
