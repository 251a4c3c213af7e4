"""The live view and the accounting, as functions of facts."""

from dataclasses import replace

from rich.console import Console

from heddle.broker.experience_types import Amount, Flow
from heddle.cli.accounts import accounting, accounting_line, adds_up
from heddle.cli.history import History
from heddle.cli.live import Facts, WorkerFact, clock_text, plain_line, render

FACTS = Facts(
    "cartpole-7f3a2b",
    "running",
    elapsed_s=31.4,
    steps=41_200,
    budget_steps=100_000,
    steps_per_second=3_200,
    updates=160,
    policy=161,
    returns=tuple((float(i), float(i)) for i in range(100)),
    eval_returns=((10_000.0, 210.5),),
    latest={"lag_mean": 0.5, "lag_max": 2.0, "kl": 0.0123, "length": 88.0},
    in_flight=3,
    in_flight_bytes=4096,
    shards=6,
    shards_held=5,
    workers=(WorkerFact("w1", True, (0, 3), "alive", 1500.0), WorkerFact("w2", False, (), "dead")),
    events=("0:12 worker w2 ended with signal SIGKILL",),
    events_told=1,
)


def drawn(facts: Facts) -> str:
    console = Console(width=110, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(render(facts))
    return console.export_text()


def test_the_live_view_shows_all_that_matters() -> None:
    text = drawn(FACTS)
    for part in ("cartpole-7f3a2b", "running", "41,200 / 100,000", "41%", "3,200 steps/s", "161", "210.5", "99.0"):
        assert part in text
    for part in ("w1", "shards 0 3", "w2", "dead", "SIGKILL", "3 batches", "max 2.0", "▁", "█"):
        assert part in text


def test_the_live_view_copes_with_knowing_nothing_yet() -> None:
    assert "queued" in drawn(Facts("x", "queued"))
    assert "return -" in plain_line(Facts("x", "queued"))


def test_many_workers_are_summed_up() -> None:
    many = tuple(WorkerFact(f"w{i}", True, ()) for i in range(50))
    assert "and 42 more" in drawn(replace(FACTS, workers=many))


def test_without_a_terminal_everything_is_on_one_line() -> None:
    line = plain_line(FACTS)
    assert "\n" not in line
    for part in ("0:31", "running", "41200/100000", "return 99.0", "eval 210.5", "workers 1", "shards 5/6", "lag 0.5"):
        assert part in line


def test_time_is_shown_as_on_a_clock() -> None:
    assert [clock_text(s) for s in (0, 61, 3723)] == ["0:00", "1:01", "1:02:03"]


def flow(**changes: Amount) -> Flow:
    zero = Amount()
    names = ("trained", "evaluated", "stale", "dead", "dropped", "rolled_back", "discarded", "forgotten")
    counters = {**{name: zero for name in names}, "appended": Amount(10, 320), "trained": Amount(8, 256), **changes}
    whole = {"entries": 2, "bytes": 100, "steps": 64, "parked": 0, "waiting": 0}
    return Flow(**whole, **counters)  # type: ignore[arg-type]


def test_the_accounting_adds_up_when_every_batch_is_somewhere() -> None:
    assert adds_up(flow())
    assert accounting(flow())["steps"]["in_flight"] == 64
    assert accounting_line(flow()) == (
        "appended 10 = trained 8 + evaluated 0 + stale 0 + dead 0 + dropped 0 + rolled back 0 + in flight 2;"
        " lost 0, duplicated 0"
    )


def test_a_missing_batch_is_lost_and_one_too_many_is_duplicated() -> None:
    lost, twice = flow(trained=Amount(7, 256)), flow(trained=Amount(8, 288))
    assert accounting(lost)["batches"]["lost"] == 1
    assert accounting(twice)["steps"]["duplicated"] == 32
    assert not adds_up(lost)
    assert not adds_up(twice)
    assert "lost 1, duplicated 0" in accounting_line(lost)


def test_history_keeps_curves_over_steps_and_speed_over_seconds() -> None:
    history = History()
    history.add_update(1, {"env_steps": 256.0, "return": 20.0})
    history.add_update(2, {"env_steps": 512.0, "return": 25.0, "eval_return": 30.0})
    assert history.returns == [(256.0, 20.0), (512.0, 25.0)]
    assert history.eval_returns == [(512.0, 30.0)]
    assert history.updates == 2
    assert [history.speed(float(t), 100 * t) for t in range(4)] == [0.0, 100.0, 100.0, 100.0]
    assert history.speed(100.0, 300) == 0.0
