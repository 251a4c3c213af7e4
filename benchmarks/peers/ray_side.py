"""Plain Ray actors: two of them play and return their segments through the object store, one always ahead."""

from functools import partial

import ray
from common import RUNNERS, STEPS, Loop, Threads, makers
from ray_local import LocalRay


@ray.remote(num_cpus=1)
class Runner:
    """Plays one part."""

    def __init__(self, workload, part):
        kind = Threads if workload == "w3" else Loop
        self._player = kind(makers(workload, part, RUNNERS), STEPS[workload])

    def segment(self):
        """Arrays of one segment of every environment."""
        return self._player.segment()


class Runners:
    """All, and what they are at."""

    def __init__(self, workload):
        self._ray = LocalRay(RUNNERS)
        self._under_way = {}
        for part in range(RUNNERS):
            runner = Runner.remote(workload, part)
            self._under_way[runner.segment.remote()] = runner

    def segment(self):
        """The next segment of any."""
        done, _ = ray.wait(list(self._under_way), num_returns=1)
        runner = self._under_way.pop(done[0])
        self._under_way[runner.segment.remote()] = runner
        return ray.get(done[0])["action"].size

    def close(self):
        """End Ray."""
        self._ray.close()


SIDES = {workload: partial(Runners, workload) for workload in ("w1", "w2", "w3")}
