"""The child's first lines: it ties itself to its worker, learns where code is found, and serves.

Run as a script, never imported: until the worker's search path has come it knows nothing but the standard library.
"""

import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
import threading

PR_SET_PDEATHSIG = 1
LOOK_S = 0.5


def main() -> None:
    """`child.py SOCKET BLOCK PARENT`: two descriptors and the pid of the worker."""
    fd, block, parent = (int(word) for word in sys.argv[1:4])
    _die_with(parent)
    for inherited in (fd, block):
        os.set_inheritable(inherited, False)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the worker asks where it hangs before it ends it
    link = socket.socket(fileno=fd)
    size = int.from_bytes(link.recv(4, socket.MSG_WAITALL), "little")
    sys.path[:] = json.loads(link.recv(size, socket.MSG_WAITALL))
    sys.argv[:] = ["heddle-environment"]
    from heddle.producers.isolation.serve import serve

    serve(link, block)


def _die_with(parent: int) -> None:
    """Be killed when the worker's thread that started us ends, however it ends."""
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
