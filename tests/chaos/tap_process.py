"""Reads an experiment through a tap and prints a line for each batch; `python -m tests.chaos.tap_process URL EXP`.

It never gives up by itself.
"""

import sys

from heddle.cli.root import set_up_logs
from heddle.client import connect
from heddle.errors import HeddleError


def main() -> int:
    set_up_logs(20)
    url, experiment = sys.argv[1:]
    with connect(url) as client:
        try:
            for batch in client.experiment(experiment).tap("looker-on"):
                print(f"batch {batch.shard} {batch.seq}", flush=True)
        except HeddleError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            return error.exit_code
    print("the experiment is over", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
