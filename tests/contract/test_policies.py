"""Policies: readable before they are announced, by the holder of the seat alone, only rising, the last few kept."""

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heddle.broker import Broker, keys, open_broker
from heddle.broker.policies import KEEP, Policies
from heddle.broker.records import integer, text
from heddle.broker.server import LocalServer
from heddle.errors import BrokerFull, Conflict, Gone, NotFound, PolicyLost, SeatLost
from heddle.plane.weights import HostWeights
from heddle.policies.weights import TornWeights, WeightsError
from tests.contract.specs import all_keys, out_of_memory, submitted


@pytest.fixture(params=["inline", "chunks"])
def policies(request: pytest.FixtureRequest, any_broker: Broker) -> Iterator[Policies]:
    """Small weights, and the same ones in chunks."""
    if request.param == "inline":
        yield Policies(any_broker.conn)
    else:
        yield Policies(any_broker.conn, inline_bytes=4, chunk_bytes=3)


def seated(broker: Broker) -> tuple[str, int]:
    experiment = submitted(broker)
    seat = broker.seats.claim_seat(experiment, "t1")
    assert seat is not None
    return experiment, seat


def test_what_was_published_is_fetched_bit_for_bit(any_broker: Broker, policies: Policies) -> None:
    experiment, seat = seated(any_broker)
    assert policies.publish(experiment, seat, 1, b"\x00weights\xff", update=0) == 1
    assert policies.publish(experiment, seat, 5, memoryview(b"other weights"), update=4) == 5
    assert policies.fetch(experiment) == (5, b"other weights")
    assert policies.fetch(experiment, 1) == (1, b"\x00weights\xff")
    assert policies.latest(experiment) == any_broker.experiments.ctl(experiment).policy == 5
    kept = policies.kept(experiment)
    assert [(info.version, info.update, info.size_bytes, info.seat_epoch) for info in kept] == [
        (1, 0, 9, seat),
        (5, 4, 13, seat),
    ]


def test_weights_of_many_megabytes_come_back_whole(broker: Broker) -> None:
    experiment, seat = seated(broker)
    data = bytes(range(256)) * (20 << 12)
    broker.policies.publish(experiment, seat, 1, data, update=0)
    assert broker.policies.fetch(experiment) == (1, data)
    assert broker.conn.main.strlen(next(key for key in broker.conn.main.scan_iter("*:policy:1:*:0"))) == 8 << 20


