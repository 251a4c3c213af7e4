"""`heddle top` without a broker: what keys do, and screens that are exactly as large as the terminal."""

import re
from dataclasses import replace

import pytest

from heddle.broker.experience_types import Amount, Flow
from heddle.broker.lines import PRINTED, Event
from heddle.broker.presence import WorkerBeat, WorkerInfo
from heddle.broker.types import ShardState
from heddle.cli.top.gather import OPENED_SHARE, look_every_s
from heddle.cli.top.keys import Order, View, press
from heddle.cli.top.layout import fit, score, short
from heddle.cli.top.making import cpu_share
from heddle.cli.top.rows import ExperimentRow, PoolRow, Snapshot, WorkerRow, as_json
from heddle.cli.top.screens import screen
from heddle.cli.top.terminal import Terminal, split_keys
from heddle.states.bottleneck import Uneven
from heddle.states.judgement import Judgement
from heddle.states.slow import SlowShards

NOW = 1_800_000_000_000
NONE = Amount()
LOOK_COST_S = 0.0001
"""Of one shard."""


def flow(*, size: int = 0, waiting: int = 0) -> Flow:
    return Flow(3, size, 96, 0, waiting, Amount(9, 300), Amount(6, 204), NONE, NONE, NONE, NONE, NONE, NONE, NONE)


def experiment(name: str, state: str = "running", **facts: object) -> ExperimentRow:
    reason = {"running": ""}.get(state, f"because it is {state}")
    row = ExperimentRow(name, "default", Judgement(f"experiment {name}", state, reason), flow=flow(), max_bytes=1000)
    return replace(row, **facts)  # type: ignore[arg-type]


def worker(name: str, state: str = "alive", *, steps: int = 0) -> WorkerRow:
    beat = WorkerBeat(name, host="h", pid=7, shards=1, experiments=("a-1",), steps=steps, play_s=1.0)
    why = "" if state == "alive" else "its loop does not move"
    return WorkerRow(WorkerInfo(beat, True, False, NOW, 10), Judgement(f"worker {name}", state, why))


SHARD = ShardState(0, "train", 0, 2, "leased", "w-1", 5, 2, 3, 96, 1, 0, True, 0, 900, "its worker ended", NOW - 9000)


def snapshot() -> Snapshot:
    return Snapshot(
        now_ms=NOW,
        uptime_ms=60_000,
        used_bytes=900,
        max_bytes=1000,
        version="valkey 9.1",
        keeps="fast",
        leader=Judgement("coordinator c", "leading"),
        experiments=(
            experiment("a-1", speed=10.0, age_ms=9000, returns=((1.0, 2.0), (2.0, 5.0)), steps=50, budget_steps=100),
            experiment("b-2", "stalled", speed=99.0, age_ms=1000, moved=3, flow=flow(size=990, waiting=2)),
            experiment("c-3", "paused", age_ms=5000),
            experiment("日本語-4", "completed", ended=True, flow=None, result={"return": 7.5}),
        ),
        workers=(worker("w-1", steps=100), worker("w-2", "stalled"), worker("w-3", "dead")),
        pools=(PoolRow("default", 4, {"alive": 1, "stalled": 1, "dead": 1}, 3, 100.0),),
        shards=((SHARD, Judgement("shard a-1/0", "playing")),),
        events=tuple(Event(f"{n}-0", NOW, "a-1", "worker", "w-1", "warning", f"line {n} " * 9) for n in range(30)),
    )


def keys(view: View, *pressed: str) -> tuple[View, Order | None]:
    order = None
    for key in pressed:
        view, order = press(view, key, snapshot())
    return view, order


