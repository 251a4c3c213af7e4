"""The entry of the command `heddle` and of `python -m heddle`: loads the command line and runs it.

It never does anything else, but that a Ctrl-C while it loads ends it without a traceback.
"""

import signal


def main() -> None:
    """Run `heddle`, and exit."""
    heard = signal.getsignal(signal.SIGINT)
    if heard is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from heddle.cli import main as run

    if heard is signal.default_int_handler:
        signal.signal(signal.SIGINT, heard)
    run()


if __name__ == "__main__":
    main()
