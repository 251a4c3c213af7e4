"""What `heddle run` says at its end names only what is there."""

from dataclasses import replace
from pathlib import Path

import pytest

from heddle.broker.types import ShardState
from heddle.checkpoint import BEST, file_name
from heddle.cli.demo import Kill, tell_demo
from heddle.cli.facts import troubles
from heddle.cli.live import Facts
from heddle.cli.outcome import Outcome, Result
from heddle.cli.run import print_outcome
from heddle.cli.tables import fact_lines, said, table_lines


def interrupted(directory: Path) -> Outcome:
    return Outcome(
        "exp-1a2b", "interrupted", "Ctrl-C", Facts("exp-1a2b", "interrupted"), {}, {}, "none", True, (), directory
    )


def test_a_run_cut_short_before_its_first_checkpoint_names_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_outcome(interrupted(tmp_path / "exp-1a2b"), Path("exp.toml"))
    shown = capsys.readouterr().out
    assert "none yet" in shown
    assert "--resume" not in shown


def test_a_run_cut_short_later_names_its_best_checkpoint_and_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "exp-1a2b" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / file_name(1, 1)).touch()
    newest = folder / file_name(1, 2)
    newest.touch()
    print_outcome(interrupted(tmp_path / "exp-1a2b"), Path("exp.toml"))
    shown = capsys.readouterr().out
    assert str(newest) in shown
    assert "--resume exp-1a2b" in shown
    (folder / BEST).touch()
    print_outcome(interrupted(tmp_path / "exp-1a2b"), Path("exp.toml"))
    assert str(folder / BEST) in capsys.readouterr().out


def test_a_run_that_used_its_budget_tells_how_to_go_on_with_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "exp-1a2b"
    (directory / "checkpoints").mkdir(parents=True)
    (directory / "checkpoints" / BEST).touch()
    facts = Facts("exp-1a2b", "completed", steps=3_072, budget_steps=3_000)
    for state, shown in (("completed", True), ("stopped", False)):
        print_outcome(Outcome("exp-1a2b", state, "", facts, {}, {}, "none", True, (), directory), Path("exp.toml"))
        assert ("--resume exp-1a2b --set budget.env_steps=6000" in capsys.readouterr().out) is shown


def shard(number: int, state: str, error: str = "") -> ShardState:
    return ShardState(number, "train", 0, 1, state, "", 1, 1, 0, 0, 0, 5, False, 0, 0, error)


def test_quarantined_shards_and_a_full_broker_are_named_with_their_reason() -> None:
    shards = [shard(0, "leased"), shard(1, "quarantined", "KeyError: 'x' at env.py:3"), shard(2, "quarantined")]
    one, other, full = troubles(shards, out_of_memory=True)
    assert "shard 1" in one
    assert "KeyError: 'x' at env.py:3" in one
    assert "shard 2" in other
    assert "out of memory" in full
    assert troubles(shards[:1], out_of_memory=False) == []


def test_going_on_is_offered_with_the_same_overrides_and_counts_what_it_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / BEST).touch()
    facts = Facts("exp-1a2b", "completed", steps=119_000, steps_here=19_000, budget_steps=119_000, elapsed_s=10.0)
    outcome = Outcome("exp-1a2b", "completed", "", facts, {}, {}, "none", True, (), tmp_path)
    overrides = ("trainer.lr=1e-3", "budget.env_steps=119_000")
    print_outcome(outcome, Path("my exp.toml"), overrides, resumed="exp-0000")
    shown = capsys.readouterr().out
    assert "heddle run 'my exp.toml' --set trainer.lr=1e-3 --resume exp-1a2b --set budget.env_steps=238000" in shown
    assert "19,000 in 0:10, 1,900 steps/s" in shown
    assert "119,000 with those of exp-0000" in shown
    cut = replace(outcome, state="stopped", facts=replace(facts, steps=50_000))
    print_outcome(cut, Path("exp.toml"), overrides)
    assert "heddle run exp.toml --set trainer.lr=1e-3 --set budget.env_steps=119_000 --resume exp-1a2b" in (
        capsys.readouterr().out.replace("\n", " ")
    )


def test_long_facts_break_between_words_and_paths_stay_whole() -> None:
    books = "appended 2,221 = trained 1,564 + evaluated 653 + in flight 0; lost 0"
    assert fact_lines("batches  ", books, None) == [f"batches  {books}"]
    assert fact_lines("batches  ", books, 50) == [
        "batches  appended 2,221 = trained 1,564 +",
        "         evaluated 653 + in flight 0; lost 0",
    ]
    path = "runs/cartpole-36f7e3/checkpoints/" + "x" * 60
    assert fact_lines("best  ", path, 40) == [f"best  {path}"]


