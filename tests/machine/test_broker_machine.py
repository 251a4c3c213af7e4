"""Workers that die, dawdle, return and retry any old call, trainers that die, coordinators that disagree.

On real servers. After every step promises P1 and P2 and all counters are compared with a model.
HEDDLE_SOAK=1 runs thousands of schedules.
"""

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from heddle.broker import Broker, keys
from heddle.errors import SeatLost
from tests.broker_kit import E, ctl
from tests.machine.bench import SHARDS, coin, index, shards
from tests.machine.model import Trainer, key_of
from tests.machine.workers import WorkerRules


class TrainerRules(WorkerRules):
    """Reading, training, checkpoints, acks and deaths."""

    @rule(count=st.integers(min_value=1, max_value=4), train=coin, checkpoint=coin)
    def read(self, count: int, train: bool, checkpoint: bool) -> None:
        name = f"seat-{self.trainer.epoch}"
        for pointer in self.broker.experience.read(E, 0, keys.TRAINER_GROUP, name, count=count, block_ms=0):
            self.trainer.hand[pointer.entry_id] = pointer
        if train:
            self.train(checkpoint)

    @rule(train=coin, checkpoint=coin)
    def take_over(self, train: bool, checkpoint: bool) -> None:
        pointers = self.broker.experience.take_over(E, 0, keys.TRAINER_GROUP, f"seat-{self.trainer.epoch}")
        self.trainer.hand.update({pointer.entry_id: pointer for pointer in pointers})
        if train:
            self.train(checkpoint)

    def train(self, checkpoint: bool) -> None:
        self.trainer.trained |= {key_of(pointer) for pointer in self.trainer.hand.values()}  # marks know a repeat
        if checkpoint:
            self.truth.manifest = set(self.trainer.trained)

    @precondition(lambda self: self.trainer.hand)
    @rule(again=coin)
    def ack(self, again: bool) -> None:
        done = [pointer for pointer in self.trainer.hand.values() if key_of(pointer) in self.truth.manifest]
        for _ in range(1 + again):
            self.broker.experience.ack(E, 0, self.trainer.epoch, [(pointer, "trained") for pointer in done])
        for pointer in done:
            self.truth.settled.setdefault(key_of(pointer), "trained")
            self.trainer.hand.pop(pointer.entry_id)

    @precondition(lambda self: self.trainer.hand)
    @rule(which=index, bury=coin)
    def set_aside(self, which: int, bury: bool) -> None:
        fresh = [p for p in self.trainer.hand.values() if key_of(p) not in self.trainer.trained]
        if not fresh:
            return
        pointer = fresh[which % len(fresh)]
        if bury:
            assert self.broker.experience.set_aside(E, 0, self.trainer.epoch, pointer, "bad", keep_blob=not self.full)
        else:
            assert self.broker.experience.ack(E, 0, self.trainer.epoch, [(pointer, "stale")]) == 1
        self.truth.settled[key_of(pointer)] = "dead" if bury else "stale"
        self.trainer.hand.pop(pointer.entry_id)

    @rule()
    def trainer_dies(self) -> None:
        self.zombies.append(self.trainer)
        self.trainer = Trainer(self.trainer.epoch + 1, set(self.truth.manifest))
        ctl(self.broker, seat_epoch=self.trainer.epoch)

    @precondition(lambda self: any(zombie.hand for zombie in self.zombies))
    @rule(which=index)
    def an_earlier_trainer_acks(self, which: int) -> None:
        zombies = [zombie for zombie in self.zombies if zombie.hand]
        zombie = zombies[which % len(zombies)]
        try:
            self.broker.experience.ack(E, 0, zombie.epoch, [(p, "trained") for p in zombie.hand.values()])
        except SeatLost:
            return
        raise AssertionError("a trainer without a seat settled something")


class BrokerMachine(TrainerRules):
    """All of them, and a server that runs out of memory, loses its scripts, and comes back without its last write."""

    @rule(what=st.lists(st.sampled_from(["claim", "deliver", "reap", "renew", "release", "ack", "aside"]), max_size=5))
    def while_the_memory_is_full(self, what: list[str]) -> None:
        """Renew, release, reap, ack, set aside must work; claim and append may be refused: then nothing happened."""
        do: dict[str, Callable[[], object]] = {
            "claim": lambda: self.claim(0, lose=False),
            "deliver": lambda: self.deliver(0, False, False, 3, 2),
            "reap": self.reap,
            "renew": lambda: [self.renew_any_old_lease(shard, 0) for shard in range(SHARDS)],
            "release": lambda: self.release_all(1),
            "ack": lambda: self.ack(again=True),
            "aside": lambda: self.set_aside(0, bury=True),
        }
        self.change_memory(True)
        for word in what:
            do[word]()
            self.the_books_are_right()
        self.change_memory(False)

    @rule()
    def forget_the_scripts(self) -> None:
        self.raw.script_flush()

    @rule(shard=shards)
    def lose_the_tail(self, shard: int) -> None:
        """The server comes back without the last append."""
        call = self.truth.forget_last(shard)
        if call is None:
            return
        for entry, fields in self.raw.xrange(keys.experience(E, 0)):
            if (int(fields[b"shard"]), int(fields[b"epoch"]), int(fields[b"seq"])) == call.name[:2] + (call.seq,):
                self.raw.xdel(keys.experience(E, 0), entry)
                self.raw.xack(keys.experience(E, 0), keys.TRAINER_GROUP, entry)
                self.trainer.hand.pop(entry.decode(), None)
                self.raw.unlink(fields[b"blob"])
        for field, by in (("entries", 1), ("bytes", call.size), ("steps", call.steps), ("appended", 1)):
            self.raw.hincrby(keys.flow(E, 0), field, -by)
        self.raw.hincrby(keys.flow(E, 0), "appended_steps", -call.steps)
        self.raw.hset(keys.shard(E, 0, shard), mapping={"seq": call.seq - 1, "given": self.truth.shards[shard].given})
        self.trainer.trained.discard(call.name[:4])
        self.truth.manifest.discard(call.name[:4])

    def teardown(self) -> None:
        """Whatever happened: a last trainer finds all that was accepted and not settled, once, and leaves nothing."""
        if not hasattr(self, "truth"):
            return
        self.change_memory(False)
        self.trainer_dies()
        self.take_over(train=False, checkpoint=False)
        self.read(1000, train=False, checkpoint=False)
        found = sorted(key_of(pointer) for pointer in self.trainer.hand.values())
        assert found == sorted(self.truth.in_flight())
        self.train(checkpoint=True)
        self.ack(again=True)
        self.the_books_are_right()
        left = [key for key in self.raw.keys(f"{keys.tag(E, 0)}:blob:*") if self.raw.ttl(key) == -1]
        assert len(left) == sum(1 for _ in self.broker.experience.dead(E, 0)) - self.buried_without_bytes()

    def buried_without_bytes(self) -> int:
        return sum(1 for _, fields in self.raw.xrange(keys.dead(E, 0)) if fields[b"kept_bytes"] == b"0")


def test_no_schedule_of_crashes_breaks_a_promise(broker: Broker) -> None:
    soak = bool(os.environ.get("HEDDLE_SOAK"))
    machine: Any = lambda: BrokerMachine(broker)  # noqa: E731
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=3000 if soak else 50,
            stateful_step_count=60 if soak else 40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
