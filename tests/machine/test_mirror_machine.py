"""The same sequences of commands on a real server and on the simulated one: what the simulation says would be so, is.

HEDDLE_SOAK=1 runs thousands of schedules.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from heddle.broker import Broker, open_broker
from tests.machine.mirror import Mirror, mirrored
from tests.machine.test_broker_machine import BrokerMachine
from tests.machine.test_durable_machine import LARGEST_LOG, Disk

SOAK = bool(os.environ.get("HEDDLE_SOAK"))
SCHEDULES = 3000 if SOAK else 10
RESTARTED_SCHEDULES = 500 if SOAK else 4
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


class RestartedMachine(MirrorMachine):
    """The same on a server that is killed with SIGKILL, and comes back with all that it had but its scripts."""

    def __init__(self, broker: Broker, mirror: Mirror, disk: Disk) -> None:
        super().__init__(broker, mirror)
        self._disk = disk
        self.kills = 0
        if disk.log.stat().st_size > LARGEST_LOG:
            self._restart(size=0)

    @rule()
    def is_killed_and_comes_back(self) -> None:
        self._restart()
        self.kills += 1

    def teardown(self) -> None:
        """A schedule may leave out any rule: so each is killed once more before it is looked at for the last time."""
        self.is_killed_and_comes_back()
        super().teardown()

    def _restart(self, size: int | None = None) -> None:
        self._disk.restart(size=size)
        self._mirror.restarted()
        for client in (self.broker.conn.main, self.broker.conn.blocking()):
            client.connection_pool.disconnect()  # so that no command is sent twice, and paired with two answers


def test_the_simulated_server_answers_every_schedule_as_the_real_one_does(broker: Broker) -> None:
    with mirrored(broker) as mirror:
        run_schedules(lambda: MirrorMachine(broker, mirror), SCHEDULES)
    assert mirror.compared[b"EVALSHA"] and mirror.compared.total() >= LEAST_COMMANDS, mirror.compared
    print(f"compared={mirror.compared.total()} scripts={mirror.compared[b'EVALSHA']}")


def test_it_answers_as_the_real_one_does_also_when_both_were_killed_and_started_again(tmp_path: Path) -> None:
    disk, machines = Disk(tmp_path / "d"), list[RestartedMachine]()
    try:
        with open_broker(disk.url, role="test") as broker, mirrored(broker) as mirror:

            def machine() -> RestartedMachine:
                machines.append(RestartedMachine(broker, mirror, disk))
                return machines[-1]

            run_schedules(machine, RESTARTED_SCHEDULES)
    finally:
        disk.node.kill()
    kills = sum(one.kills for one in machines)
    assert kills >= RESTARTED_SCHEDULES and mirror.compared.total() >= LEAST_COMMANDS // 5, mirror.compared
    print(f"compared={mirror.compared.total()} kills={kills}")


def run_schedules(machine: Callable[[], MirrorMachine], count: int) -> None:
    made: Any = machine
    run_state_machine_as_test(
        made,
        settings=settings(
            max_examples=count,
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
