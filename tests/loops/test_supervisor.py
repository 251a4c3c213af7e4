"""The supervisor: its decisions as tables, and its loop over real child processes and a broker that may be away."""

import ctypes
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.broker.lines import Line
from heddle.broker.presence import HostReport, Pulse
from heddle.errors import BrokerUnreachable
from heddle.launch.host import cores
from heddle.launch.pacing import restart_delay_s, share
from heddle.launch.supervisor import Supervisor, worker_command
from heddle.launch.vigil import Patience
from heddle.producers import worker as worker_module
from heddle.spec.last_words import kept, place, telling
from heddle.stop import StopFlag
from tests.helpers import eventually

POLITE = (
    "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('up', flush=True); signal.pause()"
)
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"
)
IMPATIENT = Patience(stopped_s=0.5, silent_s=1.5, ttls=0.0, birth_s=1.5)
CRASHING = "import sys; print('cannot find my arm'); sys.exit(3)"
PRINTING = (
    "import signal\nprint('12:00:00 INFO    heddle.worker claimed shard=0', flush=True)\n"
    "print('torque is off', flush=True)\nsignal.pause()"
)
COPIED = "from heddle.launch.forker import fork_on_demand\nfork_on_demand(())\n"
SPAWNED, FORKED = "spawned", "forked"
OTHERWISE = FORKED if os.environ.get("HEDDLE_SOAK") else SPAWNED
either_way = pytest.mark.parametrize("begin", [SPAWNED, FORKED], indirect=True)
"""However workers are started, they are children of the supervisor, known and ended as such."""


@dataclass
class FakeBroker:
    """What a supervisor asks of the broker, answered from attributes."""

    desired: int | None = None
    supervisors: tuple[str, ...] = ("me",)
    away: bool = False
    released: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)
    stumbles: bool = False
    buried: list[tuple[str, str]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    printed: list[tuple[str, str, str]] = field(default_factory=list)
    byes: list[str] = field(default_factory=list)
    hosts: list[HostReport] = field(default_factory=list)
    silent: bool = False
    unborn: set[str] = field(default_factory=set)
    beats: int = 0

    @property
    def pools(self) -> Any:
        return SimpleNamespace(
            supervisor_beat=self._beat,
            supervisor_bye=lambda _, name: self.byes.append(name),
            pulses=self._pulses,
            bury=lambda worker, how, **_: self.buried.append((worker, how)),
        )

    @property
    def shards(self) -> Any:
        return SimpleNamespace(release_worker=self._release)

    @property
    def events(self) -> Any:
        return SimpleNamespace(log=lambda *line: self.told.append(line[-1]), log_all=self._log_all)

    @property
    def planes(self) -> Any:
        return SimpleNamespace(known_identity=lambda: "")  # nothing of its own lies in shared memory

    def close(self) -> None:
        pass

    def _beat(self, pool: str, supervisor: str, wants: int, *, host: HostReport) -> Any:
        self._answer()
        self.hosts.append(host)
        return SimpleNamespace(desired=self.desired, supervisors=self.supervisors)

    def _pulses(self, pool: str, workers: Sequence[str]) -> dict[str, Pulse]:
        """All that were not told to be silent have beaten since they were asked about last."""
        self._answer()
        self.beats += not self.silent
        return {worker: Pulse(self.beats) for worker in workers if worker not in self.unborn}

    def _release(self, worker: str, *, error: str | None, crashed: bool, in_children: str | None) -> list[Any]:
        self._answer()
        if self.stumbles:
            self.stumbles = False
            raise BrokerUnreachable("in the midst of it")
        self.released.append(worker)
        self.crashed += [worker] * crashed
        return []

    def _log_all(self, lines: Sequence[Line]) -> bool:
        self.printed += [(line.role, line.worker, line.message) for line in lines]
        return not self.away

    def _answer(self) -> None:
        if self.away:
            raise BrokerUnreachable("no answer")


class Everybody(set[str]):
    """A set that everybody is in."""

    def __contains__(self, _: object) -> bool:
        return True


class Running:
    """A supervisor in a thread."""

    def __init__(self, broker: FakeBroker, program: str, *, wants: int, way: str, **kwargs: Any) -> None:
        program = textwrap.dedent(program)
        self.stop = StopFlag()
        self.supervisor = Supervisor(
            "redis://secret:word@nowhere:1",
            wants=wants,
            stop=self.stop,
            name="me",
            command=[sys.executable, "-c", COPIED + program if way == FORKED else program],
            forked=way == FORKED,
            connect=lambda: broker,  # type: ignore[arg-type,return-value]
            **kwargs,
        )
        self.thread = Thread(target=self.supervisor.run, daemon=True)
        self.thread.start()

    def pids(self) -> list[int]:
        """Workers that run and were not asked to end."""
        return [child.pid for child in self.supervisor.children() if not child.ending]

    def end(self) -> None:
        self.stop.drain("the test is over")
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def begin(request: pytest.FixtureRequest) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []
    way = getattr(request, "param", OTHERWISE)

    def make(broker: FakeBroker, program: str = POLITE, *, wants: int = 2, **kwargs: Any) -> Running:
        running.append(Running(broker, program, wants=wants, way=way, **kwargs))
        return running[-1]

    yield make
    for one in running:
        if one.thread.is_alive():
            one.end()


Begin = Callable[..., Running]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("desired", "supervisors", "shares"),
    [
        (0, ["a", "b"], [0, 0]),
        (1, ["a", "b"], [1, 0]),
        (7, ["a", "b", "c"], [3, 2, 2]),
        (64, ["a"], [64]),
        (-3, ["a"], [0]),
    ],
)
def test_a_desired_size_is_split_evenly_and_without_remainder(
    desired: int, supervisors: list[str], shares: list[int]
) -> None:
    assert [share(desired, supervisors, me) for me in supervisors] == shares


