"""The same machine on a server that is killed with SIGKILL and started again, with all of its log or without the end.

After every step promises P1 and P2 and all counters are compared with the model, over every restart; epochs rise over
them, and no key lies outside of `heddle:`. HEDDLE_SOAK=1 runs thousands of schedules, and syncs every write.
"""

import os
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test

from heddle.broker import Broker, open_broker
from tests.chaos.breakable import PASSWORD, Node
from tests.conftest import MEMORY
from tests.helpers import eventually
from tests.machine.bench import coin
from tests.machine.model import Call, Truth, key_of
from tests.machine.test_broker_machine import BrokerMachine

SOAK = bool(os.environ.get("HEDDLE_SOAK"))
STEPS_BACK = 8
LARGEST_LOG = 4 << 20


class Disk:
    """A server and its append-only log. The write comes before the reply, so a killed process loses nothing of it."""

    def __init__(self, folder: Path) -> None:
        self.node = Node(folder, ("--appendfsync", "always" if SOAK else "no"))
        self.options = tuple(self.node.options)
        self.node.start()
        eventually(lambda: self.node.socket_path.exists(), what="it listens")
        self.url = f"unix://:{PASSWORD}@{self.node.socket_path}"

    @property
    def log(self) -> Path:
        return self.node.folder / "appendonlydir" / "appendonly.aof.1.incr.aof"

    def restart(self, *, size: int | None = None, full: bool = False) -> None:
        """SIGKILL, cut the log at `size`, start again, with full memory when it was full."""
        self.node.kill()
        if size is not None:
            os.truncate(self.log, size)
        self.node.options = (*self.options, "--maxmemory", "1" if full else str(MEMORY))
        self.node.start()
        eventually(self._answers, timeout_s=30, what="it is back")

    def _answers(self) -> bool:
        try:
            with self.node.client() as client:
                return bool(client.ping())
        except redis.RedisError:  # not listening yet, or loading
            return False


@dataclass(frozen=True)
class Savepoint:
    """Where the log stood after a step, and what was true then."""

    size: int
    truth: Truth
    seat: int


class DurableMachine(BrokerMachine):
    """See the module."""

    def __init__(self, broker: Broker, disk: Disk) -> None:
        super().__init__(broker)
        self.disk = disk
        self.saved: list[Savepoint] = []
        if disk.log.stat().st_size > LARGEST_LOG:
            disk.restart(size=0)

    @invariant()
    def remember(self) -> None:
        if hasattr(self, "truth"):
            self.saved.append(Savepoint(self.disk.log.stat().st_size, deepcopy(self.truth), self.trainer.epoch))
            del self.saved[:-STEPS_BACK]

    @invariant()
    def no_key_lies_outside(self) -> None:
        assert all(key.startswith(b"heddle:") for key in self.raw.keys("*"))

    @rule(full=coin)
    def is_killed_and_comes_back(self, full: bool) -> None:
        """With everything; its scripts are gone, and maybe there is no memory left at first."""
        self.disk.restart(full=full)
        self.full = full
        self.the_books_are_right()
        self.every_shard_is_as_it_must_be()
        self.reap()
        self.deliver(0, False, False, 2, 2)
        self.change_memory(False)

    @precondition(lambda self: len(self.saved) > 1)
    @rule(back=st.integers(min_value=1, max_value=STEPS_BACK - 1))
    def comes_back_without_its_last_steps(self, back: int) -> None:
        """Everybody else knows what they knew."""
        savepoint = self.saved[max(0, len(self.saved) - 1 - back)]
        self.disk.restart(size=savepoint.size)
        self.truth = savepoint.truth.after(self.truth)
        self.saved.clear()
        self.every_shard_is_as_it_must_be()
        if savepoint.seat != self.trainer.epoch:
            self.trainer_dies()
        in_flight = self.truth.in_flight()
        self.trainer.hand = {entry: p for entry, p in self.trainer.hand.items() if key_of(p) in in_flight}

    def may_come_again(self, call: Call) -> bool:
        """Nor what an honest worker will report: it counts by number, not by name."""
        return super().may_come_again(call) and call.name not in self.truth.unreported


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "d")
    yield made
    made.node.kill()


def test_no_schedule_of_crashes_breaks_a_promise_over_restarts_with_and_without_the_end_of_the_log(disk: Disk) -> None:
    with open_broker(disk.url, role="test") as broker:
        machine: Any = lambda: DurableMachine(broker, disk)  # noqa: E731
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=2000 if SOAK else 16,
                stateful_step_count=60 if SOAK else 40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
