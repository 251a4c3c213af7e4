"""The evaluation at the end of a run: nothing that trains keeps it out, and it begins anew when it cannot be whole."""

from typing import Any

import pytest

from heddle.broker import Broker
from heddle.broker.server import LocalServer
from tests.helpers import eventually
from tests.trainer_kit import Fleet, InThread, submit

EVAL = {"num_envs": 2, "episodes": 2, "every_updates": 1}


class Ending:
    """A run whose budget is used: only the evaluation of its last weights, version 2, is missing."""

    def __init__(self, broker: Broker, trainer: InThread, fleet: Fleet) -> None:
        self.broker, self.trainer, self.fleet = broker, trainer, fleet
        self.train = [shard for shard, claim in fleet.claims.items() if claim.kind == "train"]
        (self.evaluator,) = fleet.claims.keys() - set(self.train)
        for shard in self.train:
            fleet.give(shard, fleet.version())
        eventually(lambda: self.pinned == 2)

    @property
    def pinned(self) -> int:
        return self.broker.experiments.ctl(self.fleet.experiment).eval_policy

    def join(self) -> dict[str, Any]:
        """Once the trainer says stop, let every shard go and wait for its end; the run's result."""
        eventually(lambda: self.broker.experiments.ctl(self.fleet.experiment).command == "stop")
        self.fleet.release_all()
        assert self.trainer.join() == 0
        self.fleet.check_balance()
        return self.broker.experiments.status(self.fleet.experiment).result


@pytest.fixture
def ending(broker: Broker, redis_server: LocalServer, tmp_path: Any) -> Any:
    fleet = Fleet(
        broker,
        submit(
            broker,
            rollout={"sync": False, "max_policy_lag": 4},
            trainer={"batch_steps": 16},
            eval=EVAL,
            budget={"env_steps": 16},
            limits={"max_entries": 8},
        ),
    ).claim_all()
    trainer = InThread(redis_server.url, fleet.experiment, tmp_path / "home")
    try:
        yield Ending(broker, trainer, fleet)
    finally:
        trainer.end()


def test_shards_that_train_on_do_not_keep_its_batches_out(ending: Ending) -> None:
    # Given train shards that go on until they find the stream full several times over
    for _ in range(15):
        for shard in ending.train:
            eventually(lambda shard=shard: ending.fleet.offer(shard, 2).status == "OK", what="room")  # type: ignore[misc]
    # Then the eval shard's batches find room, and the run has its result
    eventually(lambda: ending.fleet.offer(ending.evaluator, 2, returns=[3.0, 5.0]).status == "OK", what="room")
    result = ending.join()
    assert (result["eval_return"], result["updates"]) == (4.0, 1)
    assert ending.fleet.flow().stale.batches == 30


def test_it_begins_anew_under_another_version_when_a_batch_of_it_cannot_be_used(ending: Ending) -> None:
    ending.fleet.give(ending.evaluator, 2, data=b"not a batch")
    eventually(lambda: ending.pinned == 3, what="a new evaluation of the same weights")
    ending.fleet.give(ending.evaluator, 3, returns=[7.0])
    assert ending.join()["eval_return"] == 7.0
