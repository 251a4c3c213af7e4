"""The runs that left checkpoints in a folder here: which there are, and how far each came.

It never loads weights: a glance at the head of a checkpoint's file says what is shown, and nothing is trusted to it.
"""

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.checkpoint import BEST, HEADER_CAP_BYTES, listing
from heddle.policies.weights import WeightsError, read_metadata

SHOWN = 5


@dataclass(frozen=True, slots=True)
class LocalRun:
    """One run's folder.

    Attributes:
        id: of the experiment, the folder's name.
        folder: with `checkpoints` in it.
        checkpoint: its best file, else the newest.
        newest: its newest file.
        saved_s: when that was written, as the file system tells.
        facts: of the newest file: env_steps, update, counters, mean_return, best_return; {} where it cannot be read.
    """

    id: str
    folder: Path
    checkpoint: Path
    newest: Path
    saved_s: float
    facts: dict[str, Any]

    @property
    def best_return(self) -> float | None:
        """The best mean return that it reached; None for none."""
        found = self.facts.get("best_return")
        return float(found) if isinstance(found, int | float) else None


def runs_in(directory: Path) -> list[LocalRun]:
    """Every run in `directory` that has a checkpoint, newest first."""
    if not directory.is_dir():
        return []
    found = [run for folder in sorted(directory.iterdir()) if (run := run_at(folder)) is not None]
    return sorted(found, key=lambda run: run.saved_s, reverse=True)


def run_at(folder: Path) -> LocalRun | None:
    """The run whose folder this is; None where it has no checkpoint."""
    home = folder / "checkpoints"
    if not home.is_dir():
        return None
    files, best = listing(home), home / BEST
    if not files and not best.is_file():
        return None
    newest = files[0] if files else best
    chosen = best if best.is_file() else newest
    try:
        saved_s = newest.stat().st_mtime
    except FileNotFoundError:  # its trainer goes on, and has newer ones by now
        saved_s = home.stat().st_mtime
    return LocalRun(folder.name, folder, chosen, newest, saved_s, glance(newest))


def find_run(directory: Path, name_or_id: str) -> LocalRun | None:
    """The run of that id in `directory`, else the newest of that name."""
    runs = runs_in(directory)
    same = [run for run in runs if run.id == name_or_id]
    return next(iter(same or [run for run in runs if run.id.rpartition("-")[0] == name_or_id]), None)


def named_near(wanted: str, known: Sequence[str]) -> str:
    """Some of `known` to choose from: those nearest to `wanted`, else the first few; "" for none."""
    near = difflib.get_close_matches(wanted, known, n=3)
    shown = near or list(known[:SHOWN])
    more = f" and {len(known) - len(shown)} more" if not near and len(known) > len(shown) else ""
    return f"{', '.join(shown)}{more}"


def glance(path: Path) -> dict[str, Any]:
    """What the head of a checkpoint's file says, unverified; {} for a file that is none."""
    try:
        with path.open("rb") as file:
            size = file.read(8)
            data = size + file.read(min(int.from_bytes(size, "little"), HEADER_CAP_BYTES))
        manifest = json.loads(read_metadata(data, HEADER_CAP_BYTES).get("manifest", ""))
    except (OSError, WeightsError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}
