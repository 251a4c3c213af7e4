"""`run`: everything local in one terminal.

It never leaves a process, a socket or a server's data behind; checkpoints stay.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heddle.cli.completion import experiment_names
from heddle.cli.options import (
    command,
    existing_file,
    folder_to_fill,
    output_option,
    print_json,
    redis_option,
    set_option,
)
from heddle.cli.progress import trying
from heddle.cli.roles import need_torch

if TYPE_CHECKING:
    from heddle.cli.outcome import Outcome

DIRECTORY = "runs"
LAST = "checkpoint"


@command("run", example="heddle run exp.toml\nheddle run exp.toml --set trainer.lr=3e-4 --workers 4")
@click.argument("file", metavar="exp.toml", callback=existing_file)
@set_option
@click.option("-n", "--workers", type=click.IntRange(1), help="Worker processes; one a core when not given.")
@click.option("--name", metavar="NAME", help="Takes the place of experiment.name.")
@click.option(
    "--resume", metavar="EXP", help="Start from the newest checkpoint of EXP.", shell_complete=experiment_names
)
@click.option("--dir", "directory", metavar="DIR", default=DIRECTORY, show_default=True, help="Where checkpoints go.")
@click.option("--log-dir", metavar="DIR", help="One log file a process; else only the last lines are kept.")
@click.option("--check/--no-check", default=True, help="Build one environment and the policy first.")
@output_option
@redis_option
def run(
    file: Path,
    overrides: tuple[str, ...],
    workers: int | None,
    name: str | None,
    resume: str | None,
    directory: str,
    log_dir: str | None,
    check: bool,
    output: str,
    redis_url: str | None,
) -> None:
    """Train exp.toml in this terminal: server (if none is given), coordinator, workers and trainer.

    Ctrl-C once ends gently with a checkpoint, as a closed terminal does, twice at once; no process stays either way.
    Ctrl-Z stops the screen, and that ended processes are started again, but not the training; fg brings both back.
    When everything was killed, the server too, the same command goes on where it was.
    """
    need_torch("heddle run")
    from heddle.launch.check import load_and_check
    from heddle.spec import load_spec

    if check:
        with trying():
            loaded, checked = load_and_check(file, overrides, name)
    else:
        loaded, checked = load_spec(file, overrides=overrides, name=name), None
    if loaded.spec.track is not None:
        from heddle.consumers.tracking.make import check_installed

        check_installed(loaded.spec.track)
    from heddle.cli.audience import lasting_output
    from heddle.cli.running import Order, run_here
    from heddle.launch.local import LAUNCHER_SIGNALS
    from heddle.stop import listen_no_more

    order = Order(
        loaded=loaded,
        checked=checked,
        url=redis_url,
        workers=workers,
        directory=folder_to_fill(directory, "--dir"),
        resume=resume,
        to_stderr=output == "json",
        log_dir=folder_to_fill(log_dir, "--log-dir") if log_dir else None,
        command=_command(click.get_current_context().params),
    )
    with lasting_output() as audience:
        outcome = run_here(order, audience)
        listen_no_more(LAUNCHER_SIGNALS)
        if output == "json":
            print_json(as_json(outcome))
        else:
            print_outcome(outcome, file, overrides, resumed=resume)
    raise click.exceptions.Exit(outcome.exit_code)


def _command(given: Mapping[str, Any]) -> str:
    """The command line that starts the same run again."""
    words = ["heddle", "run", str(given["file"])]
    for override in given["overrides"]:
        words += ["--set", override]
    for option, key in (("--workers", "workers"), ("--name", "name"), ("--resume", "resume"), ("--log-dir", "log_dir")):
        if given[key] is not None:
            words += [option, str(given[key])]
    if given["directory"] != DIRECTORY:
        words += ["--dir", given["directory"]]
    return shlex.join([*words, *(["--no-check"] if not given["check"] else [])])


def as_json(outcome: "Outcome") -> dict[str, object]:
    """The result for programs."""
    from heddle.usage import cpu_seconds

    facts = outcome.facts
    return {
        "experiment": outcome.experiment,
        "state": outcome.state,
        "reason": outcome.reason,
        "env_steps": facts.steps,
        "updates": facts.updates,
        "wall_s": facts.elapsed_s,
        "return": facts.returns[-1][1] if facts.returns else None,
        "eval_return": facts.eval_returns[-1][1] if facts.eval_returns else None,
        "accounting": outcome.accounting,
        "adds_up": outcome.adds_up,
        "restarts": list(outcome.restarts),
        "troubles": list(outcome.troubles),
        "failures": list(outcome.failures),
        "untracked": list(outcome.untracked),
        "cpu_s": round(cpu_seconds(), 1),
        "result": outcome.result,
    }


def print_outcome(outcome: "Outcome", file: Path, overrides: Sequence[str] = (), *, resumed: str | None = None) -> None:
    """The result for people."""
    from heddle.cli.ending import listed
    from heddle.cli.live import clock_text
    from heddle.cli.tables import number, print_facts
    from heddle.usage import cpu_seconds

    facts = outcome.facts
    # What an earlier session of the same run took counts, too: the steps are those of all.
    wall = max(facts.elapsed_s, float(outcome.result.get("wall_s") or 0.0), 1e-9)
    best = best_checkpoint(outcome)
    trained = outcome.result.get("env_steps") if resumed is None else None
    steps = facts.steps_here or int(trained or 0)  # of a recording there is nothing that the broker counts
    is_recorded = not facts.steps_here and steps > 0
    click.echo("")
    print_facts(
        [
            ("ended", f"{outcome.state}{f': {outcome.reason}' if outcome.reason else ''}"),
            ("return", number(facts.returns[-1][1]) + " (last 100 training episodes)" if facts.returns else ""),
            ("eval", number(facts.eval_returns[-1][1]) if facts.eval_returns else ""),
            ("steps", f"{steps:,} in {clock_text(wall)}, {steps / wall:,.0f} steps/s"),
            ("cpu", f"{cpu_seconds():,.0f} s of processor time, of all processes that this one started"),
            ("in all", f"{facts.steps:,} with those of {resumed}" if resumed else ""),
            ("batches", "" if is_recorded else outcome.line),
            ("restarts", len(outcome.restarts) or ""),
            *(("", why) for why in outcome.restarts[-5:]),
            *(("trouble", what) for what in outcome.troubles[:5]),
            *listed("failed", outcome.failures),
            *listed("trackers", outcome.untracked),
            (LAST, best or "none yet"),
        ]
    )
    # It takes a second and another's library: what is known is told before.
    print_facts([(f"{'curve':<{len(LAST)}}", draw_curve(outcome, title=outcome.experiment) or "")])
    click.echo("\nnext:")
    _print_next(outcome, file, overrides, has_checkpoint=bool(best))


def _print_next(outcome: "Outcome", file: Path, overrides: Sequence[str], *, has_checkpoint: bool) -> None:
    """Commands that go on from here."""
    spent = _more(outcome)
    kept = [one for one in overrides if not (spent and one.startswith("budget.env_steps"))]
    again = shlex.join([str(file), *(part for one in kept for part in ("--set", one))])
    if outcome.untracked:
        click.echo(f"  heddle track {outcome.directory}")
    if has_checkpoint:
        click.echo(f"  heddle eval {outcome.directory} --episodes 100")
        click.echo(f"  heddle run {again} --resume {outcome.experiment}{spent}")
    else:
        click.echo(f"  heddle run {again}")
    click.echo("  heddle up   # services that stay, for several experiments and other hosts")


def draw_curve(outcome: "Outcome", *, title: str, goal: float | None = None) -> "Path | None":
    """Write the learning curve as a picture beside the checkpoints; None where there is nothing to draw with.

    Nor when somebody waits: to load what draws takes a second, and `heddle plot` draws it later.
    """
    from heddle.cli.curve import Curve, save_png

    facts = outcome.facts
    training = Curve("training, mean of the last 100 episodes", facts.returns)
    picture = outcome.directory / "curve.png"
    if not facts.returns or outcome.hurried:
        return None
    try:
        save_png(
            picture,
            [training, Curve("evaluation", facts.eval_returns)],
            title=title,
            x_label="environment steps",
            y_label="return",
            goal=goal,
        )
    except Exception as error:  # noqa: BLE001  what draws is another's, and the run is over, whatever it raises
        click.echo(f"no picture of the curve: {' '.join(str(error).split()) or type(error).__name__}", err=True)
        return None
    return picture


def _more(outcome: "Outcome") -> str:
    """What going on takes when the budget is used up: what a run continues counts, so the same would end at once."""
    facts = outcome.facts
    spent = outcome.state == "completed" and bool(facts.budget_steps) and facts.steps >= (facts.budget_steps or 0)
    return f" --set budget.env_steps={2 * (facts.budget_steps or 0)}" if spent else ""


def best_checkpoint(outcome: "Outcome") -> str:
    """The best checkpoint's path, else the newest one's; "" when there is none, as in a run cut short at its start."""
    from heddle.checkpoint import BEST, listing

    told = outcome.result.get("best") or outcome.result.get("checkpoint")
    if told:
        return str(told)
    folder = outcome.directory / "checkpoints"
    found = [folder / BEST] if (folder / BEST).is_file() else listing(folder)
    return str(found[0]) if found else ""
