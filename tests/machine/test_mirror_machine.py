"""The same sequences of commands on a real server and on the simulated one: what the simulation says would be so, is.

HEDDLE_SOAK=1 runs thousands of schedules.
"""

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from heddle.broker import Broker
from tests.machine.mirror import Mirror, mirrored
from tests.machine.test_broker_machine import BrokerMachine

SCHEDULES, SOAK_SCHEDULES = 10, 3000
LEAST_COMMANDS = 1_300


class MirrorMachine(BrokerMachine):
    """Workers, trainers and coordinators that die and repeat themselves, and memory that runs out."""

    def __init__(self, broker: Broker, mirror: Mirror) -> None:
        super().__init__(broker)
        self._mirror = mirror

    @invariant()
    def the_simulated_server_answered_alike(self) -> None:
        assert not self._mirror.differences, self._mirror.differences[0]

    def teardown(self) -> None:
        super().teardown()
        self.the_simulated_server_answered_alike()


def test_the_simulated_server_answers_every_schedule_as_the_real_one_does(broker: Broker) -> None:
    with mirrored(broker) as mirror:
        run_schedules(broker, mirror)
    assert mirror.compared[b"EVALSHA"] and mirror.compared.total() >= LEAST_COMMANDS, mirror.compared
    print(f"compared={mirror.compared.total()} scripts={mirror.compared[b'EVALSHA']}")


def run_schedules(broker: Broker, mirror: Mirror) -> None:
    machine: Any = lambda: MirrorMachine(broker, mirror)  # noqa: E731
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=SOAK_SCHEDULES if os.environ.get("HEDDLE_SOAK") else SCHEDULES,
            stateful_step_count=40,
            phases=(Phase.generate,),  # a difference is told at once: it says which command it was
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_simulated_server_that_answers_otherwise_is_found(broker: Broker) -> None:
    with mirrored(broker) as mirror:
        broker.conn.main.set("k", "1")
        assert not mirror.differences
        mirror._state = ({b"k": b"2"}, {})
        broker.conn.main.get("k")
    assert "real b'1', simulated b'2'" in mirror.differences[0]
