"""Keys that all experiments share, in whose place somebody put something else: it is said which, and all goes on."""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from heddle.broker import Broker, keys, open_broker
from heddle.broker.kinds import kind_of
from heddle.broker.server import LocalServer, start_server
from heddle.broker.types import Claim
from heddle.cli.main import run
from heddle.coord.leader import Leader
from heddle.errors import BrokerAmiss
from heddle.launch.liaison import Liaison
from heddle.launch.trackers import TrackerHost
from heddle.launch.trainers import TrainerHost
from heddle.stop import StopFlag
from tests import worker_kit
from tests.broker_kit import claim_next
from tests.fixtures import on_valkey
from tests.helpers import eventually
from tests.loops.test_damaged_keys import Fleet

POOL = "default"
WAITED_FOR = {
    "queue": keys.QUEUE,
    "coordinator": keys.COORDINATOR,
    "log": keys.LOG,
    "prints": keys.PRINTS,
    "broker": keys.IDENTITY,
    "name": keys.name("sound"),
    "pool": keys.pool(POOL),
    "tickets": keys.pool_tickets(POOL),
}
"""Nobody but people can say what they held: they stay as they are until somebody removes them."""
MADE_ANEW = {
    "experiments": keys.EXPERIMENTS,
    "workers": keys.pool_workers(POOL),
    "supervisors": keys.pool_supervisors(POOL),
    "worker": keys.worker("w1"),
}
"""What they hold is written anew all the time, or follows from the experiments' own keys."""
SPEC = '[experiment]\nname = "sound"\n[env]\nid = "CartPole-v1"\n[budget]\nenv_steps = 7_000\n'


@dataclass
class Shop:
    """A fleet that trains one experiment, with a supervisor's line to the broker, and its server."""

    fleet: Fleet
    experiment: str
    liaison: Liaison

    def goes_on(self) -> None:
        before = self.fleet.trained(self.experiment)
        eventually(lambda: self.fleet.trained(self.experiment) > before + 2, timeout_s=60, what="it is trained on")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    server: LocalServer = start_server(tmp_path_factory.mktemp("server"), durability="memory")
    try:
        with open_broker(server.url, role="test") as broker, pytest.MonkeyPatch.context() as patched:
            patched.setattr(
                "heddle.coord.leader.TIDY_EVERY_MS", 1_000
            )  # by itself it looks for what is lost twice a minute
            fleet = Fleet(broker, server.url, tmp_path_factory.mktemp("fleet"))
            fleet.begin()
            connect = lambda: open_broker(server.url, role="supervisor")  # noqa: E731
            liaison = Liaison(connect, POOL, "s1", wants=1)
            liaison.start()
            experiment = fleet.submit("sound")
            eventually(lambda: fleet.trained(experiment) > 0, timeout_s=60)
            yield Shop(fleet, experiment, liaison)
            liaison.stop()
            fleet.end()
    finally:
        server.stop()


