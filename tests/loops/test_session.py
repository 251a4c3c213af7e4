"""A trainer of one's own, and taps, on a real server."""

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heddle.broker import Broker
from heddle.broker.server import LocalServer
from heddle.consumers.curve_file import is_written
from heddle.consumers.session import SessionBatch, TrainerSession
from heddle.consumers.tap import Tap
from heddle.errors import BrokerUnreachable, SeatLost, UsageError
from heddle.policies.weights import unpack
from tests.fixtures import on_valkey
from tests.helpers import eventually
from tests.trainer_fixtures import in_home
from tests.trainer_kit import Fleet, saved, submit

Enter = Callable[[str], TrainerSession]

home = in_home


@pytest.fixture
def session(valkey_server: LocalServer, home: Path) -> Enter:
    return lambda experiment: TrainerSession(experiment, directory=home, url=valkey_server.url, ttl_ms=1_000)


broker = on_valkey


def play(fleet: Fleet, rounds: int, *, until_stop: bool = True) -> threading.Thread:
    """A fleet that gives each version once, for so many versions, and then waits for the stop to let its shards go."""

    def run() -> None:
        version = 0
        for _ in range(rounds):
            version = fleet.version(version + 1)
            for shard, claim in fleet.claims.items():
                if claim.kind == "train":
                    fleet.give(shard, version)
        if until_stop:
            eventually(lambda: fleet.broker.experiments.ctl(fleet.experiment).command == "stop")
            fleet.release_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_loop_of_ones_own_trains_to_the_end_of_the_budget(broker: Broker, session: Enter, home: Path) -> None:
    fleet = Fleet(broker, submit(broker, budget={"env_steps": 48})).claim_all()
    workers = play(fleet, rounds=3)
    seen = []
    with session(fleet.experiment) as trainer:
        weights = trainer.policy.get_weights()
        trainer.publish({name: array + 1 for name, array in weights.items()})
        for batch in trainer:
            seen.append((batch.shards, batch.num_steps, float(batch.segments[0].arrays["reward"].sum())))
            trainer.report({"loss": 0.5})
            trainer.publish({name: array + len(seen) for name, array in weights.items()})
    workers.join()
    assert seen == [([0, 1], 16, 8.0)] * 3
    ctl = broker.experiments.ctl(fleet.experiment)
    assert (ctl.outcome, ctl.policy) == ("completed", 4)
    first, _ = unpack(broker.policies.fetch(fleet.experiment)[1])
    assert all(np.array_equal(first[name], array + 3) for name, array in weights.items())
    assert broker.events.metrics_last(fleet.experiment)["loss"] == 0.5
    assert fleet.flow().trained.batches == 6
    fleet.check_balance()


def test_a_loop_of_ones_own_is_told_which_of_its_metrics_is_no_number(broker: Broker, session: Enter) -> None:
    fleet = Fleet(broker, submit(broker, budget={"env_steps": 16})).claim_all()
    workers = play(fleet, rounds=1)
    weight = torch.ones(2, requires_grad=True)
    with session(fleet.experiment) as trainer:
        for _ in trainer:
            with pytest.raises(UsageError, match=r"report\(\) was given the metric 'loss' = a Tensor of shape \[2\]"):
                trainer.report({"loss": weight * 2})
            trainer.report({"loss": (weight * 2).sum()})
    workers.join()
    assert broker.events.metrics_last(fleet.experiment)["loss"] == 4.0


def test_batches_come_as_tensors_on_request(broker: Broker, session: Enter) -> None:
    fleet = Fleet(broker, submit(broker, budget={"env_steps": 16})).claim_all()
    workers = play(fleet, rounds=1)
    with session(fleet.experiment) as trainer:
        for batch in trainer:
            tensors = batch.torch("cpu")
            assert tensors.observations["obs"].shape == (4, 5, 4)
            assert isinstance(tensors.reward, torch.Tensor)
    workers.join()