def test_a_run_whose_user_asked_twice_draws_no_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = Facts("exp-1a2b", "interrupted", returns=((100, 1.0), (200, 2.0)))
    for hurried in (True, False):
        outcome = replace(interrupted(tmp_path), facts=facts, hurried=hurried)
        print_outcome(outcome, Path("exp.toml"))
        assert (tmp_path / "curve.png").exists() is not hurried
        assert ("curve.png" in capsys.readouterr().out) is not hurried


def test_a_curve_that_cannot_be_drawn_is_told_in_a_line_after_the_outcome(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object, **named: object) -> None:
        assert "completed" in capsys.readouterr().out, "what is known is told before"
        raise RuntimeError("no\nfont")

    monkeypatch.setattr("heddle.cli.curve.save_png", broken)
    facts = Facts("exp-1a2b", "completed", returns=((100, 1.0), (200, 2.0)))
    print_outcome(replace(interrupted(tmp_path), state="completed", facts=facts), Path("exp.toml"))
    shown = capsys.readouterr()
    assert shown.err == "no picture of the curve: no font\n" and "next:" in shown.out


def test_the_demo_tells_its_outcome_before_its_curve_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def broken(*given: object, **named: object) -> None:
        told.append(capsys.readouterr().out)
        raise RuntimeError("no font")

    monkeypatch.setattr("heddle.cli.curve.save_png", broken)
    facts = Facts("exp-1a2b", "completed", returns=((100, 1.0), (200, 2.0)))
    tell_demo(replace(interrupted(tmp_path), state="completed", facts=facts), Kill(worker="w1"), None)
    shown = capsys.readouterr()
    for part in ("no checkpoint was written", "worker w1 with SIGKILL", "batches"):
        assert part in told[0]
    assert told[0].index("SIGKILL") < told[0].index("mean return of the last 100 training episodes")
    assert shown.err == "no picture of the curve: no font\n" and "next:" in shown.out


def test_what_is_met_while_a_run_is_put_away_is_one_of_its_troubles_and_changes_no_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = Result()
    with result.kept():
        result.begin(replace(interrupted(tmp_path), state="completed"))
        raise RuntimeError("the folder\nis busy")
    print_outcome(result.outcome, Path("exp.toml"))
    assert result.outcome.exit_code == 0
    assert "trouble     once it had ended: RuntimeError: the folder is busy" in capsys.readouterr().out


def test_what_is_met_before_it_is_known_how_a_run_ended_is_raised() -> None:
    with pytest.raises(RuntimeError, match="too soon"), Result().kept():
        raise RuntimeError("too soon")


def test_a_run_that_trains_on_a_recording_tells_the_steps_of_its_trainer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = replace(interrupted(tmp_path), state="completed", result={"env_steps": 6_000, "wall_s": 6.0})
    print_outcome(replace(outcome, line="appended 0"), Path("exp.toml"))
    shown = capsys.readouterr().out
    assert "6,000 in 0:06, 1,000 steps/s" in shown and "batches" not in shown


# ---- tables on a narrow terminal

HEADER = ("EXPERIMENT", "STATE", "WHY")
ROWS = [("pole-aaaaaa", "waiting", "no worker plays it; start some with: heddle workers start"), ("x", "running", "")]


def test_a_table_is_as_wide_as_it_is_where_nothing_ends_a_line() -> None:
    assert (
        table_lines(HEADER, ROWS, None)
        == table_lines(HEADER, ROWS, 200)
        == [
            "EXPERIMENT   STATE    WHY",
            "pole-aaaaaa  waiting  no worker plays it; start some with: heddle workers start",
            "x            running",
        ]
    )


def test_the_last_column_is_broken_between_words_where_the_terminal_ends() -> None:
    assert table_lines(HEADER, ROWS, 50) == [
        "EXPERIMENT   STATE    WHY",
        "pole-aaaaaa  waiting  no worker plays it; start",
        "                      some with: heddle workers",
        "                      start",
        "x            running",
    ]


def test_a_last_column_without_room_is_below_its_row() -> None:
    assert table_lines(HEADER, ROWS, 40) == [
        "EXPERIMENT   STATE",
        "pole-aaaaaa  waiting",
        "    no worker plays it; start some with:",
        "    heddle workers start",
        "x            running",
    ]


def test_a_table_of_one_column_stays_as_it_is() -> None:
    assert table_lines(("A",), [("a b c d",)], 3) == ["A", "a b c d"]


def test_a_line_is_broken_where_the_terminal_ends_and_before_what_to_do_about_it() -> None:
    line = "heddle: exp-9aa32e has used env_steps 100000 already; give it more: --set budget.env_steps=200192"
    assert said(line, None) == said(line, 100) == [line]
    assert said(line, 60) == [
        "heddle: exp-9aa32e has used env_steps 100000 already;",
        "    give it more: --set budget.env_steps=200192",
    ]
    assert said("a word and averyveryverylongpath/that/stays/whole", 20) == [
        "a word and",
        "    averyveryverylongpath/that/stays/whole",
    ]
