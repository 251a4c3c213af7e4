"""The command `heddle` itself: which commands there are, and where their code is.

It never imports a command before it is used, so that `heddle --help` answers at once.
"""

import importlib
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

import click
from click.shell_completion import CompletionItem

from heddle.cli.log_lines import formatter, is_json
from heddle.cli.mistakes import no_command
from heddle.version import __version__


@dataclass(slots=True)
class Session:
    """What one call of the command line shares.

    Attributes:
        verbose: -v was given once or more.
    """

    verbose: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A command that is not loaded yet: its module, its name there, and one line on it."""

    module: str
    attribute: str
    short_help: str


TOGETHER = "All in one terminal"
SPECS = "Specs"
EXPERIMENTS = "Experiments on a broker"
ROLES = "Roles, each alone"

COMMANDS: dict[str, dict[str, Entry]] = {
    TOGETHER: {
        "demo": Entry("heddle.cli.demo", "demo", "Train CartPole here, kill a worker on the way, see it heal."),
        "run": Entry("heddle.cli.run", "run", "Train exp.toml here: server, coordinator, workers, trainer."),
        "up": Entry("heddle.cli.up", "up", "Start the services without an experiment."),
        "completion": Entry("heddle.cli.completion", "completion", "Print what a shell needs to complete live names."),
        "doctor": Entry("heddle.cli.doctor", "doctor", "Check installation, host, broker and fleet; say what to fix."),
    },
    SPECS: {
        "init": Entry("heddle.cli.specs", "init", "Write a commented exp.toml to start from."),
        "validate": Entry("heddle.cli.specs", "validate", "Find every mistake in exp.toml."),
        "plan": Entry("heddle.cli.specs", "plan", "Show every value with its origin, and what it will need."),
    },
    EXPERIMENTS: {
        "enqueue": Entry("heddle.cli.enqueue", "enqueue", "Hand exp.toml to a fleet."),
        "ls": Entry("heddle.cli.experiments", "ls", "List experiments."),
        "results": Entry("heddle.cli.results", "results", "Show what a group reached, with mean and interval."),
        "status": Entry("heddle.cli.experiments", "status", "Show how one experiment is doing."),
        "top": Entry(
            "heddle.cli.top.command", "top", "Watch everything on one screen, with keys to sort, open, pause, scale."
        ),
        "logs": Entry("heddle.cli.logs", "logs", "Show and follow what every role says."),
        "plot": Entry("heddle.cli.plot", "plot", "Draw learning curves."),
        "compare": Entry("heddle.cli.plot", "compare", "Compare runs: curves with intervals, final table, specs."),
        "shards": Entry("heddle.cli.shards", "shards", "Show who plays each shard; release quarantined ones."),
        "profile": Entry("heddle.cli.profile", "profile", "Show what workers and trainer spend their time on."),
        "trace": Entry("heddle.cli.trace", "trace", "Show where batches spend their time, and who waits for whom."),
        "why": Entry("heddle.cli.why", "why", "Say why an experiment, a shard or a worker is as it is."),
        "repro": Entry("heddle.cli.repro", "repro", "Play the last failure of a shard again, here."),
        "wait": Entry("heddle.cli.commands", "wait", "Wait until an experiment reaches a state."),
        "pause": Entry("heddle.cli.commands", "pause", "Stop collecting for a while."),
        "resume": Entry("heddle.cli.commands", "resume", "Go on after a pause."),
        "stop": Entry("heddle.cli.commands", "stop", "End an experiment with a last checkpoint."),
        "rm": Entry("heddle.cli.commands", "rm", "Delete everything the broker holds of an experiment."),
        "batches": Entry("heddle.cli.batches", "batches", "Look at batches that could not be used, offer them again."),
        "record-experience": Entry(
            "heddle.cli.record", "record_experience", "Write an experiment's experience to Parquet."
        ),
        "data": Entry("heddle.cli.data_folders", "data", "Look at recorded experience, trade with Minari."),
        "eval": Entry("heddle.cli.evaluate", "evaluate", "Play fresh episodes with a checkpoint."),
        "record": Entry("heddle.cli.film", "record", "Film episodes of a checkpoint: mp4 or gif."),
        "policy": Entry("heddle.cli.policy", "policy", "Fetch published policies, export trained ones."),
    },
    ROLES: {
        "coordinator": Entry("heddle.cli.roles", "coordinator", "Admit experiments and keep their shards assigned."),
        "workers": Entry("heddle.cli.workers", "workers", "Start, list, scale and drain workers."),
        "worker": Entry("heddle.cli.roles", "worker", "Play shards: one worker process."),
        "track": Entry("heddle.cli.track", "track", "Hand metrics on to TensorBoard, W&B or MLflow."),
        "trainer": Entry("heddle.cli.roles", "trainer", "Train one experiment, or every one that needs it."),
        "acl": Entry("heddle.cli.acl", "acl", "Print the rights that a role needs of Redis."),
    },
}


def all_commands() -> dict[str, Entry]:
    """Every command by name."""
    return {name: entry for section in COMMANDS.values() for name, entry in section.items()}


class Command(click.Command):
    """A command with -v."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(verbose_option())


