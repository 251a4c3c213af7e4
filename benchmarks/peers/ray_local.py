"""A Ray of this machine alone, in a folder of its own, that reports to nobody and ends with its side."""

import os
import shutil
import tempfile
from pathlib import Path

# Else its actors give way to everybody here, by 15.
os.environ.update(RAY_worker_niceness="0", RAY_USAGE_STATS_ENABLED="0")

import ray  # noqa: E402  reads the variables

STORE_BYTES = 512 * 2**20


class LocalRay:
    """Started; what lies in its folder is removed with it."""

    def __init__(self, cpus):
        self._folder = Path(tempfile.mkdtemp(prefix="r"))
        ray.init(
            num_cpus=cpus,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(self._folder),
        )

    def close(self):
        """End every process of it."""
        ray.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)
