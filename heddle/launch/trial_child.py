"""The child of a trial: runs the user's code of one spec after the other and tells what came of it, a line each.

Run as a script, never imported: until its parent's search path has come it knows nothing but the standard library.
"""

import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

PR_SET_PDEATHSIG = 1
LOOK_S = 0.5


def main() -> None:
    """`trial_child.py TOLD STACKS PARENT`: two descriptors to write to and the pid of the parent."""
    told, stacks, parent = (int(word) for word in sys.argv[1:4])
    _die_with(parent)
    for inherited in (told, stacks):
        os.set_inheritable(inherited, False)
    faulthandler.enable(file=stacks, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)  # the parent asks where it hangs
    asked = json.load(sys.stdin)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123  user code that asks for input gets none
        os.dup2(nothing.fileno(), 0)
    sys.path[:] = asked["path"]
    sys.argv[:] = ["heddle"]
    for request in asked["requests"]:
        _tell(told, _answer(told, request))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what user code left running is ended with us


def _answer(told: int, request: dict[str, Any]) -> dict[str, Any]:
    """What came of one request: `found`, or `error`."""
    from heddle.errors import HeddleError, SpecError

    try:
        return {"found": _found(told, request)}
    except SpecError as error:
        problems = [asdict(problem) | {"value": _plain(problem.value)} for problem in error.problems]
        return {"error": str(error), "problems": problems, "traceback": traceback.format_exc()}
    except HeddleError as error:
        told_error = {"error": str(error), "exit_code": error.exit_code, "problems": None}
        return {**told_error, "traceback": traceback.format_exc()}
    except Exception as error:  # noqa: BLE001  the top of the process
        text = f"unexpected {type(error).__name__}: {error}  (a fault of Heddle's own; -v shows where)"
        return {"error": text, "exit_code": 1, "problems": None, "traceback": traceback.format_exc()}


def _found(told: int, request: dict[str, Any]) -> dict[str, Any]:
    from heddle.launch.checked import spaces_told
    from heddle.launch.deadline import within
    from heddle.launch.trying import see_spaces, try_out
    from heddle.spec import spec_from_json

    @contextmanager
    def guard(*, what: str, key: str, value: object, hint: str = "") -> Iterator[None]:
        _tell(told, {"part": {"what": what, "key": key, "value": value, "hint": hint}})
        with within(request["limit_s"], what=what, key=key, value=value, hint=hint):
            yield

    spec = spec_from_json(request["spec"])
    if request["what"] == "see":
        return spaces_told(*see_spaces(spec, guard=guard))
    return try_out(spec, guard=guard, with_snapshot=request["with_snapshot"]).told()


def _plain(value: object) -> object:
    """A value as JSON can carry it; what it cannot, as a person reads it."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
    return value


def _tell(fd: int, line: dict[str, Any]) -> None:
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(fd, data) :]


def _die_with(parent: int) -> None:
    """Be killed when the parent's thread that started us ends, however it ends."""
    try:
        asked = sys.platform.startswith("linux") and ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) == 0
    except (OSError, AttributeError):
        asked = False
    if not asked:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(0)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        threading.Event().wait(LOOK_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
