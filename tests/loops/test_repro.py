"""`heddle repro`: a recorded failure happens again here, to a child and not to the command."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from heddle.broker import Broker
from heddle.broker.failure_types import Failure, Replay
from heddle.cli import cli
from heddle.cli.repro import _newest
from heddle.producers.isolation.repro import play_again
from heddle.producers.mishap import PlayError
from heddle.producers.player import Player
from heddle.spaces import Box, Discrete
from tests.fixtures import coordinated, on_url
from tests.helpers import eventually
from tests.poison_kit import POISON
from tests.unit.fake_envs import Drawn, layout_for, plan_of, spec_of
from tests.worker_kit import Reader, Running, submit

pytestmark = pytest.mark.timeout(180)

url = coordinated
broker = on_url


def failed(broker: Broker, url: str, how: str, *, isolation: str = "process", **changes: Any) -> str:
    """An experiment of which shard 1 failed."""
    kwargs = {"how": how, "only": [1], "episode": 1, **changes.pop("kwargs", {})}
    env = {"id": POISON, "num_envs": 2, "envs_per_shard": 1, "isolation": isolation, "kwargs": kwargs}
    env |= changes.pop("env", {})
    experiment = submit(broker, env=env, **{"rollout": {"steps": 8}, "faults": {"barren_deaths": 1}, **changes})
    worker = Running(url, "w1")
    try:
        reader = Reader(broker, experiment, check=False)
        reader.publish(1)

        def recorded() -> bool:
            reader.ack(reader.pull(block_ms=20))
            return bool(broker.shards.failures(experiment, 0, 1))

        eventually(recorded, timeout_s=60, what="a failure")
    finally:
        worker.end()
    return experiment


def repro(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["repro", *arguments, "--redis-url", url])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("segfault", "happened again in step 3: its process was ended by signal SIGSEGV"),
        ("raise", "happened again in step 3: RuntimeError: the arm fell off"),
        ("nan", "happened again in step 3: gave obs is not finite"),
    ],
)
def test_a_failure_of_a_child_happens_again_at_the_same_step(how: str, said: str, broker: Broker, url: str) -> None:
    experiment = failed(broker, url, how)
    result = repro(url, f"{experiment}/1")
    assert result.exit_code == 0, result.output
    assert said in result.output
    if how != "nan":
        assert f"do_{how}" in result.output, "where it was"


def test_a_failure_of_an_inline_environment_happens_again_in_a_child_and_answers_programs(
    broker: Broker, url: str
) -> None:
    experiment = failed(broker, url, "raise", isolation="inline")
    result = repro(url, f"{experiment}/1", "-o", "json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["outcome"]["happened"], told["outcome"]["step"]) == (True, 3)
    assert told["failure"]["isolation"] == "inline"


def test_a_failure_that_was_cured_does_not_happen_again(broker: Broker, url: str, tmp_path: Path) -> None:
    cure = tmp_path / "cure"
    experiment = failed(broker, url, "raise", kwargs={"cure": str(cure)})
    cure.touch()
    result = repro(url, f"{experiment}/1")
    assert result.exit_code == 1
    assert "did not happen again: step 3 went well" in result.output


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_a_failure_after_a_snapshot_is_played_again_from_there(isolation: str) -> None:
    # Given an episode of which the first four steps were another owner's
    env = {"id": POISON, "num_envs": 2, "envs_per_shard": 2, "isolation": isolation}
    spec = spec_of(env={**env, "kwargs": {"how": "raise", "only": [1], "episode": 1, "at": 6}}, rollout={"steps": 4})
    observation, action, policy, plan = Box((2,), "float32"), Discrete(3), Drawn(), plan_of(2)
    layout = layout_for(policy, observation=observation, action=action)
    first = Player(plan, spec, policy, layout)
    first.play(1)
    snapshot = first.standing.pack()
    first.close()
    second = Player(plan, spec, policy, layout)
    second.resume(snapshot)
    # When it fails at the sixth
    with pytest.raises(PlayError) as failed:
        second.play(1)
    second.close()
    failure, replay = failed.value.failure, failed.value.replay
    assert (failure.start, failure.step, failure.num_actions) == ("snapshot", 6, 2)
    # Then it does so again after the two that were played since
    seen: list[int] = []
    outcome = play_again(
        spec, plan, failure, replay, seed=5, observation=observation, action=action, on_step=seen.append
    )
    assert (outcome.happened, outcome.step, seen) == (True, 6, [5, 6]), outcome


def test_of_a_shard_that_fails_again_while_it_is_looked_at_the_newest_failure_is_played() -> None:
    failures = [Failure("exception", "fell off", "step", number=number) for number in (1, 2)]

    class Shards:
        """Failure 2 comes between the look at the failures and the look at what is kept of the newest."""

        looks = 0

        def failures(self, *_: object) -> list[Failure]:
            self.looks += 1
            return failures[:1] if self.looks == 1 else failures[::-1]

        def replay(self, _experiment: str, _p: int, _shard: int, number: int) -> Replay | None:
            return Replay(b"", "uint8", (0,), b"") if number == 2 else None

    client: Any = SimpleNamespace(broker=SimpleNamespace(shards=Shards()))
    failure, replay = _newest(client, "e", 1)
    assert failure.number == 2
    assert replay is not None


def test_what_cannot_be_played_again_is_said_in_one_line(broker: Broker, url: str) -> None:
    experiment = submit(broker, env={"id": POISON, "num_envs": 2, "envs_per_shard": 1})
    eventually(lambda: broker.shards.shards(experiment, 0))
    for argument, code in ((f"{experiment}/0", 4), (f"{experiment}/9", 4), (experiment, 2), ("nobody/0", 4)):
        result = repro(url, argument)
        error = result.exception
        assert getattr(error, "exit_code", result.exit_code) == code, (argument, result.output, error)
