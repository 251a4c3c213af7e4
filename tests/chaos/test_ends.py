"""Ends are clean at any moment: told once within the grace, told twice at once, and nothing is left behind."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from heddle.broker.server import LocalServer, start_server
from tests.chaos.ends import (
    GRACE_S,
    End,
    Moment,
    Search,
    end_all,
    end_at,
    keys_left,
    moments,
    problems_of,
    told,
    took,
)
from tests.chaos.fleet import EXPERIMENT, Fleet, Size
from tests.e2e.shell import ROOT, heddle, heddle_json, started
from tests.helpers import eventually

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc"),
]

EACH = int(os.environ.get("HEDDLE_ENDS", "20"))
CARTPOLE = str(ROOT / "examples" / "cartpole.toml")
ENDLESS = ("--set", "budget.env_steps=50_000_000")


def check(what: str, ends: list[End]) -> None:
    """Nothing is left, and nobody dawdled."""
    print(told(what, ends))
    assert problems_of(ends) == []
    assert took(ends, twice=False).worst <= GRACE_S


def left_in(folder: Path, *, besides: set[str]) -> list[str]:
    """Files that are not `besides`, nor this test's own."""
    own = {path.name for path in folder.iterdir() if path.suffix == ".out" or path.name.startswith("tmp-")}
    return sorted(f"left {path.name}" for path in folder.iterdir() if path.name not in own | besides)


def test_run_ends_cleanly_at_any_moment(tmp_path: Path) -> None:
    def one(number: int, moment: Moment) -> End:
        folder = tmp_path / str(number)
        folder.mkdir()
        return end_at(
            ("run", CARTPOLE, *ENDLESS, "--workers", "1"),
            moment,
            cwd=folder,
            mark=f"run-{os.getpid()}-{number}",
            search=lambda _pid, _mark: left_in(folder, besides={"runs"}),
        )

    chosen = moments(1, EACH, within_s=9.0)
    check("run", end_all([partial(one, number, moment) for number, moment in enumerate(chosen)], at_once=2))


def test_up_ends_cleanly_at_any_moment_and_its_experiment_goes_on_each_time(tmp_path: Path) -> None:
    with started("up", "--workers", "1", cwd=tmp_path) as first:
        first.says("heddle enqueue")
        experiment = heddle("enqueue", CARTPOLE, *ENDLESS, cwd=tmp_path).stdout.strip()

    def search(_pid: int, _mark: str) -> list[str]:
        extra = left_in(tmp_path / ".heddle", besides={"appendonlydir", "logs", "server.durability"})
        return left_in(tmp_path, besides={"runs", ".heddle"}) + extra

    ends = []
    for number, moment in enumerate(moments(2, EACH, within_s=6.0)):
        mark = f"up-{os.getpid()}-{number}"
        ends.append(end_at(("up", "--workers", "1"), moment, cwd=tmp_path, mark=mark, search=search))
    check("up", ends)
    with started("up", "--workers", "1", cwd=tmp_path) as last:
        last.says("heddle enqueue")

        def batches() -> dict[str, int]:
            counts: dict[str, int] = heddle_json("status", experiment, cwd=tmp_path)["accounting"]["batches"]
            return counts

        eventually(lambda: batches()["trained"] > 0, timeout_s=60, every_s=0.5, what="it is trained")
        assert batches()["lost"] == batches()["duplicated"] == 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalServer]:
    with start_server(tmp_path / "server") as running:
        yield running


def test_a_coordinator_ends_cleanly_at_any_moment(server: LocalServer, tmp_path: Path) -> None:
    heddle("enqueue", CARTPOLE, "--no-check", cwd=tmp_path, url=server.url)
    ends = [
        end_at(
            ("coordinator",),
            moment,
            cwd=tmp_path,
            mark=f"coordinator-{os.getpid()}-{number}",
            url=server.url,
            search=lambda pid, _mark: keys_left(server.url, [f"-{pid}-"]) if moment.again_s is None else [],  # noqa: B023
        )
        for number, moment in enumerate(moments(3, EACH, within_s=2.5))
    ]
    check("coordinator", ends)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[Fleet, str]]:
    """A coordinator and a worker that stay, and an experiment without a trainer of its own."""
    with Fleet(tmp_path / "fleet", Size(coordinators=1, hosts=(1,), trainer_hosts=0, short="restarts")) as running:
        experiment = running.submit(EXPERIMENT)
        running.step()
        yield running, experiment


def test_workers_trainers_and_supervisors_end_cleanly_at_any_moment(fleet: tuple[Fleet, str], tmp_path: Path) -> None:
    running, experiment = fleet
    url, folder = running.server.url, tmp_path / "home"
    folder.mkdir()
    commands = {
        "worker": (("worker",), 4.0),
        "trainer": (("trainer", experiment, "--dir", str(folder / "runs")), 6.0),
        "supervisor": (("workers", "start", "-n", "2"), 5.0),
    }

    def all_of(role: str) -> list[End]:
        arguments, within_s = commands[role]
        return [
            end_at(arguments, moment, cwd=folder, mark=f"{role}-{os.getpid()}-{number}", url=url, search=keys(moment))
            for number, moment in enumerate(moments(len(role), EACH, within_s=within_s))
        ]

    def keys(moment: Moment) -> Search:
        def search(pid: int, mark: str) -> list[str]:
            return keys_left(url, [mark, f"-{pid}-", f"-{pid}w"]) if moment.again_s is None else []

        return search

    def all_done() -> bool:
        running.step()
        return all(future.done() for future in futures.values())

    with ThreadPoolExecutor(len(commands)) as pool:
        futures = {role: pool.submit(all_of, role) for role in commands}
        eventually(all_done, timeout_s=500, every_s=0.05)
    for role, future in futures.items():
        check(role, future.result())
    assert left_in(folder, besides={"runs"}) == []
