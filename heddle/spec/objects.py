"""User objects by name: import "package.module:Name" and say in one line why it failed.

It never imports a library of its own accord: only what the name asks for.
"""

import importlib
import signal
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from heddle.errors import EnvError

EXTRAS = {"torch": "torch", "jax": "jax", "flax": "jax", "optax": "jax"}
"""Modules that an extra of Heddle brings."""
MOST_FRAMES = 100
"""Of a stack that are looked at and kept, innermost first: endless recursion makes a thousand, slow to tell of."""
_PACKAGE = Path(__file__).resolve().parent.parent
_LIBRARIES = tuple(
    Path(path).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(key))
)


def is_object_name(name: str) -> bool:
    """True for "package.module:Name"; a Gymnasium id may also hold one colon, but then a version: "pkg:Env-v0"."""
    module, _, attribute = name.partition(":")
    return bool(attribute) and all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))


def import_object(name: str, *, key: str = "env.id") -> Any:
    """The object that "package.module:Name" names; modules are also looked for in the current directory.

    Args:
        name: module, colon, attribute (dots allowed on both sides).
        key: the spec key that holds the name, for the error.

    Raises:
        EnvError: not of that form, the import fails (with the cause and where), or the module has no such name.
    """
    if not is_object_name(name):
        raise EnvError("must have the form package.module:Name", key=key, value=name)
    module_name, _, attribute = name.partition(":")
    found: Any = _import_module(module_name, name, key)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            near = [other for other in dir(found) if not other.startswith("_") and not _is_module(found, other)]
            raise EnvError(
                f"module {module_name} has no {part!r}", key=key, value=name, hint=nearest(part, near)
            ) from None
    return found


def _is_module(found: object, name: str) -> bool:
    """What a module imports under a short name, such as np, is what nobody meant."""
    return isinstance(getattr(found, name, None), ModuleType)


def nearest(word: str, known: list[str]) -> str:
    """ "did you mean a or b?", or "" when nothing known is close."""
    import difflib

    close = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else ""


def user_errors() -> tuple[type[BaseException], ...]:
    """What user code may end with that is its own failure: `except user_errors() as error`.

    An interrupt is among it only where Ctrl-C does not come as one: roles hear signals in another way.
    """
    is_a_persons = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return (Exception, SystemExit) if is_a_persons else (Exception, SystemExit, KeyboardInterrupt)


def is_users(error: BaseException) -> bool:
    """The same for whatever ends a call into user code and is not ours: GeneratorExit, classes of the user's own."""
    if isinstance(error, KeyboardInterrupt):
        return isinstance(error, user_errors())
    return not isinstance(error, Ours)


class Ours(BaseException):
    """Thrown into user code by Heddle itself; passes all who look for the user's errors."""


def describe_error(error: BaseException) -> str:
    """One line: type, message and, where it can be told, file:line of the user's code that raised it."""
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001  the user's own __str__ may be broken, too
        message = "its message cannot be shown"
    where = blame(error)
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"{text} at {where}" if where else text


def blame(error: BaseException) -> str:
    """ "file:line" of the innermost frame that belongs neither to Heddle nor to an installed library; "" if none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(error.filename)}:{error.lineno or 0}"
    frames = traceback.extract_tb(error.__traceback__, limit=-MOST_FRAMES)
    places = [(frame.filename, frame.lineno or 0) for frame in reversed(frames)]
    if places and _under(places[0][0], (_PACKAGE,)):  # what Heddle says is no fault of a library on the way
        places = [place for place in places if not _under(place[0], _LIBRARIES)]
    return place_of(places)


def place_of(frames: Iterable[tuple[str, int]]) -> str:
    """As `blame`, of a stack of files and lines, innermost first."""
    named = [(file, line) for file, line in frames if not file.startswith("<")]
    own = [(file, line) for file, line in named if not _under(file, (_PACKAGE,))]
    users = [(file, line) for file, line in own if not _under(file, _LIBRARIES)]
    return "".join(f"{_shown(file)}:{line}" for file, line in (users or own)[:1])


def _import_module(module_name: str, name: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        here = str(Path.cwd())
        if not _is_part_of(module_name, error.name) or here in sys.path or "" in sys.path:
            raise _import_failure(module_name, name, key, error) from error
        sys.path.append(here)  # last, so that a file of the user's never hides a library
        importlib.invalidate_caches()
        return _import_again(module_name, name, key)
    except user_errors() as error:
        raise _import_failure(module_name, name, key, error) from error


def _import_again(module_name: str, name: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except user_errors() as error:
        raise _import_failure(module_name, name, key, error) from error


def _import_failure(module_name: str, name: str, key: str, error: BaseException) -> EnvError:
    if isinstance(error, ModuleNotFoundError) and _is_part_of(module_name, error.name):
        reason = f"there is no module {error.name!r}"
        return EnvError(reason, key=key, value=name, hint=module_hint(error.name or module_name))
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get(error.name or "")):
        reason = f"importing {module_name} failed: it needs {error.name}"
        return EnvError(reason, key=key, value=name, hint=f"pip install 'heddle-rl[{extra}]'")
    return EnvError(f"importing {module_name} failed: {describe_error(error)}", key=key, value=name)


def module_hint(module: str) -> str:
    """What to do about a module that is not there; names its folder where that lies just below this one."""
    file = f"{module.partition('.')[0]}.py"
    try:
        below = sorted(path.parent.name for path in Path.cwd().glob(f"*/{file}"))
    except OSError:
        below = []
    if below:
        return f"{below[0]}/{file} is there: run the command in {below[0]}, or set PYTHONPATH={below[0]}"
    return "it must be installed, or lie in the directory where the command runs"


def _is_part_of(module_name: str, missing: str | None) -> bool:
    return missing is not None and (module_name == missing or module_name.startswith(f"{missing}."))


@lru_cache(maxsize=1_000)
def _under(filename: str, folders: tuple[Path, ...]) -> bool:
    path = Path(filename).resolve()
    return any(path.is_relative_to(folder) for folder in folders)


def _shown(filename: str) -> str:
    path = Path(filename).resolve()
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
