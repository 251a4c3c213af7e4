"""Three runs that ran, two of them seeds of one setting, compared: every number is that of the curves they left."""

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.cli.curve import short
from tests.e2e.shell import heddle, heddle_json, started

SPEC = """
[experiment]
name = "arm"
seed = {seed}
[env]
id = "CartPole-v1"
num_envs = 4
envs_per_shard = 2
[policy]
hidden = [8]
[rollout]
steps = 16
sync = true
[trainer]
learner = "ppo"
passes = 1
gamma = {gamma}
[budget]
env_steps = 640
"""
SETTINGS = ((1, 0.99), (2, 0.99), (3, 0.9))
"""(seed, gamma) of each run."""
STUDENT = 12.706
"""Of two values the 95 % interval of the mean is so many standard errors to either side."""
GRID = 0.03
"""A curve is drawn at 200 points, some 20 between two of these updates: no peak is missed by more than this share."""


@dataclass(frozen=True)
class Ran:
    """One run, as its own files tell of it; every update's numbers by name."""

    folder: str
    seed: int
    updates: list[dict[str, Any]]

    @property
    def curve(self) -> list[tuple[float, float]]:
        """(steps, return)."""
        known = [(one["env_steps"], one.get("return")) for one in self.updates]
        return [(steps, value) for steps, value in known if isinstance(value, float) and math.isfinite(value)]

    @property
    def last(self) -> float:
        return self.curve[-1][1]

    @property
    def highest(self) -> float:
        return max(value for _, value in self.curve)

    @property
    def steps(self) -> float:
        return float(self.updates[-1]["env_steps"])

    @property
    def wall_s(self) -> float:
        return float(self.updates[-1]["wall_seconds"])

    def at(self, steps: float) -> float:
        """The return at so many steps, between two updates on the line between them."""
        known, values = zip(*self.curve, strict=True)
        return float(np.interp(steps, known, values))


def ran(home: Path, above: Path) -> Ran:
    """A run's folder, by its name below another one."""
    (folder,) = (home / "runs").iterdir()
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    seed = json.loads((folder / "spec.json").read_text(encoding="utf-8"))["experiment"]["seed"]
    return Ran(str(folder.relative_to(above)), seed, [json.loads(line) for line in lines])


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Ran]]]:
    """They run at once, each in a folder of its own."""
    above = tmp_path_factory.mktemp("three")
    homes = [above / str(seed) for seed, _ in SETTINGS]
    with ExitStack() as inside:
        runs = []
        for home, (seed, gamma) in zip(homes, SETTINGS, strict=True):
            home.mkdir()
            (home / "exp.toml").write_text(SPEC.format(seed=seed, gamma=gamma))
            runs.append(inside.enter_context(started("run", "exp.toml", "--no-check", "--workers", "1", cwd=home)))
        for run in runs:
            assert run.ends(timeout_s=400) == 0, run.output()[-3000:]
    yield above, [ran(home, above) for home in homes]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def peak(*runs: Ran) -> float:
    """The highest of the mean of curves where all of them are known: lines bend only where one of them was measured."""
    begin, end = max(one.curve[0][0] for one in runs), min(one.curve[-1][0] for one in runs)
    measured = [steps for one in runs for steps, _ in one.curve if begin <= steps <= end]
    return max(mean([one.at(steps) for one in runs]) for steps in measured)


def half_of(one: float, other: float) -> float:
    """Half the width of the 95 % interval of the mean of two: their deviation over the root of two is half of what lies
    between them."""
    return STUDENT * abs(one - other) / 2


def test_three_runs_that_ran_are_grouped_by_setting_with_the_numbers_of_their_curves(
    three: tuple[Path, list[Ran]],
) -> None:
    above, runs = three
    first, second, other = runs
    assert [one.seed for one in runs] == [1, 2, 3] and first.curve != second.curve
    told = heddle_json("compare", *(one.folder for one in runs), cwd=above)
    # Then two are one setting, by what sets it apart, and the third is one of its own
    names = [Path(one.folder).name for one in runs]
    assert [(group["label"], group["runs"]) for group in told["groups"]] == [
        ("gamma=0.99", names[:2]),
        ("gamma=0.9", names[2:]),
    ]
    assert told["differences"] == {"trainer.gamma": [0.99, 0.99, 0.9]}
    # And their numbers are those that the runs left
    pair, alone = told["groups"]
    for group, members in ((pair, [first, second]), (alone, [other])):
        assert group["final"] == pytest.approx(mean([one.last for one in members]))
        assert group["highest"] == pytest.approx(mean([one.highest for one in members]))
        assert group["env_steps"] == pytest.approx(mean([one.steps for one in members]))
        assert group["wall_s"] == pytest.approx(mean([one.wall_s for one in members]))
        assert group["steps_per_second"] == pytest.approx(mean([one.steps / one.wall_s for one in members]))
        assert group["env_steps"] >= 640
    assert pair["interval"] == pytest.approx(half_of(first.last, second.last), rel=1e-3)
    assert alone["interval"] is None


def test_the_legend_the_final_table_and_the_differences_say_what_the_curves_do(three: tuple[Path, list[Ran]]) -> None:
    above, runs = three
    first, second, other = runs
    out = heddle("compare", *(one.folder for one in runs), "--to", "c.svg", cwd=above).stdout
    lines = [line.split() for line in out.splitlines()]
    # The legend: mean and interval where the curves of both end
    end = min(first.curve[-1][0], second.curve[-1][0])
    ends = first.at(end), second.at(end)
    low, high = (mean([*ends]) + sign * half_of(*ends) for sign in (-1, 1))
    said = {line[1]: " ".join(line[2:]) for line in lines if line[:1] in (["1."], ["2."])}
    last, highest, note = said["gamma=0.99"].split(", ", 2)
    assert last == f"last {short(mean([*ends]))}"
    assert float(highest.removeprefix("highest ")) == pytest.approx(peak(first, second), rel=GRID)
    assert note == f"95 % interval of the mean over 2 runs {short(low)} to {short(high)}"
    last, highest, note = said["gamma=0.9"].split(", ", 2)
    assert last == f"last {short(other.last)}"
    assert float(highest.removeprefix("highest ")) == pytest.approx(other.highest, rel=GRID)
    assert note == "one run, so without an interval"
    # The table
    rows = {line[0]: line[1:] for line in lines if line and line[0] in ("SETTING", "gamma=0.99", "gamma=0.9")}
    assert rows["SETTING"] == ["RUNS", "LAST", "RETURN", "HIGHEST", "STEPS", "SECONDS", "STEPS/S"]
    final = [short(mean([first.last, second.last])), "±", short(half_of(first.last, second.last))]
    assert rows["gamma=0.99"][:5] == ["2", *final, short(mean([first.highest, second.highest]))]
    assert rows["gamma=0.9"] == [
        *("1", short(other.last), short(other.highest), short(other.steps), short(other.wall_s)),
        short(other.steps / other.wall_s),
    ]
    # And what they differ in, side by side, seeds left out
    names = [Path(one.folder).name for one in runs]
    place = lines.index(["KEY", *names])
    assert [line for line in lines[place + 1 :] if line][:1] == [["trainer.gamma", "0.99", "0.99", "0.9"]]
    assert [line for line in lines[place + 1 :] if line][1:] == [["wrote", "c.svg"]]
    assert "gamma=0.99" in (above / "c.svg").read_text(encoding="utf-8")
