"""Keys: what a key does to what is shown, and what it orders.

Pure: a view and a key in, a view and at most one order out. It never draws and never talks to a broker.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from heddle.cli.top.rows import (
    EXPERIMENT_SORTS,
    WORKER_SORTS,
    ExperimentRow,
    Snapshot,
    WorkerRow,
    sorted_experiments,
    sorted_workers,
)

Screen = Literal["experiments", "workers", "experiment", "worker", "help"]
LISTS = ("experiments", "workers")
PAGE = 10
TABS: tuple[Screen, ...] = ("experiments", "workers")


@dataclass(frozen=True, slots=True)
class Order:
    """What a person wants to be done.

    Attributes:
        verb: pause, resume, scale or quit.
        subject: an experiment or a pool; number: of workers.
    """

    verb: Literal["pause", "resume", "scale", "quit"]
    subject: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """What is on the screen.

    Attributes:
        screen, subject: which, and of what: an experiment's or a worker's id.
        back: the list from which it was opened.
        sorts, reverse: by what the lists are sorted, and whether the other way round.
        containing: what a row must contain.
        at: place of the cursor in the list; first: of the line at its top, on screens that scroll.
        typing: "filter" or "scale" while something is typed; typed: so far.
        told: one line about the last order.
        frozen: nothing new is shown.
        pool: whose size is changed.
    """

    screen: Screen = "experiments"
    subject: str = ""
    back: Screen = "experiments"
    sorts: tuple[str, str] = ("newest", "state")
    reverse: bool = False
    containing: str = ""
    at: int = 0
    first: int = 0
    typing: str = ""
    typed: str = ""
    told: str = ""
    frozen: bool = False
    pool: str = "default"

    @property
    def sort(self) -> str:
        """Of the list that is shown."""
        return self.sorts[1 if self.screen == "workers" else 0]

    def rows(self, snapshot: Snapshot) -> "Sequence[ExperimentRow] | Sequence[WorkerRow]":
        """The list that is shown, sorted and filtered."""
        if self.screen == "workers":
            return sorted_workers(snapshot.workers, self.sorts[1], reverse=self.reverse, containing=self.containing)
        return sorted_experiments(snapshot.experiments, self.sorts[0], reverse=self.reverse, containing=self.containing)

    def chosen(self, snapshot: Snapshot) -> str:
        """Id under the cursor, or of what is open; "" for nothing."""
        if self.screen not in LISTS:
            return self.subject
        rows = self.rows(snapshot)
        return identity(rows[min(self.at, len(rows) - 1)]) if rows else ""


def identity(row: ExperimentRow | WorkerRow) -> str:
    """What a row is about."""
    return row.experiment if isinstance(row, ExperimentRow) else row.info.beat.worker


def press(view: View, key: str, snapshot: Snapshot) -> tuple[View, Order | None]:
    """What a key does.

    Args:
        key: a character, or one of up, down, pageup, pagedown, home, end, enter, escape, backspace, tab.
    """
    if view.typing:
        return _type(view, key)
    view = replace(view, told="")
    if key in _MOVES:
        return _move(view, key, snapshot), None
    if key in ("q", "ctrl-c"):
        return (view, Order("quit")) if view.screen in LISTS or key == "ctrl-c" else (_back(view), None)
    if key in ("escape", "left", "backspace"):
        return _back(view), None
    if key in ("enter", "right"):
        return _open(view, snapshot), None
    if key in ("p", "n", "+", "-"):
        return _order(view, key, snapshot)
    return _look(view, key), None


_MOVES = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -PAGE, "pagedown": PAGE, "home": -(10**9), "end": 10**9}


def _move(view: View, key: str, snapshot: Snapshot) -> View:
    step = _MOVES[key]
    if view.screen not in LISTS:
        most = len(snapshot.shards) if view.screen == "experiment" else 0
        return replace(view, first=max(0, min(most, view.first + step)))
    most = max(0, len(view.rows(snapshot)) - 1)
    return replace(view, at=max(0, min(most, view.at + step)))


def _back(view: View) -> View:
    if view.screen in LISTS:
        return replace(view, containing="", at=0) if view.containing else view
    return replace(view, screen=view.back, subject="", first=0)


def _open(view: View, snapshot: Snapshot) -> View:
    chosen = view.chosen(snapshot)
    if view.screen not in LISTS or not chosen:
        return view
    screen: Screen = "worker" if view.screen == "workers" else "experiment"
    return replace(view, screen=screen, subject=chosen, back=view.screen, first=0)


def _look(view: View, key: str) -> View:
    """Keys that change what is shown and how."""
    if key == "tab":
        here = TABS.index(view.screen) if view.screen in TABS else 0
        return replace(view, screen=TABS[(here + 1) % len(TABS)], at=0, first=0)
    if key in ("e", "w"):
        return replace(view, screen="experiments" if key == "e" else "workers", at=0, first=0)
    if key in ("?", "h"):
        return replace(view, screen="help", back=view.screen if view.screen in LISTS else view.back)
    if key == "s":
        return replace(view, sorts=_next_sort(view), at=0)
    if key in ("r", "S"):
        return replace(view, reverse=not view.reverse, at=0)
    if key == "/":
        return replace(view, typing="filter", typed=view.containing)
    if key == " ":
        return replace(view, frozen=not view.frozen)
    return view


def _next_sort(view: View) -> tuple[str, str]:
    place = 1 if view.screen == "workers" else 0
    names = list(WORKER_SORTS if place else EXPERIMENT_SORTS)
    after = names[(names.index(view.sorts[place]) + 1) % len(names)]
    return (view.sorts[0], after) if place else (after, view.sorts[1])


def _order(view: View, key: str, snapshot: Snapshot) -> tuple[View, Order | None]:
    """Keys that have something done."""
    pool = _pool(view, snapshot)
    if key == "n":
        return replace(view, typing="scale", typed="", pool=pool), None
    if key in "+-":
        row = next((one for one in snapshot.pools if one.pool == pool), None)
        now = row.wanted if row is not None and row.wanted is not None else row.alive if row is not None else 0
        return replace(view, pool=pool), Order("scale", pool, max(0, now + (1 if key == "+" else -1)))
    row_of = snapshot.experiment(view.chosen(snapshot)) if view.screen in ("experiments", "experiment") else None
    if row_of is None or row_of.ended:
        return replace(view, told="choose an experiment that is not over, then p"), None
    verb: Literal["pause", "resume"] = "resume" if row_of.judged.state == "paused" else "pause"
    return view, Order(verb, row_of.experiment)


def _pool(view: View, snapshot: Snapshot) -> str:
    """The pool that is meant: of what is chosen, else the first."""
    chosen = view.chosen(snapshot)
    experiment, worker = snapshot.experiment(chosen), snapshot.worker(chosen)
    if experiment is not None:
        return experiment.pool
    if worker is not None:
        return worker.info.beat.pool
    return snapshot.pools[0].pool if snapshot.pools else "default"


def _type(view: View, key: str) -> tuple[View, Order | None]:
    """A key while something is typed."""
    if key in ("escape", "ctrl-c"):
        return replace(view, typing="", typed=""), None
    if key == "enter":
        return _typed(view)
    if key == "backspace":
        typed = view.typed[:-1]
    else:
        typed = view.typed + key if len(key) == 1 and key.isprintable() and len(view.typed) < 60 else view.typed
    shown = replace(view, typed=typed)
    return (replace(shown, containing=typed, at=0), None) if view.typing == "filter" else (shown, None)


def _typed(view: View) -> tuple[View, Order | None]:
    done = replace(view, typing="", typed="")
    if view.typing == "filter":
        return replace(done, containing=view.typed, at=0), None
    if not view.typed.isdecimal():
        return replace(done, told=f"{view.typed!r} is no number of workers" if view.typed else ""), None
    return done, Order("scale", view.pool, int(view.typed))
