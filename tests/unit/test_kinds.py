"""Which key is of which kind, and what is said of one that is not."""

import inspect

import pytest
import redis

from heddle.broker import keys
from heddle.broker.damage import _of_shards, _whole
from heddle.broker.faults import Damaged, translate
from heddle.broker.kinds import Suspects, experiment_of, kind_of, names_in
from heddle.errors import BrokerAmiss, HeddleError

WRONG = redis.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
NO_KEYS = ("tag", "blobs", "news")
"""What names begin with, and a channel."""


def _every_name() -> dict[str, str]:
    """A key of every kind there is, by what makes it."""
    made = {name: value for name, value in vars(keys).items() if isinstance(value, str) and value.startswith("heddle:")}
    for name, make in inspect.getmembers(keys, inspect.isfunction):
        if name not in (*NO_KEYS, "snapshot_seq"):
            arguments = inspect.signature(make).parameters.values()
            made[name] = make(*(3 if one.annotation is int else "a.b-1" for one in arguments))
    return made


def test_every_key_there_is_has_a_kind_and_is_an_experiments_or_shared() -> None:
    for name, key in _every_name().items():
        assert kind_of(key) is not None, name
        assert experiment_of(key) == ("a.b-1" if key.startswith("heddle:{") else ""), name
    assert kind_of(keys.news("e")) is kind_of("heddle:other") is kind_of("mine") is None


def test_kinds_are_those_that_the_leader_looks_for() -> None:
    for key in [*_whole("e-1"), *_of_shards("e-1", [7])]:
        assert kind_of(key.name) == key.kind, key


def _said(command: tuple[object, ...], kinds: dict[str, str]) -> HeddleError | None:
    names = names_in(command)
    return translate(WRONG, "redis://h:1/0", "", suspects=lambda: Suspects(names, lambda name: kinds.get(name, "none")))


def test_a_shared_key_of_another_kind_is_named_with_what_it_holds_should_be_and_what_to_do() -> None:
    error = _said(("EVALSHA", "sha", 2, b"heddle:{e.0}:ctl", keys.pool("gpu")), {keys.pool("gpu"): "list"})
    assert isinstance(error, BrokerAmiss)
    assert error.exit_code == 5
    assert error.key == keys.pool("gpu")
    told = f"{keys.pool('gpu')} holds a list that somebody put there, and should be a hash; nobody can go on with it"
    assert f"{told} until it is removed: redis-cli DEL {keys.pool('gpu')}" in str(error)


def test_an_experiments_key_stays_its_own_trouble_and_is_named_too() -> None:
    error = _said(("HGETALL", keys.flow("e", 0)), {keys.flow("e", 0): "string"})
    assert type(error) is Damaged
    assert f"{keys.flow('e', 0)} holds a string" in str(error)
    assert "a coordinator mends it, or ends the experiment over it, see heddle why e:" in str(error)


@pytest.mark.parametrize("found", ["", "none"])
def test_where_the_server_does_not_tell_which_it_is_all_are_named(found: str) -> None:
    two = names_in(("EVALSHA", "sha", 2, keys.pool("a"), keys.pool_workers("a")))
    error = translate(WRONG, "u", "", suspects=lambda: Suspects(two, lambda _: found))
    assert isinstance(error, BrokerAmiss)
    assert f"{keys.pool('a')} or {keys.pool_workers('a')} holds what Heddle did not write" in str(error)
    mixed = (keys.pool("a"), keys.ctl("e"))
    assert type(translate(WRONG, "u", "", suspects=lambda: Suspects(mixed, lambda _: found))) is Damaged
