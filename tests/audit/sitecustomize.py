"""Python's own witness: with this folder first on PYTHONPATH, every process writes down what runs code out of data.

One line an event, into the file HEDDLE_AUDIT_FILE: process, event, arguments, and who asked, innermost first. What
happens while a module is imported is left out, but for unpickling. Python tells of that only where a class is looked
up, so `pickle.load`, `loads` and `Unpickler.load` are wrapped: a pickle of plain values is told as well.
"""

import _pickle
import os
import pickle
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

UNPICKLING = ("pickle.load", "pickle.find_class")
WATCHED = (*UNPICKLING, "marshal.loads", "marshal.load", "exec", "compile", "os.system", "subprocess.Popen")
FRAMES = 40


def _asked_by() -> tuple[list[str], bool]:
    """The files and lines up the stack, and whether an import is under way."""
    frames: list[str] = []
    importing = False
    frame: FrameType | None = sys._getframe(1).f_back
    while frame is not None and len(frames) < FRAMES:
        name = frame.f_code.co_filename
        importing = importing or "importlib._bootstrap" in name
        frames.append(f"{name}:{frame.f_lineno}")
        frame = frame.f_back
    return frames, importing


def _watch(event: str, args: tuple[object, ...]) -> None:
    if event not in WATCHED:
        return
    frames, importing = _asked_by()
    if importing and event not in UNPICKLING:
        return
    shown = " ".join(repr(arg)[:120] for arg in args[:2]).replace("\n", " ").replace("\t", " ")
    os.write(_file, f"{os.getpid()}\t{event}\t{shown}\t{' < '.join(frames)}\n".encode())


def _told(read: Callable[..., Any]) -> Callable[..., Any]:
    def reads(*args: Any, **kwargs: Any) -> Any:
        sys.audit("pickle.load")
        return read(*args, **kwargs)

    return reads


class _Unpickler(_pickle.Unpickler):
    load = _told(_pickle.Unpickler.load)


if "HEDDLE_AUDIT_FILE" in os.environ:
    _file = os.open(os.environ["HEDDLE_AUDIT_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    sys.addaudithook(_watch)
    for module in (pickle, _pickle):
        vars(module).update(load=_told(_pickle.load), loads=_told(_pickle.loads), Unpickler=_Unpickler)
