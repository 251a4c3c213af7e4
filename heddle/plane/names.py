"""Names in shared memory: of a batch's file, and what the token of a host's memory tells when a file is not there.

Pure: it never looks at a file.
"""

import re

_FILE = re.compile(r"(\d{1,9})\.(\d{1,18})\.([0-9A-Za-z_-]{1,64})\.(\d{1,18})")
_FOLDER = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]{0,127}")


def file_of(shard: int, epoch: int, nonce: str, seq: int) -> str:
    """The name of a batch's file: its identity."""
    return f"{shard}.{epoch}.{nonce}.{seq}"


def batch_of(name: str) -> tuple[int, int, str, int] | None:
    """The opposite of `file_of`; None for any other name."""
    found = _FILE.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]), found[3], int(found[4]))


def is_folder_name(name: str) -> bool:
    """Whether a broker's or experiment's name can name a folder: it leads nowhere else, and is not hidden."""
    return _FOLDER.fullmatch(name) is not None


def token_of(host: str, boot: str, chance: str) -> str:
    """Names the shared memory of a host between two of its boots."""
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', host) or 'host'}/{boot}/{chance}"


def why_missing(place: str, mine: str) -> str:
    """Why the file of a batch in the shared memory `place` cannot be read by whoever has `mine`, "" for none."""
    host, _, rest = place.partition("/")
    here, _, own = mine.partition("/")
    if place == mine:
        return f"it lay in the shared memory of {host} and is not there any more"
    if not mine:
        return f"it lies in the shared memory of {host}, and this process has none"
    if rest.partition("/")[0] == own.partition("/")[0]:
        return f"it lies in shared memory of {host} that is another user's or container's, or was emptied since"
    if host == here:
        return f"it lay in the shared memory of {host}, which was started again since"
    return f"it lies in the shared memory of {host}, and this is {here}"
