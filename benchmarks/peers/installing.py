"""Environments of the peers, in .bench/, which git does not look at: one for each, made once."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).parents[2] / ".bench"
READY = "ready.txt"
PATIENCE_S = 900.0


@dataclass(frozen=True, slots=True)
class Peer:
    """One other library.

    Attributes:
        module: what plays with it.
        wants: what is installed for it.
    """

    name: str
    module: str
    wants: tuple[str, ...]


PEERS = (
    Peer("sb3", "sb3_side", ("torch", "stable-baselines3", "gymnasium")),
    Peer("envpool", "envpool_side", ("envpool", "gymnasium", "numpy")),
    Peer("ray", "ray_side", ("ray", "gymnasium", "numpy")),
)


def installed(names: Sequence[str]) -> Iterator[tuple[Peer, Path]]:
    """The peers that could be installed and the Python of each; of the others it is said why."""
    for peer in PEERS:
        if peer.name not in names:
            continue
        problem = install(peer, HOME / peer.name)
        if problem:
            print(f"left out: {peer.name}, {problem}", file=sys.stderr, flush=True)
        else:
            yield peer, python_of(HOME / peer.name)


def install(peer: Peer, home: Path) -> str:
    """Make `home` with everything that the peer wants, unless it is there; what went wrong, "" for nothing."""
    wanted = "\n".join(peer.wants)
    if (home / READY).exists() and (home / READY).read_text() == wanted:
        return ""
    print(f"installing {', '.join(peer.wants)} into {home}", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    uv = shutil.which("uv")
    make = [uv, "venv", "-q", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
    python = str(python_of(home))
    fill = [uv, "pip", "install", "-q", "--python", python] if uv else [python, "-m", "pip", "install", "-q"]
    for command in ([*make, str(home)], [*fill, *peer.wants]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        except subprocess.TimeoutExpired:
            return f"which took more than {PATIENCE_S:g} s to install"
        if done.returncode:
            return f"which cannot be installed here: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    (home / READY).write_text(wanted)
    return ""


def python_of(home: Path) -> Path:
    """The interpreter of an environment."""
    return home / "bin" / "python"
