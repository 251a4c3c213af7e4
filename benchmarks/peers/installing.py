"""Environments of the peers, in .bench/, which git does not look at: one for each, made once."""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.comparing import LeftOut

HOME = Path(__file__).parents[2] / ".bench"
PINS = Path(__file__).parents[2] / "constraints.txt"
READY = "ready.txt"
PATIENCE_S = 900.0


@dataclass(frozen=True, slots=True)
class Peer:
    """One other library.

    Attributes:
        module: what plays with it.
        library: the package whose version is told.
        wants: what is installed for it.
    """

    name: str
    module: str
    library: str
    wants: tuple[str, ...]


PEERS = (
    Peer("sb3", "sb3_side", "stable-baselines3", ("torch", "stable-baselines3", "gymnasium")),
    Peer("envpool", "envpool_side", "envpool", ("envpool", "gymnasium", "numpy")),
    Peer("ray", "ray_side", "ray", ("ray", "gymnasium", "numpy")),
    Peer("rllib", "rllib_side", "ray", ("torch", "ray[rllib]", "gymnasium")),
    Peer("torchrl", "torchrl_side", "torchrl", ("torch", "torchrl", "gymnasium")),
    Peer("sample-factory", "sf_side", "sample-factory", ("torch", "sample-factory", "gymnasium")),
)


def installed(names: Sequence[str], left_out: LeftOut) -> Iterator[tuple[Peer, Path]]:
    """The peers that could be installed and the Python of each; the others are left out."""
    for peer in PEERS:
        if peer.name not in names:
            continue
        problem = install(peer, HOME / peer.name)
        if problem:
            left_out.add(peer.name, problem)
        else:
            yield peer, python_of(HOME / peer.name)


def install(peer: Peer, home: Path) -> str:
    """Make `home` with everything that the peer wants, unless it is there; what went wrong, "" for nothing."""
    packages = pinned(peer.wants, PINS.read_text())
    wanted = "\n".join(packages)
    if (home / READY).exists() and (home / READY).read_text() == wanted:
        return ""
    print(f"installing {', '.join(packages)} into {home}", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    uv = shutil.which("uv")
    make = [uv, "venv", "-q", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
    python = str(python_of(home))
    fill = [uv, "pip", "install", "-q", "--python", python] if uv else [python, "-m", "pip", "install", "-q"]
    for command in ([*make, str(home)], [*fill, *packages]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        except subprocess.TimeoutExpired:
            return f"took more than {PATIENCE_S:g} s to install"
        if done.returncode:
            return f"cannot be installed here: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    (home / READY).write_text(wanted)
    return ""


def pinned(wants: Sequence[str], pins: str) -> list[str]:
    """The packages of one peer, torch as Heddle has it: the build for processors is there only in that version."""
    torch = [line for line in pins.splitlines() if line.startswith("torch==")]
    return [torch[0] if package == "torch" and torch else package for package in wants]


def python_of(home: Path) -> Path:
    """The interpreter of an environment."""
    return home / "bin" / "python"
