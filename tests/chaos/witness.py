"""The witness: keeps the file of every batch that a worker offers in shared memory, until the observer has read it.

It never changes what is offered. It is another name of the same file: a buffer with one is not used again.
"""

import os
from pathlib import Path

from tests.chaos.planes import play_in_place

WITNESS = "CHAOS_WITNESS"
"""Variable with the folder, on the file system of shared memory, in which those names are."""


def attend() -> None:
    """In a worker: before a batch is offered it has a name here; every size is played in place, and used again."""
    folder = os.environ.get(WITNESS)
    if not folder:
        return
    from heddle.plane import ring

    offer = ring.Slot.offer

    def kept(slot: ring.Slot, name: str) -> None:
        home = Path(folder) / slot.path.parent.parent.name
        home.mkdir(exist_ok=True)
        if not (home / name).exists():
            os.link(slot.path, home / name)
        offer(slot, name)

    setattr(ring.Slot, "offer", kept)  # noqa: B010  a method of ours stands in for it
    play_in_place()


def seen(folder: Path | None, experiment: str, fields: dict[str, str]) -> bytes | None:
    """The bytes of a batch that was accepted, once."""
    if folder is None:
        return None
    file = folder / experiment / ".".join(fields[name] for name in ("shard", "epoch", "nonce", "seq"))
    try:
        with file.open("rb") as opened:
            data = opened.read(int(fields["bytes"]))
    except FileNotFoundError:
        return None
    file.unlink()
    return data
