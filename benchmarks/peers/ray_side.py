"""Plain Ray actors: two of them play CartPole and return their segments through the object store, one always ahead."""

import os
from functools import cache

os.environ.setdefault("RAY_worker_niceness", "0")  # else its actors give way to everybody here: 15 is its default

import ray  # noqa: E402  reads the variable
from common import Loop, play_for  # noqa: E402

ACTORS = 2


@ray.remote(num_cpus=1)
class Runner:
    """Plays."""

    def __init__(self):
        self._loop = Loop()

    def segment(self):
        """Arrays of one segment of every environment."""
        return self._loop.segment()


class Runners:
    """Both, and what they are at."""

    def __init__(self):
        ray.init(num_cpus=ACTORS, include_dashboard=False, log_to_driver=False)
        self._runners = [Runner.remote() for _ in range(ACTORS)]
        self._under_way = {runner.segment.remote(): runner for runner in self._runners}

    def segment(self):
        """The next segment of either."""
        done, _ = ray.wait(list(self._under_way), num_returns=1)
        runner = self._under_way.pop(done[0])
        self._under_way[runner.segment.remote()] = runner
        return ray.get(done[0])["action"].size


@cache
def _runners():
    return Runners()


WORKLOADS = {"w1": lambda seconds: play_for(seconds, _runners().segment)}
