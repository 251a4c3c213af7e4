"""`heddle trace` against a real server, a trainer of ours and workers that only append, and a folder alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from heddle.broker import Broker
from heddle.broker.server import LocalServer
from heddle.clock import SystemClock
from tests.helpers import eventually
from tests.loops.test_cli_broker import Say, broker, say
from tests.trainer_kit import Fleet, InThread, submit

__all__ = ["broker", "say"]


def shown(say: Say, *arguments: str) -> str:  # noqa: F811 - the fixture of that name
    """What it prints."""
    code, out, err = say("trace", *arguments)
    assert code == 0, err
    return out


def told(say: Say, *arguments: str) -> dict[str, Any]:  # noqa: F811
    """The same for programs."""
    found: dict[str, Any] = json.loads(shown(say, *arguments, "-o", "json"))
    return found


@pytest.fixture
def slow_walk(valkey_server: LocalServer, broker: Broker, tmp_path: Path) -> Fleet:  # noqa: F811
    """Four updates of an experiment whose workers take their time; its trainer has left."""
    fleet = Fleet(broker, submit(broker, experiment={"name": "walk"})).claim_all()
    trainer = InThread(valkey_server.url, fleet.experiment, tmp_path / "runs" / fleet.experiment)
    try:
        for update in range(1, 5):
            version = fleet.version(update)
            SystemClock().sleep(0.1)  # in which they would be played
            for shard in fleet.claims:
                fleet.give(shard, version, played_ms=400 + 1000 * shard, held_ms=3)
        eventually(lambda: broker.events.metrics_last(fleet.experiment).get("env_steps") == 64, what="four updates")
    finally:
        trainer.end()
    return fleet


def test_it_says_where_batches_spend_their_time_and_who_the_bottleneck_is(slow_walk: Fleet, say: Say) -> None:  # noqa: F811
    out = shown(say, "walk", "--slowest", "2")
    assert f"{slow_walk.experiment}: a batch takes" in out
    assert "of the time batches are being played: the workers are the bottleneck" in out
    assert f"heddle profile {slow_walk.experiment}" in out, "what to type next"
    assert out.count(f"  1/{slow_walk.claims[1].lease.epoch}/") == 2, "the two slowest batches, of shard 1"
    assert "now " in out and "(0 batches in the stream, last update" in out
    found = told(say, slow_walk.experiment, "--slowest", "1")
    assert found["bottleneck"] == "workers"
    assert [stage["stage"] for stage in found["stages"]][:4] == ["rollout", "append", "stream", "queue"]
    assert found["stages"][0]["seconds"] == pytest.approx(0.9)
    assert len(found["slowest"]) == 1
    assert found["slowest"][0]["seconds"]["rollout"] == 1.4
    assert found["slowest"][0]["most_in"] == "rollout"


def test_what_lies_in_the_stream_now_is_told_beside(slow_walk: Fleet, say: Say) -> None:  # noqa: F811
    assert told(say, "walk")["now"]["oldest_s"] is None
    slow_walk.give(0, slow_walk.version(5))
    now = told(say, "walk")["now"]
    assert now["in_flight_batches"] == 1
    assert 0 <= now["oldest_s"] < 60
    assert "1 batches in the stream, the oldest for" in shown(say, "walk")


def test_of_a_run_that_was_removed_its_folder_tells(slow_walk: Fleet, say: Say, broker: Broker) -> None:  # noqa: F811
    slow_walk.release_all()
    broker.experiments.remove(slow_walk.experiment, force=True)
    for name in (slow_walk.experiment, "walk", f"runs/{slow_walk.experiment}"):
        out = shown(say, name)
        assert "of the time batches are being played" in out
        assert "now " not in out


def test_before_the_first_update_it_says_so_and_how_things_are(say: Say, broker: Broker) -> None:  # noqa: F811
    experiment = submit(broker, experiment={"name": "walk"})
    out = shown(say, "walk")
    assert f"nothing is known of where batches of {experiment} spend their time: there was no update yet" in out
    assert "now " in out
    assert told(say, "walk")["bottleneck"] is None


def test_an_experiment_that_nobody_knows_is_not_found(say: Say, broker: Broker) -> None:  # noqa: F811
    code, _, err = say("trace", "walk")
    assert code == 4
    assert "no experiment 'walk'" in err
