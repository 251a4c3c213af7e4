"""One side of a comparison, run by the Python of its own environment, which holds no Heddle.

    python side.py MODULE

reads "WORKLOAD SECONDS" a line, has MODULE.WORKLOADS[WORKLOAD](seconds) play that long and prints
{"steps": ..., "wall_s": ...}. It ends with its input.
"""

import importlib
import json
import sys
import time


def main() -> None:
    """Serve until the input ends; what libraries print goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr
    workloads = importlib.import_module(sys.argv[1]).WORKLOADS
    print(json.dumps(sorted(workloads)), file=answers, flush=True)
    for line in sys.stdin:
        workload, seconds = line.split()
        began = time.monotonic()
        steps = workloads[workload](float(seconds))
        print(json.dumps({"steps": steps, "wall_s": time.monotonic() - began}), file=answers, flush=True)


if __name__ == "__main__":
    main()
