"""The command line as a person uses it: in a folder of its own, with real processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.helpers import eventually

ROOT = Path(__file__).resolve().parents[2]
HEDDLE = [sys.executable, "-m", "heddle"]


def environment(url: str | None = None, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without any broker but `url`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEDDLE_")}
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env |= {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", **(extra or {})}
    return env | ({"HEDDLE_REDIS_URL": url} if url else {})


def heddle(
    *arguments: str, cwd: Path, url: str | None = None, timeout_s: float = 120, code: int | None = 0
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; fail unless its exit code is `code` (None: any)."""
    done = subprocess.run(
        [*HEDDLE, *arguments], cwd=cwd, env=environment(url), text=True, capture_output=True, timeout=timeout_s
    )
    assert code is None or done.returncode == code, f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def heddle_json(*arguments: str, cwd: Path, url: str | None = None, code: int | None = 0) -> Any:
    """What a command answers with -o json."""
    return json.loads(heddle(*arguments, "-o", "json", cwd=cwd, url=url, code=code).stdout)


class Started:
    """A command that runs on, with its output in a file; what it says on standard error among it, or in another."""

    def __init__(
        self,
        arguments: tuple[str, ...],
        cwd: Path,
        url: str | None,
        extra: Mapping[str, str] | None,
        *,
        errors_apart: bool = False,
    ) -> None:
        self.arguments = arguments
        self.log = cwd / f"{arguments[0]}-{len(list(cwd.glob('*.out')))}.out"
        with ExitStack() as files:
            out = files.enter_context(self.log.open("wb"))
            apart = self.log.with_suffix(".err")
            errors = files.enter_context(apart.open("wb")) if errors_apart else subprocess.STDOUT
            self.process = subprocess.Popen(
                [*HEDDLE, *arguments],
                cwd=cwd,
                env=environment(url, extra),
                stdout=out,
                stderr=errors,
                stdin=subprocess.DEVNULL,
            )

    @property
    def pid(self) -> int:
        """Of the command itself."""
        return self.process.pid

    def output(self) -> str:
        """What it has said so far."""
        return self.log.read_text(errors="replace")

    def says(self, text: str, *, timeout_s: float = 60) -> str:
        """Wait until it has said `text`; returns all of its output."""

        def said() -> str:
            output = self.output()
            assert self.process.poll() is None or text in output, f"{self.arguments} ended: {output}"
            return output if text in output else ""

        return eventually(said, timeout_s=timeout_s, what=f"{self.arguments} says {text!r}")

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def ends(self, *, timeout_s: float = 60) -> int:
        """Wait for its exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.arguments} does not end: {self.output()[-3000:]}") from None

    def clean_up(self) -> None:
        """End it for good."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextmanager
def started(
    *arguments: str,
    cwd: Path,
    url: str | None = None,
    extra: Mapping[str, str] | None = None,
    errors_apart: bool = False,
) -> Iterator[Started]:
    """A command that runs while inside."""
    one = Started(arguments, cwd, url, extra, errors_apart=errors_apart)
    try:
        yield one
    finally:
        one.clean_up()


def processes_of(folder: Path) -> dict[int, str]:
    """Every living process whose working directory lies in `folder`, by pid, with its command. Linux only."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            where = (entry / "cwd").readlink()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue
        if where.is_relative_to(folder) and state != "Z":
            found[int(entry.name)] = command
    return found


def process_of(folder: Path, words: str) -> int | None:
    """Pid of a process in `folder` whose command holds `words`."""
    return next((pid for pid, command in processes_of(folder).items() if words in command), None)
