"""Durability of names: a file that was made, renamed or removed is so for good once its folder is synced.

It never syncs what is in a file: whoever writes it does, before it is renamed.
"""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Have what was done to the names in `folder` survive a power cut. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
