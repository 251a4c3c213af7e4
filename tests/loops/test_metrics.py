"""/metrics of a coordinator on a real server: what it tells, how much of it, and for how long it stays true."""

import re
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heddle.broker import Broker, keys
from heddle.broker.fleet import LATELY_KEPT
from heddle.broker.pools import WorkerBeat
from heddle.broker.presence import HostReport, beat_fields
from heddle.broker.server import LocalServer
from heddle.coord.exposition import LATELY_MS, Collector, exposed
from heddle.errors import MissingExtra
from tests.broker_kit import append, claim_next, run_out
from tests.e2e.shell import environment
from tests.fixtures import on_valkey
from tests.helpers import eventually
from tests.panels import names, panels, selectors
from tests.prometheus import alerts, free_port
from tests.trainer_kit import submit

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")

broker = on_valkey


def read(text: str) -> Samples:
    """Lines of the text format as numbers by name and labels."""
    found: Samples = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            match = LINE.match(line)
            assert match, line
            found[match[1], frozenset(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))] = float(match[3])
    return found


class Scraped:
    """A collector that is asked again and again, as a coordinator's is."""

    def __init__(self, broker: Broker, coordinator: str) -> None:
        from prometheus_client import CollectorRegistry

        self.cpu_s, self._registry = 0.0, CollectorRegistry(auto_describe=False)
        self._registry.register(Collector(lambda: broker, coordinator))

    def now(self) -> Samples:
        """What it tells now; `cpu_s` grows by what this thread took for it."""
        from prometheus_client import generate_latest

        before = time.thread_time()
        told = generate_latest(self._registry).decode()
        self.cpu_s += time.thread_time() - before
        return read(told)


def scrape(broker: Broker, coordinator: str) -> Samples:
    """What a coordinator's collector tells at its first look."""
    return Scraped(broker, coordinator).now()


def beat_all(broker: Broker, beat: WorkerBeat, count: int) -> None:
    """Heartbeats of so many workers, written down as their scripts do, in one go."""
    ids = [f"w-{number:05d}" for number in range(count)]
    told, now_ms, pipe = beat_fields(beat, 600_000), broker.conn.now_ms(), broker.conn.main.pipeline(transaction=False)
    for worker in ids:
        pipe.hset(keys.worker(worker), items=told)
    pipe.zadd(keys.pool_workers("default"), dict.fromkeys(ids, now_ms))
    pipe.execute()


def value(samples: Samples, name: str, **labels: str) -> float:
    """The only sample of a name with these labels, whatever others it has."""
    (found,) = [number for (one, has), number in samples.items() if one == name and labels.items() <= dict(has).items()]
    return found


@pytest.fixture
def experiment(broker: Broker) -> str:
    """One that trains, with a worker that died, a trainer, an update and a host."""
    made = submit(broker)
    broker.conn.main.hset(keys.status(made), "state", "running")
    epoch = broker.seats.claim_seat(made, "t-1")
    values = ("return", "eval_return", "length", "steps_per_second", "update_seconds", "wait_seconds", "lag_0")
    more = ("worker_wait_seconds", "checkpoint_seconds", "cpu_seconds", "rss_bytes", "gpu_bytes", "env_steps")
    stages = [f"{stage}{stat}_seconds" for stage in ("rollout", "append", "stream", "queue") for stat in ("", "_p95")]
    stages += ["slowest_rollout_seconds", "play_step_p50_seconds", "play_step_p95_seconds", "play_step_max_seconds"]
    given = (*values, *more, *stages, "gpu_use", "longest_shard")
    broker.events.metrics_add(made, 1, dict.fromkeys(given, 1.5), seat_epoch=epoch)
    broker.experiments.set_command(made, "run")
    claim = claim_next(broker, "w1")
    assert append(broker, claim.lease, 1).status == "OK"
    run_out(broker, claim.lease)
    broker.shards.reap(made, 0, leader_epoch=1)
    broker.pools.bury("w1", "it ended with exit code 1", pool="default", kind="exit")
    profile = {"env": 3, "encode": 1, "sending": 2}
    beat = WorkerBeat("w2", steps=5, play_s=1.0, cpu_s=2.0, rss_bytes=9, state="playing", profile=profile)
    broker.pools.heartbeat(beat)
    broker.pools.supervisor_beat("default", "s-1", 2, host=HostReport("h", 2, free_bytes=7))
    return made


def test_every_panel_and_every_alert_asks_for_names_and_labels_that_are_told(broker: Broker, experiment: str) -> None:
    broker.coordinators.claim_leader("c-1", ttl_ms=600_000)
    told = scrape(broker, "c-1")
    labels: dict[str, set[str]] = {}
    for name, has in told:
        labels.setdefault(name, set()).update(label for label, _ in has)
    for where, expression in [*panels(), *((alert, rule["expr"]) for alert, rule in alerts().items())]:
        assert names(expression) <= labels.keys(), where
        for name, asked in selectors(expression):
            assert asked.keys() <= labels[name], f"{where}: {name}"


