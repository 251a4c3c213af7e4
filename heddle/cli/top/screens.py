"""Screens: a snapshot and a view as exactly so many lines of exactly so many characters.

Pure; the two lists, the frame around every screen, and the help are here, what is opened is in `details.py`.
"""

from rich.text import Text

from heddle.broker.lines import PRINTED, Event
from heddle.cli.curve import sparkline
from heddle.cli.tables import duration
from heddle.cli.top import details
from heddle.cli.top.keys import View
from heddle.cli.top.layout import (
    Cell,
    Column,
    exactly,
    filled,
    fit,
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
from heddle.cli.top.rows import ExperimentRow, PoolRow, Snapshot, WorkerRow
from heddle.cli.why import clock_time

SPARK = 8
LEAST = (40, 12)
"""A smaller screen shows what fits."""

EXPERIMENTS = (
    Column("EXPERIMENT", 19),
    Column("STATE", 9),
    Column("STEPS/S", 7, right=True),
    Column("STEPS", 6, right=True),
    Column("DONE", 4, right=True),
    Column("RETURN", 7, right=True),
    Column("", SPARK),
    Column("LAG", 4, right=True),
    Column("FULL", 4, right=True),
    Column("WAITS", 14, from_columns=100),
    Column("SHARDS", 9, right=True, from_columns=110),
    Column("MOVED", 5, right=True, from_columns=120),
    Column("VERSION", 7, right=True, from_columns=130),
    Column("AGE", 6, right=True, from_columns=130),
    Column("WHY", 0, from_columns=150),
)
WORKERS = (
    Column("WORKER", 24),
    Column("STATE", 8),
    Column("SHARDS", 6, right=True),
    Column("STEPS/S", 7, right=True),
    Column("MS/STEP", 7, right=True),
    Column("WAITS", 5, right=True),
    Column("SEEN", 5, right=True),
    Column("PID", 8, right=True, from_columns=100),
    Column("HOST", 14, from_columns=100),
    Column("DOING", 18, from_columns=120),
    Column("WHY", 0, from_columns=85),
)
KEYS = {
    "experiments": "enter open  w workers  s sort  / filter  p pause  n scale  space freeze  ? help  q quit",
    "workers": "enter open  e experiments  s sort  / filter  n scale  + - one more, less  ? help  q quit",
    "experiment": "esc back  ↑↓ scroll shards  p pause, resume  n scale its pool  ? help",
    "worker": "esc back  n scale its pool  ? help",
    "help": "esc back",
}
HELP = (
    ("↑ ↓ j k", "move; page up, page down, home, end"),
    ("enter", "open what is chosen: an experiment or a worker; esc goes back"),
    ("e w tab", "the list of experiments, of workers, the other one"),
    ("s", "sort by the next column; r or S the other way round"),
    ("/", "show only rows that contain a text: a name, state, pool, host or reason; esc shows all"),
    ("p", "pause the experiment, or let it go on"),
    ("n", "set how many workers its pool shall have; + and - one more, one less"),
    ("space", "freeze the screen; again goes on"),
    ("q", "quit (nothing that runs is touched)"),
    ("", ""),
    ("STEPS/S", "environment steps that were trained, per second, over the last 5 s"),
    ("LAG", "how many versions behind the weights of the last update's experience were"),
    ("FULL", "bytes in flight between workers and trainer, of the cap; at 100 % workers wait for room"),
    ("WAITS", "who waits: trainer (for experience), workers (for a policy), for room, or for a slow shard"),
    ("MOVED", "how often a shard was taken from a worker that died, and given to another"),
)


def screen(view: View, snapshot: Snapshot, width: int, height: int) -> list[Text]:
    """What is shown: exactly `height` lines, each exactly `width` wide."""
    top = _top(snapshot, width)
    bottom = [_foot(view, snapshot, width)]
    room = max(1, height - len(top) - len(bottom))
    if view.screen == "help":
        body = [parts((f"  {key:<9} ", "bold"), text, width=width) for key, text in HELP]
    elif view.screen == "experiment":
        body = details.experiment(view, snapshot, width, room)
    elif view.screen == "worker":
        body = details.worker(view, snapshot, width, room)
    else:
        body = _list(view, snapshot, width, room)
    return filled([*top, *filled(body, room, width), *bottom], height, width)


def _top(snapshot: Snapshot, width: int) -> list[Text]:
    clock = clock_time(snapshot.now_ms)[:8] if snapshot.now_ms else ""
    if snapshot.problem:
        seen = f"last seen {clock}  " if clock else ""
        first = parts(("heddle top  ", "bold"), seen, (snapshot.problem, "bold red"), width=width)
    else:
        memory = size(snapshot.used_bytes) + (f" of {size(snapshot.max_bytes)}" if snapshot.max_bytes else "")
        full = bool(snapshot.max_bytes) and snapshot.used_bytes > 0.9 * snapshot.max_bytes
        up = f"  up {duration(snapshot.uptime_ms)}" if snapshot.uptime_ms else ""
        first = parts(
            ("heddle top  ", "bold"), clock, f"  {snapshot.version}{up}  ", (memory, "bold red" if full else ""),
            f"  {snapshot.keeps}", f"  {snapshot.ops_per_second:,} ops/s" if width > 90 else "", width=width,
        )  # fmt: skip
    leader = snapshot.leader
    lead = [] if leader is None else [("coordinator ", ""), (leader.state, state_cell(leader.state).style), ("   ", "")]
    pools = [piece for pool in snapshot.pools[:4] for piece in _pool(pool)]
    return [first, parts(*lead, *pools, width=width), exactly(Text(""), width)]


def _pool(pool: PoolRow) -> list[tuple[str, str]]:
    wanted = f" of {pool.wanted}" if pool.wanted is not None else ""
    few = pool.wanted is not None and pool.alive < pool.wanted
    bad = ", ".join(f"{pool.states[state]} {state}" for state in ("stalled", "dead", "unknown") if state in pool.states)
    style = "yellow" if few else "green" if pool.alive else "dim"
    return [
        (f"pool {pool.pool} ", ""),
        (f"{pool.alive}{wanted} workers", style),
        (f", {bad}" if bad else "", "red"),
        (f", {pool.speed:,.0f} steps/s   " if pool.speed else "   ", ""),
    ]


def _foot(view: View, snapshot: Snapshot, width: int) -> Text:
    if view.typing:
        asked = "filter" if view.typing == "filter" else f"how many workers shall pool {view.pool} have"
        return parts((f"{asked}: {view.typed}", "bold"), ("█", "blink"), width=width)
    if view.told:
        return parts((view.told, "bold yellow"), width=width)
    frozen = ("frozen, space goes on  ", "bold magenta") if view.frozen else ""
    shown = (f"only with {view.containing!r} (esc: all)  ", "bold magenta") if view.containing else ""
    return parts(frozen, shown, (KEYS[view.screen], "dim"), width=width)


def _list(view: View, snapshot: Snapshot, width: int, height: int) -> list[Text]:
    """Either list: a page of rows around the cursor, the reason of the chosen one, the last lines of the log."""
    rows = view.rows(snapshot)
    columns = WORKERS if view.screen == "workers" else EXPERIMENTS
    shown = fitting(columns, width)
    told = min(6, max(0, height - 10)) if snapshot.events else 0
    room = max(1, height - 4 - (told + 1 if told else 0))
    at = max(0, min(view.at, len(rows) - 1))
    first = max(0, min(at - room // 2, len(rows) - room))
    page: list[ExperimentRow | WorkerRow] = list(rows[first : first + room])
    titles = [Column(_marked(one, view), one.width, one.right) for one in columns]
    lines = [header(titles, shown, width)]
    for place, one in enumerate(page, start=first):
        cells = _cells(one)
        kept = [columns[place] for place in shown]
        lines.append(row(kept, [cells[number] for number in shown], width, chosen=place == at))
    if not rows:
        lines.append(parts((f"  {_nothing(view, snapshot)}", "dim"), width=width))
    below = [_counted(view, len(rows), first, len(page), width), *_reason(rows[at] if rows else None, snapshot, width)]
    body = [*filled(lines, room + 1, width), *below]
    return body + log_lines(snapshot.events, told, width) if told else body


def _cells(one: ExperimentRow | WorkerRow) -> list[Cell]:
    return _experiment_cells(one) if isinstance(one, ExperimentRow) else _worker_cells(one)


def _marked(column: Column, view: View) -> str:
    """The title of the column by which is sorted is marked."""
    names = {"STEPS/S": "speed", "RETURN": "return", "STEPS": "steps", "FULL": "flight", "STATE": "state"}
    names |= {"EXPERIMENT": "name", "WORKER": "name", "AGE": "newest", "WAITS": "waits", "MS/STEP": "ms/step"}
    names |= {"SHARDS": "shards", "HOST": "host"}
    mark = "▴" if view.reverse else "▾"
    return f"{column.title}{mark}" if names.get(column.title) == view.sort else column.title


def _nothing(view: View, snapshot: Snapshot) -> str:
    if view.containing:
        return f"nothing contains {view.containing!r}; esc shows all"
    if not snapshot.now_ms:
        return "looking ..."
    if view.screen == "workers":
        return "no workers; start some with: heddle workers start -n 2"
    return "no experiments; submit one with: heddle enqueue exp.toml"


def _counted(view: View, rows: int, first: int, page: int, width: int) -> Text:
    order = f"sorted by {view.sort}{', the other way round' if view.reverse else ''}"
    if rows > page:
        return parts((f"  {first + 1}-{first + page} of {rows:,}, {order}", "dim"), width=width)
    what = view.screen if rows != 1 else view.screen.removesuffix("s")
    return parts((f"  {rows} {what}, {order}", "dim"), width=width)


def _reason(chosen: ExperimentRow | WorkerRow | None, snapshot: Snapshot, width: int) -> list[Text]:
    """Why the chosen one is as it is, in two lines; of an experiment that is well, who waits for whom."""
    line = chosen.judged.line(snapshot.now_ms) if chosen is not None else ""
    if isinstance(chosen, ExperimentRow) and not line and not chosen.ended:
        moved = f", {chosen.moved} taken from workers that died" if chosen.moved else ""
        told = f"  waits: {chosen.waits}; {chosen.leased} of {chosen.shards} shards played{moved}"
        below = (f"  {chosen.slow.line}", "yellow") if chosen.slow else (f"  trainer: {chosen.doing or '-'}", "")
        return [parts(told, width=width), parts(below, width=width)]
    if chosen is None or not line:
        return [exactly(Text(""), width)] * 2
    text = f"  {chosen.judged.state}: {line}"
    first = text if len(text) <= width else text[: text.rfind(" ", 0, width)]
    rest = text[len(first) :].strip()
    style = state_cell(chosen.judged.state).style
    return [parts((first, style), width=width), parts((f"  {rest}" if rest else "", style), width=width)]


def log_lines(events: tuple[Event, ...], count: int, width: int) -> list[Text]:
    """A rule and the last lines of the log."""
    colours = {"warning": "yellow", "error": "red", "debug": "dim"}
    told = _last([event for event in events if event.level != "debug"], count)
    lines = [parts((f"── log {'─' * width}"[:width], "dim"), width=width)]
    for event in told:
        about = f" {event.experiment}" if event.experiment else ""
        head = f"{clock_time(event.time_ms)[:8]} {event.role}{about} "
        lines.append(parts((head, "dim"), (event.message, colours.get(event.level, "")), width=width))
    return lines


def _last(events: list[Event], count: int) -> list[Event]:
    """The newest lines; of those that user code printed no more than half of them, where there are others."""
    room = max(count // 2, count - sum(event.role != PRINTED for event in events))
    found: list[Event] = []
    for event in reversed(events):
        if len(found) == count:
            break
        if event.role == PRINTED:
            if not room:
                continue
            room -= 1
        found.append(event)
    return found[::-1]


def _experiment_cells(one: ExperimentRow) -> list[Cell]:
    full = one.full
    busy = "bold red" if full is not None and full >= 0.9 else ""
    dim = "dim" if one.ended else ""
    lag = one.latest.get("lag_mean")
    waits = "" if one.ended else one.waits
    return [
        Cell(one.experiment, dim or "bold"),
        state_cell(one.judged.state),
        Cell("-" if one.ended else short(one.speed), dim),
        Cell(short(one.steps), dim),
        Cell(percent(one.done), dim),
        Cell(score(one.last_return), dim),
        Cell(sparkline([value for _, value in one.returns], SPARK), "cyan"),
        Cell("-" if lag is None else f"{lag:.1f}", dim),
        Cell(percent(full), busy),
        Cell(waits, "yellow" if waits.startswith("room") or one.slow is not None else ""),
        Cell(f"{one.leased}/{one.shards}" if one.shards else "-", dim),
        Cell(str(one.moved) if one.moved else "-", "yellow" if one.moved else dim),
        Cell(str(one.version), dim),
        Cell(duration(one.age_ms), dim),
        Cell(one.judged.why, state_cell(one.judged.state).style),
    ]


def _not_doing(one: WorkerRow) -> str:
    """While none of the user's code runs: what it waits for, if it does."""
    return f"waits for {one.judged.waits_for}" if one.judged.waits_for else one.info.beat.state


def _worker_cells(one: WorkerRow) -> list[Cell]:
    beat = one.info.beat
    dim = "dim" if one.judged.state == "dead" else ""
    doing = f"{beat.doing} {duration(beat.doing_ms)}" if beat.doing else _not_doing(one)
    return [
        Cell(fit(beat.worker, 24), dim or "bold"),
        state_cell(one.judged.state),
        Cell(str(beat.shards), dim),
        Cell(short(beat.steps_per_second), dim),
        Cell(f"{beat.ms_per_step:.2f}" if beat.ms_per_step else "-", dim),
        Cell(percent(one.waits), dim),
        Cell(duration(one.info.silent_ms), dim),
        Cell(str(beat.pid) if beat.pid else "-", dim),
        Cell(beat.host, dim),
        Cell(doing, dim),
        Cell(one.judged.why, state_cell(one.judged.state).style),
    ]