class Group(click.Group):
    """A group whose commands have -v; with `default` what is no command of its own is that one's first argument."""

    command_class = Command

    def __init__(self, *args: Any, default: Callable[[str], str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.default = default

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands:
            is_slip = len(args) > 1 and not args[1].startswith("-")  # `why shrad EXP/17`: no experiment has that name
            if self.default is None or is_slip:
                raise no_command(ctx, args[0], self.commands)
            args = [self.default(args[0]), *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self.default is not None and args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = [self.default(""), *args]  # `shards -o json EXP`
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Its commands, and what its default one takes first."""
        found = super().shell_complete(ctx, incomplete)
        if self.default is None:
            return found
        taken = self.commands[self.default(incomplete)].params
        first = next((one for one in taken if isinstance(one, click.Argument)), None)
        return found if first is None else [*found, *first.shell_complete(ctx, incomplete)]


class LazyGroup(click.Group):
    """The root: knows its commands by name only, and loads the one that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(all_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = all_commands().get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in all_commands() and not args[0].startswith("-"):
            raise no_command(ctx, args[0], all_commands())
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, entries in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.short_help) for name, entry in entries.items()])


def verbose_option() -> click.Option:
    """-v: logs of what happens; with an error its traceback."""

    def remember(ctx: click.Context, _parameter: click.Parameter, count: int) -> None:
        session = ctx.find_object(Session)
        if session is not None and count:
            session.verbose += count
            set_up_logs(logging.INFO if session.verbose == 1 else logging.DEBUG)

    return click.Option(
        ["-v", "--verbose"],
        count=True,
        expose_value=False,
        callback=remember,
        help="Say what happens, with a traceback on errors; -vv says more.",
    )


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to whatever is standard error at that moment: who caught it for a while may have closed it since. What
    stands there for user code alone (`Instead`) is passed by: our lines are not user code's."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        found: TextIO = getattr(sys.stderr, "beneath", sys.stderr)
        return found


def set_up_logs(level: int, *, is_service: bool = False) -> None:
    """Send the logs of `level` and above to standard error; a lower level set before stays. Raises UsageError.

    Args:
        is_service: its standard output is no data: logs as JSON go there.
    """
    root = logging.getLogger("heddle")
    if is_service and is_json():
        root.handlers = [one for one in root.handlers if not isinstance(one, _StandardError)]  # -v was heard before
    if not root.handlers:
        root.addHandler(_handler(is_service=is_service))
        root.propagate = False
        root.setLevel(level)
    root.setLevel(min(level, root.level or level))


def _handler(*, is_service: bool) -> logging.Handler:
    if is_service and is_json():
        from heddle.cli.json_out import JsonOut

        return JsonOut()
    handler = _StandardError()
    handler.setFormatter(formatter())
    return handler


EPILOG = """\b
Try:
  heddle demo                      see it work
  heddle init && heddle run exp.toml
"""


@click.group(
    cls=LazyGroup,
    params=[verbose_option()],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EPILOG,
)
@click.version_option(__version__, "--version", message="heddle %(version)s")
def cli() -> None:
    """Heddle collects experience for reinforcement learning with a fleet of workers and trains on it.

    One TOML file describes an experiment; Redis is the only thing between workers and trainer.
    """
