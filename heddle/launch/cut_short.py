"""Runs that were cut short: what a killed `heddle run` leaves in the folder of its server, and how to go on with it.

It never starts a process and never talks to a broker: where a run stands it knows from its newest checkpoint, and how
it ended, when it was killed behind that, from what its trainer wrote down.
"""

import contextlib
import json
import logging
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from heddle.broker.server_folder import FolderId, folder_id, is_held, take_lock
from heddle.errors import CheckpointError, Conflict

log = logging.getLogger("heddle.launch")

RUN_FILE = "run.json"
NAME = "run"
GONE = ".gone-"
MOST_FOLDERS = 100


@dataclass(frozen=True, slots=True)
class CutShort:
    """One run that is not going on and whose end nobody has shown: it was killed, mostly before there was one.

    Attributes:
        folder: of its server's data.
        experiment: its id.
        sha256: of its spec.
        command: what goes on with it, typed in the same directory.
        directory: of its checkpoints; relative to that directory, or absolute.
    """

    folder: Path
    experiment: str
    sha256: str
    command: str
    directory: Path

    def stands(self) -> str:
        """Where it is, e.g. "update 120 (45,000 steps)", and what it does not go on from though it is newer."""
        from heddle.checkpoint import look

        try:
            found = look(self.directory / "checkpoints", experiment=self.experiment)
        except CheckpointError as error:
            return str(error)
        newer = len(found.skipped)
        if found.checkpoint is None:
            lost = f"an unknown update, for no checkpoint can be loaded ({found.skipped[0]})" if newer else ""
            return lost or "no update yet"
        past = "1 newer checkpoint" if newer == 1 else f"{newer} newer checkpoints"
        note = f"; {past} cannot be loaded" if newer else ""
        return f"update {found.checkpoint.update} ({found.checkpoint.env_steps:,} steps{note})"

    def ended(self) -> str:
        """How it ended, e.g. "completed: used env_steps 3000"; "" where nobody wrote that down."""
        from heddle.consumers.curve_file import ENDED

        try:
            told = json.loads((self.directory / ENDED).read_text(encoding="utf-8"))
            state, reason = str(told["state"]), str(told["reason"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        return " ".join((f"{state}: {reason}" if reason else state).split())

    def tell_end(self, how: str) -> str:
        """That it ended, where all of it is, the commands that show it, and which goes on with what is not complete."""
        from heddle.consumers.curve_file import CURVE
        from heddle.launch.local_runs import run_at

        at, has_checkpoint = shlex.quote(str(self.directory)), run_at(self.directory) is not None
        looks = [f"heddle plot {at}"] if (self.directory / CURVE).is_file() else []
        looks += [f"heddle eval {at}"] if has_checkpoint else []
        look = f"; look: {', '.join(looks)}" if looks else ""
        has_more = has_checkpoint and not how.startswith("completed")
        on = f"; go on: {resuming(self.command, self.experiment)}" if has_more else ""
        return f"{self.experiment} ended: {how}; its results are in {at}{look}{on}"

    def __str__(self) -> str:
        drop = shlex.quote(str(self.folder))
        if how := self.ended():
            return f"{self.tell_end(how)} (drop the rest of its server: rm -r {drop})"
        return f"{self.experiment} was cut short at {self.stands()}; go on: {self.command} (drop it: rm -r {drop})"


def resuming(command: str, experiment: str) -> str:
    """A command line that goes on at the checkpoints of an experiment, and no more at those that it began at itself."""
    words = shlex.split(command)
    if "--resume" in words:
        at = words.index("--resume")
        del words[at : at + 2]
    return shlex.join([*words, "--resume", experiment])


@contextlib.contextmanager
def remembered(run: CutShort) -> Iterator[None]:
    """Have it written down in the server's folder what runs there, and that it does while inside.

    A lock says the latter: however this process ends, the kernel lets go of it.
    """
    content = {name: str(value) for name, value in asdict(run).items() if name != "folder"}
    temporary = run.folder / f".{RUN_FILE}.tmp"
    with temporary.open("w", encoding="utf-8") as file:
        take_lock(file.fileno())
        file.write(json.dumps(content, indent=1) + "\n")
        file.flush()
        temporary.replace(run.folder / RUN_FILE)
        yield


def cut_short(parent: Path, is_running: Callable[[Path], bool]) -> list[CutShort]:
    """Every run that was cut short below `parent`, be it behind its end, by name of its folder.

    Args:
        is_running: tells of a folder whether its server runs.
    """
    found = [noted_in(path.parent) for path in sorted(parent.glob(f"{NAME}*/{RUN_FILE}"))]
    return [
        run for run in found if run is not None and not is_running(run.folder) and not is_held(run.folder / RUN_FILE)
    ]


def noted_in(folder: Path) -> CutShort | None:
    """The run that a server's folder remembers; None for none, or for a note that cannot be read."""
    try:
        told = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
        return CutShort(
            folder, str(told["experiment"]), str(told["sha256"]), str(told["command"]), Path(told["directory"])
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("cannot read what ran in folder=%s error=%s", folder, error)
        return None


def folder_for(parent: Path, sha256: str, is_running: Callable[[Path], bool]) -> Path:
    """Where the run of a spec keeps its server's data: where it was cut short, else in a folder of its own.

    Raises:
        Conflict: there are too many already.
    """
    for run in cut_short(parent, is_running):
        if run.sha256 == sha256:
            return run.folder
    for number in range(1, MOST_FOLDERS):
        folder = parent / (NAME if number == 1 else f"{NAME}-{number}")
        if not (folder / RUN_FILE).exists() and not is_running(folder):
            return folder
    raise Conflict(
        f"too many runs are, or were cut short, in {parent}; remove the folders of those not wanted any more"
    )


def remembers(folder: Path) -> bool:
    """Whether a server's folder holds a run that the same command would go on with."""
    return (folder / RUN_FILE).exists()


def remove(folder: Path, own: FolderId | None = None) -> None:
    """Delete a server's folder, in one step for whoever looks: a kill in the middle leaves no half of one.

    One that another server holds meanwhile is left alone.

    Args:
        own: the folder that it must be, else that path is another's by now; None for any.
    """
    _sweep(folder.parent)
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("cannot remove folder=%s error=%s", folder, error)
        return
    try:
        if own in (None, folder_id(handle)) and take_lock(handle):  # the lock: nobody starts a server in it now
            _remove_in_one_step(folder)
        else:
            log.info("left folder=%s to the run that has it now", folder)
    finally:
        os.close(handle)


def _remove_in_one_step(folder: Path) -> None:
    doomed = folder.with_name(f"{GONE}{folder.name}-{os.getpid()}")
    try:
        folder.rename(doomed)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("cannot remove folder=%s error=%s", folder, error)
        return
    shutil.rmtree(doomed, ignore_errors=True)


def _sweep(parent: Path) -> None:
    for left in parent.glob(f"{GONE}*"):
        shutil.rmtree(left, ignore_errors=True)