def test_leaving_early_saves_and_the_next_one_goes_on(broker: Broker, session: Enter, home: Path) -> None:
    fleet = Fleet(broker, submit(broker, budget={"env_steps": 48})).claim_all()
    workers = play(fleet, rounds=3)
    with session(fleet.experiment) as trainer:
        for _ in trainer:
            trainer.keep({"momentum": np.ones(2, np.float32)}, {"count": 1})
            break
    checkpoint = saved(home)
    assert checkpoint is not None
    assert (checkpoint.update, checkpoint.learner_meta) == (1, {"count": 1})
    with session(fleet.experiment) as trainer:
        assert trainer.resumed is not None
        assert trainer.resumed.learner["momentum"].tolist() == [1, 1]
        steps = sum(batch.num_steps for batch in trainer)
    workers.join()
    assert steps == 32
    assert fleet.flow().trained.batches == 6


def test_a_batch_whose_body_raised_is_not_trained(broker: Broker, session: Enter, home: Path) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    with pytest.raises(ZeroDivisionError), session(fleet.experiment) as trainer:
        trainer.publish(trainer.policy.get_weights())
        fleet.version()
        for shard in fleet.claims:
            fleet.give(shard, 1)
        for _ in trainer:
            raise ZeroDivisionError
    assert (fleet.flow().trained.batches, fleet.flow().entries) == (0, 2)
    assert broker.seats.holder(fleet.experiment) is None
    assert broker.experiments.ctl(fleet.experiment).outcome == ""


def two_batches(fleet: Fleet, trainer: TrainerSession) -> Iterator[SessionBatch]:
    """An iteration that has its second batch in hand, so that the first is in the run's folder."""
    batches = iter(trainer)
    next(batches)
    next(batches)
    return batches


def test_who_leaves_the_loop_lets_go_of_the_runs_folder_and_may_keep_the_session(
    broker: Broker, session: Enter, home: Path
) -> None:
    # Given a loop of one's own, in the middle
    fleet = Fleet(broker, submit(broker)).claim_all()
    workers = play(fleet, rounds=2, until_stop=False)
    with session(fleet.experiment) as trainer:
        batches = two_batches(fleet, trainer)
        assert is_written(home)
    # When it was left, by break as in a notebook where all of it stays in hand
    workers.join()
    # Then nobody takes the run for one that goes on, and to ask for more ends at once, each time
    assert not is_written(home)
    assert list(batches) == [] == list(trainer)


def test_a_batch_that_nobody_took_before_the_session_was_left_is_not_handed_out_and_not_trained(
    broker: Broker, session: Enter, home: Path
) -> None:
    # Given a session that was entered, was given a batch and never asked for one
    fleet = Fleet(broker, submit(broker)).claim_all()
    with session(fleet.experiment) as trainer:
        trainer.publish(trainer.policy.get_weights())
        fleet.version()
        for shard in fleet.claims:
            fleet.give(shard, 1)
        eventually(lambda: not trainer.body._given.empty(), timeout_s=30)
    # When it was left, then there is none, and it is left to the next trainer
    assert list(trainer) == []
    assert (fleet.flow().trained.batches, fleet.flow().entries) == (0, 2)


def test_a_session_that_is_dropped_without_being_left_ends(broker: Broker, session: Enter, home: Path) -> None:
    # Given a session that was entered by hand
    fleet = Fleet(broker, submit(broker)).claim_all()
    workers = play(fleet, rounds=2, until_stop=False)
    trainer = session(fleet.experiment).__enter__()
    batches = two_batches(fleet, trainer)
    assert is_written(home)
    # When nobody has it any more
    del trainer, batches
    gc.collect()
    # Then its seat is free and the run's folder as well
    eventually(lambda: broker.seats.holder(fleet.experiment) is None and not is_written(home), timeout_s=30)
    workers.join()


def test_who_asks_for_batches_before_entering_is_told_to(broker: Broker, session: Enter) -> None:
    with pytest.raises(UsageError, match="enter the session first"):
        next(iter(session(submit(broker))))


