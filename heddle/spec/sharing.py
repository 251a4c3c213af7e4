"""Sharing: which batches of an experiment lie in shared memory, by how large they are.

Pure: it never looks at a host. Consumer and producers ask the same, so an experiment of small batches costs neither of
them a word about shared memory.
"""

from heddle.spec.models import ExperimentSpec

LEAST_SHARED = 128 << 10
"""With `rollout.plane = "auto"` smaller batches go through the broker, which costs no more than a file does."""


def least_shared(spec: ExperimentSpec) -> int | None:
    """Bytes from which on a batch lies in shared memory, where its readers see it; None: none ever does."""
    return {"redis": None, "auto": LEAST_SHARED, "shm": 0}[spec.plane]


def is_shared(spec: ExperimentSpec, batch_bytes: int) -> bool:
    """Whether a batch of that many bytes lies in shared memory, where its readers see it."""
    least = least_shared(spec)
    return least is not None and batch_bytes >= least
