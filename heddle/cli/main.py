"""The entry of the command `heddle`: runs a command and turns every error into one clear line and an exit code.

It never shows a traceback unless asked to with -v.
"""

import os
import re
import sys
import traceback
from collections.abc import Sequence
from errno import EIO, ENAMETOOLONG
from pathlib import Path
from typing import NoReturn

import click

from heddle.cli.audience import has_left
from heddle.cli.mistakes import too_long, usage_line
from heddle.cli.root import Session, cli
from heddle.cli.tables import say
from heddle.errors import MOST_SHOWN, HeddleError, SpecError, UsageError, shortened

INTERRUPTED = 130
_LONG_WORD = re.compile(rf"\S{{{MOST_SHOWN + 1},}}")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run `heddle` with `argv` (without the program's name) or the process's own arguments, and exit."""
    sys.exit(run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """Run `heddle` and return the exit code."""
    session, output = Session(), sys.stdout
    try:
        look_in_working_directory()
        result = cli.main(
            args=None if argv is None else list(argv), prog_name="heddle", standalone_mode=False, obj=session
        )
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except (click.Abort, KeyboardInterrupt):
        return _say(["heddle: interrupted"], INTERRUPTED, session)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        return _say([usage_line(error)], error.exit_code, session)
    except click.ClickException as error:
        return _say([f"heddle: {error.format_message()}"], error.exit_code, session)
    except SystemExit:
        if sys.stdout is output:
            raise
        sys.stdout = output  # click puts another one there when the reader went away, and exits with 1
        _say_no_more()
        return 0
    except HeddleError as error:
        return _say(message_of(error), error.exit_code, session)
    except Exception as error:  # noqa: BLE001 - the top of the process
        if isinstance(error, BrokenPipeError) or (isinstance(error, OSError) and error.errno == EIO and has_left()):
            _say_no_more()
            return 0
        said, code = _unexpected(error)
        return _say([f"heddle: {said}"], code, session)


def _unexpected(error: Exception) -> tuple[str, int]:
    """What to say of an error that nobody saw coming, and the exit code: of a full disk the system speaks."""
    if isinstance(error, OSError) and error.errno == ENAMETOOLONG:
        return too_long(error.filename), UsageError.exit_code
    if isinstance(error, OSError):
        place = f": {error.filename}" if error.filename is not None else ""
        return f"the system refused something: {error.strerror or error}{place}  (-v shows where)", 1
    said = " ".join(str(error).split())
    return f"unexpected {type(error).__name__}: {said}  (a fault of Heddle's own; -v shows where)", 1


def message_of(error: HeddleError) -> list[str]:
    """What to show for an error: each problem of a spec on its own line, else one line."""
    if isinstance(error, SpecError):
        return [" ".join(str(problem).split("\n")) for problem in error.problems]
    return [f"heddle: {' '.join(str(error).split())}"]


def look_in_working_directory() -> None:
    """Let user code (environments, policies, learners) be imported from the current directory.

    Last on the path, so that no file there hides a module that somebody needs.

    Raises:
        UsageError: it was deleted.
    """
    try:
        here = str(Path.cwd())
    except OSError as error:
        raise UsageError(f"the working directory is gone ({error.strerror}); cd to one that is there") from error
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def _say(lines: list[str], code: int, session: Session) -> int:
    """Print `lines` as the error, no word in them longer than people read; returns `code`."""
    if session.verbose:
        traceback.print_exc(file=sys.stderr)
    try:
        for line in lines:
            say(_LONG_WORD.sub(lambda word: shortened(word[0]), line), to_stderr=True)
    except OSError:
        _say_no_more()
    return code


def _say_no_more() -> None:
    """The reader went away (`heddle ls | head -1`, a closed terminal): say nothing more there, not even at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if has_left(stream.fileno()):
            os.dup2(null, stream.fileno())
    os.close(null)
