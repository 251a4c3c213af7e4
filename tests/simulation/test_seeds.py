"""A sample of the seeds that `make chaos` runs by the thousand."""

import subprocess
import sys

from tests.simulation.plan import plan_of
from tests.simulation.world import World


def test_no_promise_is_broken_in_forty_seeds() -> None:
    for seed in range(40):
        outcome = World(plan_of(seed)).run()
        assert not outcome.problem, f"seed {seed}: {outcome.problem}"


def test_seeds_run_in_several_processes() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "0:4", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "seeds=4 broken=0" in done.stdout


def test_a_seed_runs_the_same_way_twice() -> None:
    for seed in (3, 21):
        first, second = (World(plan_of(seed), traced=True).run() for _ in range(2))
        assert first.trace and first.trace == second.trace
