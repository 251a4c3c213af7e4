"""Who waits on a terminal sees how it goes, and a script that waits gets the result alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from heddle.broker import Broker, keys
from heddle.broker.server import LocalServer
from heddle.cli.progress import CLEAR, trying
from heddle.cli.waiting import wait_for_all
from heddle.client import Client
from heddle.errors import ExperimentFailed
from tests.fixtures import on_valkey
from tests.helpers import eventually
from tests.trainer_kit import submit
from tests.unit.test_progress_line import on_a_terminal

broker = on_valkey


@pytest.fixture
def client(broker: Broker, valkey_server: LocalServer) -> Client:
    return Client(broker, valkey_server.url)


def end(broker: Broker, experiment: str, state: str) -> None:
    broker.conn.main.hset(keys.status(experiment), "state", state)


def test_who_waits_on_a_terminal_is_told_of_each_how_it_is_and_how_far(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = on_a_terminal(monkeypatch)
    first = submit(broker, experiment={"name": "a"}, budget={"env_steps": 5_000})
    second = submit(broker, experiment={"name": "b"}, budget={"env_steps": 6_000})
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(wait_for_all, client, [first, second])
        # Given two that are waited for, one after the other
        try:
            told = f"waiting: 0 of 2 are through, {first} is queued, 0 of 5,000 steps trained"
            eventually(lambda: told in terminal.getvalue(), what=told)
            end(broker, first, "failed")
            told = f"waiting: 1 of 2 are through, {second} is queued, 0 of 6,000 steps trained"
            eventually(lambda: told in terminal.getvalue(), what=told)
        finally:
            for experiment in (first, second):
                end(broker, experiment, "failed")
        # Then the line is gone in the end, and what came of them is as without a terminal
        with pytest.raises(ExperimentFailed, match=rf"{first} failed \(and 1 more\)"):
            waited.result(30)
    assert terminal.getvalue().endswith(CLEAR)


def test_who_waits_without_a_terminal_asks_for_nothing_but_how_it_is(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = submit(broker)
    end(broker, experiment, "completed")

    def unasked(*_: object) -> None:
        raise AssertionError("nobody looks")

    monkeypatch.setattr(broker.experience, "flow", unasked)
    (status,) = wait_for_all(client, [experiment])
    assert status.state == "completed"


def test_a_spec_that_is_tried_out_for_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_a_terminal(monkeypatch)
    with trying():
        eventually(lambda: "trying out the environment and the policy, " in terminal.getvalue())
    assert terminal.getvalue().endswith(CLEAR)