def test_losing_the_seat_reaches_the_loop(broker: Broker, session: Enter) -> None:
    fleet = Fleet(broker, submit(broker)).claim_all()
    raw: Any = broker.conn.main
    with pytest.raises(SeatLost), session(fleet.experiment) as trainer:
        raw.hset(f"heddle:{{{fleet.experiment}.0}}:ctl", "seat_epoch", 2**50)
        for _ in trainer:
            raise AssertionError("nothing was given")


def test_an_experiment_that_is_over_cannot_be_entered(broker: Broker, session: Enter) -> None:
    experiment = submit(broker)
    epoch = broker.seats.claim_seat(experiment, "t", ttl_ms=60_000)
    assert epoch is not None
    broker.experiments.finish(experiment, epoch, "completed", "", {})
    with pytest.raises(UsageError, match="over"), session(experiment):
        pass


def test_a_tap_sees_every_batch_and_goes_on_where_it_stood(broker: Broker) -> None:
    fleet = Fleet(broker, submit(broker, rollout={"sync": False})).claim_all()
    tap = Tap(broker, fleet.experiment, "mine")
    fleet.give(0, 1)
    fleet.give(1, 1)
    (first, second) = tap.poll(block_ms=0)
    assert (first.shard, first.seq, first.kind, first.arrays["obs"].shape) == (0, 1, "train", (2, 5, 4))
    assert not first.arrays["reward"].flags.writeable
    fleet.give(0, 1)
    assert [(batch.shard, batch.seq) for batch in Tap(broker, fleet.experiment, "mine").poll(block_ms=0)] == [(0, 2)]
    assert len(Tap(broker, fleet.experiment, "another").poll(block_ms=0)) == 3
    assert fleet.flow().entries == 3
    tap.remove()


def test_a_tap_counts_what_was_deleted_before_it_came(broker: Broker) -> None:
    fleet = Fleet(broker, submit(broker, rollout={"sync": False})).claim_all()
    tap = Tap(broker, fleet.experiment, "mine")
    epoch = broker.seats.claim_seat(fleet.experiment, "t", ttl_ms=60_000)
    assert epoch is not None
    fleet.give(0, 1)
    assert len(tap.poll(block_ms=0)) == 1
    fleet.give(0, 1)
    entries = broker.experience.read(fleet.experiment, 0, "trainer", "t", count=10, block_ms=0)
    broker.experience.ack(fleet.experiment, 0, epoch, [(entry, "trained") for entry in entries])
    fleet.give(0, 1)
    assert [batch.seq for batch in tap.poll(block_ms=0)] == [3]
    assert tap.missed == 1


def test_a_tap_gives_what_an_answer_that_was_lost_held_before_what_was_read_since(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(broker, submit(broker, rollout={"sync": False})).claim_all()
    tap, read = Tap(broker, fleet.experiment, "mine"), broker.experience.read

    def loses_its_answer(*args: Any, **options: Any) -> Any:
        assert len(read(*args, **options)) == 2
        fleet.give(0, 1)
        monkeypatch.setattr(broker.experience, "read", read)
        raise BrokerUnreachable("cut")

    fleet.give(0, 1)
    fleet.give(1, 1)
    monkeypatch.setattr(broker.experience, "read", loses_its_answer)
    assert [(batch.shard, batch.seq) for batch in tap.poll(block_ms=0)] == [(0, 1), (1, 1), (0, 2)]
    assert tap.missed == 0 and tap.poll(block_ms=0) == []


def test_a_tap_ends_with_its_experiment_and_gives_tensors(broker: Broker) -> None:
    fleet = Fleet(broker, submit(broker, rollout={"sync": False})).claim_all()
    fleet.give(0, 1)
    broker.experiments.set_status(fleet.experiment, "completed", leader_epoch=1)
    batches = list(Tap(broker, fleet.experiment, "mine").torch("cpu"))
    assert [batch.num_steps for batch in batches] == [8]
