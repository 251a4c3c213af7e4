"""The live view: what a run looks like while it goes, drawn from a snapshot of facts.

It never reads the broker or a clock: facts come in, renderables and lines go out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from heddle.cli.curve import sparkline

STATE_COLOURS = {
    "waiting": "yellow",
    "stalled": "bold red",
    "degraded": "yellow",
    "unknown": "magenta",
    "queued": "yellow",
    "running": "green",
    "paused": "yellow",
    "stopping": "yellow",
    "completed": "bold green",
    "stopped": "yellow",
    "failed": "bold red",
}
MARKS = {"alive": "green", "waiting": "green", "draining": "yellow", "stalled": "red", "unknown": "magenta"}
RETURN_WIDTH = 16
EVENTS_SHOWN = 6


@dataclass(frozen=True, slots=True)
class WorkerFact:
    """One worker: its id, whether it is here, its shards, its state, steps per second of late, why, and for what."""

    worker: str
    alive: bool
    shards: tuple[int, ...]
    state: str = ""
    steps_per_second: float = 0.0
    why: str = ""
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the live view shows, at one moment.

    Attributes:
        experiment, state, reason: which one, and how it is.
        elapsed_s: seconds since it was looked at first.
        steps: accepted steps, those of a run that it continues included; steps_here: without those.
        budget_steps: of the budget, None when it is not in steps.
        steps_per_second: accepted steps per second of late.
        updates, policy: updates done, latest version.
        returns, eval_returns: (env steps, mean return), oldest first.
        latest: last value of each other metric.
        in_flight, in_flight_bytes: batches between workers and trainer.
        shards, shards_held: of both kinds; how many are being played.
        workers: of the pool.
        events: the last lines, oldest first; events_told: how many there were in all.
    """

    experiment: str
    state: str
    reason: str = ""
    elapsed_s: float = 0.0
    steps: int = 0
    steps_here: int = 0
    budget_steps: int | None = None
    steps_per_second: float = 0.0
    updates: int = 0
    policy: int = 0
    returns: tuple[tuple[float, float], ...] = ()
    eval_returns: tuple[tuple[float, float], ...] = ()
    latest: Mapping[str, float] = field(default_factory=dict)
    in_flight: int = 0
    in_flight_bytes: int = 0
    shards: int = 0
    shards_held: int = 0
    workers: tuple[WorkerFact, ...] = ()
    events: tuple[str, ...] = ()
    events_told: int = 0

    @property
    def workers_alive(self) -> int:
        """How many workers are here."""
        return sum(worker.alive for worker in self.workers)


def plain_line(facts: Facts) -> str:
    """Everything that matters on one line, for output that is no terminal."""
    budget = f"/{facts.budget_steps}" if facts.budget_steps else ""
    parts = [
        f"{clock_text(facts.elapsed_s)} {facts.experiment} {facts.state}",
        f"steps {facts.steps}{budget}",
        f"{facts.steps_per_second:.0f} steps/s",
        f"return {_last(facts.returns)}",
    ]
    if facts.eval_returns:
        parts.append(f"eval {_last(facts.eval_returns)}")
    parts += [
        f"version {facts.policy}",
        f"lag {_metric(facts, 'lag_mean')}",
        f"in flight {facts.in_flight}",
        f"workers {facts.workers_alive}",
        f"shards {facts.shards_held}/{facts.shards}",
    ]
    return "  ".join(parts)


