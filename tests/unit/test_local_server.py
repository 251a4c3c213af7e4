"""The services' own server: started again when it ends, for as long as it may take a full disk to get room."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from heddle.clock import ManualClock
from heddle.errors import BrokerUnreachable, Interrupted
from heddle.launch import local as module
from heddle.launch.local import SERVER_DELAY_S, SERVER_PATIENCE_S, Local, Setup
from heddle.stop import StopFlag


@dataclass
class Process:
    def returncode(self) -> int:
        return 1


@dataclass
class Server:
    """Stands for one that runs until it is told that it died."""

    url: str = "unix:///s"
    runs: bool = True
    process: Process = field(default_factory=Process)
    folder_id: tuple[int, int] | None = None

    def is_running(self) -> bool:
        return self.runs

    def last_words(self, lines: int) -> str:
        return "disk full"


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Local, ManualClock, list[str]]:
    """Services with a started server, their clock, and what happens to restarts: "ok" or the reason why not."""
    clock, answers, stop = ManualClock(), list[str](), StopFlag()
    monkeypatch.setattr(module, "start_server", lambda *args, **kwargs: Server())

    def restart(server: Any, clock: Any, *, given_up: Callable[[], bool]) -> Server:
        answer = answers.pop(0) if answers else "ok"
        if answer == "loads":  # and somebody asks to end meanwhile
            stop.request("the test says so")
            assert given_up()
            raise Interrupted(answer)
        assert not given_up()
        if answer != "ok":
            raise BrokerUnreachable(answer)
        return Server()

    monkeypatch.setattr(module, "restart", restart)
    services = Local(Setup(url=None, folder=tmp_path), stop=stop, clock=clock)
    services.start_server()
    return services, clock, answers


def die(services: Local) -> None:
    assert services.server is not None
    services.server.runs = False  # type: ignore[attr-defined]


def test_a_server_that_ended_is_started_again_at_once(stage: tuple[Local, ManualClock, list[str]]) -> None:
    services, clock, _ = stage
    clock.advance(60)
    die(services)
    services.step()
    services.step()
    assert services.server_restarts == 1
    assert "disk full" in services.endings[0].why


def test_an_end_is_not_kept_waiting_for_a_server_that_loads_and_is_no_failure_of_it(
    stage: tuple[Local, ManualClock, list[str]],
) -> None:
    services, clock, answers = stage
    clock.advance(60)
    die(services)
    answers.append("loads")
    services.step()
    services.step()
    assert not answers and services.server_restarts == 0 and not services.endings


def test_a_server_that_cannot_be_started_is_tried_again_until_it_can(
    stage: tuple[Local, ManualClock, list[str]],
) -> None:
    services, clock, answers = stage
    answers += ["no space"] * 100
    die(services)
    while answers:
        services.step()
        clock.advance(0.5)
    for _ in range(10):
        services.step()
        clock.advance(SERVER_DELAY_S / 4)
    assert services.server_restarts == 1


def test_it_is_given_up_in_the_end_with_the_reason(stage: tuple[Local, ManualClock, list[str]]) -> None:
    services, clock, answers = stage
    answers += ["no space"] * 10_000
    die(services)
    began = clock.monotonic()
    with pytest.raises(BrokerUnreachable, match="no space"):
        while True:
            services.step()
            clock.advance(0.5)
    assert SERVER_PATIENCE_S <= clock.monotonic() - began < SERVER_PATIENCE_S + 2 * SERVER_DELAY_S


def test_a_server_that_ends_at_once_again_and_again_is_given_time(
    stage: tuple[Local, ManualClock, list[str]],
) -> None:
    services, clock, _ = stage
    for _ in range(400):
        if services.server is not None and services.server.is_running():
            die(services)
        services.step()
        clock.advance(0.05)
    assert 5 < services.server_restarts < 30, "20 s: at first at once, then every two seconds"
