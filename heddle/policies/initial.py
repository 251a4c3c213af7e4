"""First weights from a file: what `policy.init` names.

It never reads a pickle: a weights file of Heddle's, a checkpoint, or any safetensors file with the policy's own names.
"""

from pathlib import Path

from heddle.checkpoint import FORMAT as CHECKPOINT
from heddle.checkpoint import decode
from heddle.errors import CheckpointError, EnvError
from heddle.policies.base import Arrays, Policy
from heddle.policies.groups import GroupsPolicy
from heddle.policies.weights import WeightsError, load_arrays, not_finite, read_metadata
from heddle.spec import PolicySpec

HEADER_CAP_BYTES = 64 * 2**20


def read_weights(file: Path) -> Arrays:
    """The weights in a file.

    Raises:
        EnvError: there is none, or it is no safetensors.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise _unfit(file, f"cannot be read: {error.strerror or error}") from error
    try:
        try:
            is_checkpoint = read_metadata(data, HEADER_CAP_BYTES).get("format") == CHECKPOINT
        except WeightsError:  # safetensors of others have no metadata
            is_checkpoint = False
        return decode(data).weights if is_checkpoint else load_arrays(data)
    except (WeightsError, CheckpointError) as error:
        raise _unfit(file, str(error)) from error


def give_weights(policy: Policy, file: Path, *, group: str = "") -> None:
    """Have the policy begin with the weights in a file.

    Args:
        group: whose they are, where the file holds those of several groups.

    Raises:
        EnvError: they cannot be read, are not finite, or belong to another policy.
    """
    weights = read_weights(file)
    own = {name.removeprefix(f"{group}/"): array for name, array in weights.items() if name.startswith(f"{group}/")}
    weights = own if group and own else weights
    if (name := not_finite(weights)) is not None:
        raise _unfit(file, f"{name} holds numbers that are not finite")
    try:
        policy.set_weights(weights)
    except WeightsError as error:
        raise _unfit(file, str(error)) from error


def begin_with_files(policy: Policy, spec: PolicySpec) -> None:
    """Have the policy, or that of each group, begin with the weights of the file that the spec names, if it names one.

    Raises:
        EnvError: as `give_weights` does.
    """
    if spec.init is not None:
        give_weights(policy, Path(spec.init))
    if isinstance(policy, GroupsPolicy):
        for group, member in zip(spec.groups, policy.members, strict=True):
            if group.init is not None:
                give_weights(member.policy, Path(group.init), group=group.name)


def _unfit(file: Path, reason: str) -> EnvError:
    hint = "a safetensors file of this policy, from heddle policy export or pull, or a checkpoint"
    return EnvError(reason, key="policy.init", value=str(file), hint=hint)
