"""What a broker forgets when it is killed, and takes again: trained once, never passed over, counted for what it was.

Real servers go back to what they knew a moment ago. Their owner gives a batch again under the same number when it never
heard that it was accepted, and plays on from what the server knows, under a new epoch, when it did.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heddle.broker import Broker, keys
from heddle.broker.types import AppendReply
from heddle.consumers.marks import Mark
from tests.helpers import eventually
from tests.loops.desk import Desk, Memory
from tests.trainer_fixtures import in_home, training
from tests.trainer_kit import Fleet, InThread, saved, seen_in, submit


@pytest.fixture
def fleet(broker: Broker) -> Iterator[Fleet]:
    fleet = Fleet(broker, submit(broker, rollout={"sync": False})).claim_all()
    yield fleet
    fleet.check_balance()


def give_again(fleet: Fleet, shard: int, version: int = 1) -> AppendReply:
    """Its owner never heard that the last batch was accepted."""
    fleet.gave.remove((shard, fleet.seqs[shard]))
    fleet.seqs[shard] -= 1
    return fleet.give(shard, version)


def go_on(fleet: Fleet, shard: int, version: int = 1) -> None:
    """Its owner heard it, finds with its next batch that the server does not know it, and claims the shard anew."""
    assert fleet.offer(shard, version).status == "GAP"
    fleet.broker.shards.release(fleet.claims.pop(shard).lease)
    fleet.broker.shards.queue_tickets(fleet.experiment, 0, [shard], "default")
    fleet.claim_all()


def forget_at_fetch(desk: Desk, memory: Memory, monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """The next time that bytes are asked for, the server has just forgotten them and their pointers."""
    experience = desk.reader._experience
    fetch = experience.fetch

    def forgets(pointers: Any) -> Any:
        monkeypatch.setattr(experience, "fetch", fetch)
        memory.go_back()
        found = fetch(pointers)
        then()
        return found

    monkeypatch.setattr(experience, "fetch", forgets)


def test_what_somebody_else_read_is_not_lost_when_the_server_forgets_that_while_it_is_looked_for(
    broker: Broker, fleet: Fleet, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a batch that nobody was handed yet, as the server will remember it
    desk, experience = Desk(broker, fleet), broker.experience
    fleet.give(0, 1)
    assert desk.poll() == [(0, 1)]
    desk.train()
    fleet.give(0, 1)
    memory, take_over = Memory(raw), experience.take_over
    assert len(experience.read(fleet.experiment, 0, "trainer", "somebody", count=8, block_ms=0)) == 1
    fleet.give(0, 1)

    def forgets(*where: Any) -> Any:
        monkeypatch.setattr(experience, "take_over", take_over)
        memory.go_back()
        give_again(fleet, 0)
        return take_over(*where)

    # When it goes back to that while it is asked for what is missing, and the owner gives the last one again
    monkeypatch.setattr(experience, "take_over", forgets)
    assert desk.poll() == []
    # Then both come, in order
    assert desk.poll() == [(0, 2), (0, 3)]
    desk.train()
    assert fleet.flow().trained.batches == 3


@pytest.mark.parametrize("when", ["before the entry is looked for", "later"])
@pytest.mark.parametrize("owner", ["same", "next"])
def test_forgotten_between_its_pointer_and_its_bytes_a_batch_is_trained_once_when_it_comes_again(
    broker: Broker, fleet: Fleet, raw: Any, monkeypatch: pytest.MonkeyPatch, owner: str, when: str
) -> None:
    desk = Desk(broker, fleet)
    fleet.give(0, 1)
    assert desk.poll() == [(0, 1)]
    desk.train()
    memory = Memory(raw)
    fleet.give(0, 1)

    def again() -> None:
        if owner == "same":
            give_again(fleet, 0)
        else:
            go_on(fleet, 0)
            fleet.give(0, 1)

    forget_at_fetch(desk, memory, monkeypatch, again if when != "later" else lambda: None)
    assert desk.poll() == []
    assert desk.ledger.marks()[0].seq == 1
    if when == "later":
        again()
    assert desk.poll() == [(0, 2)]
    desk.train()
    assert desk.poll() == []
    assert (fleet.flow().trained.batches, fleet.flow().dropped.batches, fleet.flow().entries) == (2, 0, 0)
    assert desk.ledger.marks()[0].epoch == fleet.claims[0].lease.epoch


def test_what_was_read_behind_a_forgotten_batch_comes_after_it_and_other_shards_do_not_wait(
    broker: Broker, fleet: Fleet, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(broker, fleet)
    memory = Memory(raw)
    fleet.give(0, 1)
    forgotten = broker.experience.read(fleet.experiment, 0, keys.TRAINER_GROUP, str(desk.epoch), count=1, block_ms=0)
    memory.go_back()
    go_on(fleet, 0)
    fleet.give(0, 1)
    fleet.give(1, 1)
    # Both are in hand: the one that is gone, and the new owner's.
    gathered = desk.reader._gather
    monkeypatch.setattr(desk.reader, "_gather", lambda block_ms: [*forgotten, *gathered(block_ms)])
    assert desk.poll() == [(1, 1)]
    monkeypatch.setattr(desk.reader, "_gather", gathered)
    desk.train()
    assert desk.poll() == [(0, 1)]
    assert desk.loaded[0].pointer.epoch == fleet.claims[0].lease.epoch
    desk.train()
    assert (fleet.flow().trained.batches, fleet.flow().entries) == (2, 0)


def test_a_batch_whose_bytes_came_before_the_broker_forgot_it_is_trained_once(
    broker: Broker, fleet: Fleet, raw: Any
) -> None:
    desk = Desk(broker, fleet)
    memory = Memory(raw)
    fleet.give(0, 1)
    assert desk.poll() == [(0, 1)]
    memory.go_back()
    give_again(fleet, 0)
    trained = list(desk.loaded)
    assert desk.poll() == [], "it is the same batch"
    desk.ledger.hold([item.pointer for item in trained], "trained")
    desk.ledger.flush()
    assert fleet.flow().trained.batches == 0, "and in no manifest yet"
    desk.ledger.release()
    desk.ledger.flush()
    assert (fleet.flow().trained.batches, fleet.flow().entries) == (1, 0)


@pytest.mark.parametrize("trainer", ["the same", "the next"])
def test_a_batch_given_again_by_an_owner_whose_successor_the_broker_forgot_is_trained_once(
    broker: Broker, fleet: Fleet, raw: Any, trainer: str
) -> None:
    # Given a shard that changed hands: its first owner's batch and the next one's are trained, and acked
    desk = Desk(broker, fleet)
    memory, owner = Memory(raw), fleet.claims[0]
    fleet.give(0, 1)
    assert desk.poll() == [(0, 1)]
    desk.train()
    broker.shards.release(fleet.claims.pop(0).lease)
    broker.shards.queue_tickets(fleet.experiment, 0, [0], "default")
    fleet.claim_all()
    fleet.give(0, 1)
    assert desk.poll() == [(0, 2)]
    desk.train()
    # When the broker forgets all that, and its first owner, who never heard of its end, goes on
    memory.go_back()
    fleet.claims[0], fleet.seqs[0] = owner, 0
    fleet.give(0, 1)
    fleet.give(0, 1)
    if trainer == "the next":
        marks = {0: Mark.from_json(json.loads(json.dumps(desk.ledger.marks()[0].to_json())))}
        broker.seats.release_seat(fleet.experiment, desk.epoch)
        desk = Desk(broker, fleet, marks=marks)
    # Then what it gives again is a repeat, and only what it gives then is trained
    assert desk.poll() == [(0, 2)]
    assert desk.loaded[0].pointer.epoch == owner.lease.epoch
    desk.train()
    assert (fleet.flow().trained.batches, fleet.flow().entries) == (2, 0)


def spoil(fleet: Fleet, raw: Any) -> None:
    (blob,) = raw.keys(f"{keys.tag(fleet.experiment, 0)}:blob:0:*")
    raw.setrange(blob, 50, b"#" * 50)


def lose_bytes(fleet: Fleet, raw: Any) -> None:
    raw.delete(*raw.keys(f"{keys.tag(fleet.experiment, 0)}:blob:0:*"))


def set_aside_first(fleet: Fleet, desk: Desk, raw: Any, outcome: str) -> None:
    """Shard 0 gives a batch that is used for nothing, and the broker is told."""
    fleet.give(0, 1)
    if outcome != "stale":
        (spoil if outcome == "dead" else lose_bytes)(fleet, raw)
        assert desk.poll() == []
    else:
        assert desk.poll() == [(0, 1)]
        desk.ledger.set_aside(desk.loaded[0].pointer, "stale")
    assert desk.ledger.flush()
    assert getattr(fleet.flow(), outcome).batches == 1


@pytest.mark.parametrize("outcome", ["stale", "dead", "dropped"])
@pytest.mark.parametrize("trainer", ["the same", "the next"])
def test_what_was_set_aside_is_never_counted_as_trained_when_the_broker_forgot_it_and_takes_it_again(
    broker: Broker, fleet: Fleet, raw: Any, outcome: str, trainer: str
) -> None:
    desk = Desk(broker, fleet)
    memory = Memory(raw)
    set_aside_first(fleet, desk, raw, outcome)
    marks, carried = desk.ledger.marks(), json.loads(json.dumps(desk.ledger.owed()))
    memory.go_back()
    give_again(fleet, 0)
    if trainer == "the next":
        marks = {0: Mark.from_json(json.loads(json.dumps(marks[0].to_json())))}
        broker.seats.release_seat(fleet.experiment, desk.epoch)
        desk = Desk(broker, fleet, marks=marks, carried={batch: tuple(as_what) for batch, as_what in carried.items()})
    assert desk.poll() == []
    desk.ledger.release()
    desk.ledger.flush()
    flow = fleet.flow()
    assert (getattr(flow, outcome).batches, flow.trained.batches, flow.entries) == (1, 0, 0)
    if outcome == "dead":
        assert len(broker.experience.dead(fleet.experiment, 0)) == 1


@pytest.mark.parametrize("outcome", ["stale", "dead", "dropped"])
def test_an_ack_that_the_broker_forgot_is_given_again_for_what_it_was(
    broker: Broker, fleet: Fleet, raw: Any, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(broker, fleet)
    before: list[Memory] = []
    flush = desk.ledger.flush_or_raise

    def remembered() -> None:
        if desk.ledger.num_owed:
            before.append(Memory(raw))
        flush()

    monkeypatch.setattr(desk.ledger, "flush_or_raise", remembered)
    set_aside_first(fleet, desk, raw, outcome)
    before[0].go_back()
    assert fleet.flow().entries == 1
    desk.reader.look_again()
    assert desk.poll() == []
    desk.ledger.release()
    desk.ledger.flush()
    flow = fleet.flow()
    assert (getattr(flow, outcome).batches, flow.trained.batches, flow.entries) == (1, 0, 0)


def test_a_batch_that_is_too_old_once_it_was_given_again_is_counted_as_stale(
    broker: Broker, fleet: Fleet, raw: Any
) -> None:
    desk = Desk(broker, fleet)
    memory = Memory(raw)
    fleet.give(0, 1)
    assert desk.poll() == [(0, 1)]
    waits = desk.loaded[0].pointer
    memory.go_back()
    give_again(fleet, 0)
    assert desk.poll() == []
    desk.ledger.set_aside(waits, "stale")
    desk.ledger.release()
    desk.ledger.flush()
    assert (fleet.flow().stale.batches, fleet.flow().trained.batches, fleet.flow().entries) == (1, 0, 0)


home = in_home
start = training


@pytest.mark.parametrize("owner", ["same", "next"])
def test_a_shard_that_gives_a_version_again_does_not_stand_for_another_one(
    broker: Broker, raw: Any, start: Callable[[str], InThread], home: Path, owner: str
) -> None:
    # Given a sync update that waits for shard 1, and a broker that forgets what shard 0 gave for it
    fleet = Fleet(broker, submit(broker)).claim_all()
    start(fleet.experiment)
    version = fleet.version()
    group = keys.experience(fleet.experiment, 0)
    eventually(lambda: raw.exists(group) and raw.xinfo_groups(group), what="it reads")
    memory = Memory(raw)
    fleet.give(0, version)
    eventually(lambda: raw.xpending(group, keys.TRAINER_GROUP)["pending"] == 1, what="it was read")
    memory.go_back()
    # When shard 0 gives it again
    if owner == "same":
        give_again(fleet, 0, version)
    else:
        go_on(fleet, 0, version)
        fleet.give(0, version)
    eventually(lambda: raw.xpending(group, keys.TRAINER_GROUP)["pending"] == 1, what="it was read again")
    # Then the update still waits for shard 1, and has both, each once
    assert broker.policies.latest(fleet.experiment) == version
    fleet.give(1, version)
    assert fleet.version(version + 1) == version + 1
    eventually(lambda: fleet.flow().entries == 0, what="everything is settled")
    assert seen_in(saved(home)) == [(0, 1), (1, 1)]
    assert fleet.flow().trained.batches == 2


@pytest.mark.parametrize("is_saved", [True, False], ids=["in the checkpoint", "in none"])
def test_what_was_forgotten_with_no_trainer_alive_is_trained_by_the_next_unless_it_is_saved(
    broker: Broker, raw: Any, start: Callable[[str], InThread], home: Path, is_saved: bool
) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    first = start(fleet.experiment)
    version = fleet.version()
    if not is_saved:
        first.leave()
    memory = Memory(raw)
    fleet.give(0, version)
    fleet.give(1, version)
    if is_saved:
        fleet.version(version + 1)
        eventually(lambda: fleet.flow().entries == 0, what="everything is settled")
        first.leave()
    memory.go_back()
    raw.delete(keys.seat(fleet.experiment))
    give_again(fleet, 0, version)
    give_again(fleet, 1, version)
    before = broker.policies.latest(fleet.experiment)
    start(fleet.experiment)
    version = fleet.version(before + 1)
    fleet.give(0, version)
    fleet.give(1, version)
    fleet.version(version + 1)
    eventually(lambda: fleet.flow().entries == 0, what="everything is settled")
    assert sorted(seen_in(saved(home))) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert (fleet.flow().trained.batches, fleet.flow().stale.batches) == (4, 0)
    fleet.check_balance()