def test_it_counts_what_happened(broker: Broker, experiment: str) -> None:
    broker.coordinators.claim_leader("c-1", ttl_ms=600_000)
    told = scrape(broker, "c-1")
    assert value(told, "heddle_appended_batches_total", experiment=experiment) == 1
    in_flight = value(told, "heddle_in_flight_bytes", experiment=experiment)
    assert value(told, "heddle_appended_bytes_total", experiment=experiment) == in_flight > 0
    assert value(told, "heddle_in_flight_batches", experiment=experiment) == 1
    assert value(told, "heddle_in_flight_max_batches", experiment=experiment) == 1024
    assert value(told, "heddle_experiment_running", experiment=experiment) == 1
    assert value(told, "heddle_settled_batches_total", experiment=experiment, outcome="trained") == 0
    assert value(told, "heddle_shards_reassigned_total", experiment=experiment, reason="lease_over") == 1
    assert value(told, "heddle_worker_deaths_total", pool="default", how="exit") == 1
    assert value(told, "heddle_trainer_seats_total", experiment=experiment) == 1
    assert value(told, "heddle_trainer_restarts_total", experiment=experiment, reason="died") == 0
    assert value(told, "heddle_policy_lag", experiment=experiment, quantile="0.95") == 0
    assert value(told, "heddle_desired_workers", pool="default") == 2
    assert value(told, "heddle_workers", pool="default", state="playing") == 1
    assert value(told, "heddle_pool_steps_per_second", pool="default") == 5
    assert value(told, "heddle_broker_used_bytes") > 0
    assert value(told, "heddle_batch_stage_seconds", experiment=experiment, stage="append", stat="p95") == 1.5
    assert value(told, "heddle_play_step_seconds", experiment=experiment, quantile="1") == 1.5
    assert value(told, "heddle_trainer_gpu_use_ratio", experiment=experiment) == 1.5
    assert value(told, "heddle_worker_time_ratio", pool="default", phase="encode") == 0.25
    assert value(told, "heddle_worker_time_ratio", pool="default", phase="sending") == 0.5


def test_an_idle_pool_plays_nothing_and_waits_for_nothing_whatever_it_has_played(broker: Broker) -> None:
    broker.coordinators.claim_leader("c-1", ttl_ms=600_000)
    past = WorkerBeat("w-2", steps=50_000, play_s=100.0, wait_s=100.0, late_s=10.0)
    for number in range(3):
        broker.pools.heartbeat(replace(past, worker=f"w-{number}"))
    told = scrape(broker, "c-1")
    names = ("heddle_pool_steps_per_second", "heddle_worker_wait_ratio", "heddle_env_step_seconds")
    assert [value(told, name, pool="default") for name in names] == [0, 0, 0]
    # When one of them plays and another waits, then the sum and the mean are of those
    plays = replace(past, worker="w-0", state="playing", late_speed=80.0, ms_per_step=4.0, late_waits=0.25)
    broker.pools.heartbeat(plays)
    broker.pools.heartbeat(replace(past, worker="w-1", state="waiting", late_waits=0.75))
    told = scrape(broker, "c-1")
    assert [value(told, name, pool="default") for name in names] == [80, 0.5, 0.004]


def test_there_are_as_many_series_with_hundreds_of_workers_as_with_one(broker: Broker, experiment: str) -> None:
    broker.coordinators.claim_leader("c-1", ttl_ms=600_000)
    few = scrape(broker, "c-1")
    for number in range(400):
        broker.pools.heartbeat(WorkerBeat(f"w-{number}", steps=5, play_s=1.0, state="playing"))
    many = scrape(broker, "c-1")
    assert many.keys() == few.keys()
    assert value(many, "heddle_workers", pool="default", state="playing") == 401


def test_of_ten_thousand_workers_every_scrape_tells_what_all_of_them_said_last(broker: Broker) -> None:
    broker.coordinators.claim_leader("c-1", ttl_ms=600_000)
    scraped, count = Scraped(broker, "c-1"), 10_000
    names = ("heddle_pool_steps_per_second", "heddle_worker_wait_ratio", "heddle_worker_memory_bytes")
    for speed, share in ((10.0, 0.25), (0.0, 1.0)):  # as they play, and a moment later, when all of them wait
        beat = WorkerBeat("w", state="playing", late_s=10.0, late_speed=speed, late_waits=share, rss_bytes=7)
        beat_all(broker, beat, count)
        before = scraped.cpu_s
        told = scraped.now()
        assert [value(told, name, pool="default") for name in names] == [speed * count, share, 7.0 * count]
        assert value(told, "heddle_workers", pool="default", state="playing") == count
        assert scraped.cpu_s - before < 5.0, "seconds of the coordinator's processor for a scrape"


