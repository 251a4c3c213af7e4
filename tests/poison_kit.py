"""Environments that go wrong in every way there is, really: for tests of what becomes of those around them."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from heddle.clock import SystemClock

POISON = "tests.poison_kit:Poison"
STATEFUL = "tests.poison_kit:Stateful"
SIZE = 2


class Poison(gymnasium.Env[Any, Any]):
    """Counts steps; episodes last 6. At step `at` of episode number `episode` it does `how`, if it is one of `only`.

    Args:
        how: a method of this class, or "" for nothing.
        only: indexes of the environments that do it; None: all.
        cure: while that file exists nothing happens.
        folder: where it leaves what it is asked to leave.
    """

    metadata: dict[str, Any] = {}

    def __init__(
        self,
        env_index: int = 0,
        *,
        how: str = "",
        hows: dict[str, str] | None = None,
        only: list[int] | None = None,
        at: int = 3,
        episode: int = 2,
        cure: str = "",
        folder: str = "",
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(-1e9, 1e9, (SIZE,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)
        self._index = env_index
        self._how = (hows or {}).get(str(env_index), how)
        self._mine = only is None or env_index in only
        self._at, self._when, self._cure, self._folder = at, episode, cure, folder
        self._episode, self._length = 0, 0
        self._held: list[Any] = []
        if self._how.startswith("make_"):
            self._act()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode += 1
        self._length = 0
        if self._how.startswith("reset_") and self._episode == self._when:
            answer = self._act()
            return (self._observe(), {}) if answer is None else answer
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._length += 1
        if (
            self._episode == self._when
            and self._length == self._at
            and not self._how.startswith(("make_", "reset_", "close_", "get_", "set_"))
        ):
            answer = self._act()
            if answer is not None:
                return answer  # type: ignore[no-any-return]
        return self._observe(), 1.0, self._length >= 6, False, {"fuel": float(self._length)}

    def close(self) -> None:
        if self._how.startswith("close_"):
            self._act()

    def _observe(self) -> Any:
        return np.array([self._index, self._length], np.float32)

    def _act(self) -> Any:
        if not self._how or not self._mine or (self._cure and Path(self._cure).exists()):
            return None
        method: Callable[[], Any] = getattr(self, f"do_{self._how}")
        return method()

    # ---- how

    def do_segfault(self) -> None:
        print("about to read address 0")
        ctypes.string_at(0)

    def do_abort(self) -> None:
        os.abort()

    def do_os_exit(self) -> None:
        os._exit(9)

    def do_kill_parent(self) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        threading.Event().wait()

    def do_sys_exit(self) -> None:
        sys.exit(3)

    def do_recurse(self) -> None:
        self.do_recurse()

    def do_interrupt(self) -> None:
        raise KeyboardInterrupt

    def do_memory_error(self) -> None:
        raise MemoryError("no room for the map")

    def do_raise(self) -> None:
        raise RuntimeError("the arm fell off")

    def do_hang(self) -> None:
        threading.Event().wait()

    def do_spin_in_c(self) -> None:
        """Holds the interpreter, deaf to signals that Python would handle."""
        pow(7, 10**9)

    def do_deaf(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        threading.Event().wait()

    def do_stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def do_reset_hang(self) -> None:
        threading.Event().wait()

    def do_make_hang(self) -> None:
        threading.Event().wait()

    def do_make_raise(self) -> None:
        raise RuntimeError("no such level")

    def do_make_segfault(self) -> None:
        ctypes.string_at(0)

    def do_spoil(self) -> None:
        """Its process finds no code any more, has other variables and another working directory."""
        sys.path.clear()
        os.environ.pop("PATH", None)
        os.environ["PYTHONPATH"] = os.environ["PYTHONHOME"] = "/nowhere"
        os.chdir("/")
        Path(self._folder, "spoilt").touch()

    def do_get_segfault(self) -> None:
        ctypes.string_at(0)

    def do_get_hang(self) -> None:
        threading.Event().wait()

    def do_set_segfault(self) -> None:
        ctypes.string_at(0)

    def do_set_hang(self) -> None:
        threading.Event().wait()

    def do_close_hang(self) -> None:
        threading.Event().wait()

    def do_leak_memory(self) -> None:
        while True:
            self._held.append(np.ones(1 << 20))

    def do_allocate_all(self) -> None:
        self._held.append(bytearray(100 << 30))

    def do_share_memory(self) -> None:
        """Beyond what a limit on private memory sees."""
        import mmap

        while True:
            self._held.append(mmap.mmap(-1, 8 << 20))
            self._held[-1].write(b"x" * (8 << 20))

    def do_leak_files(self) -> None:
        while True:
            self._held.append(os.open(os.devnull, os.O_RDONLY))

    def do_flood(self) -> None:
        """Megabytes, and then an error, so that the last of it can be looked at."""
        line = "x" * 999
        for _ in range(20_000):
            print(line)
        print("the last line")
        raise RuntimeError("drowned")

    def do_flood_forever(self) -> None:
        line = "y" * 9_999
        while True:
            print(line)

    def do_fork(self) -> None:
        """Leaves a process that ignores SIGTERM, and one in a session of its own; then goes on."""
        program = (
            "import signal, time, sys, pathlib, os; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
            "pathlib.Path(sys.argv[1], str(os.getpid())).touch(); time.sleep(600)"
        )
        for new_session in (False, True):
            subprocess.Popen([sys.executable, "-c", program, self._folder], start_new_session=new_session)
        deadline = SystemClock().monotonic() + 10
        while len(list(Path(self._folder).iterdir())) < 2 and SystemClock().monotonic() < deadline:
            SystemClock().sleep(0.01)

    def do_fork_and_return(self) -> None:
        """Both processes go on as if nothing had happened."""
        os.fork()

    def do_fork_bomb(self) -> None:
        """A small one: forks of forks, each of which stays."""
        for _ in range(6):
            os.fork()
        threading.Event().wait()

    def do_thread(self) -> None:
        threading.Thread(target=threading.Event().wait).start()  # not a daemon: it would keep a process from ending

    def do_litter(self) -> None:
        """Files in the working folder and where temporary files go, one folder without rights."""
        import tempfile

        Path("left.txt").write_text("here")
        Path(tempfile.mkdtemp(), "left.txt").write_text("there")
        Path("closed").mkdir()
        Path("closed", "left.txt").write_text("inside")
        Path("closed").chmod(0)
        Path(self._folder, "cwd").write_text(str(Path.cwd()))
        Path(self._folder, "environ").write_text(repr(dict(os.environ)))
        Path(self._folder, "descriptors").write_text(" ".join(os.listdir("/proc/self/fd")))  # noqa: PTH208

    def do_hang_up(self) -> None:
        os.closerange(3, 256)

    def do_nan(self) -> Any:
        return np.full(SIZE, np.nan, np.float32), 1.0, False, False, {}

    def do_shape(self) -> Any:
        return np.zeros(SIZE + 1, np.float32), 1.0, False, False, {}

    def do_short(self) -> Any:
        return self._observe(), 1.0, False, False

    def do_reward(self) -> Any:
        return self._observe(), float("nan"), False, False, {}

    def do_info(self) -> Any:
        return self._observe(), 1.0, False, False, {"fuel": "much"}

    def do_reset_short(self) -> Any:
        return self._observe()


class Stateful(Poison):
    """As Poison, with a state of its own to give and take: `how` may begin with "get_" and "set_", too."""

    def get_state(self) -> dict[str, int]:
        if self._how.startswith("get_"):
            self._act()
        return {"episode": self._episode, "length": self._length}

    def set_state(self, state: dict[str, int]) -> None:
        if self._how.startswith("set_"):
            self._act()
        self._episode, self._length = state["episode"], state["length"]
