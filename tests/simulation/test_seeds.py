"""A sample of the seeds that `make chaos` runs by the thousand."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.__main__ import main
from tests.simulation.figures import load
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
    assert json.loads(done.stdout)["seeds"] == 4


@pytest.mark.parametrize("seeds", ["99999999", "5:5", "7:3", "0:", ":9", "a:b", "-1:3"])
def test_what_is_no_range_of_seeds_is_refused_in_one_line(
    seeds: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["tests.simulation", f"--seeds={seeds}"])
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2
    assert f"--seeds {seeds}: expected A:B with A below B" in capsys.readouterr().err


def test_a_run_that_was_cut_short_goes_on_behind_what_it_did(tmp_path: Path) -> None:
    state = tmp_path / "soak.json"
    for last, seeds in ((2, 2), (3, 3), (3, 3)):
        command = [
            sys.executable,
            "-m",
            "tests.simulation",
            "--seeds",
            f"0:{last}",
            "--jobs",
            "1",
            "--state",
            str(state),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["seeds"] == seeds
    assert load(state, 0).commands == json.loads(done.stdout)["commands"]
    with pytest.raises(ValueError, match="from 0 on, not from 7"):
        load(state, 7)


def test_a_seed_runs_the_same_way_twice() -> None:
    for seed in (3, 21):
        first, second = (World(plan_of(seed), traced=True).run() for _ in range(2))
        assert first.trace and first.trace == second.trace
