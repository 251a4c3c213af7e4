"""What an environment in a process of its own costs its neighbour when it crashes again and again.

One worker plays two shards: the neighbour, and one that is calm in one experiment and in the other ends its process
before it ever delivers a batch. Both run in turns, the other one paused; only the neighbour's steps count.
"""

from contextlib import ExitStack

from benchmarks.fleet import Fleet, fleet
from benchmarks.measure import CLOCK, Played, Row, alternate, compare, own_cpu_s
from benchmarks.pipeline import PATIENCE_S, Consumer
from heddle.errors import TimedOut

ROUNDS = 7
SECONDS = 3.0
SETTLE_S = 1.0
WITHIN_S = 70.0
NEIGHBOUR = 0


class One:
    """One experiment, paused until it is played."""

    def __init__(self, it: Fleet, *, crash: bool) -> None:
        raw = {
            "experiment": {"name": "wild" if crash else "calm"},
            "env": {
                "id": "benchmarks.neighbour_env:Neighbour",
                "num_envs": 2,
                "envs_per_shard": 1,
                "isolation": "process",
                "kwargs": {"crash": crash},
            },
            "rollout": {"steps": 64, "max_policy_lag": 1000},
            "trainer": {"minibatch": 1},
            "faults": {"barren_deaths": 1_000_000},
            "budget": {"env_steps": 1 << 40},
        }
        self.experiment = it.submit(raw)
        self.consumer = Consumer(it.client, self.experiment.id)
        self._wait()
        self._rest()

    def steps(self) -> int:
        """Of the neighbour, so far."""
        return sum(shard.steps for shard in self.experiment.shards() if shard.shard == NEIGHBOUR)

    def play(self) -> Played:
        """One round."""
        self.experiment.resume()
        self._poll_for(SETTLE_S)
        steps, cpu_s, began = self.steps(), own_cpu_s(), CLOCK.monotonic()
        self._poll_for(SECONDS)
        played = Played(self.steps() - steps, CLOCK.monotonic() - began, own_cpu_s() - cpu_s)
        self._rest()
        return played

    def _poll_for(self, seconds: float) -> None:
        until = CLOCK.monotonic() + seconds
        while CLOCK.monotonic() < until:
            self.consumer.poll()

    def _rest(self) -> None:
        self.experiment.pause()
        while self.consumer.poll(300):
            pass

    def _wait(self) -> None:
        until = CLOCK.monotonic() + PATIENCE_S
        while not self.steps():
            self.consumer.poll()
            if CLOCK.monotonic() > until:
                raise TimedOut(f"no batch of {self.experiment.id} within {PATIENCE_S:g} s")


def run() -> list[Row]:
    """Rows of the neighbour's rate, beside a shard that crashes and beside a calm one, and their ratio."""
    with fleet(1) as it, ExitStack() as stack:
        wild, calm = One(it, crash=True), One(it, crash=False)
        stack.callback(wild.consumer.seat.release)
        stack.callback(calm.consumer.seat.release)
        pairs = alternate(ROUNDS, wild.play, calm.play, within_s=WITHIN_S)
    return compare("neighbour of an isolated environment", ("it crashes", "it is calm"), pairs)[::2][:3]
