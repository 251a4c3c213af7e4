"""The doctor on real servers: what it finds, what it says to do, and its exit code."""

import json
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from heddle.broker import Broker, keys, open_broker
from heddle.broker.census import count
from heddle.broker.records import entries
from heddle.broker.server import LocalServer
from heddle.cli.main import run
from heddle.cli.root import Session, cli
from tests.broker_kit import SEAT, E, admit, append, claim_next, read_all
from tests.contract.specs import all_keys
from tests.contract.test_connection import SECRET


def doctor(url: str | None, *, code: int) -> dict[str, dict[str, Any]]:
    """Its findings by area and what, from -o json."""
    arguments = ["doctor", "-o", "json", *(["--redis-url", url] if url else [])]
    done = CliRunner().invoke(cli, arguments, obj=Session(), env={"HEDDLE_REDIS_URL": ""})
    assert done.exit_code == code, done.output
    told = json.loads(done.stdout)
    return {f"{finding['area']} {finding['what']}": finding for finding in told["findings"]}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_with_nothing_running_it_says_how_to_start(capsys: pytest.CaptureFixture[str]) -> None:
    told = doctor(None, code=0)
    assert told["broker answer"]["level"] == "warn" and "heddle up" in told["broker answer"]["do"]
    assert told["install torch"]["level"] == "ok"
    assert {"install server", "host open files", "host checkpoints", "host temporary files"} <= told.keys()
    assert run(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "-> start one here with `heddle up`" in shown and "0 bad" in shown


def test_a_broker_that_was_named_and_does_not_answer_is_bad() -> None:
    told = doctor("redis://:hunter2@127.0.0.1:1/0", code=5)
    assert told["broker answer"]["level"] == "bad"
    assert "hunter2" not in json.dumps(told)


def test_a_fit_broker_is_described_and_left_as_it_was(redis_server: LocalServer, broker: Broker) -> None:
    admit(broker, shards=1)
    before = all_keys(broker)
    told = doctor(redis_server.url, code=0)
    assert redis_server.settings.binary.kind in told["broker server"]["says"]
    assert told["broker eviction"] | {"says": "noeviction", "level": "ok"} == told["broker eviction"]
    assert told["broker durability"]["level"] == "warn" and "memory: " in told["broker durability"]["says"]
    assert told["broker scripts"]["level"] == told["broker writes"]["level"] == told["broker memory"]["level"] == "ok"
    assert told["keys orphans"]["says"] == "none"
    assert set(all_keys(broker)) - set(before) <= {keys.PROBE}


def test_a_broker_that_evicts_is_bad_and_still_described(redis_server: LocalServer, raw: redis.Redis) -> None:
    raw.config_set("maxmemory-policy", "allkeys-lru")
    try:
        told = doctor(redis_server.url, code=5)
    finally:
        raw.config_set("maxmemory-policy", "noeviction")
    assert told["broker eviction"]["level"] == "bad" and "CONFIG SET" in told["broker eviction"]["do"]
    assert told["broker scripts"]["level"] == "ok"


def test_a_full_broker_is_bad(redis_server: LocalServer, raw: redis.Redis) -> None:
    raw.config_set("maxmemory", 1)
    told = doctor(redis_server.url, code=5)
    assert told["broker memory"]["level"] == told["broker writes"]["level"] == "bad"
    assert "maxmemory" in told["broker writes"]["says"]


def test_a_user_with_few_rights_is_told_what_cannot_be_known(redis_server: LocalServer, raw: redis.Redis) -> None:
    raw.acl_setuser(
        "half", enabled=True, passwords=["+" + SECRET], keys=["*"], commands=["+@all", "-info", "-config", "-scan"]
    )
    try:
        told = doctor(redis_server.url.replace("unix://", f"unix://half:{SECRET}@"), code=0)
    finally:
        raw.acl_deluser("half")
    for what in ("server", "eviction", "durability"):
        assert told[f"broker {what}"]["level"] == "warn" and "unknown" in told[f"broker {what}"]["says"]
    assert told["keys number"]["level"] == "warn" and "SCAN" in told["keys number"]["says"]
    assert told["fleet coordinator"]["says"] == "none leads"


def test_the_census_finds_what_belongs_to_nobody(broker: Broker, raw: redis.Redis) -> None:
    # Given an experiment with a batch that an entry names, and nothing wrong
    admit(broker, shards=2)
    lease = claim_next(broker).lease
    append(broker, lease, 1)
    append(broker, lease, 2)
    census = count(broker.conn)
    assert (census.homeless, dict(census.bare), dict(census.adrift)) == ((), {}, {})
    # When bytes go astray, a batch is stored that nobody names, a ticket names nobody, and the clock was set back
    raw.delete(entries(raw.xrange(keys.experience(E, 0)))[0][1]["blob"])
    raw.set(keys.blob(E, 0, 1, 5, "n", 9), b"adrift")
    raw.xadd(keys.pool_tickets("other"), {"experiment": "gone-1", "partition": 0, "shard": 0}, id="1-1")
    raw.hset(keys.ctl(E), "seat_epoch", broker.conn.now_ms() + 3_600_000)
    raw.set("heddle:{gone-1.0}:flow", "left")
    # Then each is found
    census = count(broker.conn)
    assert census.homeless == ("gone-1",)
    assert (dict(census.bare), dict(census.adrift), census.tickets) == ({E: 1}, {E: 1}, 1)
    assert 3_500_000 < census.ahead_ms <= 3_600_000


def test_the_bytes_of_a_batch_that_was_set_aside_are_nobodys_loss(broker: Broker) -> None:
    admit(broker, shards=1)
    append(broker, claim_next(broker).lease, 1)
    (pointer,) = read_all(broker)
    assert broker.experience.set_aside(E, 0, SEAT, pointer, "checksum differs", keep_blob=True)
    assert broker.conn.main.exists(pointer.blob_key)
    assert count(broker.conn).adrift == {}


def test_experiments_without_workers_coordinator_or_trainer_are_pointed_out(
    redis_server: LocalServer, tmp_path: Path
) -> None:
    from heddle.client import Client

    with open_broker(redis_server.url, role="test") as broker:
        spec = {"experiment": {"name": "lonely"}, "env": {"id": "CartPole-v1"}, "budget": {"env_steps": 1000}}
        experiment = Client(broker, redis_server.url).submit(spec).id
    told = doctor(redis_server.url, code=0)
    assert told["fleet coordinator"]["level"] == told["fleet workers of default"]["level"] == "warn"
    assert told[f"fleet {experiment}"]["says"].startswith("queued")
