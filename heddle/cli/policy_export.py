"""`policy export`: a checkpoint's policy as a file for others to use.

It never leaves a file behind that does not answer as the policy does.
"""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heddle.cli.completion import run_names
from heddle.cli.options import epilog, existing_file, output_option, print_json
from heddle.cli.progress import progress
from heddle.cli.root import Command

if TYPE_CHECKING:
    from heddle.checkpoint import Checkpoint
    from heddle.policies import Policy

FORMATS = ("safetensors", "torchscript", "torch-export", "onnx")
EXAMPLE = "heddle policy export runs/cartpole-7f3a2b --format onnx --to policy.onnx"


@click.command("export", cls=Command, epilog=epilog(EXAMPLE))
@click.argument("checkpoint", metavar="CHECKPOINT", type=click.Path(path_type=Path), shell_complete=run_names)
@click.option("--format", "kind", type=click.Choice(FORMATS), required=True, help="What to write.")
@click.option("--to", "file", metavar="FILE", callback=existing_file, required=True, help="Where to.")
@click.option("--group", metavar="NAME", help="Of the group of agents that has this policy.")
@output_option
def export(checkpoint: Path, kind: str, file: Path, group: str | None, output: str) -> None:
    """Write the policy of CHECKPOINT (a file, or a run's folder: its best one) to a file that runs without Heddle.

    All but safetensors, which holds the weights alone, take raw observations and answer the likeliest action. What is
    written is run on random observations before it is kept: it must answer as the policy does.
    """
    from heddle.cli.evaluate import find_checkpoint
    from heddle.errors import UsageError

    path = find_checkpoint(checkpoint)
    found, policy = load_policy(path, group)
    temporary = file.with_name(f".{file.stem}.tmp{file.suffix}")
    try:
        with progress(f"writing {file.name} as {kind} and checking its answers"):
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
        facts = {"file": str(file), "format": kind, "checkpoint": str(path), "bytes": size, **told}
        print_json(facts, ids=[str(file)])
        return
    how = "read back the same" if kind == "safetensors" else f"answers as the policy (within {told['difference']:.1g})"
    click.echo(f"{file}: {kind} of {found.experiment} at update {found.update}, {size:,} bytes; {how}")


def load_policy(path: Path, group: str | None = None) -> "tuple[Checkpoint, Policy]":
    """A checkpoint and the policy that it holds.

    Args:
        group: where groups of agents have a policy each, whose; the checkpoint is then as if it held that one alone.

    Raises:
        CheckpointError: it cannot be loaded; SpecError: its policy cannot be made here; UsageError: no such group.
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
    return _of_group(found, policy, group, [one.name for one in spec.policy.groups if one.past_of is None])


def _of_group(
    found: "Checkpoint", policy: "Policy", group: str | None, known: list[str]
) -> "tuple[Checkpoint, Policy]":
    from heddle.errors import UsageError
    from heddle.policies.groups import GroupsPolicy
    from heddle.spaces import to_json

    if not isinstance(policy, GroupsPolicy):
        if group is not None:
            raise UsageError(f"--group {group}: one policy plays all agents of {found.experiment}")
        return found, policy
    member = next((one for one in policy.members if one.name == group and one.name in known), None)
    if member is None:
        what = "name a group" if group is None else f"--group {group}: no group with a policy of its own"
        raise UsageError(f"{what}, for {found.experiment} has several policies: {', '.join(known)}")
    own: Any = member.policy
    if not (hasattr(own, "observation") and hasattr(own, "action")):
        raise UsageError(f"--group {group}: its {type(own).__name__} says no spaces, and cannot be exported")
    spaces = {"observation": to_json(own.observation), "action": to_json(own.action)}
    return replace(found, weights=own.get_weights(), spaces=spaces), own


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
