"""Mistakes in a command line as one line each: what is wrong, and the nearest form that is right.

It never guesses what was meant; it names it.
"""

from collections.abc import Iterable

import click

OTHER_WORDS = {
    "check": "validate",
    "delete": "rm",
    "describe": "status",
    "evaluate": "eval",
    "kill": "stop",
    "list": "ls",
    "log": "logs",
    "ps": "ls",
    "remove": "rm",
    "show": "status",
    "start": "up",
    "submit": "enqueue",
    "train": "run",
}
"""What other programs call our commands."""


def usage_line(error: click.UsageError) -> str:
    """A usage error as one line that ends with what to write, or where to look."""
    context = error.ctx
    if context is None:
        return f"heddle: {_small(error.format_message())}"
    path = context.command_path
    if isinstance(error, click.NoSuchOption):
        return f"{path}: no option {error.option_name}; {_instead_of_option(error.option_name, context)}"
    if isinstance(error, click.MissingParameter):
        name = error.param.make_metavar(context) if error.param is not None else "an argument"
        return f"{path}: {name} is missing; write: {form_of(context)}"
    text = _small(error.format_message())
    if isinstance(error, click.BadParameter | click.BadOptionUsage):
        return f"{path}: {text}; see: {path} --help"
    return text if text.startswith("heddle") else f"{path}: {text}; write: {form_of(context)}"


def no_command(context: click.Context, name: str, known: Iterable[str]) -> click.UsageError:
    """That a group has no command `name`, with the nearest one that it has."""
    from difflib import get_close_matches

    known = list(known)
    meant = OTHER_WORDS.get(name, "")
    near = [meant] if meant in known else get_close_matches(name, known, n=1)
    path = context.command_path
    way = f"did you mean: {path} {near[0]}" if near else f"it has: {', '.join(known)}"
    if not near and len(known) > 8:
        way = f"see: {path} --help"
    return click.UsageError(f"{path}: no command {name!r}; {way}", context)


def too_long(name: object) -> str:
    """That no file system takes a path or a name of such a length."""
    return f"this system takes no name as long as {name}; give a shorter one"


def form_of(context: click.Context) -> str:
    """How a command is written."""
    return " ".join([context.command_path, *context.command.collect_usage_pieces(context)])


def _instead_of_option(option: str, context: click.Context) -> str:
    from difflib import get_close_matches

    own = [name for parameter in context.command.params for name in (*parameter.opts, *parameter.secondary_opts)]
    if near := get_close_matches(option, [name for name in own if name.startswith("--")], n=1):
        return f"did you mean {near[0]}?"
    root = context.find_root()
    having = sorted(_commands_with(option, root)) if option.startswith("--") else []
    if having:
        return f"it is one of: {', '.join(having)}"
    return f"see: {context.command_path} --help"


def _commands_with(option: str, root: click.Context) -> Iterable[str]:
    """The commands right below the root that take an option."""
    if not isinstance(root.command, click.Group):
        return
    for name in root.command.list_commands(root):
        command = root.command.get_command(root, name)
        if command is not None and any(option in parameter.opts for parameter in command.params):
            yield f"{root.command_path} {name}"


def _small(text: str) -> str:
    """As the middle of a line: no capital that begins it, no full stop that ends it."""
    text = " ".join(text.split()).removeprefix("Got ").removesuffix(".")
    text = text.replace("is not a valid integer range", "is no whole number")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
