"""What a tracker is called in the broker: its kind, and a digest of where it is.

Pure; the same words are the same tracker.
"""

import hashlib


def group_of(kind: str, where: str) -> str:
    """ "tensorboard-1f2e3d4c"."""
    return f"{kind}-{hashlib.sha256(where.encode()).hexdigest()[:8]}"