def test_a_supervisor_that_is_not_listed_runs_nothing() -> None:
    assert share(5, ["a"], "b") == 0


def test_restarts_are_delayed_more_and_more_up_to_a_bound() -> None:
    delays = [restart_delay_s(failures, 1.0) for failures in range(1, 12)]
    assert delays == sorted(delays)
    assert delays[0] == pytest.approx(0.2)
    assert delays[-1] == pytest.approx(30.0)
    assert restart_delay_s(10_000, 0.0) == pytest.approx(15.0)


def test_it_keeps_as_many_as_it_wants_until_somebody_says_how_many(begin: Begin) -> None:
    broker = FakeBroker()
    running = begin(broker, wants=2)
    eventually(lambda: len(running.pids()) == 2)
    broker.desired = 3
    eventually(lambda: len(running.pids()) == 3)
    oldest = running.pids()[0]
    broker.desired = 1
    eventually(lambda: running.pids() == [oldest], what="the newest ones go")
    broker.supervisors = ("another", "me")
    eventually(lambda: running.pids() == [], what="the other one has the only part")
    broker.desired = None
    eventually(lambda: len(running.pids()) == 2)


def test_it_never_runs_more_than_the_host_may_carry(begin: Begin) -> None:
    running = begin(FakeBroker(desired=50), wants=1, most=3)
    eventually(lambda: len(running.pids()) == 3)
    assert running.supervisor.target() == 3


@either_way
def test_a_killed_worker_is_replaced_and_its_shards_are_released_at_once(begin: Begin) -> None:
    broker = FakeBroker()
    running = begin(broker, wants=1)
    (child,) = eventually(lambda: running.supervisor.children())
    os.kill(child.pid, signal.SIGKILL)
    eventually(lambda: broker.released == [child.worker], timeout_s=1.0)
    eventually(lambda: [worker for worker, _ in broker.buried] == [child.worker], timeout_s=5.0)
    assert "SIGKILL" in broker.buried[0][1]
    (heir,) = eventually(lambda: [c for c in running.supervisor.children() if c.pid != child.pid])
    assert heir.worker != child.worker


@either_way
def test_a_worker_that_is_stopped_is_killed_and_replaced_and_its_neighbour_stays(begin: Begin) -> None:
    # Given two workers, one of them frozen, and a broker that is not even there
    broker = FakeBroker()
    running = begin(broker, wants=2, patience=Patience(stopped_s=0.5))
    eventually(lambda: len(running.pids()) == 2)
    frozen, other = running.supervisor.children()
    broker.away = True
    os.kill(frozen.pid, signal.SIGSTOP)
    # When it was stopped for as long as it may be
    eventually(lambda: not alive(frozen.pid), what="it is killed")
    eventually(lambda: len(running.pids()) == 2, what="another one runs in its place")
    # Then everybody can read why, and its shards are free
    assert other.pid in running.pids()
    broker.away = False
    eventually(lambda: broker.released == [frozen.worker], timeout_s=15)
    assert "no sign of life" in broker.buried[0][1] and "SIGSTOP" in broker.buried[0][1]
    eventually(lambda: any("killed and replaced" in line for line in broker.told))