def test_counters_go_on_with_the_next_coordinator_and_only_who_leads_tells_them(
    broker: Broker, experiment: str
) -> None:
    epoch = broker.coordinators.claim_leader("c-1", ttl_ms=600_000)
    assert epoch is not None
    before, follower = scrape(broker, "c-1"), scrape(broker, "c-2")
    assert {name for name, _ in follower} == {"heddle_broker_up", "heddle_leader", "heddle_leads"}
    assert value(follower, "heddle_leader") == 1 and value(follower, "heddle_leads") == 0
    broker.coordinators.release_leader("c-1", epoch)
    assert broker.coordinators.claim_leader("c-2", ttl_ms=600_000) is not None
    after = scrape(broker, "c-2")
    counters = {one: number for one, number in before.items() if one[0].endswith("_total")}
    assert counters and all(after[one] >= number for one, number in counters.items())
    assert "heddle_settled_batches_total" not in {name for name, _ in scrape(broker, "c-1")}


def ended(broker: Broker, experiment: str, *, ago_ms: int) -> None:
    """It is over since so long."""
    told: dict[Any, Any] = {"state": "completed", "ended": broker.conn.now_ms() - ago_ms}
    broker.conn.main.hset(keys.status(experiment), mapping=told)


def counters(samples: Samples, experiment: str) -> Samples:
    """Those of an experiment."""
    own = ("experiment", experiment)
    return {one: number for one, number in samples.items() if one[0].endswith("_total") and own in one[1]}


def test_counters_of_an_experiment_are_told_for_five_minutes_after_its_end_by_whoever_leads_then(
    broker: Broker, experiment: str
) -> None:
    # Given an experiment that was scraped, went on and ended before the next scrape
    epoch = broker.coordinators.claim_leader("c-1", ttl_ms=600_000)
    assert epoch is not None
    scraped = Scraped(broker, "c-1")
    before = counters(scraped.now(), experiment)
    broker.conn.main.hincrby(keys.flow(experiment, 0), "trained_steps", 640)
    ended(broker, experiment, ago_ms=0)
    # Then every scrape from now on has all counters with what came last, however often it is asked
    trained = ("heddle_settled_steps_total", frozenset({("experiment", experiment), ("outcome", "trained")}))
    for _ in range(3):
        now = counters(scraped.now(), experiment)
        assert now.keys() == before.keys() and now[trained] == before[trained] + 640
    # And another coordinator that takes over has them, too, and no gauges of what is over
    broker.coordinators.release_leader("c-1", epoch)
    assert broker.coordinators.claim_leader("c-2", ttl_ms=600_000) is not None
    after = Scraped(broker, "c-2")
    told = after.now()
    assert counters(told, experiment) == now
    assert not any(("experiment", experiment) in has for name, has in told if not name.endswith("_total"))
    # When five minutes have passed, then nobody tells them any more
    ended(broker, experiment, ago_ms=LATELY_MS + 1)
    after.now()  # which of them are over is looked at again by and by
    assert counters(after.now(), experiment) == {}


def test_of_many_experiments_that_ended_the_last_hundred_are_told(broker: Broker) -> None:
    made = [submit(broker) for _ in range(LATELY_KEPT + 5)]
    broker.coordinators.claim_leader("c-1", ttl_ms=600_000)
    for number, experiment in enumerate(made):
        ended(broker, experiment, ago_ms=200_000 - 1_000 * number)
    told = scrape(broker, "c-1")
    assert {one for one in made if counters(told, one)} == set(made[5:])


def test_a_real_coordinator_serves_them_on_loopback_and_without_the_option_nothing(
    valkey_server: LocalServer, tmp_path: Path
) -> None:
    port = free_port()
    command = [sys.executable, "-m", "heddle", "coordinator", "--redis-url", valkey_server.url]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--metrics-port", str(port)], stderr=output, env=environment())
    try:
        eventually(lambda: "leads coordinator" in log.read_text(), timeout_s=60)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            told = read(answer.read().decode())
        assert value(told, "heddle_leads") == 1
        assert f"serves metrics at http://127.0.0.1:{port}/metrics" in log.read_text()
    finally:
        process.terminate()
        assert process.wait(30) == 0


def test_a_taken_port_is_told_and_is_no_reason_not_to_coordinate(
    valkey_server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with exposed(valkey_server.url, "c-1", bind="127.0.0.1", port=port):
        second = exposed(valkey_server.url, "c-2", bind="127.0.0.1", port=port)
        with second:
            assert f"the port is taken address=127.0.0.1:{port}" in caplog.text
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            assert b"heddle_broker_up 1.0" in answer.read()


def test_without_the_broker_it_says_that_it_is_away(valkey_server: LocalServer) -> None:
    port = free_port()
    with exposed("redis://127.0.0.1:1/0", "c-1", bind="127.0.0.1", port=port):
        answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    assert read(answer) == {("heddle_broker_up", frozenset()): 0.0}


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtra, match=r"pip install 'heddle-rl\[obs\]'"), exposed("x", "c", bind="x", port=0):
        pass