def test_versions_only_rise_and_the_same_publish_again_is_no_mistake(any_broker: Broker, policies: Policies) -> None:
    experiment, seat = seated(any_broker)
    policies.publish(experiment, seat, 3, b"weights", update=0)
    assert policies.publish(experiment, seat, 3, b"weights", update=0) == 3
    for version, data in ((2, b"weights"), (3, b"different")):
        with pytest.raises(Conflict, match="not above 3"):
            policies.publish(experiment, seat, version, data, update=0)
    assert policies.fetch(experiment) == (3, b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()[:16]
    live = [key for key in all_keys(any_broker) if f":policy:3:{digest}" in key or key.endswith(":policy:3")]
    assert live and all(any_broker.conn.main.pttl(key) == -1 for key in live)


def test_a_trainer_that_lost_its_seat_can_neither_publish_nor_pin_nor_spoil(
    any_broker: Broker, policies: Policies
) -> None:
    experiment, old = seated(any_broker)
    policies.publish(experiment, old, 1, b"weights 1", update=0)
    any_broker.seats.release_seat(experiment, old)
    new = any_broker.seats.claim_seat(experiment, "t2")
    assert new is not None
    policies.publish(experiment, new, 2, b"weights 2", update=0)
    for version, data in ((2, b"zombie  2"), (3, b"zombie  3"), (2, b"weights 2")):
        with pytest.raises(SeatLost):
            policies.publish(experiment, old, version, data, update=9)
    with pytest.raises(SeatLost):
        policies.set_eval(experiment, old, 2)
    assert policies.fetch(experiment) == (2, b"weights 2")
    # What the zombie sent ahead dissolves; what is announced does not.
    main = any_broker.conn.main
    for key in list(main.scan_iter("*:policy:*")):
        if main.pttl(key) > 0:
            main.unlink(key)
    assert policies.fetch(experiment) == (2, b"weights 2")
    assert any_broker.experiments.ctl(experiment).eval_policy == 0


def test_the_last_versions_and_the_pinned_one_are_kept_and_no_others(any_broker: Broker, policies: Policies) -> None:
    experiment, seat = seated(any_broker)
    policies.publish(experiment, seat, 1, b"weights 1", update=0)
    policies.set_eval(experiment, seat, 1)
    for version in range(2, 9):
        policies.publish(experiment, seat, version, b"weights %d" % version, update=0)
    assert [info.version for info in policies.kept(experiment)] == [1, 6, 7, 8]
    assert policies.fetch(experiment, 1) == (1, b"weights 1")
    policies.set_eval(experiment, seat, 8)
    policies.publish(experiment, seat, 9, b"weights 9", update=0)
    assert [info.version for info in policies.kept(experiment)] == [7, 8, 9]
    assert KEEP == 3
    hashes = [key for key in all_keys(any_broker) if ":policy:" in key and key.count(":") == 3]
    assert len(hashes) == 3
    with pytest.raises(NotFound, match="policy 1 is not kept.*latest is 9"):
        policies.fetch(experiment, 1)


def test_only_what_is_kept_can_be_pinned_and_pins_only_rise(any_broker: Broker) -> None:
    experiment, seat = seated(any_broker)
    policies = any_broker.policies
    with pytest.raises(NotFound):
        policies.set_eval(experiment, seat, 1)
    for version in (1, 2):
        policies.publish(experiment, seat, version, b"weights", update=0)
    policies.set_eval(experiment, seat, 2)
    policies.set_eval(experiment, seat, 2)
    with pytest.raises(Conflict):
        policies.set_eval(experiment, seat, 1)
    assert any_broker.experiments.ctl(experiment).eval_policy == 2


def test_before_the_first_publish_there_is_nothing_to_fetch(any_broker: Broker) -> None:
    experiment, _ = seated(any_broker)
    with pytest.raises(NotFound, match="no policy is published yet"):
        any_broker.policies.fetch(experiment)


@pytest.mark.parametrize("field", ["weights", "sha256"])
def test_bytes_that_are_not_those_published_are_refused(any_broker: Broker, field: str) -> None:
    experiment, seat = seated(any_broker)
    any_broker.policies.publish(experiment, seat, 1, b"weights", update=0)
    any_broker.conn.main.hset(keys.policy(experiment, 1), field, b"tampered")
    with pytest.raises(WeightsError, match="sha256"):
        any_broker.policies.fetch(experiment)


def test_something_else_in_the_place_of_weights_is_refused_as_torn_ones_are(
    any_broker: Broker, policies: Policies
) -> None:
    experiment, seat = seated(any_broker)
    policies.publish(experiment, seat, 1, b"weights", update=0)
    main = any_broker.conn.main
    chunks = list(main.scan_iter("*:policy:1:*")) or [keys.policy(experiment, 1)]
    main.delete(chunks[0])
    main.rpush(chunks[0], "a", "list")
    with pytest.raises(WeightsError, match="something else in the place of policy 1"):
        policies.fetch(experiment)
    policies.publish(experiment, seat, 2, b"weights", update=1)
    assert policies.fetch(experiment) == (2, b"weights")


def test_a_removed_experiment_has_no_policies_and_gets_none(any_broker: Broker) -> None:
    experiment, seat = seated(any_broker)
    any_broker.experiments.remove(experiment)
    before = all_keys(any_broker)
    with pytest.raises(Gone):
        any_broker.policies.publish(experiment, seat, 1, b"weights", update=0)
    with pytest.raises(Gone):
        any_broker.policies.set_eval(experiment, seat, 1)
    with pytest.raises(Gone):
        any_broker.policies.fetch(experiment)
    with pytest.raises(Gone):
        any_broker.policies.kept(experiment)
    assert all_keys(any_broker) == before


def test_a_publish_that_finds_no_memory_changes_nothing_and_a_pin_needs_none(broker: Broker) -> None:
    experiment, seat = seated(broker)
    broker.policies.publish(experiment, seat, 1, b"weights", update=0)
    for policies in (broker.policies, Policies(broker.conn, inline_bytes=4, chunk_bytes=3)):
        with out_of_memory(broker):
            with pytest.raises(BrokerFull):
                policies.publish(experiment, seat, 2, b"weights", update=0)
            policies.set_eval(experiment, seat, 1)
            assert policies.fetch(experiment) == (1, b"weights")
    broker.policies.publish(experiment, seat, 2, b"weights", update=0)
    assert broker.policies.latest(experiment) == 2


def test_eight_workers_of_one_host_fetch_a_version_once_between_them(
    broker: Broker, redis_server: LocalServer, tmp_path: Path
) -> None:
    # Given weights in several chunks, and eight workers with a connection each
    experiment, seat = seated(broker)
    data = os.urandom(1 << 20)
    publisher = Policies(broker.conn, chunk_bytes=300_000)
    publisher.publish(experiment, seat, 1, data, update=0)
    got: list[tuple[int, bytes]] = []
    begin = threading.Barrier(8)

    def work() -> None:
        with open_broker(redis_server.url, role="worker") as own:
            weights = HostWeights(tmp_path).open()
            own.policies.share(weights.get)
            begin.wait(20)
            got.append(own.policies.fetch(experiment))

    threads = [threading.Thread(target=work) for _ in range(8)]
    before = gets(broker)
    # When all want it at once
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    # Then all have it, and the broker was asked for each chunk once
    assert got == [(1, data)] * 8
    assert gets(broker) - before == 4


def gets(broker: Broker) -> int:
    """How often the server was asked for a plain value."""
    stats: Any = broker.conn.main.info("commandstats")
    return int(stats.get("cmdstat_get", {"calls": 0})["calls"])


def test_damaged_chunks_are_not_shared(any_broker: Broker, tmp_path: Path) -> None:
    experiment, seat = seated(any_broker)
    policies = Policies(any_broker.conn, inline_bytes=4, chunk_bytes=3)
    policies.publish(experiment, seat, 1, b"weights", update=0)
    chunk = next(any_broker.conn.main.scan_iter("*:policy:1:*:0"))
    any_broker.conn.main.set(chunk, b"bad")
    weights = HostWeights(tmp_path).open()
    policies.share(weights.get)
    with pytest.raises(WeightsError):
        policies.fetch(experiment)
    any_broker.conn.main.set(chunk, b"wei")
    assert policies.fetch(experiment) == (1, b"weights")
    weights.close()


def _lose(broker: Broker, version: int, *, how: str) -> None:
    main = broker.conn.main
    name = keys.policy(next(iter(broker.experiments.ls())).experiment, version)
    chunks = sorted(main.scan_iter(f"{name}:*"))
    if how == "deleted":
        main.delete(name, *chunks)
    elif how == "a chunk of it deleted" and chunks:
        main.delete(chunks[0])
    elif how == "replaced":
        main.delete(*(chunks or [name]))
        main.rpush((chunks or [name])[0], "a", "list")
    elif how == "no number":
        main.hset(name, "chunks", "abc")
    elif chunks:
        main.set(chunks[0], b"tor")
    else:
        main.hset(name, "weights", b"torn")


@pytest.mark.parametrize("how", ["deleted", "a chunk of it deleted", "replaced", "torn", "no number"])
def test_a_latest_version_that_somebody_spoilt_is_taken_back_and_can_be_published_again(
    any_broker: Broker, policies: Policies, how: str
) -> None:
    # Given two versions, of which somebody spoils the latest
    experiment, seat = seated(any_broker)
    policies.publish(experiment, seat, 1, b"old weights", update=0)
    policies.publish(experiment, seat, 2, b"new weights", update=1)
    _lose(any_broker, 2, how=how)
    # When who cannot read it says so
    with pytest.raises((PolicyLost, TornWeights)) as found:
        policies.fetch(experiment)
    assert isinstance(found.value, PolicyLost | TornWeights) and found.value.version == 2
    assert policies.take_back(experiment, 2) is True
    # Then the one before is the latest, until it is published again under its own number
    assert policies.take_back(experiment, 2) is False, "said by the next who met it"
    assert policies.fetch(experiment) == (1, b"old weights")
    assert policies.publish(experiment, seat, 2, b"new weights", update=1) == 2
    assert policies.fetch(experiment) == (2, b"new weights")
    assert [kept.version for kept in policies.kept(experiment)] == [1, 2]


def test_a_pinned_version_that_is_lost_is_pinned_no_more(any_broker: Broker, policies: Policies) -> None:
    experiment, seat = seated(any_broker)
    for version in (1, 2):
        policies.publish(experiment, seat, version, b"weights", update=0)
        any_broker.policies.set_eval(experiment, seat, 1)
    _lose(any_broker, 1, how="deleted")
    with pytest.raises(PolicyLost) as found:
        policies.fetch(experiment, 1)
    assert policies.take_back(experiment, found.value.version) is True
    ctl = any_broker.experiments.ctl(experiment)
    assert (ctl.policy, ctl.eval_policy) == (2, 0)
    any_broker.policies.set_eval(experiment, seat, 2)
    assert any_broker.experiments.ctl(experiment).eval_policy == 2


def test_nobody_takes_back_a_version_that_was_followed_by_another(any_broker: Broker, policies: Policies) -> None:
    experiment, seat = seated(any_broker)
    for version in (1, 2):
        policies.publish(experiment, seat, version, b"weights", update=0)
    assert policies.take_back(experiment, 1) is False
    assert policies.fetch(experiment)[0] == 2
    assert policies.take_back("nothing", 1) is False


def test_a_version_that_was_published_again_before_its_loss_is_said_stays(
    any_broker: Broker, policies: Policies
) -> None:
    # Given two versions, of which the latest is found missing
    experiment, seat = seated(any_broker)
    policies.publish(experiment, seat, 1, b"old weights", update=0)
    policies.publish(experiment, seat, 2, b"new weights", update=1)
    main: Any = any_broker.conn.main
    chunks = [text(key) for key in sorted(main.scan_iter(f"{keys.policy(experiment, 2)}:*"))]
    sha256 = text(main.hget(keys.policy(experiment, 2), "sha256"))
    _lose(any_broker, 2, how="deleted")
    assert policies.take_back(experiment, 2) is True
    # When its trainer publishes it again, and others who found it missing say so only then
    assert policies.publish(experiment, seat, 2, b"new weights", update=1) == 2
    said = [keys.ctl(experiment), keys.policy(experiment, 2)]
    # Then it stays the latest, by the script alone, be its hash or a part of it what was missing, and by all of it
    assert integer(any_broker.conn.script("policy_lost", said, [2, "", "gone"])) == 0
    assert integer(any_broker.conn.script("policy_lost", [*said, *chunks], [2, sha256, "gone"])) == 0
    assert integer(any_broker.conn.script("policy_lost", [*said, "heddle:{x.0}:nothing"], [2, "other", "gone"])) == 0
    assert policies.take_back(experiment, 2) is False
    assert policies.fetch(experiment) == (2, b"new weights")


def test_a_part_that_a_late_trainer_mends_does_not_run_out_under_the_version_of_the_next_one(
    any_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a trainer that finds a part of its weights there, and is frozen
    experiment, seat = seated(any_broker)
    late, heir = (Policies(any_broker.conn, inline_bytes=4, chunk_bytes=3) for _ in range(2))
    main: Any = any_broker.conn.main
    digest = hashlib.sha256(b"weights").hexdigest()
    main.set(keys.policy_chunk(experiment, 1, digest[:16], 0), b"wei", px=60_000)

    def frozen(name: str, chunk: memoryview) -> bool:
        # When it ran out, the next trainer published the same weights, and the first one wakes
        monkeypatch.undo()
        main.delete(name)
        any_broker.seats.release_seat(experiment, seat)
        epoch = any_broker.seats.claim_seat(experiment, "t2")
        assert epoch is not None and heir.publish(experiment, epoch, 1, b"weights", update=0) == 1
        return False

    monkeypatch.setattr(late, "_is_whole", frozen)
    with pytest.raises(SeatLost):
        late.publish(experiment, seat, 1, b"weights", update=0)
    # Then all of the version stays
    assert [main.ttl(name) for name in main.scan_iter(f"{keys.policy(experiment, 1)}*")] == [-1] * 4
    assert heir.fetch(experiment) == (1, b"weights")


def test_a_part_that_found_room_stays_while_the_others_are_tried_again(broker: Broker) -> None:
    # Given one part of a version there, soon over, and no memory for the rest
    experiment, seat = seated(broker)
    policies = Policies(broker.conn, inline_bytes=4, chunk_bytes=3)
    name = keys.policy_chunk(experiment, 1, hashlib.sha256(b"weights").hexdigest()[:16], 0)
    main: Any = broker.conn.main
    main.set(name, b"wei", px=10_000)
    # When the version is tried again
    with out_of_memory(broker), pytest.raises(BrokerFull):
        policies.publish(experiment, seat, 1, b"weights", update=0)
    # Then that part need not find room anew
    assert main.pttl(name) > 60_000
    assert policies.publish(experiment, seat, 1, b"weights", update=0) == 1
    assert main.pttl(name) == -1


def test_what_somebody_wrote_behind_the_versions_that_are_kept_is_none_of_them_when_the_latest_is_taken_back(
    any_broker: Broker,
) -> None:
    experiment, seat = seated(any_broker)
    for version in (1, 2):
        any_broker.policies.publish(experiment, seat, version, b"weights", update=0)
    main: Any = any_broker.conn.main
    kept = text(main.hget(keys.ctl(experiment), "versions"))
    main.hset(keys.ctl(experiment), "versions", f"{kept} x:y:zz 9:9 :")
    main.delete(keys.policy(experiment, 2))
    assert any_broker.policies.take_back(experiment, 2) is True
    assert any_broker.policies.latest(experiment) == 1


def test_what_somebody_writes_between_the_versions_that_are_kept_is_passed_over(any_broker: Broker) -> None:
    experiment, seat = seated(any_broker)
    any_broker.policies.publish(experiment, seat, 1, b"weights", update=0)
    main: Any = any_broker.conn.main
    name, kept = keys.ctl(experiment), text(main.hget(keys.ctl(experiment), "versions"))
    for odd in ("9:9", "x:y:zz", "1:2:3:4", ":", "9" * 5_000 + ":1:ab"):
        main.hset(name, "versions", f"{odd} {kept}")
        assert [info.version for info in any_broker.policies.kept(experiment)] == [1]
        kept = text(main.hget(name, "versions"))
    any_broker.policies.publish(experiment, seat, 2, b"weights", update=1)
    assert [info.version for info in any_broker.policies.kept(experiment)] == [1, 2]
