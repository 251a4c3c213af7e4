"""History: what the broker's own log says happened to one experiment, worked out from plain commands.

It never asks the broker and uses no code of its clients. Times are server milliseconds, from the ids of entries.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.aof import Command, Group
from tests.chaos.blob import read_rows
from tests.chaos.rows import Row
from tests.chaos.witness import seen

_KEY = re.compile(r"heddle:\{(?P<experiment>.+)\.0\}:(?P<rest>.+)")


@dataclass(slots=True)
class Batch:
    """One accepted batch.

    Attributes:
        order: its place among all accepted batches of the experiment.
        at_ms: when it was accepted.
        rows: of its train segments; problems: what is wrong within.
        gone: it left the stream; dead: why it was set aside, "" when it was not.
    """

    order: int
    entry_id: str
    at_ms: int
    shard: int
    epoch: int
    nonce: str
    seq: int
    kind: str
    steps: int
    rows: list[Row]
    problems: list[str]
    gone: bool = False
    dead: str = ""


@dataclass(slots=True)
class Owner:
    """Who holds a shard: since the claim of `epoch`, until `free`."""

    epoch: int = 0
    nonce: str = ""
    worker: str = ""
    free: bool = True


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that took effect: when, and under which fence."""

    at_ms: int
    epoch: int
    what: str


@dataclass(slots=True)
class Shard:
    """One shard: who owns it, what was accepted from it."""

    owner: Owner = field(default_factory=Owner)
    batches: list[Batch] = field(default_factory=list)
    claims: int = 0