def clock_text(seconds: float) -> str:
    """Seconds as 3:07 or 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def render(facts: Facts, *, title: str = "heddle", width: int | None = None) -> RenderableType:
    """The live view of `facts`, `width` columns wide; as wide as there is room when not given."""
    parts: list[RenderableType] = [_header(facts), _numbers(facts)]
    if facts.workers:
        parts += [Text(""), _workers(facts.workers)]
    if facts.events:
        parts += [Text(""), *(Text(line, style="dim", overflow="ellipsis", no_wrap=True) for line in _recent(facts))]
    look: Any = {"title": f"[b]{title}[/b]", "title_align": "left", "border_style": "cyan", "padding": (0, 1)}
    return Panel(Group(*parts), width=width, **look)


def _header(facts: Facts) -> RenderableType:
    line = Table.grid(padding=(0, 2), expand=True)
    line.add_column(no_wrap=True)
    line.add_column(ratio=1)
    line.add_column(justify="right", no_wrap=True)
    state = Text(facts.state, style=STATE_COLOURS.get(facts.state, ""))
    name = Text.assemble((facts.experiment, "bold"), "  ", state)
    if facts.budget_steps:
        done = min(facts.steps, facts.budget_steps)
        progress = f"{facts.steps:,} / {facts.budget_steps:,} steps {done / facts.budget_steps:4.0%}"
        line.add_row(name, ProgressBar(total=facts.budget_steps, completed=done), f"{progress}  {_left(facts)}")
    else:
        line.add_row(name, "", f"{facts.steps:,} steps  {clock_text(facts.elapsed_s)}")
    return line if not facts.reason else Group(line, Text(facts.reason, style="yellow"))


def _left(facts: Facts) -> str:
    """Time passed, and what is left at this speed."""
    passed = clock_text(facts.elapsed_s)
    left = (facts.budget_steps or 0) - facts.steps
    if facts.steps_per_second <= 0 or left <= 0:
        return passed
    return f"{passed} < {clock_text(left / facts.steps_per_second)}"


def _numbers(facts: Facts) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    for style in ("dim", "", "dim", "", "dim", ""):
        grid.add_column(style=style, no_wrap=True)
    bars = sparkline([value for _, value in facts.returns], RETURN_WIDTH)
    returns = Text.assemble((_last(facts.returns), "bold"), " ", (bars, "cyan"))
    speed = f"{facts.steps_per_second:,.0f} steps/s"
    counted = "batch" if facts.in_flight == 1 else "batches"
    flight = f"{facts.in_flight} {counted}, {facts.in_flight_bytes / 1024:,.0f} KiB"
    lag = f"{_metric(facts, 'lag_mean')} (max {_metric(facts, 'lag_max')})"
    grid.add_row("return", returns, " eval", _last(facts.eval_returns), " length", _metric(facts, "length"))
    grid.add_row("speed", speed, " version", f"{facts.policy}", " lag", lag)
    grid.add_row("flight", flight, " updates", f"{facts.updates:,}", " kl", _metric(facts, "kl"))
    return grid


def _workers(workers: Sequence[WorkerFact]) -> RenderableType:
    table = Table.grid(padding=(0, 2), expand=True)
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for worker in sorted(workers, key=lambda worker: not worker.alive)[:8]:
        held = " ".join(str(shard) for shard in worker.shards) or "none"
        mark = Text("✗", style="red") if worker.state == "dead" else Text("●", style=MARKS.get(worker.state, ""))
        speed = f"{worker.steps_per_second:,.0f} steps/s" if worker.steps_per_second else ""
        why = worker.why if worker.state in ("stalled", "dead") else ""
        state = f"{worker.state}: {worker.waits_for}" if worker.waits_for else worker.state
        table.add_row(mark, worker.worker, state, f"shards {held}  {why or speed}")
    if len(workers) > 8:
        alive = sum(worker.alive for worker in workers)
        table.add_row("", f"and {len(workers) - 8} more", f"{alive} alive in all", "")
    return table


def _recent(facts: Facts) -> tuple[str, ...]:
    return facts.events[-EVENTS_SHOWN:]


def _last(points: Sequence[tuple[float, float]]) -> str:
    return _shown(points[-1][1]) if points else "-"


def _metric(facts: Facts, name: str) -> str:
    return _shown(facts.latest[name]) if name in facts.latest else "-"


def _shown(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:.1f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"