def test_a_worker_that_is_woken_in_time_lives_on(begin: Begin) -> None:
    running = begin(FakeBroker(), wants=1, patience=Patience(stopped_s=2.0))
    (child,) = eventually(lambda: running.supervisor.children())
    for _ in range(3):  # together longer than it may be stopped at a stretch
        os.kill(child.pid, signal.SIGSTOP)
        running.stop.wait(0.9)
        os.kill(child.pid, signal.SIGCONT)
        running.stop.wait(0.2)
    assert running.pids() == [child.pid]


def test_a_worker_that_runs_and_is_not_heard_any_more_is_killed_and_replaced(begin: Begin) -> None:
    broker = FakeBroker()
    running = begin(broker, wants=1, patience=IMPATIENT)
    (child,) = eventually(lambda: running.supervisor.children())
    eventually(lambda: broker.beats > 1)
    broker.silent = True
    eventually(lambda: not alive(child.pid))
    broker.silent = False
    eventually(lambda: running.pids() and running.pids() != [child.pid])
    eventually(lambda: any("no heartbeat for" in line for line in broker.told))


def test_while_the_supervisor_is_cut_off_nobody_is_killed_and_afterwards_the_silence_counts_anew(begin: Begin) -> None:
    # Given a worker that nobody hears any more, since the broker is away
    broker = FakeBroker()
    running = begin(broker, wants=1, patience=IMPATIENT)
    eventually(lambda: broker.beats > 1)
    pids = running.pids()
    broker.away = True
    running.stop.wait(3 * IMPATIENT.silent_s)
    assert running.pids() == pids
    # When the broker is back, and the worker too, then it lives on
    broker.away = False
    before = broker.beats
    eventually(lambda: broker.beats > before + 1, timeout_s=15)
    assert running.pids() == pids


def test_a_worker_that_is_still_importing_has_longer_than_one_that_fell_silent_but_not_for_ever(begin: Begin) -> None:
    # Given a worker that was never heard of, for much longer than one that beat before may be silent
    broker = FakeBroker(unborn=Everybody())
    running = begin(broker, wants=1, patience=Patience(silent_s=0.1, ttls=0.0, birth_s=2.0))
    (child,) = eventually(lambda: running.supervisor.children())
    running.stop.wait(1.0)
    assert running.pids() == [child.pid]
    # When the time for starting is over, then it is replaced, and everybody can read why
    eventually(lambda: not alive(child.pid))
    eventually(lambda: any("since its start" in line for line in broker.told))
    eventually(lambda: running.pids() and running.pids() != [child.pid])


@either_way
def test_it_says_why_a_worker_ended_with_its_last_lines_and_backs_off(begin: Begin) -> None:
    broker = FakeBroker()
    running = begin(broker, CRASHING, wants=1)

    def ends() -> list[str]:
        return [line for line in broker.told if not line.startswith("started")]

    eventually(lambda: len(ends()) >= 3)
    assert all("exit code 3" in line and "cannot find my arm" in line for line in ends())
    running.stop.wait(0.5)
    assert len(ends()) <= 6


@either_way
def test_a_worker_that_ended_of_itself_has_crashed_and_one_that_was_killed_or_asked_to_end_has_not(
    begin: Begin,
) -> None:
    broker = FakeBroker()
    running = begin(broker, wants=3)
    eventually(lambda: len(running.pids()) == 3)
    crashing, killed, _ = running.supervisor.children()
    os.kill(crashing.pid, signal.SIGSEGV)
    os.kill(killed.pid, signal.SIGKILL)
    eventually(lambda: {crashing.worker, killed.worker} <= set(broker.released))
    running.stop.request("enough")
    running.thread.join(20)
    assert broker.crashed == [crashing.worker]


def test_a_crash_whose_shards_were_freed_in_part_before_the_connection_broke_is_blamed_on_none_of_the_rest(
    begin: Begin,
) -> None:
    broker = FakeBroker()
    running = begin(broker, wants=1)
    eventually(lambda: len(running.pids()) == 1)
    (crashing,) = running.supervisor.children()
    broker.stumbles = True
    os.kill(crashing.pid, signal.SIGSEGV)
    eventually(lambda: crashing.worker in broker.released)
    assert not broker.stumbles and not broker.crashed


def test_what_user_code_prints_in_a_worker_is_in_the_log_and_what_heddle_says_there_is_not_said_twice(
    begin: Begin,
) -> None:
    broker = FakeBroker()
    running = begin(broker, PRINTING, wants=1)
    eventually(lambda: broker.printed)
    (child,) = running.supervisor.children()
    assert broker.printed == [("user", child.worker, "torque is off")]


