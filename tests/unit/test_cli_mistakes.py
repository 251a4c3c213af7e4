"""A mistake in a command line is one line that ends with what to write or where to look."""

from pathlib import Path

import click
import pytest

from heddle.cli.main import run
from heddle.cli.mistakes import OTHER_WORDS
from heddle.cli.root import Session, all_commands, cli


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEDDLE_REDIS_URL", raising=False)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("lss", "heddle: no command 'lss'; did you mean: heddle ls"),
        ("train exp.toml", "heddle: no command 'train'; did you mean: heddle run"),
        ("zzzz", "heddle: no command 'zzzz'; see: heddle --help"),
        ("logs --flollow", "heddle logs: no option --flollow; did you mean --follow?"),
        ("enqueue --workers 4 exp.toml", "no option --workers; it is one of: heddle demo, heddle run, heddle up"),
        ("ls --zzz", "heddle ls: no option --zzz; see: heddle ls --help"),
        ("ls here", "heddle ls: unexpected extra argument (here); write: heddle ls [OPTIONS]"),
        ("stop", "name an experiment, or a group with --group; not both; write: heddle stop [OPTIONS] [EXP]"),
        ("eval", "heddle eval: CHECKPOINT... is missing; write: heddle eval [OPTIONS] CHECKPOINT..."),
        ("logs a --exp b", "two experiments are named, a and b; write: heddle logs [OPTIONS] [EXP]"),
        ("workers sl", "heddle workers: no command 'sl'; it has: start, ls, scale, drain"),
        ("why shrad a/3", "heddle why: no command 'shrad'; did you mean: heddle why shard"),
        ("workers scale x", "invalid value for 'N': 'x' is no whole number; see: heddle workers scale --help"),
        ("workers scale 1000001", "1000001 is not in the range 0<=x<=1000000; see: heddle workers scale --help"),
        ("logs --since x", "'x' is no duration such as 90, 90s, 5m or 3h; see: heddle logs --help"),
        ("logs --since", "heddle: option '--since' requires an argument"),
    ],
)
def test_it_is_one_line_with_the_nearest_right_form(typed: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(typed.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("heddle") and told in err


def test_words_of_other_programs_lead_to_commands_that_are_there() -> None:
    assert set(OTHER_WORDS.values()) <= set(all_commands())
    assert not set(OTHER_WORDS) & set(all_commands())


def leaves(command: click.Command, path: str) -> list[tuple[str, click.Command]]:
    """Every command below one, with how it is called."""
    if not isinstance(command, click.Group):
        return [(path, command)]
    context = click.Context(command, obj=Session())
    found = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [leaf for name, one in found if one is not None for leaf in leaves(one, f"{path} {name}")]


def test_an_experiment_is_named_by_position_wherever_an_option_names_it() -> None:
    for path, command in leaves(cli, "heddle"):
        options = {
            name for parameter in command.params for name in parameter.opts if isinstance(parameter, click.Option)
        }
        places = " ".join(
            p.make_metavar(click.Context(command)) for p in command.params if isinstance(p, click.Argument)
        )
        if "--exp" in options or "--experiment" in options:
            assert "EXP" in places, f"{path} takes an experiment by option alone"


def test_a_bare_group_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policy"]) == 2
    assert "Usage: heddle policy" in capsys.readouterr().err