@pytest.fixture
def say(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEDDLE_REDIS_URL", shop.fleet.url)
    (tmp_path / "exp.toml").write_text(SPEC)

    def call(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = run(arguments)
        out, err = capsys.readouterr()
        return code, out + err

    return call


def _damage(broker: Broker, key: str) -> None:
    pipe: Any = broker.conn.main.pipeline(transaction=True)
    pipe.delete(key)
    pipe.rpush(key, "x")
    pipe.execute()


def _commands(experiment: str) -> list[tuple[str, ...]]:
    return [
        ("ls",),
        ("status", experiment),
        ("status", "sound"),
        ("shards", experiment),
        ("why", "experiment", experiment),
        ("why", "shard", f"{experiment}/0"),
        ("why", "worker", "w1"),
        ("workers", "ls"),
        ("workers", "scale", "--reset"),
        ("top", "--once"),
        ("logs", "-n", "5"),
        ("plot", experiment),
        ("trace", experiment),
        ("batches", "ls", experiment),
        ("pause", experiment),
        ("resume", experiment),
        ("results",),
        ("doctor",),
        ("enqueue", "exp.toml", "--no-check"),
    ]


@pytest.mark.parametrize("name", [*WAITED_FOR, *MADE_ANEW])
def test_a_shared_key_of_another_kind_is_named_and_nothing_else_stops(
    name: str, shop: Shop, say: Callable[..., tuple[int, str]], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a fleet at work
    broker, key = shop.fleet.broker, {**WAITED_FOR, **MADE_ANEW}[name]
    shop.goes_on()
    # When something else is put in the place of a key
    _damage(broker, key)
    # Then every command ends by its code, and whichever needs it says in one line which key it is and what to do
    told = f"{key} holds a list that somebody put there, and should be a "
    for command in _commands(shop.experiment):
        code, said = say(*command)
        assert code in (0, 5, 8), (command, said)  # 8: its name is another experiment's
        assert "Traceback" not in said and "fault of Heddle" not in said, (command, said)
        if code == 5 and command != ("doctor",):
            assert said.count("\n") == 1 and told in said and f"redis-cli DEL {key}" in said, (command, said)
    # And roles go on, and say the same
    shop.goes_on()
    assert shop.fleet.worker.thread.is_alive() and shop.fleet.worker.error is None
    assert shop.fleet.coordinator.is_alive()
    if name in WAITED_FOR:
        _is_said(name, broker, caplog)
        assert broker.conn.main.type(key) == b"list"
        broker.conn.main.delete(key)
    kind = kind_of(key)
    if name not in ("name", "broker", "log", "prints", "tickets"):  # written when somebody has something to write
        is_back = lambda: broker.conn.main.type(key) == str(kind).encode()  # noqa: E731
        eventually(is_back, timeout_s=90, every_s=0.1, what=f"{key} is a {kind} again")
    shop.goes_on()
    assert not [record for record in caplog.records if record.exc_info], "no traceback"


def _is_said(name: str, broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """By a role; of those that none of ours needs meanwhile by whoever asks."""
    key = WAITED_FOR[name]
    asks: dict[str, Callable[[], object]] = {
        "name": lambda: broker.experiments.resolve("sound"),
        "broker": broker.planes.identity,
        "prints": lambda: broker.events.read(),
    }
    ask = asks.get(name)
    if ask is not None:
        with pytest.raises(BrokerAmiss, match=f"redis-cli DEL {key}"):
            ask()
        return
    lines: Any = lambda: [record for record in caplog.records if f"redis-cli DEL {key}" in record.getMessage()]  # noqa: E731
    eventually(lines, timeout_s=30, what=f"{key} is told")
    assert all(record.levelno == logging.WARNING for record in lines())
    assert len(lines()) <= 12, "once for each who needs it, not in every round"


def test_every_shared_key_that_a_fleet_has_is_looked_at(shop: Shop) -> None:
    found = {name.decode() for name in shop.fleet.broker.conn.main.scan_iter(match="heddle:*")}
    shared = {name for name in found if not name.startswith("heddle:{")} - {keys.PROBE}  # written over, whatever it is
    assert shared <= {*WAITED_FOR.values(), *MADE_ANEW.values(), keys.name("sound")}, shared


broker = on_valkey


def _claimed(broker: Broker, worker: str) -> Claim:
    """A shard's claim, once its ticket was issued."""
    stream = keys.pool_tickets(POOL)
    eventually(lambda: broker.conn.main.exists(stream) and broker.conn.main.xlen(stream), timeout_s=30, what="a ticket")
    return claim_next(broker, worker)


@pytest.mark.parametrize("key", [keys.pool(POOL), keys.pool_tickets(POOL), keys.LOG, keys.PRINTS, keys.IDENTITY])
def test_a_dead_workers_shards_are_freed_at_once_whichever_shared_key_is_damaged(
    key: str, broker: Broker, valkey_server: LocalServer
) -> None:
    # Given a worker that holds a shard, and a supervisor
    experiment = worker_kit.submit(broker)
    with worker_kit.coordinating(valkey_server.url):
        eventually(lambda: worker_kit.states(broker, experiment), timeout_s=30)
        claim = _claimed(broker, "w9")
    liaison = Liaison(lambda: open_broker(valkey_server.url, role="supervisor"), POOL, "s1", wants=1)
    liaison.start()
    try:
        # When a key that all share is damaged, and the worker dies
        _damage(broker, key)
        liaison.release("w9", how="signal SIGKILL", kind="killed")
        # Then its shard waits for another one long before its lease is over
        shard = claim.lease.shard
        eventually(lambda: worker_kit.states(broker, experiment)[shard] == "queued", timeout_s=5)
        # And its tickets come once there can be any
        broker.conn.main.delete(key)
    finally:
        liaison.stop()


def test_an_experiment_that_is_submitted_while_tickets_are_damaged_is_admitted_and_played_later(
    broker: Broker, valkey_server: LocalServer
) -> None:
    _damage(broker, keys.pool_tickets(POOL))
    experiment = worker_kit.submit(broker)
    with worker_kit.coordinating(valkey_server.url):
        eventually(lambda: broker.experiments.status(experiment).state == "running", timeout_s=30)
        broker.conn.main.delete(keys.pool_tickets(POOL))
        _claimed(broker, "w1")
        # and while they are damaged again, it is looked after all the same
        _damage(broker, keys.pool_tickets(POOL))
        broker.experiments.set_command(experiment, "stop")
        eventually(lambda: broker.experiments.status(experiment).state == "stopping", timeout_s=30)


def test_a_new_leader_finds_experiments_whose_list_is_damaged(broker: Broker) -> None:
    experiment = worker_kit.submit(broker)
    first = Leader(broker, "c1", broker.conn.now_ms(), contact_since_ms=0)
    first.wait(broker.conn.now_ms())
    _damage(broker, keys.EXPERIMENTS)
    second = Leader(broker, "c2", broker.conn.now_ms() + 1, contact_since_ms=0)
    second.take_over(broker.conn.now_ms())
    assert second.experiments == (experiment,)
    assert [one.experiment for one in broker.experiments.ls()] == [experiment]


def test_a_host_of_trainers_waits_for_the_list_and_ends_no_trainer(
    broker: Broker, valkey_server: LocalServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop = StopFlag()
    host = TrainerHost(valkey_server.url, directory=tmp_path, stop=stop)
    _damage(broker, keys.EXPERIMENTS)
    thread = threading.Thread(target=host.run)
    thread.start()
    told: Any = lambda: [r for r in caplog.records if f"redis-cli DEL {keys.EXPERIMENTS}" in r.getMessage()]  # noqa: E731
    eventually(told, timeout_s=30)
    assert thread.is_alive()
    stop.drain("the test is over")
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("told", ["list", "no JSON"])
def test_a_host_of_trackers_starts_others_while_one_experiments_notes_on_them_are_damaged(
    told: str, broker: Broker, valkey_server: LocalServer, tmp_path: Path
) -> None:
    # Given two experiments with trackers
    track = {"track": {"tensorboard": str(tmp_path)}}
    hurt, sound = (worker_kit.submit(broker, experiment={"name": name}, **track) for name in ("hurt", "sound"))
    if told == "list":
        _damage(broker, keys.trackers(hurt))
    else:
        broker.conn.main.hset(keys.trackers(hurt), "tensorboard:told", "{no JSON")
    # When their host looks
    host = TrackerHost(valkey_server.url, directory=tmp_path, stop=StopFlag())
    # Then the sound one gets its own
    assert sound in host.missing(broker)
