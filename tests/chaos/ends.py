"""Ends at random moments: a command is started, told to end once or twice, and searched for what it left.

It never looks inside: exit code, seconds, processes, files and keys.
"""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import redis

from heddle.clock import SystemClock
from tests.chaos import procs
from tests.chaos.fleet import MARK, WORKER_ID
from tests.chaos.report import Times, times
from tests.e2e.shell import HEDDLE, ROOT, environment

GRACE_S = 30.0
"""What a launcher gives its children."""
PROMISED_S = 1.0
"""From the second signal to the end: for most of them, which is what is promised."""
SLOW_S = 1.5
"""For each of them: several commands of many processes end at a time here, on two cores that others use as well."""
STRAGGLER_S = 0.5
"""A process that was killed a moment ago may still be on its way out."""
TORCH_CACHE = "torchinductor_"
"""What torch keeps for its next start, whoever imports it."""
FINE = frozenset({0, 130, -signal.SIGTERM, -signal.SIGINT})
"""Ended as asked, or before it could listen."""

PACKAGE = re.escape(str(ROOT / "heddle"))
OURS = re.compile(rf'File "{PACKAGE}/(?!__init__\.py|__main__\.py", line \d+, in <module>)')
"""A line of a traceback that is of Heddle, past the import of the package and of its entry."""

Search = Callable[[int, str], list[str]]
"""Of pid and mark: what is left of that process."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When and how a command is told to end.

    Attributes:
        at_s: after its start; again_s: after the first signal, None = told once.
    """

    at_s: float
    number: signal.Signals
    again_s: float | None


@dataclass(frozen=True, slots=True)
class End:
    """How it ended.

    Attributes:
        took_s: from the last signal; problems: what was wrong.
    """

    moment: Moment
    took_s: float
    problems: tuple[str, ...]


def moments(seed: int, count: int, *, within_s: float) -> list[Moment]:
    """Random ones: half of them told twice, half by Ctrl-C."""
    rng = np.random.default_rng(seed)
    made = []
    for place in range(count):
        again_s = float(rng.uniform(0.0, 1.0)) if place % 2 else None
        number = signal.SIGINT if place % 4 >= 2 else signal.SIGTERM
        made.append(Moment(float(rng.uniform(0.0, within_s)), number, again_s))
    return made


def end_at(
    arguments: Sequence[str],
    moment: Moment,
    *,
    cwd: Path,
    mark: str,
    url: str | None = None,
    search: Search | None = None,
) -> End:
    """Start `heddle ARGUMENTS` in `cwd`, have it end at `moment`, look at what is left."""
    clock = SystemClock()
    scratch = cwd / f"tmp-{mark}"
    scratch.mkdir(parents=True)
    out = cwd / f"{mark}.out"
    env = environment(url, {MARK: mark, WORKER_ID: mark, "TMPDIR": str(scratch)})
    with out.open("wb") as output:
        process = subprocess.Popen(
            [*HEDDLE, *arguments], cwd=cwd, env=env, stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
    try:
        clock.sleep(moment.at_s)
        problems = [] if process.poll() is None else [f"ended before it was told to, code {process.returncode}"]
        told_at = _tell(process, moment, clock)
        took_s = _wait(process, told_at, clock)
        if took_s is None:
            problems.append(f"was still there {GRACE_S:g} s later")
    finally:
        process.kill()
        process.wait()
    said = out.read_text(errors="replace")
    if moment.again_s is not None and took_s is not None and took_s > SLOW_S:
        problems.append(f"took {took_s:.1f} s to end after it was told twice: {said[-600:]}")
    problems += _judge(process.returncode, said)
    problems += _processes_left(mark, clock)
    kept = [path.name for path in scratch.iterdir() if not path.name.startswith(TORCH_CACHE)]
    problems += [f"left {name} in the directory for temporary files" for name in kept]
    if search is not None:
        problems += search(process.pid, mark)
    return End(moment, GRACE_S if took_s is None else took_s, tuple(problems))


def _tell(process: "subprocess.Popen[bytes]", moment: Moment, clock: SystemClock) -> float:
    """Send the signals; the moment of the last one that found it alive."""
    process.send_signal(moment.number)
    told_at = clock.monotonic()
    if moment.again_s is not None:
        try:
            process.wait(moment.again_s)
        except subprocess.TimeoutExpired:
            process.send_signal(moment.number)
            told_at = clock.monotonic()
    return told_at


def _wait(process: "subprocess.Popen[bytes]", told_at: float, clock: SystemClock) -> float | None:
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        return None
    return clock.monotonic() - told_at


def _judge(code: int, output: str) -> list[str]:
    trace = output.partition("Traceback")[2]
    if trace and trace.endswith("KeyboardInterrupt\n") and OURS.search(trace) is None:
        return []  # a Ctrl-C that meets the interpreter before a line of ours has run is answered by Python itself
    problems = [] if code in FINE else [f"ended with {code}"]
    problems += ["showed a traceback"] if trace else []
    return [f"{problem}: {output[-600:]}" for problem in problems]


def _processes_left(mark: str, clock: SystemClock) -> list[str]:
    deadline = clock.monotonic() + STRAGGLER_S
    while (left := procs.marked(MARK, mark)) and clock.monotonic() < deadline:
        clock.sleep(0.02)
    for one in left:
        os.kill(one.pid, signal.SIGKILL)
    return [f"left the process {one.command}" for one in left]


def end_all(ends: Sequence[Callable[[], End]], *, at_once: int) -> list[End]:
    """Several at a time."""
    with ThreadPoolExecutor(at_once) as pool:
        return [future.result() for future in [pool.submit(end) for end in ends]]


def told(what: str, ends: Sequence[End]) -> str:
    """Figures for people: how long it took once told once, and once told twice."""
    once, twice = took(ends, twice=False), took(ends, twice=True)
    return f"{what}: told once: {once}; told twice: {twice}"


def took(ends: Sequence[End], *, twice: bool) -> Times:
    """Seconds from the last signal to the end."""
    return times(end.took_s for end in ends if (end.moment.again_s is not None) == twice)


def problems_of(ends: Sequence[End]) -> list[str]:
    """All, with their moments."""
    return [f"{end.moment}: {problem}" for end in ends for problem in end.problems]


def keys_left(url: str, words: Sequence[str]) -> list[str]:
    """Keys without a TTL, and fields and members of shared ones, that name one of `words`."""
    found = []
    with redis.Redis.from_url(url, decode_responses=True) as client:
        for key in client.scan_iter(count=1000):
            if any(word in key for word in words) and client.ttl(key) < 0:
                found.append(f"key {key}")
        for pool in ("heddle:pool:default:workers", "heddle:pool:default:supervisors"):
            found += [f"{name} in {pool}" for name in client.zrange(pool, 0, -1) if any(w in name for w in words)]
        for field in client.hgetall("heddle:pool:default"):
            found += [f"{field} in heddle:pool:default"] if any(word in field for word in words) else []
        found += [f"leads: {name}" for name in client.hmget("heddle:coordinator", "id") if _names(name, words)]
        for key in client.scan_iter(match="*:shard:*", count=1000):
            state, worker = client.hmget(key, "state", "worker")
            found += [f"{key} is {state} by {worker}"] if state == "leased" and _names(worker, words) else []
        for key in client.scan_iter(match="*:seat", count=1000):
            trainer = client.hget(key, "trainer")
            found += [f"{key} is held by {trainer}"] if _names(trainer, words) else []
    return found


def _names(name: str | None, words: Sequence[str]) -> bool:
    return name is not None and any(word in name for word in words)
