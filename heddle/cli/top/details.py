"""Details: one experiment, or one worker, on the whole screen.

Pure, as `screens.py`.
"""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from heddle.broker.types import ShardState
from heddle.cli.accounts import accounting_line
from heddle.cli.curve import Curve, braille
from heddle.cli.experiments import shown_reason
from heddle.cli.tables import duration
from heddle.cli.top.layout import (
    Cell,
    Column,
    exactly,
    filled,
    fitting,
    header,
    parts,
    percent,
    row,
    score,
    short,
    size,
    state_cell,
)
from heddle.cli.top.rows import ExperimentRow, Snapshot, WorkerRow
from heddle.states.judgement import Judgement

if TYPE_CHECKING:
    from heddle.broker.lines import Event
    from heddle.cli.top.keys import View

SHARDS = (
    Column("SHARD", 6, right=True),
    Column("STATE", 11),
    Column("WORKER", 24),
    Column("STEPS", 7, right=True),
    Column("SINCE", 6, right=True),
    Column("CLAIMS", 6, right=True),
    Column("WHY", 0),
)
CURVE = 5
LABEL = 10
BAD = ("quarantined", "stalled", "waiting", "unknown")


def experiment(view: "View", snapshot: Snapshot, width: int, height: int) -> list[Text]:
    """One experiment: numbers, curve, reasons, shards, what happened."""
    one = snapshot.experiment(view.subject)
    if one is None:
        return [parts((f"  {view.subject} is not there any more", "yellow"), width=width)]
    curve = _curve(one, width) if height >= 19 + len(snapshot.shards[:6]) else []
    lines = [*_numbers(one, snapshot, width), *curve, *_because(one.judged, snapshot.now_ms, width)]
    told = [event for event in snapshot.events if event.experiment == one.experiment and event.level != "debug"]
    events = min(5, len(told)) if height >= 18 else 0
    room = max(2, height - len(lines) - (events + 1 if events else 0))
    lines += filled(_shards(view, snapshot, width, room), room, width)
    return lines + (_log(told, events, width) if events else [])


def _numbers(one: ExperimentRow, snapshot: Snapshot, width: int) -> list[Text]:
    budget = f" of {one.budget_steps:,} ({percent(one.done)})" if one.budget_steps else ""
    latest, style = one.latest, state_cell(one.judged.state).style
    lag = f"{latest['lag_mean']:.1f} (most {latest.get('lag_max', 0):.0f})" if "lag_mean" in latest else "-"
    lines = [
        parts((f"{one.experiment} ", "bold"), (one.judged.state, style), f"  pool {one.pool}", width=width),
        *_fact("steps", f"{one.steps:,}{budget}, {one.speed:,.0f} steps/s, version {one.version}, lag {lag}", width),
        *_fact("return", f"{score(one.last_return)}, eval {score(one.eval_return)}", width),
    ]
    if one.flow is not None:
        cap = f" of {size(one.max_bytes)}" if one.max_bytes else ""
        most = f" of {one.max_entries}" if one.max_entries else ""
        full = f" ({percent(one.full)} full)" if one.full is not None else ""
        room = f"   {one.flow.waiting} shards wait for room" if one.flow.waiting else ""
        lines += _fact("in flight", f"{one.flow.entries}{most} batches, {size(one.flow.bytes)}{cap}{full}{room}", width)
        lines += _fact("waits", _waits(one), width)
        lines += _fact("slow", one.slow.line, width, "yellow") if one.slow is not None else []
        lines += _fact("batches", accounting_line(one.flow), width)
    lines += _fact("trainer", _trainer(one, snapshot.now_ms), width)
    by = " and ".join(f"{count} for {why}" for why, count in one.moved_by.items() if count)
    moved = f"{one.moved} taken{f': {by}' if by else ''}" if one.moved else "none taken"
    lines += _fact("shards", f"{one.leased} of {one.shards} played, {moved}", width)
    return lines


def _trainer(one: ExperimentRow, now_ms: int) -> str:
    """Which one it is, where, what it does, and what it takes of its host."""
    judged = one.trainer
    if judged is None:
        return "none" if one.ended else "not looked at yet"
    if judged.state == "absent":
        return f"none: {judged.why}" if not one.ended else "none"
    name = judged.subject.removeprefix("trainer ")
    host, pid = (*name.rsplit("-", 2), "", "")[:2]
    where = f" (pid {pid} on {host})" if pid.isdecimal() else ""
    since = f" for {duration(now_ms - judged.since_ms)}" if judged.since_ms else ""
    takes = [f"{one.cpu:.0%} of a core"] if one.cpu is not None else []
    takes += [f"{size(one.latest['rss_bytes'])} of memory"] if one.latest.get("rss_bytes") else []
    return ", ".join([f"{name}{where} {judged.state}{since}", *takes])