VIEWS = (
    View(),
    View(screen="workers"),
    View(screen="experiment", subject="a-1"),
    View(screen="experiment", subject="gone"),
    View(screen="worker", subject="w-2"),
    View(screen="worker", subject="gone"),
    View(screen="help"),
    View(typing="filter", typed="x" * 50),
    View(containing="nobody"),
    View(told="it pauses", frozen=True),
)


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (120, 30), (40, 12), (20, 5), (1, 1)], ids=str)
def test_every_screen_is_exactly_as_large_as_the_terminal(size: tuple[int, int]) -> None:
    for shown in (snapshot(), Snapshot(), replace(snapshot(), problem="it is away")):
        for view in VIEWS:
            lines = screen(view, shown, *size)
            assert len(lines) == size[1], view
            assert {line.cell_len for line in lines} == {size[0]}, view
            assert all("\n" not in line.plain for line in lines)


def on_a_terminal(written: str, width: int, height: int) -> list[str]:
    """What stands on a terminal that wraps no line: behind its last column the cursor stays on it, as xterm's does."""
    cells = [[" "] * width for _ in range(height)]
    line = column = 0
    for place, erases, other, letter in re.findall(r"\x1b\[(\d+);1H|(\x1b\[K)|(\x1b\[[0-9;?]*[A-Za-z])|(.)", written):
        if place:
            line, column = int(place) - 1, 0
        elif erases:
            cells[line][min(column, width - 1) :] = [" "] * (width - min(column, width - 1))
        elif letter and not other:
            cells[line][min(column, width - 1)] = letter
            column += 1
    return ["".join(row) for row in cells]


def test_a_line_that_is_cut_shows_its_mark_in_the_last_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Terminal, "size", lambda _self: (80, 24))
    lines = screen(View(), replace(snapshot(), experiments=snapshot().experiments[:3]), 80, 24)
    Terminal().draw(lines)
    drawn = on_a_terminal(capsys.readouterr().out, 80, 24)
    assert drawn == [line.plain for line in lines]
    assert sum(line.endswith("…") for line in drawn) >= 6, "the lines of the log are longer than the screen"


def text(view: View, width: int = 80, height: int = 24) -> str:
    return "\n".join(line.plain for line in screen(view, snapshot(), width, height))


def test_80_columns_show_what_matters_of_each_experiment() -> None:
    shown = text(View())
    for word in (
        "a-1",
        "running",
        "10",
        "50%",
        "5.0",
        "▁█",
        "stalled",
        "99%",
        "pool default 1 of 4 workers, 1 stalled",
    ):
        assert word in shown, word
    assert "stalled: because it is stalled" in shown, "the newest is chosen, and its reason stands below"
    wide = text(View(), 160, 40)
    assert "room 2 shards" in wide and "MOVED" in wide


def test_an_opened_experiment_shows_its_shards_and_who_lost_them() -> None:
    shown = text(View(screen="experiment", subject="a-1"), 120, 40)
    for word in ("50 of 100 (50%)", "appended 9 = trained 6", "playing", "before: its worker ended", "line 29"):
        assert word in shown, word


def test_an_opened_experiment_says_which_trainer_it_has_what_that_takes_and_why_shards_were_taken() -> None:
    told = replace(
        snapshot().experiments[0],
        trainer=Judgement("trainer gpu-7-4711-9f2c01", "training", since_ms=NOW - 2000),
        cpu=0.93,
        latest={"rss_bytes": 512.0 * (1 << 20)},
        moved=5,
        moved_by={"leases that ran out": 2, "workers that were seen to end": 3},
    )
    lines = screen(View(screen="experiment", subject="a-1"), replace(snapshot(), experiments=(told,)), 120, 40)
    shown = " ".join(" ".join(line.plain for line in lines).split())
    assert "gpu-7-4711-9f2c01 (pid 4711 on gpu-7) training for 2.0s, 93% of a core, 512 MiB of memory" in shown
    assert "5 taken: 2 for leases that ran out and 3 for workers that were seen to end" in shown