class History:
    """One experiment, group by group.

    Args:
        continuous: environments are snapshotted with every batch, so each one's life goes on, whoever plays it.

    Attributes:
        violations: promises that the log itself shows broken.
        seats: every claim of the seat, as (epoch, trainer); updates: when each update was reported;
            left: batches that left the stream, for whoever takes them out.
    """

    def __init__(self, experiment: str, *, continuous: bool = False, witness: Path | None = None) -> None:
        self.experiment = experiment
        self.continuous = continuous
        self._witness = witness
        self.shards: dict[int, Shard] = {}
        self.batches: list[Batch] = []
        self.by_entry: dict[str, Batch] = {}
        self.violations: list[str] = []
        self.seats: list[tuple[int, str]] = []
        self.updates: list[Moment] = []
        self.left: list[Batch] = []
        self.published = 0
        self.discarded = 0
        self._seat = 0
        self._lives: dict[int, int] = {}
        self._blobs: dict[bytes, bytes] = {}

    def take(self, groups: Iterable[Group]) -> None:
        """Go on with these."""
        for group in groups:
            for command in group:
                self._take(command)

    def shard(self, index: int) -> Shard:
        """The shard of that index."""
        return self.shards.setdefault(index, Shard())

    def held_by(self, worker: str) -> dict[int, int]:
        """Shards that `worker` holds, with the epoch of its claim."""
        return {
            index: shard.owner.epoch
            for index, shard in self.shards.items()
            if shard.owner.worker == worker and not shard.owner.free
        }

    def _take(self, command: Command) -> None:
        if len(command) < 2:
            return
        match = _KEY.fullmatch(command[1].decode(errors="replace"))
        if match is None or match["experiment"] != self.experiment:
            return
        verb, rest = command[0].upper(), match["rest"]
        kind, _, tail = rest.partition(":")
        if kind == "blob":
            self._keep_blob(verb, command)
        elif verb == b"XADD":
            self._add(kind, command)
        elif verb == b"XDEL" and kind == "experience":
            for entry in command[2:]:
                if (batch := self.by_entry.get(_text(entry))) is not None:
                    batch.gone = True
                    self.left.append(batch)
        elif verb in (b"HSET", b"HMSET"):
            self._set(kind, tail, _fields(command[2:]))
        elif verb == b"HINCRBY" and kind == "flow" and command[2] == b"discarded":
            self.discarded += int(command[3])

    def _keep_blob(self, verb: bytes, command: Command) -> None:
        if verb == b"SET":
            self._blobs[command[1]] = command[2]
        elif verb in (b"UNLINK", b"DEL"):
            for key in command[1:]:
                self._blobs.pop(key, None)

    def _add(self, kind: str, command: Command) -> None:
        words = _after_options(command)
        if kind == "experience":
            self._accept(_text(words[0]), _fields(words[1:]))
        elif kind == "dead":
            self._bury(_fields(words[1:]))
        elif kind == "metrics":
            at_ms, update = int(_text(words[0]).partition("-")[0]), _fields(words[1:]).get("update", "")
            self.updates.append(Moment(at_ms, self._seat, update))

    def _set(self, kind: str, tail: str, fields: dict[str, str]) -> None:
        if kind == "shard" and "state" in fields:
            self._own(int(tail), fields)
        elif kind == "ctl" and "seat_epoch" in fields:
            epoch = int(fields["seat_epoch"])
            if epoch < self._seat:
                self.violations.append(f"the seat's epoch fell from {self._seat} to {epoch}")
            self._seat = epoch
        elif kind == "seat" and "trainer" in fields:
            seat = (int(fields["epoch"]), fields["trainer"])
            if seat not in self.seats[-1:]:  # a seat that had run out, and that nobody took, is its holder's again
                self.seats.append(seat)
        elif kind == "policy" and "seat" in fields:
            self._publish(int(tail), int(fields["seat"]))

    def _own(self, index: int, fields: dict[str, str]) -> None:
        owner = self.shard(index).owner
        if fields["state"] != "leased":
            owner.free = True
            return
        epoch = int(fields["epoch"])
        if epoch <= owner.epoch:
            self.violations.append(f"shard {index} was claimed under epoch {epoch} after {owner.epoch}")
        if not owner.free:
            self.violations.append(f"shard {index} was claimed by {fields['worker']} while {owner.worker} held it")
        self.shard(index).owner = Owner(epoch, fields["nonce"], fields["worker"], free=False)
        self.shard(index).claims += 1

    def _accept(self, entry_id: str, fields: dict[str, str]) -> None:
        index, epoch, nonce, seq = int(fields["shard"]), int(fields["epoch"]), fields["nonce"], int(fields["seq"])
        shard = self.shard(index)
        last = shard.batches[-1].seq if shard.batches else 0
        name = f"shard {index} epoch {epoch} seq {seq}"
        if shard.owner.free or (epoch, nonce) != (shard.owner.epoch, shard.owner.nonce):
            held = "nobody holds it" if shard.owner.free else f"epoch {shard.owner.epoch} holds it"
            self.violations.append(f"zombie write accepted: {name}, but {held}")
        if seq != last + 1:
            self.violations.append(f"{name} was accepted after seq {last}")
        blob = self._blobs.pop(fields["blob"].encode(), None)
        if fields.get("location") == "shm":
            blob = seen(self._witness, self.experiment, fields)
        rows, problems = read_rows(blob) if blob is not None else ([], [f"{name} was accepted without its blob"])
        if sum(row.length for row in rows) != int(fields["steps"]):
            problems.append(f"{name} says {fields['steps']} steps, its segments hold {rows}")
        if fields["kind"] == "train":  # each evaluation begins anew
            problems += self._broken_lives(name, rows)
        batch = Batch(
            order=len(self.batches),
            entry_id=entry_id,
            at_ms=int(entry_id.partition("-")[0]),
            shard=index,
            epoch=epoch,
            nonce=nonce,
            seq=seq,
            kind=fields["kind"],
            steps=int(fields["steps"]),
            rows=rows,
            problems=problems,
        )
        self.violations += problems
        self.batches.append(batch)
        shard.batches.append(batch)
        self.by_entry[entry_id] = batch

    def _broken_lives(self, name: str, rows: list[Row]) -> list[str]:
        """Rows that do not begin where the environment's last accepted step ended."""
        problems = []
        for row in rows:
            expected = self._lives.get(row.env, 0)
            if self.continuous and row.life != expected:
                problems.append(f"{name} begins at life {row.life} of environment {row.env}, expected {expected}")
            self._lives[row.env] = row.life + row.length
        return problems

    def _bury(self, fields: dict[str, str]) -> None:
        if (batch := self.by_entry.get(fields.get("entry", ""))) is not None:
            batch.dead = fields.get("reason", "?")

    def _publish(self, version: int, seat: int) -> None:
        if seat != self._seat:
            self.violations.append(f"policy {version} was published under seat {seat}, {self._seat} held it")
        if version <= self.published:
            self.violations.append(f"policy {version} was published after {self.published}")
        self.published = version


def _text(word: bytes) -> str:
    return word.decode(errors="replace")


def _fields(words: list[bytes]) -> dict[str, str]:
    return {_text(words[i]): _text(words[i + 1]) for i in range(0, len(words) - 1, 2)}


def _after_options(command: Command) -> Command:
    """What follows the options of an XADD: the id, then fields and values."""
    at = 2
    while command[at].upper() in (b"NOMKSTREAM", b"MAXLEN", b"MINID", b"LIMIT"):
        word = command[at].upper()
        at += 1
        if word in (b"MAXLEN", b"MINID") and command[at] in (b"~", b"="):
            at += 1
        if word != b"NOMKSTREAM":
            at += 1
    return command[at:]
