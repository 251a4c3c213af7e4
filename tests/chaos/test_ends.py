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
    PROMISED_S,
    End,
    Moment,
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
    pytest.mark.alone,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc"),
]

EACH = int(os.environ.get("HEDDLE_ENDS", "20"))
CARTPOLE = str(ROOT / "examples" / "cartpole.toml")
ENDLESS = ("--set", "budget.env_steps=50_000_000")
ISOLATED = ("--set", "env.isolation=process")
"""Each environment in a child with a folder of its own among the temporary files."""


def check(what: str, ends: list[End]) -> None:
    """Nothing is left, and nobody dawdled."""
    print(told(what, ends))
    assert problems_of(ends) == []
    assert took(ends, twice=False).worst <= GRACE_S
    assert took(ends, twice=True).median <= PROMISED_S


def left_in(folder: Path, *, besides: set[str]) -> list[str]:
    """Files that are not `besides`, nor this test's own."""
    own = {path.name for path in folder.iterdir() if path.suffix == ".out" or path.name.startswith("tmp-")}
    return sorted(f"left {path.name}" for path in folder.iterdir() if path.name not in own | besides)


def test_run_ends_cleanly_at_any_moment(tmp_path: Path) -> None:
    def one(number: int, moment: Moment) -> End:
        folder = tmp_path / str(number)
        folder.mkdir()
        return end_at(
            ("run", CARTPOLE, *ENDLESS, *(ISOLATED if number % 2 else ()), "--workers", "1"),
            moment,
            cwd=folder,
            mark=f"run-{os.getpid()}-{number}",
            search=lambda _pid, _mark: left_in(folder, besides={"runs"}),
        )

    chosen = moments(1, EACH, within_s=9.0)
    check("run", end_all([partial(one, number, moment) for number, moment in enumerate(chosen)], at_once=2))


def ends_of_up(folder: Path) -> list[End]:
    """`up` in one folder, again and again; its experiment goes on each time."""
    with started("up", "--workers", "1", cwd=folder) as first:
        first.says("heddle enqueue")
        experiment = heddle("enqueue", CARTPOLE, *ENDLESS, *ISOLATED, cwd=folder).stdout.strip()

    def search(_pid: int, _mark: str) -> list[str]:
        extra = left_in(folder / ".heddle", besides={"appendonlydir", "logs", "server.durability"})
        return left_in(folder, besides={"runs", ".heddle"}) + extra

    ends = []
    for number, moment in enumerate(moments(2, EACH, within_s=6.0)):
        mark = f"up-{os.getpid()}-{number}"
        ends.append(end_at(("up", "--workers", "1"), moment, cwd=folder, mark=mark, search=search))
    with started("up", "--workers", "1", cwd=folder) as last:
        last.says("heddle enqueue")

        def batches() -> dict[str, int]:
            counts: dict[str, int] = heddle_json("status", experiment, cwd=folder)["accounting"]["batches"]
            return counts

        eventually(lambda: batches()["trained"] > 0, timeout_s=60, every_s=0.5, what="it is trained")
        assert batches()["lost"] == batches()["duplicated"] == 0
    return ends


def ends_of_role(url: str, folder: Path, role: str, arguments: tuple[str, ...], within_s: float) -> list[End]:
    """A role that is given a broker; told once, no key names it afterwards."""

    def search(moment: Moment, pid: int, mark: str) -> list[str]:
        return keys_left(url, [mark, f"-{pid}-", f"-{pid}w"]) if moment.again_s is None else []

    return [
        end_at(
            arguments,
            moment,
            cwd=folder,
            mark=f"{role}-{os.getpid()}-{number}",
            url=url,
            search=partial(search, moment),
        )
        for number, moment in enumerate(moments(len(role), EACH, within_s=within_s))
    ]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[Fleet, str]]:
    """A coordinator and a worker that stay, and an experiment without a trainer of its own."""
    with Fleet(tmp_path / "fleet", Size(coordinators=1, hosts=(1,), trainer_hosts=0, short="restarts")) as running:
        experiment = running.submit(EXPERIMENT)
        running.step()
        yield running, experiment


@pytest.fixture
def lonely(tmp_path: Path) -> Iterator[LocalServer]:
    """A server with an experiment and no coordinator."""
    with start_server(tmp_path / "lonely") as running:
        heddle("enqueue", CARTPOLE, "--no-check", cwd=tmp_path, url=running.url)
        yield running


def test_up_and_each_role_alone_end_cleanly_at_any_moment(
    fleet: tuple[Fleet, str], lonely: LocalServer, tmp_path: Path
) -> None:
    running, experiment = fleet
    url, home, up = running.server.url, tmp_path / "home", tmp_path / "up"
    home.mkdir()
    up.mkdir()
    commands = {
        "worker": partial(ends_of_role, url, home, "worker", ("worker",), 4.0),
        "trainer": partial(
            ends_of_role, url, home, "trainer", ("trainer", experiment, "--dir", str(home / "runs")), 6.0
        ),
        "supervisor": partial(ends_of_role, url, home, "supervisor", ("workers", "start", "-n", "2"), 5.0),
        "coordinator": partial(ends_of_role, lonely.url, home, "coordinator", ("coordinator",), 2.5),
        "up": partial(ends_of_up, up),
    }

    def all_done() -> bool:
        running.step()
        return all(future.done() for future in futures.values())

    with ThreadPoolExecutor(len(commands)) as pool:
        futures = {name: pool.submit(command) for name, command in commands.items()}
        eventually(all_done, timeout_s=550, every_s=0.05)
    for name, future in futures.items():
        check(name, future.result())
    assert left_in(home, besides={"runs"}) == []