def test_processor_time_of_a_trainer_is_of_late_and_of_one_process() -> None:
    def points(*pairs: tuple[float, float]) -> list[tuple[int, dict[str, float]]]:
        return [(n, {"wall_seconds": wall, "cpu_seconds": cpu}) for n, (wall, cpu) in enumerate(pairs)]

    assert cpu_share(points((10, 5), (12, 6), (14, 8))) == 0.75
    assert cpu_share(points((10, 5), (12, 1))) is None, "another one trains now"
    assert cpu_share(points((10, 5))) is None and cpu_share([(1, {"return": 1.0})]) is None


def test_a_slow_shard_is_named_in_the_list_below_it_and_on_its_experiments_screen() -> None:
    slow = SlowShards(Uneven((7,), 1.1, 0.3), {7: "w-2"})
    some = snapshot()
    rows = (replace(some.experiments[0], slow=slow, age_ms=0), *some.experiments[1:])
    now = replace(some, experiments=rows)
    line = "shard 7 takes 1.10 s to play a batch, the mean is 0.30 s, played by w-2"
    listed = "\n".join(one.plain for one in screen(View(), now, 120, 30))
    assert "slow shard 7" in listed and line in listed
    opened = "\n".join(one.plain for one in screen(View(screen="experiment", subject="a-1"), now, 120, 40))
    assert line in opened
    assert "slow shard 7" not in "\n".join(one.plain for one in screen(View(), some, 120, 30))
    assert SlowShards(Uneven((1, 2), 1.1, 0.3), {1: "", 2: ""}).line.startswith("shards 1, 2 take 1.10 s")


def test_an_opened_worker_shows_where_it_is_and_what_it_does() -> None:
    shown = text(View(screen="worker", subject="w-2"), 100, 30)
    for word in ("w-2 stalled", "pid 7 on h", "its loop does not move"):
        assert word in shown, word


def test_prints_leave_half_of_the_log_to_events_and_take_all_of_it_where_there_are_none() -> None:
    # Given a few events, and prints after them without end
    events = snapshot().events[:10]
    prints = tuple(Event(f"{n}-1", NOW, "a-1", PRINTED, "w-1", "info", f"print {n}") for n in range(30))

    def told(*events: Event) -> list[str]:
        shown = [line.plain for line in screen(View(), replace(snapshot(), events=events), 120, 30)]
        return ["print" if "print" in line else "event" for line in shown if "a-1 line" in line or "print " in line]

    # Then both are told, and either has all of the room where it is alone
    assert told(*events, *prints) == ["event"] * 3 + ["print"] * 3
    assert told(*events[:1], *prints) == ["event"] + ["print"] * 5
    assert told(*prints) == ["print"] * 6
    assert told(*prints[:1], *events) == ["event"] * 6


def test_keys_move_sort_and_filter() -> None:
    names = [row.experiment for row in View().rows(snapshot())]  # type: ignore[union-attr]
    assert names == ["b-2", "c-3", "a-1", "日本語-4"], "the newest first, those that are over last"
    view, _ = keys(View(), "s")
    assert view.sort == "speed" and view.chosen(snapshot()) == "b-2"
    assert keys(view, "r")[0].chosen(snapshot()) == "c-3", "the other way round"
    assert keys(View(), "down", "down")[0].chosen(snapshot()) == "a-1"
    assert keys(View(), *["down"] * 99)[0].at == 3 and keys(View(), "end", "up", "home")[0].at == 0
    view, _ = keys(View(), "/", *"pau", "enter")
    assert [row.experiment for row in view.rows(snapshot())] == ["c-3"]  # type: ignore[union-attr]
    assert keys(view, "escape")[0].containing == ""
    assert keys(View(), "w")[0].chosen(snapshot()) == "w-2", "the one with which something is wrong first"


