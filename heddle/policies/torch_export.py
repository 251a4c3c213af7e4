"""A trained policy as a file that runs without Heddle: TorchScript, torch.export or ONNX.

It never says that a file is good before it has run what is in it: the answers to random observations must be those of
the policy itself.

Such a file takes the leaves of an observation, [N, ...] each and raw as the environment gives them, then the policy's
state, and answers, in this order: the likeliest action of every leaf, the numbers that actions are drawn by ("logits",
"mean", "log_std"), "value", and the state to give it next ("next_state.NAME", for ONNX wants no name twice). A policy
of DQN answers the action of the highest value and "q", that of SAC the mean action within its bounds, "mean" and
"log_std". Statistics of normalised observations are part of it.
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
from heddle.policies.base import Arrays, Policy
from heddle.policies.torch_portable import Portable, portable
from heddle.spaces import Box, LeafSpace, index_range, leaves

FORMATS = ("torchscript", "torch-export", "onnx")
Run = Callable[[Arrays], Sequence[Any]]
"""Inputs by name, in order, to outputs in order."""
BATCHES = (1, 2, 7)
"""Numbers of observations that a file is tried with."""


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
    whole = portable(policy)
    spaces: Any = policy
    if ragged := [leaf.name for leaf in leaves(spaces.observation) if leaf.ragged]:
        raise ValueError(f"{', '.join(ragged)} of no fixed size cannot be the input of such a file; use safetensors")
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
    expected = acted.actions | {name: array for name, array in acted.outputs.items() if name == "value"}
    expected |= {f"next_state.{name}": array for name, array in acted.state.items()}
    largest = 0.0
    for name, own in expected.items():
        found = np.asarray(given[name])
        if found.shape != own.shape or not np.allclose(found, own, rtol=1e-3, atol=1e-4):
            raise ValueError(f"answers {rows} observations otherwise than the policy: {name} differs")
        largest = max(largest, float(np.abs(found.astype(np.float64) - own.astype(np.float64)).max()))
    return largest
