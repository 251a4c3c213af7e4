"""The forker: a process that has imported what workers need and is copied for each one, with its memory shared.

It never runs user code, talks to no broker, has one thread, and decides nothing: it copies itself when it is asked to,
and ends with whoever asks. `forks.py` is the other side of the line.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from heddle.launch.ties import PARENT_ENV, ask_kernel
from heddle.quick_exit import QuickExit

LINK_ENV = "HEDDLE_FORKER"
"""Holds the descriptor of the line to whoever asks; without it nobody does."""
MOST_FDS = 3
PRELOADED = (
    "heddle.launch.hurry",
    "heddle.producers.worker",
    "heddle.producers.host_weights",
    "heddle.broker.experiments",
    "heddle.broker.plane_sweep",
    "heddle.broker.policies",
    "heddle.broker.shards",
    "heddle.broker.tickets",
)
"""What every worker loads sooner or later, torch and environments not among it."""
TITLES = (b"worker", b"forker")
"""What a worker's command line says and, of as many letters, what a forker's does."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a copy is given.

    Attributes:
        env: its whole environment.
        output: where it prints; folder: where it runs; leave: one byte there lets it begin. Descriptors.
    """

    env: dict[str, str]
    output: int
    folder: int
    leave: int


def fork_on_demand(modules: Sequence[str] = PRELOADED) -> None:
    """In an ordinary process do nothing. A forker imports `modules` and stays in here; its copies return.

    Whatever the caller does next is done in every copy, as if it had been started alone.
    """
    number = os.environ.pop(LINK_ENV, "")
    if not number:
        return
    os.environ.pop(PARENT_ENV, None)
    ask_kernel(signal.SIGKILL)  # a closed line tells as well, but not while we are stopped
    given = dict(os.environ)
    link = socket.socket(fileno=int(number))
    link.set_inheritable(False)
    for module in modules:
        importlib.import_module(module)
    retitle(*TITLES)
    gc.collect()
    gc.freeze()  # collections shall not write into what copies share
    answer(link, {"threads": other_threads()})
    order = serve(link)
    retitle(*reversed(TITLES))
    begin(order, given)


def serve(link: socket.socket) -> Order:
    """Copy this process whenever somebody asks; returns in the copies alone."""
    while True:
        order = receive(link)
        if order is None:
            leave()
        told = attempt(link, order)
        if told is None:
            return order
        answer(link, told)
        for fd in (order.output, order.folder, order.leave):
            os.close(fd)


def attempt(link: socket.socket, order: Order) -> dict[str, object] | None:
    """Make a copy and tell its pid; None in the copy itself, once it may begin."""
    if threads := other_threads():  # what they hold, locks among it, would be held for ever in a copy
        return {"threads": threads}
    reading, writing = os.pipe()
    try:
        is_copy = copy()
    except OSError as error:
        os.close(reading)
        os.close(writing)
        return {"error": str(error)}
    if is_copy:
        link.close()
        os.close(reading)
        settle(order, writing)
        return None
    os.close(writing)
    pid = os.read(reading, 32)
    os.close(reading)
    return {"pid": int(pid)} if pid else {"error": "the copy did not begin"}


def copy() -> bool:
    """Fork a process that is nobody's child but that of whoever adopts orphans. True in that process.

    Raises:
        OSError: there is no memory, or no process is left.
    """
    between = os.fork()
    if not between:
        try:
            if not os.fork():
                return True
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    _, status = os.waitpid(between, 0)
    if number := os.waitstatus_to_exitcode(status):
        raise OSError(number, os.strerror(number) if number > 0 else "a copy was killed")
    return False


def settle(order: Order, writing: int) -> None:
    """Be a process of its own, say so, and wait until whoever asked knows us as its child; it may be gone by then."""
    os.setsid()
    os.fchdir(order.folder)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123  a descriptor is all that is wanted
        os.dup2(nothing.fileno(), 0)
    for number in (1, 2):
        os.dup2(order.output, number)
    for fd in (order.output, order.folder):
        os.close(fd)
    with contextlib.suppress(BrokenPipeError):  # the forker is gone; whoever asked it has still to see whose we are
        os.write(writing, str(os.getpid()).encode())
    os.close(writing)
    may_begin = os.read(order.leave, 1)
    os.close(order.leave)
    if not may_begin:
        os._exit(0)


def begin(order: Order, given: dict[str, str]) -> None:
    """Make of a copy what a fresh process with that environment would be.

    Args:
        given: the environment that the forker itself was given.
    """
    for name in given.keys() - order.env.keys():
        os.environ.pop(name, None)
    os.environ.update(order.env)
    if "numpy.random" in sys.modules:  # the library's own `random` sees to itself
        sys.modules["numpy.random"].seed()
    if QuickExit.kept is not None:
        QuickExit.kept.keep()


def other_threads() -> list[str]:
    """Names of this process's threads but the first; whoever cannot tell is no forker."""
    tasks = Path("/proc/self/task")
    return [(task / "comm").read_text().strip() for task in tasks.iterdir() if task.name != str(os.getpid())]


def receive(link: socket.socket) -> Order | None:
    """The next order; None once nobody can give one any more."""
    head, fds, _, _ = socket.recv_fds(link, 4, MOST_FDS, socket.MSG_WAITALL)
    if len(head) < 4:
        return None
    data = bytearray()
    size = int.from_bytes(head, "little")
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            return None
        data += part
    return Order(json.loads(data), *fds)


def answer(link: socket.socket, told: dict[str, object]) -> None:
    """Say one line; whoever asked may be gone, which `receive` will see."""
    try:
        link.sendall(json.dumps(told).encode() + b"\n")
    except (BrokenPipeError, ConnectionResetError):
        leave()


def leave() -> NoReturn:
    """End without a word."""
    os._exit(0)


def retitle(old: bytes, new: bytes) -> None:
    """Let lists of processes show `new` where this one's command line says `old`, of as many bytes, as one argument."""
    line = Path("/proc/self/cmdline").read_bytes()
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    first, last = int(fields[45]), int(fields[46])  # arg_start, arg_end: fields 48 and 49 of proc(5)
    at = line.find(b"\0" + old + b"\0")
    if at >= 0 and len(line) == last - first and len(old) == len(new):
        ctypes.memmove(first + at + 1, new, len(new))
