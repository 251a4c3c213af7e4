"""The command line: one file a group of commands, each loaded when it is used.

It never decides anything that a library user could not do too, and it is the only place that prints.
"""

from heddle.cli.main import main
from heddle.cli.root import cli

__all__ = ["cli", "main"]