def test_a_broker_that_is_away_changes_nothing_but_the_release_waits(begin: Begin) -> None:
    broker = FakeBroker()
    running = begin(broker, wants=2)
    eventually(lambda: len(running.pids()) == 2)
    first, second = running.supervisor.children()
    broker.away = True
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: len(running.pids()) == 2 and first.pid not in running.pids(), what="replaced all the same")
    assert second.pid in running.pids()
    assert broker.released == []
    broker.away = False
    eventually(lambda: broker.released == [first.worker], timeout_s=5.0)


def test_no_more_workers_start_at_once_than_there_are_cores_and_a_smaller_size_is_heard_in_between(
    begin: Begin,
) -> None:
    # Given workers that take long to be heard of, and a size far above what may start at once
    broker = FakeBroker(desired=50)
    broker.unborn = Everybody()
    running = begin(broker, wants=1, at_once=2)
    eventually(lambda: len(running.pids()) == 2)
    running.stop.wait(1.0)
    assert len(running.pids()) == 2
    # When those beat the next ones start
    broker.unborn = set()
    eventually(lambda: len(running.pids()) >= 6)
    # Then a smaller size, said in between, is obeyed at once: none of those that were to come is started
    broker.unborn = Everybody()
    broker.desired = 1
    eventually(lambda: len(running.supervisor.children()) == 1)
    running.stop.wait(0.5)
    assert len(running.supervisor.children()) == 1


def test_a_supervisor_tells_what_its_host_has_for_workers(begin: Begin) -> None:
    broker = FakeBroker()
    begin(broker, wants=2, most=4)
    told = eventually(lambda: [host for host in broker.hosts if host.running == 2])[0]
    assert (told.host, told.cores, told.most) == (os.uname().nodename, cores(), 4)
    if Path("/proc/meminfo").exists():
        assert told.free_bytes > 0


@either_way
def test_ending_drains_every_worker_and_leaves_no_process(begin: Begin) -> None:
    broker = FakeBroker()
    running = begin(broker, wants=3)
    eventually(lambda: len(running.pids()) == 3)
    pids = running.pids()
    eventually(lambda: all(child.lifetime_s > 0.3 for child in running.supervisor.children()))
    running.end()
    assert not any(alive(pid) for pid in pids)
    assert len(broker.released) == 3
    assert broker.byes == ["me"]


@either_way
def test_a_stopped_worker_is_woken_for_the_end_and_nobody_waits_for_its_grace(begin: Begin) -> None:
    lines: list[str] = []
    running = begin(FakeBroker(), wants=1, grace_s=600.0, on_line=lambda _, line: lines.append(line))
    eventually(lambda: lines == ["up"])
    (pid,) = eventually(running.pids)
    os.kill(pid, signal.SIGSTOP)
    running.stop.drain("over")
    running.thread.join(5)
    assert not running.thread.is_alive()
    assert not alive(pid)


