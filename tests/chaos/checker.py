"""The checker: compares what was accepted with what each checkpoint's model contains.

It never asks a trainer or a worker. For every checkpoint and shard: the model holds every step of the batches at or
before the mark exactly once, and nothing else; a batch that is missing as a whole must have been set aside and counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.chaos.history import Batch, History
from tests.chaos.manifest import Manifest, Runs

ASIDE = ("stale", "dead", "dropped", "rolled_back")
MOST_TOLD = 40


@dataclass(slots=True)
class _Covered:
    """How far one shard was compared, and with which result."""

    upto: int = 0
    runs: Runs = field(default_factory=dict)
    missing: list[Batch] = field(default_factory=list)


class Checker:
    """Checks one experiment's checkpoints against its history.

    Attributes:
        violations: what is broken, in words; checked: how many checkpoints were compared.
        unknown_steps: steps in the last checkpoint that the broker does not know (it forgot the batch).
        missing: batches before the marks that are in no model, by entry id.

    Args:
        envs_per_shard: environments of one shard, to know whose an environment is.
        may_forget: the broker was killed while it may lose its last writes: it may have forgotten what was trained.
    """

    def __init__(self, history: History, *, envs_per_shard: int, may_forget: bool = False) -> None:
        self.violations: list[str] = []
        self.checked = 0
        self.unknown_steps = 0
        self.missing: dict[str, Batch] = {}
        self.may_forget = may_forget
        self._history = history
        self._envs_per_shard = envs_per_shard
        self._covered: dict[int, _Covered] = {}
        self._marks: dict[int, tuple[int, int]] = {}
        self._early: set[str] = set()

    def note(self, manifests: Iterable[Manifest], left: Iterable[Batch]) -> None:
        """These checkpoints stand on disk now, and these batches have left the stream."""
        for manifest in manifests:
            for shard, mark in manifest.marks.items():
                self._marks[shard] = max(self._marks.get(shard, (0, 0)), _order(mark[3]))
        for batch in left:
            if batch.kind == "train" and _order(batch.entry_id) > self._marks.get(batch.shard, (0, 0)):
                self._early.add(batch.entry_id)  # right only for what is in no model

    def is_ripe(self, manifest: Manifest) -> bool:
        """All that the marks name has been seen in the log."""
        return all(mark[3] in self._history.by_entry for mark in manifest.marks.values())

    def check(self, manifest: Manifest) -> bool:
        """Compare; True when nothing was wrong with it."""
        before = len(self.violations)
        self.checked += 1
        if manifest.repeats:
            self._say(f"{manifest.name}: {manifest.repeats} steps were trained twice")
        for problem in manifest.problems:
            self._say(f"{manifest.name}: {problem}")
        self.unknown_steps, total = 0, 0
        by_shard = self._by_shard(manifest)
        for shard in sorted({*by_shard, *manifest.marks}):
            total += self._check_shard(manifest, shard, by_shard.get(shard, {}))
        if total != manifest.steps:
            self._say(f"{manifest.name}: its counter says {manifest.steps} steps, its model holds {total}")
        return len(self.violations) == before

    def settle(self, flow: Mapping[str, int]) -> None:
        """At the end: what is in no model is what the counters say was set aside."""
        missing = dict(self.missing)
        for batch in self._history.batches:
            if not batch.gone:
                self._say(f"shard {batch.shard} seq {batch.seq} is still in the stream")
            elif batch.kind == "train" and batch.seq > self._covered.get(batch.shard, _Covered()).upto:
                missing[batch.entry_id] = batch
            if batch.dead and batch.kind == "train" and batch.entry_id not in missing:
                self._say(f"shard {batch.shard} seq {batch.seq} is dead ({batch.dead}) and trained")
        counted = sum(flow.get(f"{name}_steps", 0) for name in ASIDE)
        steps = sum(batch.steps for batch in missing.values())
        if steps != counted:
            told = ", ".join(f"{name} {flow.get(f'{name}_steps', 0)}" for name in ASIDE)
            names = [f"{b.shard}/{b.epoch}/{b.seq}" for b in list(missing.values())[:8]]
            self._say(f"{steps} accepted steps are in no model ({names}), the counters say {counted}: {told}")

    def _check_shard(self, manifest: Manifest, shard: int, model: Runs) -> int:
        """Compare one shard; how many steps of it the model holds."""
        upto = self._upto(manifest, shard)
        covered = self._covered.setdefault(shard, _Covered())
        if upto < covered.upto:  # an older state than the last one looked at: compare anew
            covered = _Covered()
        for batch in self._history.shard(shard).batches[covered.upto : upto]:
            if batch.kind != "train":
                continue
            inside = [_holds(model, row.env, row.nonce, row.first, row.length) for row in batch.rows]
            if all(inside):
                if batch.entry_id in self._early:
                    self._say(f"shard {shard} seq {batch.seq} was acked before a checkpoint held it")
                for row in batch.rows:
                    _extend(covered.runs, row.env, row.nonce, row.first, row.length)
            elif any(inside):
                self._say(f"{manifest.name}: only a part of shard {shard} seq {batch.seq} is in it")
            else:
                covered.missing.append(batch)
        covered.upto = upto
        self._covered[shard] = covered
        self.missing |= {batch.entry_id: batch for batch in covered.missing}
        self._compare(manifest, shard, covered.runs, model)
        return _steps(model)

    def _compare(self, manifest: Manifest, shard: int, known: Runs, model: Runs) -> None:
        if known == model:
            return
        extra = _steps(model) - _steps(known)
        if not _within(known, model):
            self._say(
                f"{manifest.name}: shard {shard} lost steps that an earlier checkpoint had: {_diff(known, model)}"
            )
        elif self.may_forget:
            self.unknown_steps += extra
        else:
            self._say(f"{manifest.name}: shard {shard} has {extra} steps beyond its mark: {_diff(model, known)}")

    def _upto(self, manifest: Manifest, shard: int) -> int:
        """How many of the shard's accepted batches the mark covers."""
        mark = manifest.marks.get(shard)
        if mark is None:
            return 0
        epoch, nonce, seq, entry = mark
        batches = self._history.shard(shard).batches
        batch = self._history.by_entry.get(entry)
        if batch is not None and (batch.shard, batch.epoch, batch.nonce, batch.seq) == (shard, epoch, nonce, seq):
            return batch.seq  # seqs are 1, 2, 3 ... or History has said otherwise
        if not self.may_forget:
            self._say(f"{manifest.name}: the mark of shard {shard} names {mark}, which was never accepted")
        return sum(1 for one in batches if _order(one.entry_id) <= _order(entry))

    def _by_shard(self, manifest: Manifest) -> dict[int, Runs]:
        found: dict[int, Runs] = {}
        for (env, nonce), runs in manifest.runs.items():
            found.setdefault(env // self._envs_per_shard, {})[env, nonce] = list(runs)
        return found

    def _say(self, what: str) -> None:
        if len(self.violations) < MOST_TOLD:
            self.violations.append(what)


def books(flow: Mapping[str, int], history: History | None, *, entries: int) -> list[str]:
    """What is wrong with the counters, compared with each other, the stream and (when given) the log."""
    problems = []
    ends = ("trained", "evaluated", *ASIDE)
    for unit, in_flight in (("", flow.get("entries", 0)), ("_steps", flow.get("steps", 0))):
        settled = sum(flow.get(name + unit, 0) for name in ends)
        if flow.get("appended" + unit, 0) != settled + in_flight:
            problems.append(
                f"appended{unit} {flow.get('appended' + unit, 0)} != settled {settled} + {in_flight}: {flow}"
            )
    if flow.get("entries", 0) != entries:
        problems.append(f"the flow says {flow.get('entries', 0)} entries, the stream holds {entries}")
    if history is not None and flow.get("appended", 0) != len(history.batches):
        problems.append(f"appended {flow.get('appended', 0)}, the log shows {len(history.batches)}")
    return problems


def _holds(runs: Runs, env: int, nonce: int, first: int, length: int) -> bool:
    return any(begin <= first and first + length - 1 <= end for begin, end in runs.get((env, nonce), ()))


def _extend(runs: Runs, env: int, nonce: int, first: int, length: int) -> None:
    known = runs.setdefault((env, nonce), [])
    if known and known[-1][1] + 1 == first:
        known[-1] = (known[-1][0], first + length - 1)
    else:
        known.append((first, first + length - 1))


def _steps(runs: Runs) -> int:
    return sum(last - first + 1 for own in runs.values() for first, last in own)


def _within(small: Runs, large: Runs) -> bool:
    return all(
        _holds(large, env, nonce, first, last - first + 1) for (env, nonce), own in small.items() for first, last in own
    )


def _diff(one: Runs, other: Runs) -> Sequence[object]:
    return [(key, runs, other.get(key)) for key, runs in one.items() if other.get(key) != runs][:4]


def _order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, count = entry_id.partition("-")
    return int(milliseconds), int(count or 0)


def merge(violations: Iterable[Iterable[str]]) -> list[str]:
    """All of them, in order."""
    return [one for some in violations for one in some]
