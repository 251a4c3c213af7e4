"""What the live view makes of judgements: which it tells, when, and what it advises where it starts roles itself."""

from typing import Any

import pytest

from heddle.broker import Broker
from heddle.broker.faults import Damaged
from heddle.broker.records import Status
from heddle.cli import facts as facts_module
from heddle.cli.facts import STEADY_S, FactsReader
from heddle.errors import BrokerUnreachable, HeddleError
from heddle.states.judgement import Judgement
from tests.helpers import eventually
from tests.unit.test_states import EXP, NOW, experiment, facts, lost_seat

RUNNING = Judgement("x", "running")
STALLED = Judgement("x", "stalled", "nothing is trained", "start one: heddle trainer x", since_ms=NOW - 12_000)


def reader(**options: Any) -> FactsReader:
    return FactsReader("redis://nowhere", EXP, budget_steps=None, pool="default", **options)


def status(**changes: Any) -> Status:
    return facts(status=changes).status


def told(one: FactsReader, *looks: tuple[float, Judgement]) -> list[str]:
    for now, judgement in looks:
        one._tell_state(judgement, judgement.state, judgement.line(NOW), now)
    return [event.partition(" ")[2] for event in one.facts().events]


def test_a_state_is_told_once_when_it_has_stayed_and_so_is_the_way_out() -> None:
    looks = [(0.0, STALLED), (1.0, STALLED), (STEADY_S, STALLED), (9.0, STALLED), (10.0, RUNNING), (20.0, RUNNING)]
    assert told(reader(), *looks) == [f"stalled: {STALLED.line(NOW)}", "running again"]


def test_what_does_not_stay_is_not_told() -> None:
    assert told(reader(), (0.0, STALLED), (1.0, RUNNING), (2.0, STALLED), (3.0, RUNNING), (30.0, RUNNING)) == []


@pytest.mark.parametrize("starts_roles", [True, False])
def test_nobody_is_told_to_start_what_this_terminal_starts(starts_roles: bool) -> None:
    state, reason = reader(starts_roles=starts_roles)._shown(status(), STALLED, NOW)
    assert state == "stalled"
    assert ("this terminal starts one" in reason) is starts_roles
    full = Judgement("x", "waiting", "waits for room", "raise maxmemory or remove what is over: heddle rm EXP")
    assert "raise maxmemory" in reader(starts_roles=starts_roles)._shown(status(), full, NOW)[1]


@pytest.mark.parametrize("starts_roles", [True, False])
def test_a_run_that_goes_on_says_of_the_dead_trainers_seat_that_this_terminal_starts_one(starts_roles: bool) -> None:
    # Given what is known of a run that was cut short while the trainer of who goes on with it loads
    judged = experiment(sitter=lost_seat(60_000), updated_ms=NOW - 60_000)
    assert judged.state == "stalled" and "trainer t1 does not renew its seat" in judged.why
    # Then who has just started it is told so, and who only looks on is told what to do
    reason = reader(starts_roles=starts_roles)._shown(status(), judged, NOW)[1]
    assert reason.endswith("this terminal starts one" if starts_roles else f"else start one: heddle trainer {EXP}")
    assert ("heddle trainer" in reason) is not starts_roles


def test_how_a_run_ended_is_shown_as_its_trainer_said_until_it_is_written_down() -> None:
    assert reader()._shown(status(outcome="completed", reason="used it"), RUNNING, NOW) == ("completed", "used it")


@pytest.mark.parametrize("error", [BrokerUnreachable("no answer"), Damaged("holds a list")])
def test_what_may_pass_is_told_and_looked_for_again(error: HeddleError, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_module, "READ_S", 0.01)
    tries = list[int]()

    def connect() -> Broker:
        tries.append(1)
        raise error

    one = reader(connect=connect)
    one.start()
    eventually(lambda: len(tries) > 2)
    one.stop()
    assert one.refusal is None and [event.partition(" ")[2] for event in one.facts().events] == [f"broker: {error}"]


def test_without_its_broker_a_screen_knows_nothing() -> None:
    one = reader()
    one._lose_sight()
    assert one.facts().state == "unknown"
    assert "queued when it last did" in one.facts().reason
