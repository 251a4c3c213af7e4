"""W3: environments of which a step is a wait. How near Heddle comes to what they could give if nobody ever waited for
anybody, and how near bare threads or coroutines come that step the same waits and ask no policy.

"Of ideal" is steps/s over environments / mean wait. Everything runs in this process, children of `processes` apart.
"""

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import CLOCK, Played, Row, alternate, compare, cpu_s_of, own_cpu_s, spread
from benchmarks.waiting_env import Waiting, WaitingRemote
from benchmarks.workload import scene
from heddle.producers.envs import make_envs
from heddle.producers.isolation.shard import IsolatedEnv
from heddle.producers.ready_player import ReadyPlayer
from heddle.spec import load_spec

ROUNDS = 7
SECONDS = 1.0
WITHIN_S = 30.0
STEPS = 32


@dataclass(frozen=True, slots=True)
class Case:
    """Some environments that wait.

    Attributes:
        stepping: of the spec.
        envs: how many, in one shard.
        mean_s: of a wait.
    """

    stepping: str
    envs: int
    mean_s: float

    @property
    def title(self) -> str:
        """For the table."""
        return f"waiting, {self.stepping}, {self.envs:,} envs x {1000 * self.mean_s:g} ms"

    @property
    def ideal(self) -> float:
        """Steps a second if a step were followed by the next one at once."""
        return self.envs / self.mean_s


CASES = (
    Case("threads", 64, 0.01),
    Case("async", 64, 0.01),
    Case("async", 1000, 0.1),
    Case("processes", 8, 0.01),
)


def run() -> list[Row]:
    """Rows for every case."""
    return [row for case in CASES for row in rows_of(case, rounds=ROUNDS, seconds=SECONDS)]


def rows_of(case: Case, *, rounds: int, seconds: float) -> list[Row]:
    """Rates and CPU of the player and of the bare loop, and the share of the ideal that each reaches."""
    hosted, bare = Hosted(case), BareCoroutines(case) if case.stepping == "async" else BareThreads(case)
    try:
        hosted.play(0.3)
        pairs = alternate(rounds, lambda: hosted.play(seconds), lambda: bare.play(seconds), within_s=WITHIN_S)
    finally:
        hosted.close()
    shares = [
        Row(case.title, f"{name}: of ideal", "x", spread(pair[place].rate / case.ideal for pair in pairs))
        for place, name in enumerate(("player", "bare loop"))
    ]
    return [*compare(case.title, ("player", "bare loop"), pairs), *shares]


class Hosted:
    """Heddle's player of one shard of them, as a worker has it."""

    def __init__(self, case: Case) -> None:
        name = "WaitingRemote" if case.stepping == "async" else "Waiting"
        own: dict[str, Any] = {"processes": case.envs} if case.stepping == "processes" else {}
        raw = {
            "experiment": {"name": "bench-w3", "seed": 1},
            "env": {
                "id": f"benchmarks.waiting_env:{name}",
                "num_envs": case.envs,
                "envs_per_shard": case.envs,
                "stepping": case.stepping,
                "kwargs": {"mean_s": case.mean_s},
                **own,
            },
            "rollout": {"steps": STEPS},
            "trainer": {"minibatch": 1},
            "budget": {"env_steps": 10**12},
        }
        stage = scene(load_spec(raw).spec)
        plan, seed = stage.plans[0], stage.spec.experiment.seed
        envs = make_envs(plan, stage.spec, seed, layout=stage.layout, clock=CLOCK)
        self._pids = {env.home[0].process.pid for env in envs if isinstance(env, IsolatedEnv)}
        self._player = ReadyPlayer(plan, stage.spec, stage.policy, stage.layout, envs=envs, clock=CLOCK)

    def play(self, seconds: float) -> Played:
        """Batches until `seconds` are over."""
        steps, cpu_s, began = 0, own_cpu_s() + cpu_s_of(self._pids), CLOCK.monotonic()
        while (wall_s := CLOCK.monotonic() - began) < seconds:
            segments = self._player.play(1)
            steps += segments.num_steps
            self._player.recycle(segments)
        return Played(steps, wall_s, own_cpu_s() + cpu_s_of(self._pids) - cpu_s)

    def close(self) -> None:
        """Close every environment."""
        self._player.close()


class BareThreads:
    """A thread for each environment steps it and does nothing else."""

    def __init__(self, case: Case) -> None:
        self._envs = [Waiting(index, case.mean_s) for index in range(case.envs)]

    def play(self, seconds: float) -> Played:
        """Until `seconds` are over; a step that is under way by then does not count."""
        counts, cpu_s, began = [0] * len(self._envs), own_cpu_s(), CLOCK.monotonic()
        until = began + seconds

        def loop(index: int) -> None:
            step = self._envs[index].step
            while True:
                step(0)
                if CLOCK.monotonic() >= until:
                    return
                counts[index] += 1

        threads = [threading.Thread(target=loop, args=(index,)) for index in range(len(self._envs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return Played(sum(counts), seconds, own_cpu_s() - cpu_s)


class BareCoroutines:
    """A coroutine for each environment, all in one event loop."""

    def __init__(self, case: Case) -> None:
        self._envs = [WaitingRemote(index, case.mean_s) for index in range(case.envs)]

    def play(self, seconds: float) -> Played:
        """As of `BareThreads`."""
        return asyncio.run(self._play(seconds))

    async def _play(self, seconds: float) -> Played:
        counts, cpu_s, began = [0] * len(self._envs), own_cpu_s(), CLOCK.monotonic()
        until = began + seconds

        async def loop(index: int) -> None:
            step = self._envs[index].step
            while True:
                await step(0)
                if CLOCK.monotonic() >= until:
                    return
                counts[index] += 1

        await asyncio.gather(*(loop(index) for index in range(len(self._envs))))
        return Played(sum(counts), seconds, own_cpu_s() - cpu_s)
