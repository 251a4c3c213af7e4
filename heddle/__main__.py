"""The entry of the command `heddle` and of `python -m heddle`: loads the command line and runs it.

It never does anything else, but that a Ctrl-C before all is loaded ends it without a traceback too.
"""

import sys

INTERRUPTED = 130


def main() -> None:
    """Run `heddle`, and exit."""
    try:
        from heddle.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
