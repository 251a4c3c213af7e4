"""Shared memory of one host: batches that producers write and readers map, as files that no byte is copied from.

This package never talks to a broker and never decides when a batch is settled.

    <root>/plane                                the token: which host, which of its boots, and chance
    <root>/<broker>/<experiment>/<batch>        one batch that was offered, until it is settled
    <root>/<broker>/<experiment>/.ring-<...>/   the buffers of one worker, which holds the lock in it while it lives
"""

from heddle.plane.home import Home
from heddle.plane.host import Host, Plane, open_plane, root_folder, this_host
from heddle.plane.names import batch_of, file_of, why_missing
from heddle.plane.ring import Ring, Slot

__all__ = [
    "Home",
    "Host",
    "Plane",
    "Ring",
    "Slot",
    "batch_of",
    "file_of",
    "open_plane",
    "root_folder",
    "this_host",
    "why_missing",
]