def _waits(one: ExperimentRow) -> str:
    if one.trainer_waits is None:
        return "no update yet"
    took = one.latest.get("update_seconds", 0.0)
    return (
        f"trainer waits {percent(one.trainer_waits)} of its time (an update takes {took:.2f} s),"
        f" its workers {percent(one.workers_wait)} of theirs"
    )


def _fact(name: str, value: str, width: int, style: str = "") -> list[Text]:
    """A name and its value, broken between words."""
    folded = textwrap.wrap(value, max(20, width - LABEL - 2)) or [""]
    heads = [name, *[""] * (len(folded) - 1)]
    return [
        parts((f"  {head:<{LABEL}}", "dim"), (line, style), width=width)
        for head, line in zip(heads, folded, strict=True)
    ]


def _curve(one: ExperimentRow, width: int) -> list[Text]:
    if len(one.returns) < 2:
        return []
    drawn = braille([Curve("return", one.returns)], width=max(20, width - 24), height=CURVE, x_label="steps")
    return [parts((f"  {line}", "cyan"), width=width) for line in drawn]


def _because(judged: Judgement, now_ms: int, width: int, most: int = 4) -> list[Text]:
    """The chain of reasons; nothing for what is green."""
    line = judged.line(now_ms)
    if not line:
        return []
    lines = _fact("why", line, width, state_cell(judged.state).style)
    for depth, reason in list(judged.chain())[:most]:
        lines += _fact("because", f"{'  ' * (depth - 1)}{shown_reason(reason, now_ms)}", width)
    return lines


def _shards(view: "View", snapshot: Snapshot, width: int, height: int) -> list[Text]:
    """Those with which something is wrong first."""
    found = sorted(snapshot.shards, key=lambda one: (one[1].state not in BAD, one[0].shard))
    shown = fitting(SHARDS, width)
    first = max(0, min(view.first, len(found) - (height - 1)))
    lines = [header(SHARDS, shown, width)]
    lines += [row(SHARDS, _shard_cells(*one, snapshot.now_ms), width) for one in found[first : first + height - 1]]
    if not found:
        lines.append(parts(("  its shards have not been looked at yet", "dim"), width=width))
    return lines


def _shard_cells(shard: ShardState, judged: Judgement, now_ms: int) -> list[Cell]:
    why = judged.why or (f"before: {shard.last_error}" if shard.last_error else "")
    return [
        Cell(f"{shard.shard}{'e' if shard.kind == 'eval' else ''}"),
        state_cell(judged.state),
        Cell(shard.worker or "-"),
        Cell(short(shard.steps)),
        Cell(duration(now_ms - shard.since_ms) if shard.since_ms else "-"),
        Cell(str(shard.attempts), "yellow" if shard.attempts > 1 else ""),
        Cell(why, state_cell(judged.state).style if judged.why else "dim"),
    ]


def worker(view: "View", snapshot: Snapshot, width: int, height: int) -> list[Text]:
    """One worker: what it says, how it is, what happened to it."""
    one = snapshot.worker(view.subject)
    if one is None:
        return [parts((f"  {view.subject} is not listed any more; see: heddle why worker ID", "yellow"), width=width)]
    beat, outcomes = one.info.beat, one.info.beat.outcomes
    lines = [
        parts((f"{beat.worker} ", "bold"), (one.judged.state, state_cell(one.judged.state).style), width=width),
        *_fact("where", f"pid {beat.pid} on {beat.host}, pool {beat.pool}, heddle {beat.code}", width),
        *_fact("heard of", f"{duration(one.info.silent_ms)} ago", width),
        *_fact("plays", f"{beat.shards} shards of {', '.join(beat.experiments) or 'nothing'}", width),
        *_fact(
            "steps",
            f"{beat.steps:,}   {beat.steps_per_second:,.0f} steps/s"
            + (f"   {beat.ms_per_step:.2f} ms a step" if beat.ms_per_step else ""),
            width,
        ),
        *_fact(
            "time",
            f"played {beat.play_s:,.0f} s, waited {beat.wait_s:,.0f} s"
            + (f" (of late {percent(one.waits)})" if one.waits is not None else ""),
            width,
        ),
        *_fact("now", _doing(one), width),
        *_fact("batches", ", ".join(f"{name} {count:,}" for name, count in outcomes.items() if count) or "none", width),
        *_because(one.judged, snapshot.now_ms, width),
    ]
    told = [event for event in snapshot.events if event.worker == beat.worker or beat.worker in event.message]
    return lines + _log(told, max(1, height - len(lines) - 1), width)


def _doing(one: WorkerRow) -> str:
    beat = one.info.beat
    if not beat.doing:
        return beat.reason or beat.state
    limit = f", may last {duration(beat.limit_ms)}" if beat.limit_ms else ""
    return f"{beat.doing} of {beat.subject} for {duration(beat.doing_ms)}{limit}"


def _log(events: Sequence["Event"], most: int, width: int) -> list[Text]:
    from heddle.cli.top.screens import log_lines

    return log_lines(tuple(events), most, width) if events else [exactly(Text(""), width)]
