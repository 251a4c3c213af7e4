"""Checkpoint files read as files: marks and what the ledger learner in them contains.

It never uses the reader under test. `Archive` keeps a hard link to every checkpoint, so that pruning hides none.
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_NAME = re.compile(r"checkpoint-(\d{20})-(\d{12})\.safetensors")

Runs = dict[tuple[int, int], list[tuple[int, int]]]
"""(env, nonce) -> runs of consecutive counts, first and last."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One checkpoint.

    Attributes:
        seat, update: of its name.
        steps: what its budget counter says.
        marks: shard -> (epoch, nonce, seq, entry id).
        runs: what the model contains.
        repeats, problems: what the learner found wrong.
    """

    path: Path
    seat: int
    update: int
    steps: int
    marks: dict[int, tuple[int, str, int, str]]
    runs: Runs
    lives: dict[tuple[int, int], list[int]]
    repeats: int
    problems: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"checkpoint seat {self.seat} update {self.update}"


def read_manifest(path: Path) -> Manifest:
    """Raises ValueError or KeyError: torn, or not by this kind of learner."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    values: dict[str, Any] = json.loads(header["__metadata__"]["manifest"])
    body = data[8 + size :]
    about = header["learner/intervals"]
    begin, end = about["data_offsets"]
    if about["dtype"] != "I64" or end > len(body):
        raise ValueError(f"{path.name} is torn: {about}, {len(body)} bytes")
    table = np.frombuffer(body[begin:end], np.int64).reshape(about["shape"])
    runs: Runs = {}
    lives: dict[tuple[int, int], list[int]] = {}
    for env, nonce, first, last, life in table.tolist():
        runs.setdefault((env, nonce), []).append((first, last))
        lives.setdefault((env, nonce), []).append(life)
    meta = values["learner_meta"]
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name} is no checkpoint's name")
    return Manifest(
        path=path,
        seat=int(match[1]),
        update=int(match[2]),
        steps=int(values["env_steps"]),
        marks={int(name.partition("/")[2]): tuple(mark[:4]) for name, mark in values["marks"].items()},
        runs=runs,
        lives=lives,
        repeats=int(meta["repeats"]),
        problems=tuple(meta["problems"]),
    )


class Archive:
    """Every checkpoint that ever stood in `source`.

    Attributes:
        torn: files of a whole checkpoint's name that were none.
    """

    def __init__(self, source: Path, kept: Path) -> None:
        self.torn: list[str] = []
        self._source = source
        self._kept = kept
        self._known: set[str] = set()
        kept.mkdir(parents=True, exist_ok=True)

    def poll(self) -> list[Manifest]:
        """New ones, in the order of their names; their files stay until `forget`.

        One that stands there while this runs, or a newer one, is always among those known: when pruning was faster on
        a busy machine than listing and linking, it looks again.
        """
        linked: list[str] = []
        while self._source.is_dir():
            new = [path.name for path in self._source.iterdir() if _NAME.fullmatch(path.name)]
            new = sorted({*new} - self._known, reverse=True)
            linked += [name for name in new if self._link(name)]
            if not new or linked:
                break
        found = []
        for name in sorted(linked):
            try:
                found.append(read_manifest(self._kept / name))
            except (ValueError, KeyError) as error:
                self.torn.append(f"{name} is not a whole checkpoint: {error!r}")
        return found

    def _link(self, name: str) -> bool:
        try:
            os.link(self._source / name, self._kept / name)
        except FileNotFoundError:
            return False  # pruned this very moment
        self._known.add(name)
        return True

    @staticmethod
    def forget(manifest: Manifest) -> None:
        """It was checked and found right."""
        manifest.path.unlink(missing_ok=True)
