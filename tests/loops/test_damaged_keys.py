"""Keys in whose place somebody put something else: it is that experiment's trouble alone, named, mended or its end."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from heddle.broker import Broker, keys, numbers
from heddle.broker.damage import Damages
from heddle.broker.faults import Damaged
from heddle.broker.server import LocalServer
from heddle.broker.types import Claim
from heddle.cli.main import run
from heddle.coord.coordinator import Coordinator
from heddle.coord.healing import MOST_UNFOUND
from heddle.coord.leader import Leader
from heddle.coord.planner import STUCK_MS
from heddle.errors import Conflict, Gone, LeaderLost, NotFound, SpecError, UsageError
from heddle.launch.giving_up import progress_of
from heddle.spaces import Box, Discrete, to_json
from heddle.spec import load_spec
from heddle.states.look import look_at, look_at_all
from heddle.stop import StopFlag
from tests import worker_kit
from tests.broker_kit import append, claim_next
from tests.helpers import eventually
from tests.trainer_kit import InThread
from tests.worker_kit import Running, fresh

SPEC: dict[str, dict[str, Any]] = {
    "env": {"num_envs": 1, "envs_per_shard": 1, "kwargs": {"step_s": 0.005}},
    "trainer": {"learner": "tests.trainer_kit:Recorder", "minibatch": 1},
    "policy": {"hidden": [2]},
    "rollout": {"steps": 4},
    "faults": {"lease_ttl": 1.0},
}
Damage = Callable[[Any, str], object]


def _another_kind(name: Callable[[str], str]) -> Damage:
    return lambda raw, experiment: (raw.delete(name(experiment)), raw.set(name(experiment), "x"))


def _no_number(name: Callable[[str], str], field: str) -> Damage:
    return lambda raw, experiment: raw.hset(name(experiment), field, "x")


NEEDED: dict[str, Callable[[str], str]] = {
    "ctl": keys.ctl,
    "spec": keys.spec,
    "flow": lambda experiment: keys.flow(experiment, 0),
    "accepted": lambda experiment: keys.accepted(experiment, 0),
    "experience": lambda experiment: keys.experience(experiment, 0),
    "shard": lambda experiment: keys.shard(experiment, 0, 0),
}
MADE_ANEW: dict[str, Callable[[str], str]] = {
    "status": keys.status,
    "seat": keys.seat,
    "trainer": keys.trainer,
    "trackers": keys.trackers,
    "queued": lambda experiment: keys.queued(experiment, 0),
    "loading": lambda experiment: keys.loading(experiment, 0),
    "due": lambda experiment: keys.due(experiment, 0),
    "waiting": lambda experiment: keys.waiting(experiment, 0),
    "metrics": keys.metrics,
    "dead": lambda experiment: keys.dead(experiment, 0),
    "lease": lambda experiment: keys.lease(experiment, 0, 0),
    "failure": lambda experiment: keys.failure(experiment, 0, 0),
}
SELDOM = ("lease", "dead", "failure", "trackers")
"""Nobody asks these, or not for their contents, while all goes well."""
NUMBERS = {
    "ctl policy": (keys.ctl, "policy"),
    "flow entries": (NEEDED["flow"], "entries"),
    "shard seq": (NEEDED["shard"], "seq"),
    "shard given": (NEEDED["shard"], "given"),
}
WRITTEN_ANEW = {
    "ctl rev": (keys.ctl, "rev"),
    "ctl command": (keys.ctl, "command"),
    "shard state": (NEEDED["shard"], "state"),
    "ctl seat_epoch": (keys.ctl, "seat_epoch"),
    "shard attempts": (NEEDED["shard"], "attempts"),
    "shard claim_seq": (NEEDED["shard"], "claim_seq"),
    "shard epoch": (NEEDED["shard"], "epoch"),
}


@dataclass
class Fleet:
    """A coordinator, a worker and the trainers of some experiments, all in this process; no role is started twice."""

    broker: Broker
    url: str
    folder: Path
    trainers: dict[str, InThread] = field(default_factory=dict)
    stop: StopFlag = field(default_factory=StopFlag)

    def begin(self) -> None:
        self.coordinator = threading.Thread(target=Coordinator(self.url, stop=self.stop).run)
        self.coordinator.start()
        self.worker = Running(self.url, "w1")

    def submit(self, name: str, **sections: Any) -> str:
        raw = {**worker_kit.SPEC, **SPEC, **sections, "experiment": {"name": name.replace(" ", "-").replace("_", "-")}}
        raw["env"] = {**worker_kit.SPEC["env"], **SPEC["env"]}
        spec = load_spec(raw).spec
        spaces = json.dumps({"observation": to_json(Box((2,), "float32")), "action": to_json(Discrete(2, 0))})
        made = self.broker.experiments.submit(
            spec.canonical_json(), "", spec.sha256(), spec.experiment.name, suffix=os.urandom(3).hex(), spaces=spaces
        )
        self.train(made.id)
        return made.id

    def train(self, experiment: str) -> None:
        self.trainers[experiment] = InThread(self.url, experiment, self.folder / experiment)

    def keep_trained(self, experiment: str) -> None:
        """As their host does: another trainer where one ended and the experiment is not over."""
        trainer = self.trainers[experiment]
        if not trainer.is_alive and not self.broker.experiments.status(experiment).ended:
            self.train(experiment)

    def trained(self, experiment: str) -> int:
        return self.broker.experience.flow(experiment, 0).trained.batches

    def end(self) -> None:
        for trainer in self.trainers.values():
            trainer.stop.request("the test is over")
            trainer.stop.request("the test is over")
        for trainer in self.trainers.values():
            trainer.end()
        self.worker.end()
        self.stop.drain("the test is over")
        self.coordinator.join(10)


@pytest.fixture
def fleet(valkey_server: LocalServer, tmp_path: Path) -> Iterator[Fleet]:
    with fresh(valkey_server.url) as broker:
        made = Fleet(broker, valkey_server.url, tmp_path)
        made.begin()
        yield made
        made.end()


def _damages() -> dict[str, Damage]:
    found = {name: _another_kind(key) for name, key in {**NEEDED, **MADE_ANEW}.items()}
    return found | {name: _no_number(key, field) for name, (key, field) in {**NUMBERS, **WRITTEN_ANEW}.items()}


def test_damaged_keys_of_one_experiment_are_its_own_trouble_and_no_role_dies_of_them(fleet: Fleet) -> None:
    """Every kind of key at once, each in an experiment of its own, beside one that is sound."""
    # Given an experiment for each kind of key, all trained by one pool
    raw, sound = fleet.broker.conn.main, fleet.submit("sound")
    hurt = {name: fleet.submit(name) for name in _damages()}
    for experiment in (sound, *hurt.values()):
        eventually(lambda one=experiment: fleet.trained(one) > 0, timeout_s=60, what=f"{experiment} is trained")  # type: ignore[misc]
    # When each loses one key to something else
    for name, damage in _damages().items():
        damage(raw, hurt[name])
    # Then each either fails with its reason, in which a whole key is named, or goes on as if the key were new
    before = fleet.trained(sound)
    for name, experiment in hurt.items():
        if name in MADE_ANEW:
            _goes_on(fleet, name, experiment)
        elif name in WRITTEN_ANEW:
            _counts_again(fleet, name, experiment)
        else:
            _has_failed(fleet, name, experiment)
    # And the sound one goes on, with the same worker and the same coordinator
    eventually(lambda: fleet.trained(sound) > before + 3, timeout_s=60, what="the sound one goes on")
    assert fleet.worker.thread.is_alive() and fleet.worker.error is None
    assert fleet.coordinator.is_alive()
    assert {status.experiment for status, _ in look_at_all(fleet.broker)[1]} == {sound, *hurt.values()}
    # And what failed leaves no key behind
    for name in (*NEEDED, *NUMBERS):
        fleet.trainers[hurt[name]].end()
        fleet.broker.experiments.remove(hurt[name], force=True)
        eventually(lambda one=hurt[name]: _keys_of(raw, one) == [], what=f"{name}: no key is left")  # type: ignore[misc]


def _goes_on(fleet: Fleet, name: str, experiment: str) -> None:
    key = MADE_ANEW[name](experiment)
    if name in SELDOM:
        fleet.broker.damages.note(experiment, Damaged("WRONGTYPE, says a verb that met it"))

    def is_mended() -> bool:
        fleet.keep_trained(experiment)
        return fleet.broker.conn.main.type(key) != b"string"

    eventually(is_mended, timeout_s=60, every_s=0.1, what=f"{name} is mended")
    _is_trained_again(fleet, name, experiment)


def _is_trained_again(fleet: Fleet, name: str, experiment: str) -> None:
    before = fleet.trained(experiment)

    def has_gone_on() -> bool:
        fleet.keep_trained(experiment)
        return fleet.trained(experiment) > before

    eventually(has_gone_on, timeout_s=60, every_s=0.1, what=f"{name} goes on")
    eventually(lambda: fleet.broker.experiments.status(experiment).state == "running", what=f"{name} runs")


def _counts_again(fleet: Fleet, name: str, experiment: str) -> None:
    key, field = WRITTEN_ANEW[name][0](experiment), WRITTEN_ANEW[name][1]

    def counts() -> bool:
        fleet.keep_trained(experiment)
        found: Any = fleet.broker.conn.main.hget(key, field)
        return not numbers.is_none(field, found, is_counted=True)

    eventually(counts, timeout_s=60, every_s=0.1, what=f"{name} is a number again")
    _is_trained_again(fleet, name, experiment)


def _has_failed(fleet: Fleet, name: str, experiment: str) -> None:
    eventually(lambda: fleet.broker.experiments.status(experiment).ended, timeout_s=60, every_s=0.05, what=name)
    status = fleet.broker.experiments.status(experiment)
    assert status.state == "failed", (name, status)
    assert f"--resume {experiment}" in status.reason, (name, status.reason)
    if name in NEEDED:
        assert f"{NEEDED[name](experiment)} is no " in status.reason, (name, status.reason)
    else:
        key, field = NUMBERS[name]
        assert f"field {field} of {key(experiment)} is 'x'" in status.reason, (name, status.reason)
    facts, picture = look_at(fleet.broker, experiment)
    assert (picture.experiment.state, picture.experiment.why) == ("failed", facts.status.reason), name


def _keys_of(raw: Any, experiment: str) -> list[Any]:
    left = list(raw.scan_iter(match=f"heddle:{{{experiment}.*"))
    return [*left, *(one for one in raw.zrange(keys.EXPERIMENTS, 0, -1) if one.decode() == experiment)]


def test_every_kind_of_key_that_an_experiment_has_is_looked_at(fleet: Fleet) -> None:
    # Given an experiment that has been trained, and a key of every kind that it ever has
    experiment, raw = fleet.submit("whole"), fleet.broker.conn.main
    eventually(lambda: fleet.trained(experiment) > 0, timeout_s=30)
    eventually(lambda: fleet.broker.events.metrics_newest(experiment) is not None, timeout_s=30)
    # Then each is known by its kind, but for bytes, of which only readers make something
    found = {
        name.decode().removeprefix(keys.tag(experiment, 0)).split(":")[1] for name in raw.scan_iter(match="heddle:{*")
    }
    assert found - {"blob", "snapshot", "policy"} <= {*NEEDED, *MADE_ANEW}
    # And none of them is called damaged
    assert Damages(fleet.broker.conn).find(experiment) == []


def test_an_experiment_that_somebody_took_from_the_list_is_listed_again(fleet: Fleet) -> None:
    # Given one that is running, and a leader that does not know it, as after a restart
    experiment, broker = fleet.submit("lost"), fleet.broker
    eventually(lambda: broker.experiments.status(experiment).state == "running", timeout_s=30)
    created_ms = broker.experiments.status(experiment).created_ms
    for watched in ({experiment}, set[str]()):
        # When the list is removed
        broker.conn.main.delete(keys.EXPERIMENTS)
        assert broker.experiments.ls() == []
        # Then whoever looks after it, and whoever finds the list empty, lists it again with its time
        assert broker.experiments.unlisted(watched) == [experiment]
        assert broker.conn.main.zscore(keys.EXPERIMENTS, experiment) == created_ms
    # And one that was removed does not come back
    fleet.trainers[experiment].end()
    broker.experiments.remove(experiment, force=True)
    assert broker.experiments.unlisted({experiment}) == []
    assert broker.conn.main.exists(keys.EXPERIMENTS) == 0


def test_a_leader_lists_again_what_it_looks_after(valkey_server: LocalServer) -> None:
    with fresh(valkey_server.url) as broker:
        experiment = worker_kit.submit(broker, **SPEC)
        leader = Leader(broker, "c1", broker.conn.now_ms(), contact_since_ms=0)
        now_ms = broker.conn.now_ms()
        leader.wait(now_ms)
        broker.conn.main.delete(keys.EXPERIMENTS)
        leader.tick(now_ms + 60_000)
        assert [status.experiment for status in broker.experiments.ls()] == [experiment]
        # and the next one, from an empty list
        broker.conn.main.delete(keys.EXPERIMENTS)
        following = Leader(broker, "c2", broker.conn.now_ms() + 1, contact_since_ms=0)
        following.take_over(now_ms)
        following.tick(now_ms + 120_000)
        assert [status.experiment for status in broker.experiments.ls()] == [experiment]


def test_an_experiment_that_is_removed_while_it_is_mended_is_no_leaders_end(valkey_server: LocalServer) -> None:
    # Given an experiment of which a verb met damage
    with fresh(valkey_server.url) as broker:
        experiment = worker_kit.submit(broker, **SPEC)
        leader = Leader(broker, "c1", broker.conn.now_ms(), contact_since_ms=0)
        leader.wait(broker.conn.now_ms())
        broker.damages.note(experiment, Damaged("WRONGTYPE, says a verb that met it"))
        # When it is removed after the leader has seen that, and before it is mended
        find = broker.damages.find

        def find_late(one: str) -> Any:
            found = find(one)
            broker.experiments.remove(one, force=True)
            return found

        broker.damages.find = find_late  # type: ignore[method-assign, assignment]
        leader.tick(broker.conn.now_ms())
        # Then it is forgotten, and nobody's end
        assert leader.experiments == ()


def test_with_a_barrier_weights_that_somebody_removed_are_published_again(fleet: Fleet) -> None:
    # Given a synchronous run, in which no version comes before every shard has played the one before
    experiment, raw = fleet.submit("barrier", rollout={"steps": 4, "sync": True}), fleet.broker.conn.main
    eventually(lambda: fleet.trained(experiment) > 0, timeout_s=30, what="it is trained")

    # When its weights are removed, again and again, until a worker is met that has not read them yet
    def is_met() -> bool:
        raw.delete(*raw.scan_iter(match=f"{keys.tag(experiment, 0)}:policy:*"), "nothing")
        return any("publishes it again" in line.message for line in fleet.broker.events.read(experiment, count=50))

    eventually(is_met, timeout_s=60, every_s=0.01, what="a worker finds no weights")
    # Then it goes on, with the same trainer
    before, trainer = fleet.trained(experiment), fleet.trainers[experiment]
    eventually(lambda: fleet.trained(experiment) > before + 3, timeout_s=30, what="it goes on")
    assert trainer.is_alive and trainer is fleet.trainers[experiment]


def test_a_full_stream_that_somebody_trimmed_by_hand_has_room_again(valkey_server: LocalServer) -> None:
    # Given an experiment whose one shard waits for room, and nobody who trains
    with fresh(valkey_server.url) as broker:
        own: dict[str, dict[str, Any]] = {
            "env": {"num_envs": 1, "envs_per_shard": 1},
            "limits": {"max_entries": 4},
            "faults": {"lease_ttl": 60.0},
        }
        experiment = worker_kit.submit(broker, **{**SPEC, **own})
        leader = Leader(broker, "c1", broker.conn.now_ms(), contact_since_ms=0)
        leader.wait(broker.conn.now_ms())
        leader.tick(broker.conn.now_ms())
        lease, seq = claim_next(broker).lease, 1
        while append(broker, lease, seq).status == "OK":
            seq += 1
        assert append(broker, lease, seq).status == "FULL"
        # When somebody empties the stream
        broker.conn.main.xtrim(keys.experience(experiment, 0), maxlen=0, approximate=False)
        assert append(broker, lease, seq).status == "FULL"
        # Then once that has lasted, the leader tells what is gone, and there is room
        leader.tick(broker.conn.now_ms() + STUCK_MS - 2_000)
        assert append(broker, lease, seq).status == "FULL"
        leader.tick(broker.conn.now_ms() + STUCK_MS)
        assert append(broker, lease, seq).status == "OK"
        told = [line.message for line in broker.events.read(experiment) if "dropped" in line.message]
        assert told == [
            f"dropped batches={seq - 1} because='somebody took them out of the stream; their room is free again'"
        ]


def test_metrics_of_another_kind_keep_nobody_from_the_status_of_an_experiment(
    valkey_server: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given an experiment that runs, and nobody who mends what somebody put in the place of its metrics
    with fresh(valkey_server.url) as broker:
        experiment, epoch = worker_kit.submit(broker, **SPEC), broker.coordinators.claim_leader("c1")
        assert epoch is not None
        broker.experiments.set_status(experiment, "running", leader_epoch=epoch)
        broker.conn.main.set(keys.metrics(experiment), "x")
        # Then it is told how it is, without them
        assert run(["status", experiment, "-o", "json", "--redis-url", valkey_server.url]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["experiment"], told["metrics"], told["slow_shards"]) == (experiment, {}, [])


def test_an_experiment_without_its_ctl_is_removed_whole(fleet: Fleet) -> None:
    # Given one that is trained, and whose ctl somebody deletes
    experiment, broker = fleet.submit("beheaded"), fleet.broker
    eventually(lambda: fleet.trained(experiment) > 0, timeout_s=30)
    broker.conn.main.delete(keys.ctl(experiment))
    # When it is removed
    fleet.trainers[experiment].end()
    broker.experiments.remove(experiment)
    # Then no key of it is left, neither in the list nor under its name
    eventually(lambda: _keys_of(broker.conn.main, experiment) == [], what="no key is left")
    assert broker.conn.main.exists(keys.name("beheaded")) == 0
    with pytest.raises(NotFound):
        broker.experiments.resolve(experiment)


ANEW: dict[Callable[[str], str], list[str]] = {
    keys.ctl: [name for name, make in numbers.CTL.items() if make is not None],
    NEEDED["flow"]: [name for name, make in numbers.FLOW.items() if make is not None],
    keys.status: list(numbers.STATUS),
    keys.trainer: list(numbers.TRAINER),
    NEEDED["shard"]: list(numbers.MADE_ANEW),
}


@pytest.mark.parametrize("value", ["abc", "nan", "1e999"])
def test_a_number_that_somebody_made_none_is_named_with_its_key_and_written_anew(
    valkey_server: LocalServer, value: str
) -> None:
    # Given an experiment that is looked after, with two shards one of which is held
    with fresh(valkey_server.url) as broker:
        raw = broker.conn.main
        experiment = worker_kit.submit(broker, **{**SPEC, "env": {**SPEC["env"], "num_envs": 2}})
        leader = Leader(broker, "c1", broker.conn.now_ms(), contact_since_ms=0)
        leader.wait(broker.conn.now_ms())
        ticket = broker.shards.read_ticket("default", "w1", block_ms=0)
        assert ticket is not None
        broker.shards.claim(ticket, worker="w1", nonce="n1", ttl_ms=60_000)
        for key, fields in ANEW.items():
            name = key(experiment)
            raw.hset(name, mapping=dict.fromkeys(fields, value))
            # When the leader looks, at the latest once somebody met it
            if key is not NEEDED["shard"]:
                broker.damages.note(experiment, Damaged("hash value is not an integer"))
            leader.tick(broker.conn.now_ms() + 60_000)
            # Then each is a number again, and named with what it was
            told = [event.message for event in broker.events.read(experiment, count=200)]
            for field in fields:
                assert not numbers.is_none(field, raw.hget(name, field) or b"", is_counted=True), field
                named = f"mended key={name} field={field} was={value!r} now="
                assert [line for line in told if line.startswith(named)], (named, told)
        # And what can be told from elsewhere is what it was
        leader.tick(broker.conn.now_ms() + 120_000)
        ctl = broker.experiments.ctl(experiment)
        assert (ctl.active, ctl.max_entries, ctl.protocol, ctl.damaged) == (2, 1024, keys.PROTOCOL, "")
        assert raw.hget(keys.ctl(experiment), "shards") == b"2"
        assert broker.experiments.status(experiment).state == "running"
        assert experiment in leader.experiments


EIGHT: dict[str, dict[str, Any]] = {**SPEC, "env": {**SPEC["env"], "num_envs": 8}}


@pytest.mark.parametrize("where", ["a later shard", "ctl"])
def test_a_shard_that_is_gone_beside_a_number_made_none_is_made_anew_and_the_run_can_be_stopped(
    valkey_server: LocalServer, where: str
) -> None:
    # Given an experiment of eight shards that is looked after
    with fresh(valkey_server.url) as broker:
        experiment, raw = worker_kit.submit(broker, **EIGHT), broker.conn.main
        leader = Leader(broker, "c1", broker.conn.now_ms(), contact_since_ms=0)
        leader.wait(broker.conn.now_ms())
        # When somebody deletes one of them and spoils a number besides
        name, field = (keys.ctl(experiment), "shards") if where == "ctl" else (keys.shard(experiment, 0, 5), "attempts")
        raw.delete(keys.shard(experiment, 0, 3))
        raw.hset(name, field, "abc")
        now_ms = broker.conn.now_ms() + 60_000
        for later_ms in range(3):
            leader.tick(now_ms + later_ms)
        # Then both are there again, each named once
        assert [shard.shard for shard in broker.shards.shards(experiment, 0)] == list(range(8))
        told = [event.message for event in broker.events.read(experiment, count=200)]
        now = 8 if where == "ctl" else 0
        assert told.count("created shards=1") == 1, told
        mended = [line for line in told if line.startswith("mended")]
        assert len(mended) == 1 and mended[0].startswith(f"mended key={name} field={field} was='abc' now={now}"), told
        # And a wish to stop is the end
        broker.experiments.set_command(experiment, "stop")
        leader.tick(now_ms + 60_000)
        leader.tick(now_ms + 120_000)
        assert broker.experiments.status(experiment).state == "stopped"


def test_a_shard_that_is_gone_hides_no_lost_number_of_a_later_one(valkey_server: LocalServer) -> None:
    with fresh(valkey_server.url) as broker:
        experiment, raw = worker_kit.submit(broker, **EIGHT), broker.conn.main
        leader = Leader(broker, "c1", broker.conn.now_ms(), contact_since_ms=0)
        leader.wait(broker.conn.now_ms())
        raw.delete(keys.shard(experiment, 0, 3))
        raw.hset(keys.shard(experiment, 0, 5), "seq", "abc")
        leader.tick(broker.conn.now_ms() + 60_000)
        status = broker.experiments.status(experiment)
        assert status.state == "failed"
        assert f"field seq of {keys.shard(experiment, 0, 5)} is 'abc'" in status.reason


@pytest.mark.parametrize(("field", "planned"), [("first_env", "4"), ("num_envs", "1")])
def test_where_a_shard_lies_among_the_environments_is_written_anew_as_it_was_planned(
    valkey_server: LocalServer, field: str, planned: str
) -> None:
    # Given five environments in shards of two, two and one
    with fresh(valkey_server.url) as broker:
        env = {**SPEC["env"], "num_envs": 5, "envs_per_shard": 2}
        experiment, raw = worker_kit.submit(broker, **{**SPEC, "env": env}), broker.conn.main
        leader = Leader(broker, "c1", broker.conn.now_ms(), contact_since_ms=0)
        leader.wait(broker.conn.now_ms())
        # When somebody makes a number of the last one's place none
        name = keys.shard(experiment, 0, 2)
        raw.hset(name, field, "abc")
        leader.tick(broker.conn.now_ms() + 60_000)
        # Then it is what the spec plans, and named
        assert raw.hget(name, field) == planned.encode()
        told = [event.message for event in broker.events.read(experiment, count=200)]
        named = [line for line in told if line.startswith(f"mended key={name} field={field} was='abc' now={planned}")]
        assert len(named) == 1, told


@pytest.mark.parametrize("said", ["inf", "9e15", "dropped"])
def test_a_dead_workers_shard_is_reaped_though_somebody_wrote_no_end_of_its_lease(
    valkey_server: LocalServer, said: str
) -> None:
    # Given a shard whose worker is dead, while nothing says any more when its lease is over
    with fresh(valkey_server.url) as broker:
        raw, experiment = broker.conn.main, worker_kit.submit(broker, **SPEC)
        leader = Leader(broker, "c1", broker.conn.now_ms(), contact_since_ms=0)
        leader.wait(broker.conn.now_ms())
        due, ticket = keys.due(experiment, 0), broker.shards.read_ticket("default", "w1", block_ms=0)
        assert ticket is not None
        broker.shards.claim(ticket, worker="w1", nonce="n1", ttl_ms=1_000)
        raw.delete(keys.lease(experiment, 0, 0))
        raw.zrem(due, "0") if said == "dropped" else raw.zadd(due, {"0": float(said)})

        # When its leader goes on, then it is taken from the dead, a TTL later at most
        def is_free() -> bool:
            leader.tick(broker.conn.now_ms())
            return broker.shards.shards(experiment, 0)[0].state == "queued"

        eventually(is_free, timeout_s=60, every_s=0.1, what="it waits for another worker")
        # And that was told once
        told = [event.message for event in broker.events.read(experiment, count=200)]
        assert len([line for line in told if line.startswith("mended shard=0 because='its lease is over")]) == 1, told


def test_a_dead_workers_shard_is_reaped_though_somebody_made_its_lease_one_without_an_end(
    valkey_server: LocalServer,
) -> None:
    # Given a shard whose worker is dead, and whose lease would stay for ever
    with fresh(valkey_server.url) as broker:
        raw, experiment = broker.conn.main, worker_kit.submit(broker, **SPEC)
        leader = Leader(broker, "c1", broker.conn.now_ms(), contact_since_ms=0)
        leader.wait(broker.conn.now_ms())
        ticket = broker.shards.read_ticket("default", "w1", block_ms=0)
        assert ticket is not None
        broker.shards.claim(ticket, worker="w1", nonce="n1", ttl_ms=1_000)
        assert raw.persist(keys.lease(experiment, 0, 0)) == 1

        # When its leader goes on, then it is taken from the dead all the same
        def is_free() -> bool:
            leader.tick(broker.conn.now_ms())
            return broker.shards.shards(experiment, 0)[0].state == "queued"

        eventually(is_free, timeout_s=60, every_s=0.1, what="it waits for another worker")
        # And that was told once
        told = [event.message for event in broker.events.read(experiment, count=200)]
        assert len([line for line in told if line.startswith("mended shard=0 because='somebody made its lease")]) == 1


def test_a_living_owner_gives_a_lease_without_an_end_one_again_and_keeps_its_shard(valkey_server: LocalServer) -> None:
    with fresh(valkey_server.url) as broker:
        raw, experiment = broker.conn.main, worker_kit.submit(broker, **SPEC)
        epoch = broker.conn.now_ms()
        leader = Leader(broker, "c1", epoch, contact_since_ms=0)
        leader.wait(broker.conn.now_ms())
        lease, ticket = keys.lease(experiment, 0, 0), broker.shards.read_ticket("default", "w1", block_ms=0)
        assert ticket is not None
        claim = broker.shards.claim(ticket, worker="w1", nonce="n1", ttl_ms=60_000)
        assert isinstance(claim, Claim)
        # By its own renewal
        raw.persist(lease)
        (renewal,) = broker.shards.renew(experiment, 0, [(claim.lease, False)], ttl_ms=60_000)
        assert (renewal.status, raw.pttl(lease) > 0) == ("OK", True)
        # And where the leader is first: it takes nothing from whoever renews
        raw.persist(lease)
        raw.zadd(keys.due(experiment, 0), {"0": 5})
        assert broker.damages.mend_dues(experiment, [0], leader_epoch=epoch, ttl_ms=60_000) == [(0, "lease")]
        assert 0 < raw.pttl(lease) <= 60_000
        assert broker.damages.mend_dues(experiment, [0], leader_epoch=epoch, ttl_ms=60_000) == [], "told once"
        assert broker.shards.reap(experiment, 0, leader_epoch=epoch) == []


def test_an_honest_deadline_and_a_living_owners_are_left_as_they_are(valkey_server: LocalServer) -> None:
    with fresh(valkey_server.url) as broker:
        raw, experiment = broker.conn.main, worker_kit.submit(broker, **SPEC)
        epoch = broker.conn.now_ms()
        leader = Leader(broker, "c1", epoch, contact_since_ms=0)
        leader.wait(broker.conn.now_ms())
        due, ticket = keys.due(experiment, 0), broker.shards.read_ticket("default", "w1", block_ms=0)
        assert ticket is not None
        broker.shards.claim(ticket, worker="w1", nonce="n1", ttl_ms=60_000)
        raw.zadd(due, {"0": float("inf")})  # its owner lives, and will write another one
        assert broker.damages.mend_dues(experiment, [0], leader_epoch=epoch, ttl_ms=60_000) == []
        raw.delete(keys.lease(experiment, 0, 0))
        raw.zadd(due, {"0": 5})
        assert broker.damages.mend_dues(experiment, [0], leader_epoch=epoch, ttl_ms=60_000) == []
        assert raw.zscore(due, "0") == 5
        with pytest.raises(LeaderLost):
            broker.damages.mend_dues(experiment, [0], leader_epoch=1, ttl_ms=60_000)
        fresh_one = "gone-000000"
        with pytest.raises(Gone):
            broker.damages.mend_dues(fresh_one, [0], leader_epoch=epoch, ttl_ms=60_000)
        assert raw.exists(keys.due(fresh_one, 0)) == 0


def test_damage_that_was_told_late_ends_nothing_and_one_that_stays_does(valkey_server: LocalServer) -> None:
    # Given an experiment of which somebody met a damaged field that is whole by now
    with fresh(valkey_server.url) as broker:
        experiment = worker_kit.submit(broker, **SPEC)
        leader = Leader(broker, "c1", broker.conn.now_ms(), contact_since_ms=0)
        leader.wait(broker.conn.now_ms())
        met = Damaged("hash value is not an integer")
        for _ in range(MOST_UNFOUND - 1):
            broker.damages.note(experiment, met)
            leader.tick(broker.conn.now_ms())
            assert broker.experiments.status(experiment).state == "running"
            assert broker.experiments.ctl(experiment).damaged == ""
        # When it is met once more, then it is no late word
        broker.damages.note(experiment, met)
        leader.tick(broker.conn.now_ms())
        status = broker.experiments.status(experiment)
        assert status.state == "failed" and f"--resume {experiment}" in status.reason


def test_without_a_coordinator_a_lost_number_is_named_and_one_that_is_only_shown_hides_nothing(
    valkey_server: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with fresh(valkey_server.url) as broker:
        experiment, raw = worker_kit.submit(broker, **SPEC), broker.conn.main
        raw.hset(keys.status(experiment), mapping={"since": "abc", "started": "nan"})
        raw.hset(keys.spec(experiment), "created", "abc")
        raw.hset(keys.ctl(experiment), mapping={"active": "abc", "leader_epoch": "inf"})
        assert broker.experiments.status(experiment).state == "queued"
        assert run(["ls", "--redis-url", valkey_server.url]) == 0
        raw.hset(keys.ctl(experiment), "policy", "abc")
        status = broker.experiments.status(experiment)
        assert f"field policy of {keys.ctl(experiment)} is 'abc'" in status.reason
        for words in (["ls"], ["status", experiment], ["why", experiment]):
            assert run([*words, "--redis-url", valkey_server.url]) == 0, (words, capsys.readouterr().err)


@pytest.mark.parametrize("values", ["nan", "0", "[]"])
def test_measurements_written_by_hand_end_no_trainer_and_no_command(
    fleet: Fleet, values: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given an experiment that has been trained, and a line of measurements that somebody wrote by hand
    experiment, broker = fleet.submit("measured"), fleet.broker
    eventually(lambda: broker.events.metrics_newest(experiment) is not None, timeout_s=60)
    broker.conn.main.xadd(keys.metrics(experiment), {"update": "5", "values": values})
    # When another trainer resumes
    assert fleet.trainers[experiment].leave() is not None
    before = fleet.trained(experiment)
    fleet.train(experiment)
    # Then it goes on, its host can tell how far it is, and everybody sees how it is
    eventually(lambda: fleet.trained(experiment) > before, timeout_s=60, what="it is trained on")
    assert progress_of(broker, experiment)[0] > before
    for words in (["ls"], ["status", experiment], ["why", experiment], ["logs", experiment]):
        assert run([*words, "--redis-url", fleet.url]) == 0, (words, capsys.readouterr().err)


@pytest.mark.parametrize("value", ["banana", "nan", "1e999"])
def test_what_ends_by_damage_is_let_go_by_its_workers_told_once_and_can_be_stopped(
    fleet: Fleet, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given an experiment that is played, and in whose ctl somebody writes a rev and a version that are none
    experiment, broker = fleet.submit("revised"), fleet.broker
    eventually(lambda: fleet.trained(experiment) > 0, timeout_s=60)
    broker.conn.main.hset(keys.ctl(experiment), mapping={"rev": value, "min_policy": value})
    # Then it ends, and is told to stop: nobody plays it any more
    hget = broker.conn.main.hget
    eventually(lambda: hget(keys.ctl(experiment), "command") == b"stop", timeout_s=60, what="it is told to stop")
    assert broker.experiments.status(experiment).state == "failed"
    eventually(lambda: broker.shards.next_due_ms(experiment, 0) is None, timeout_s=60, what="nobody plays it")
    # And who leads next has nothing to tell of it
    epoch = broker.coordinators.claim_leader("c9")
    following = Leader(broker, "c9", epoch or broker.conn.now_ms(), contact_since_ms=0)
    following.take_over(broker.conn.now_ms())
    assert following.experiments == ()
    said = [event.message for event in broker.events.read(experiment, count=200) if event.role == "coordinator"]
    assert len([line for line in said if line.startswith("failed")]) == 1, said
    # And people may still say stop, and are told why nothing else goes
    assert run(["stop", experiment, "--redis-url", fleet.url]) == 0
    assert run(["resume", experiment, "--redis-url", fleet.url]) == Conflict.exit_code
    assert f"--resume {experiment}" in capsys.readouterr().err


def test_a_trainer_waits_until_its_measurements_are_mended(fleet: Fleet) -> None:
    # Given an experiment that has been trained
    experiment, raw = fleet.submit("unmeasured"), fleet.broker.conn.main
    eventually(lambda: fleet.broker.events.metrics_newest(experiment) is not None, timeout_s=60)
    # When somebody puts something else in the place of its measurements
    raw.delete(keys.metrics(experiment))
    raw.set(keys.metrics(experiment), "x")
    # Then they are made anew, and the same trainer goes on
    eventually(lambda: raw.type(keys.metrics(experiment)) == b"stream", timeout_s=60, what="they are made anew")
    before = fleet.trained(experiment)
    eventually(lambda: fleet.trained(experiment) > before, timeout_s=60, what="it is trained on")
    assert fleet.trainers[experiment].is_alive


@pytest.mark.parametrize("told", ["0", "nan", "[]", '{"faults": 3}', "{"])
def test_a_spec_that_is_none_is_no_commands_unexpected_end(
    valkey_server: LocalServer, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with fresh(valkey_server.url) as broker:
        experiment = worker_kit.submit(broker, **SPEC)
        broker.conn.main.hset(keys.spec(experiment), "json", told)
        for words in (["ls"], ["why", experiment]):
            assert run([*words, "--redis-url", valkey_server.url]) == 0, (words, capsys.readouterr().err)
        # And what goes by the spec says what is wrong with it
        for words in (["status", experiment], ["shards", experiment]):
            capsys.readouterr()
            assert run([*words, "--redis-url", valkey_server.url]) == SpecError.exit_code, words
            said = capsys.readouterr().err
            assert f"the spec of {experiment} " in said and f"heddle rm {experiment}" in said, said


@pytest.mark.parametrize("words", [["why"], ["shards", "release"], ["repro"]])
def test_an_absurd_number_of_a_shard_is_a_mistake_of_usage(words: list[str]) -> None:
    assert run([*words, "x/" + "5" * 5_000]) == UsageError.exit_code
