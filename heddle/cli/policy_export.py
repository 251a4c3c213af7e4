"""`policy export`: a checkpoint's policy as a file for others to use.

It never leaves a file behind that does not answer as the policy does.
"""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heddle.cli.options import epilog, existing_file, output_option, print_json
from heddle.cli.root import Command

if TYPE_CHECKING:
    from heddle.checkpoint import Checkpoint
    from heddle.policies import Policy

FORMATS = ("safetensors", "torchscript", "torch-export", "onnx")
EXAMPLE = "heddle policy export runs/cartpole-7f3a2b --format onnx --to policy.onnx"


@click.command("export", cls=Command, epilog=epilog(EXAMPLE))
@click.argument("checkpoint", metavar="CHECKPOINT", type=click.Path(path_type=Path))
@click.option("--format", "kind", type=click.Choice(FORMATS), required=True, help="What to write.")
@click.option("--to", "file", metavar="FILE", callback=existing_file, required=True, help="Where to.")
@output_option
def export(checkpoint: Path, kind: str, file: Path, output: str) -> None:
    """Write the policy of CHECKPOINT (a file, or a run's folder: its best one) to a file that runs without Heddle.

    All but safetensors, which holds the weights alone, take raw observations and answer the likeliest action. What is
    written is run on random observations before it is kept: it must answer as the policy does.
    """
    from heddle.cli.evaluate import find_checkpoint
    from heddle.errors import UsageError

    path = find_checkpoint(checkpoint)
    found, policy = load_policy(path)
    temporary = file.with_name(f".{file.stem}.tmp{file.suffix}")
    try:
        told = _write(found, policy, kind, temporary)
        temporary.replace(file)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    size = file.stat().st_size
    if output == "json":
        print_json({"file": str(file), "format": kind, "checkpoint": str(path), "bytes": size, **told})
        return
    how = "read back the same" if kind == "safetensors" else f"answers as the policy (within {told['difference']:.1g})"
    click.echo(f"{file}: {kind} of {found.experiment} at update {found.update}, {size:,} bytes; {how}")


def load_policy(path: Path) -> "tuple[Checkpoint, Policy]":
    """A checkpoint and the policy that it holds.

    Raises:
        CheckpointError: it cannot be loaded; SpecError: its policy cannot be made here.
    """
    from heddle.checkpoint import load
    from heddle.policies import make_policy
    from heddle.spaces import from_json
    from heddle.spec import spec_from_json

    found = load(path)
    spec = spec_from_json(found.spec_json)
    observation, action = from_json(found.spaces["observation"]), from_json(found.spaces["action"])
    policy = make_policy(spec.policy, observation, action, seed=spec.experiment.seed)
    policy.set_weights(found.weights)
    return found, policy


def _write(found: "Checkpoint", policy: "Policy", kind: str, file: Path) -> dict[str, Any]:
    """Write and check; what there is to tell. Raises ValueError, OSError, MissingExtra."""
    import importlib.util

    from heddle.errors import MissingExtra

    if kind == "safetensors":
        from heddle.policies import pack, unpack

        file.write_bytes(pack(found.weights, version=found.policy_version, update=found.update))
        policy.set_weights(unpack(file.read_bytes())[0])  # raises when it does not fit
        return {"tensors": len(found.weights)}
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(f"an export as {kind}", "export")
    from heddle.policies.torch_export import export as write

    about = {"experiment": found.experiment, "update": found.update, "spaces": found.spaces}
    return {"difference": write(policy, kind, file, about=about)}