def test_enter_opens_what_is_chosen_and_escape_goes_back() -> None:
    view, _ = keys(View(), "down", "enter")
    assert (view.screen, view.subject) == ("experiment", "c-3")
    assert keys(view, "escape")[0].screen == "experiments"
    view, _ = keys(View(), "w", "enter")
    assert (view.screen, view.subject) == ("worker", "w-2") and keys(view, "q")[0].screen == "workers"
    assert keys(View(), "?")[0].screen == "help" and keys(View(), "w", "?", "escape")[0].screen == "workers"


def test_keys_order_what_they_say_and_nothing_else() -> None:
    assert keys(View(), "p")[1] == Order("pause", "b-2")
    assert keys(View(), "down", "p")[1] == Order("resume", "c-3"), "what is paused goes on"
    over, order = keys(View(), "end", "p")
    assert order is None and "not over" in over.told
    assert keys(View(), "+")[1] == Order("scale", "default", 5)
    assert keys(View(), "-")[1] == Order("scale", "default", 3)
    assert keys(View(), "n", *"12", "enter")[1] == Order("scale", "default", 12)
    assert keys(View(), "n", "1", "escape")[1] is None
    assert keys(View(), "n", "x", "enter")[0].told == "'x' is no number of workers"
    assert keys(View(), "q")[1] == keys(View(screen="help"), "ctrl-c")[1] == Order("quit")
    for key in ("x", "1", "left", "up", "s", " ", "tab"):
        assert keys(View(), key)[1] is None, key


def test_bytes_of_a_terminal_are_keys_also_when_they_come_in_pieces() -> None:
    assert split_keys("a\x1b[A\x1b[6~\r\x7f\x03") == (["a", "up", "pagedown", "enter", "backspace", "ctrl-c"], "")
    assert split_keys("\x1b") == (["escape"], "")
    found, left = split_keys("j\x1b[1")
    assert (found, split_keys(left + "~")[0]) == (["j"], ["home"])
    assert split_keys("\x1b[99;5uq") == (["q"], ""), "a key that means nothing here"


def test_numbers_fit_their_columns() -> None:
    values = (0, 9.4, 950, 9_999, 12_345, 999_500, 1e6, 123_456_789, 2.5e9)
    assert [short(value) for value in values] == ["0", "9", "950", "9999", "12.3k", "1000k", "1M", "123M", "2.5G"]
    assert [score(value) for value in (None, 0.0123, -3.14159, 54321.0)] == ["-", "0.0123", "-3.1", "54321"]
    assert (fit("abcdef", 4), fit("ab", 4), fit("ab", 4, right=True)) == ("abc…", "ab  ", "  ab")


def test_a_snapshot_for_programs_has_plain_values() -> None:
    told = as_json(snapshot())
    assert [one["experiment"] for one in told["experiments"]] == ["a-1", "b-2", "c-3", "日本語-4"]
    assert told["pools"][0] == {
        "pool": "default", "desired": 4, "alive": 1, "states": {"alive": 1, "stalled": 1, "dead": 1},
        "steps_per_second": 100.0, "deaths": {},
    }  # fmt: skip


def test_how_full_a_stream_is_counts_by_the_cap_that_is_nearer() -> None:
    row = ExperimentRow("e", "default", Judgement("experiment e", "running"), flow=flow(), max_bytes=1 << 40)
    assert row.flow is not None
    assert row.full == row.flow.bytes / (1 << 40)
    assert replace(row, max_entries=row.flow.entries).full == 1.0
    assert replace(row, max_bytes=0).full is None


@pytest.mark.parametrize("shards", [1, 50, 100, 2_000, 20_000])
def test_the_shards_of_an_experiment_that_is_shown_are_looked_at_often_but_for_no_more_than_its_share(
    shards: int,
) -> None:
    shown_s, listed_s = look_every_s(shards, is_opened=True), look_every_s(shards, is_opened=False)
    assert shown_s <= max(1.0, listed_s / OPENED_SHARE)
    assert LOOK_COST_S * shards / shown_s <= OPENED_SHARE * 0.01 + 1e-9