def test_whoever_is_waited_for_is_named_with_how_long_at_most_and_what_ends_it(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    lines: list[str] = []
    running = begin(FakeBroker(), STUBBORN, wants=1, grace_s=4.0, on_line=lambda _, line: lines.append(line))
    eventually(lambda: lines == ["up"])
    (child,) = eventually(running.supervisor.children)
    with caplog.at_level("WARNING", logger="heddle.launch"):
        running.stop.drain("over")
        eventually(lambda: "waiting for" in caplog.text)
    assert f"waiting for {child.worker} (pid {child.pid}) to end, at most 2 s" in caplog.text
    assert "Ctrl-C again stops at once" in caplog.text
    running.thread.join(10)
    assert not running.thread.is_alive()


@either_way
def test_a_second_request_does_not_wait_for_the_grace(begin: Begin) -> None:
    running = begin(FakeBroker(), STUBBORN, wants=2, grace_s=600.0)
    eventually(lambda: len(running.pids()) == 2)
    pids = running.pids()
    running.stop.request("first")
    running.stop.request("second")
    running.thread.join(5)
    assert not running.thread.is_alive()
    assert not any(alive(pid) for pid in pids)


@either_way
def test_the_brokers_address_travels_in_the_environment_and_never_among_the_arguments(begin: Begin) -> None:
    program = "import os, signal; print(os.environ['HEDDLE_REDIS_URL'], flush=True); signal.pause()"
    lines: list[str] = []
    begin(FakeBroker(), program, wants=1, on_line=lambda _, line: lines.append(line))
    eventually(lambda: lines == ["redis://secret:word@nowhere:1"])
    assert not any("redis" in part for part in worker_command("default"))


def test_a_broker_that_cannot_be_used_at_the_start_is_an_error() -> None:
    stop = StopFlag()
    away = FakeBroker(away=True)
    supervisor = Supervisor("redis://nowhere:1", wants=1, stop=stop, connect=lambda: away)  # type: ignore[arg-type,return-value]
    with pytest.raises(BrokerUnreachable):
        supervisor.run()


def test_a_worker_that_was_drained_is_replaced_without_an_alarm(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    lines: list[tuple[str, str]] = []
    with caplog.at_level("INFO", logger="heddle.supervisor"):
        running = begin(FakeBroker(), POLITE, wants=1, on_line=lambda *line: lines.append(line))
        eventually(lambda: lines, what="it listens to SIGTERM")
        (first,) = eventually(lambda: running.supervisor.children())
        os.kill(first.pid, signal.SIGTERM)
        eventually(lambda: [c for c in running.supervisor.children() if c.worker != first.worker], what="another one")
    said = [record for record in caplog.records if "left by itself" in record.getMessage()]
    assert [record.levelname for record in said] == ["INFO"]
    assert first.worker in said[0].getMessage()


def test_of_a_dump_at_a_fatal_signal_the_innermost_call_is_told() -> None:
    dump = [
        "played a while",
        "Fatal Python error: Aborted",
        "",
        "Current thread 0x01 (most recent call first):",
        '  File "myenv.py", line 23 in step',
        '  File "player.py", line 9 in _roll',
        "",
        "Extension modules: numpy._core (total: 1)",
    ]
    assert telling(dump) == ["Fatal Python error: Aborted", '  File "myenv.py", line 23 in step']
    assert telling(["one", " ", "two"]) == ["one", "two"]


def test_of_a_dump_heddles_own_calls_are_left_out_and_a_deep_one_keeps_its_begin() -> None:
    ours = [f'  File "{worker_module.__file__}", line {line} in play' for line in (9, 8)]
    deep = [f'  File "/home/me/deep.py", line {line} in dig' for line in range(200)]
    dump = ["said before", "Fatal Python error: Aborted", "", "Current thread 0x01 (most recent call first):", *ours]
    assert telling([*dump, *deep]) == ["Fatal Python error: Aborted", deep[0]]
    assert telling(dump) == ["Fatal Python error: Aborted", ours[0]]
    assert kept([*dump, *deep], 30)[:6] == [*dump[1:], deep[0]]
    assert kept(dump, 30) == dump
    assert kept([str(line) for line in range(50)], 3) == ["47", "48", "49"]


def test_of_many_threads_the_one_that_a_fatal_signal_came_to_is_told_and_the_users_line_in_it() -> None:
    waits = [f'  File "{threading.__file__}", line 331 in wait', '  File "other.py", line 3 in waiting']
    dump = ["Fatal Python error: Segmentation fault", "", "Thread 0x02 (most recent call first):", *waits]
    dump += ["", "Current thread 0x01 (most recent call first):"]
    dump += [f'  File "{ctypes.__file__}", line 519 in string_at', '  File "/home/me/myenv.py", line 23 in step']
    dump += [f'  File "{worker_module.__file__}", line 9 in play', "", "Extension modules: numpy._core (total: 1)"]
    assert telling(dump) == [
        "Fatal Python error: Segmentation fault",
        f'  File "{ctypes.__file__}", line 519 in string_at',
    ]
    assert place(dump) == "/home/me/myenv.py:23"
    raised = ["Traceback (most recent call last):", f'  File "{worker_module.__file__}", line 9, in play', "    play()"]
    raised += ['  File "/home/me/mypolicy.py", line 7, in act', "    return self.table[3]", "KeyError: 3"]
    assert place(raised) == "/home/me/mypolicy.py:7"
    assert place(["one", "two"]) == place([]) == ""


def test_of_a_worker_that_crashes_in_native_code_log_list_and_freed_shards_tell_the_users_line(
    begin: Begin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "crashing.py").write_text("import ctypes\n\ndef step():\n    ctypes.string_at(0)\n")
    program = "import sys, threading; from heddle.cli.roles import begin_role; begin_role()\n"
    program += "[threading.Thread(target=threading.Event().wait, daemon=True).start() for _ in range(8)]\n"
    program += f"sys.path.insert(0, {str(tmp_path)!r}); import crashing; crashing.step()"
    broker = FakeBroker()
    begin(broker, program, wants=1)
    at = f"{tmp_path}/crashing.py:4"
    eventually(
        lambda: any(f"ended with signal SIGSEGV at {at} after" in one.getMessage() for one in caplog.records),
        timeout_s=60,
        what="the log",
    )
    eventually(lambda: any(f"it ended with signal SIGSEGV at {at}" in how for _, how in broker.buried), what="the list")
