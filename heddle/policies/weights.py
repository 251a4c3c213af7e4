"""Weights as bytes: safetensors with the policy version, the update and nothing that can run code.

It never reads a pickle, and it looks at a header's size before it parses it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from heddle.errors import HeddleError
from heddle.policies.base import Array, Arrays

FORMAT = "heddle-weights/1"
HEADER_CAP_BYTES = 2**20
"""Largest safetensors header that is parsed: some 10,000 tensors."""
NORM_PREFIX = "norm."
"""Names of statistics of normalised observations, published among the weights."""


class WeightsError(HeddleError):
    """Weights that are damaged, or that belong to another policy."""


class TornWeights(WeightsError):
    """The published weights of a version are not what was published.

    Attributes:
        version: which.
    """

    def __init__(self, reason: str, *, version: int) -> None:
        super().__init__(reason)
        self.version = version


@dataclass(frozen=True, slots=True)
class WeightsInfo:
    """What travels beside the weights.

    Attributes:
        version: policy version.
        update: the update of the trainer that made them.
    """

    version: int
    update: int


def pack(weights: Mapping[str, Array], *, version: int, update: int) -> bytes:
    """Weights as safetensors bytes."""
    arrays = {name: np.asarray(array, order="C") for name, array in weights.items()}
    # One text field, for safetensors writes several in no fixed order: equal weights shall be equal bytes.
    about = json.dumps({"format": FORMAT, "update": update, "version": version})
    return bytes(save(arrays, {"heddle": about}))


def unpack(data: bytes) -> tuple[Arrays, WeightsInfo]:
    """The opposite of `pack`.

    Raises:
        WeightsError: not safetensors, a header above 1 MiB, or not written by `pack`.
    """
    try:
        about = json.loads(read_metadata(data, HEADER_CAP_BYTES)["heddle"])
        if about["format"] != FORMAT:
            raise WeightsError(f"not policy weights: format {about['format']!r}, expected {FORMAT!r}")
        info = WeightsInfo(version=int(about["version"]), update=int(about["update"]))
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise WeightsError(f"not policy weights: the header has no format, version and update ({error!r})") from error
    return load_arrays(data), info


def sha256(data: bytes) -> str:
    """Digest of packed weights, in hex."""
    return hashlib.sha256(data).hexdigest()


def check(weights: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """Refuse weights that do not fit a policy.

    Args:
        weights: what came.
        expected: the policy's own weights; only names, shapes and dtypes are looked at.

    Raises:
        WeightsError: naming what is missing, unknown or of another shape or dtype.
    """
    missing = sorted(expected.keys() - weights.keys())
    unknown = sorted(weights.keys() - expected.keys())
    if missing or unknown:
        raise WeightsError(
            f"weights belong to another policy: missing {missing or 'none'}, unknown {unknown or 'none'};"
            " check [policy] and the environment's spaces"
        )
    for name, own in expected.items():
        new = weights[name]
        if new.shape != own.shape or new.dtype != own.dtype:
            raise WeightsError(
                f"weights belong to another policy: {name} is {new.dtype}{list(new.shape)},"
                f" expected {own.dtype}{list(own.shape)}"
            )


def split_norm(weights: Mapping[str, Array]) -> tuple[Arrays, Arrays]:
    """The weights proper, and the statistics under "norm."."""
    proper = {name: array for name, array in weights.items() if not name.startswith(NORM_PREFIX)}
    norm = {name: array for name, array in weights.items() if name.startswith(NORM_PREFIX)}
    return proper, norm


def read_metadata(data: bytes, header_cap_bytes: int) -> dict[str, str]:
    """The text fields of a safetensors header.

    Raises:
        WeightsError: no safetensors header, or one above the cap.
    """
    if len(data) < 8:
        raise WeightsError(f"not safetensors: {len(data)} bytes")
    header_bytes = int.from_bytes(data[:8], "little")
    if header_bytes > header_cap_bytes or header_bytes > len(data) - 8:
        raise WeightsError(f"not safetensors: a header of {header_bytes} bytes in {len(data)} (cap {header_cap_bytes})")
    try:
        header = json.loads(data[8 : 8 + header_bytes])
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"not safetensors: the header is not JSON ({error})") from error
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(metadata, dict):
        raise WeightsError("safetensors without metadata: not written by Heddle")
    return metadata


def load_arrays(data: bytes) -> Arrays:
    """Every tensor of safetensors bytes.

    Raises:
        WeightsError: offsets, sizes or dtypes do not add up.
    """
    try:
        return dict(load(data))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise WeightsError(f"not safetensors: {error}") from error


def not_finite(weights: Mapping[str, Array]) -> str | None:
    """Name of the first array with an infinite or NaN value; None when all are finite."""
    for name, array in weights.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return name
    return None
