"""When a snapshot is taken, and how a new owner begins."""

from typing import Any

import pytest

from heddle.broker import keys
from heddle.broker.types import Claim, Lease
from heddle.clock import ManualClock
from heddle.errors import NotSnapshottable
from heddle.producers.snapshot_rule import Beginning, Camera, begin
from heddle.spec import ExperimentSpec
from tests.unit.fake_envs import spec_of

E = "walk-1a2b"


def _spec(**changes: Any) -> ExperimentSpec:
    faults = {name: value for name, value in changes.items() if name != "snapshot_bytes"}
    limits = {name: value for name, value in changes.items() if name == "snapshot_bytes"}
    return spec_of(faults=faults, limits=limits)


def _claim(**values: Any) -> Claim:
    lease = Lease(E, 0, 3, "w", 90, "nonce")
    facts: dict[str, Any] = {"command": "run", "policy": 1, "min_policy": 0, "eval_policy": 0, "sync": False}
    facts |= {"seq": 7, "given": 0, "snapshot": _key(7), "kind": "train", "attempts": 2}
    return Claim(lease=lease, **{**facts, **values})


def _key(seq: int, *, experiment: str = E, shard: int = 3) -> str:
    return keys.snapshot(experiment, 0, shard, 80, "other", seq)


@pytest.mark.parametrize(
    ("claim", "faults", "expected"),
    [
        (_claim(), {}, Beginning(snapshot=_key(7))),
        (_claim(deaths=2), {}, Beginning(snapshot=_key(7))),
        (_claim(deaths=3), {}, Beginning(reason="owners in a row that ended without a batch: 3")),
        (_claim(deaths=1), {"barren_deaths": 2}, Beginning(reason="owners in a row that ended without a batch: 1")),
        (_claim(seq=0, snapshot=None), {}, Beginning(at_start=True)),
        (_claim(seq=0, snapshot=None, deaths=3), {}, Beginning(reason="owners in a row that ended without a batch: 3")),
        (_claim(snapshot=None), {}, Beginning(reason="it has no snapshot")),
        (_claim(snapshot=None, no_snapshot="a lock"), {}, Beginning(reason="a lock")),
        (_claim(seq=8), {}, Beginning(reason="its snapshot is of batch 7, not of batch 8")),
        (_claim(seq=6), {}, Beginning(reason="its snapshot is of batch 7, not of batch 6")),
        (_claim(), {"snapshot_every": 0}, Beginning()),
        (_claim(kind="eval"), {}, Beginning()),
    ],
)
def test_an_owner_continues_only_behind_the_very_last_batch(
    claim: Claim, faults: dict[str, Any], expected: Beginning
) -> None:
    assert begin(claim, _spec(**faults)) == expected


@pytest.mark.parametrize(
    "key",
    [
        _key(7, shard=4),
        _key(7, experiment="other-1a2b"),
        _key(7, experiment=f"{E}0"),
        _key(7, shard=33),
        keys.blob(E, 0, 3, 80, "other", 7),
        keys.policy(E, 7),
        "7",
        f"{_key(7)}x",
        "",
    ],
)
def test_only_bytes_under_this_shards_own_snapshot_keys_are_read(key: str) -> None:
    beginning = begin(_claim(snapshot=key), _spec())
    assert beginning.snapshot is None
    assert "of another shard" in beginning.reason


def _camera(spec: ExperimentSpec, **options: Any) -> Camera:
    return Camera(spec, clock=options.pop("clock", None) or ManualClock(), **options)


def _take(camera: Camera, sizes: list[int]) -> str:
    """One letter a batch: s with a snapshot, - without."""
    taken = ""
    for size in sizes:
        due = camera.is_due(1.0)
        taken += "s" if due and camera.take(lambda size=size: bytes(size)) is not None else "-"  # type: ignore[misc]
    return taken


@pytest.mark.parametrize(("every", "expected"), [(1, "ssssss"), (2, "s-s-s-"), (4, "s---s-"), (0, "------")])
def test_a_snapshot_travels_with_the_first_batch_and_every_nth(every: int, expected: str) -> None:
    assert _take(_camera(_spec(snapshot_every=every)), [10] * 6) == expected


@pytest.mark.parametrize(
    ("play_s", "cost_s", "expected"),
    [(1.0, 0.02, "ssssssss"), (1.0, 0.05, "s-s-s-s-"), (1.0, 0.1, "s---s---"), (0.001, 1.0, "s-------")],
)
def test_left_to_us_snapshots_cost_at_most_three_percent_of_the_playing(
    play_s: float, cost_s: float, expected: str
) -> None:
    clock = ManualClock()
    camera, taken = _camera(_spec(), clock=clock), ""

    def pack() -> bytes:
        clock.advance(cost_s)
        return b"state"

    for _ in range(8):
        clock.advance(play_s)
        taken += "s" if camera.is_due(play_s) and camera.take(pack) else "-"
    assert taken == expected


def test_above_the_cap_none_is_kept_and_looks_become_rare_until_one_is_small_enough() -> None:
    camera = _camera(_spec(snapshot_bytes=1024))
    assert _take(camera, [1024, 1025, 1025, 1025]) == "s---"
    assert camera.trouble == "a snapshot of 1025 bytes is above limits.snapshot_bytes = 1024"
    assert _take(camera, [1025] * 10) == "-" * 10
    assert "s" in _take(camera, [100] * 10)
    assert camera.trouble == ""
    assert _take(camera, [100] * 3) == "sss"


def test_an_environment_that_cannot_be_snapshotted_is_asked_once_and_told_once() -> None:
    camera = _camera(_spec())

    def refuse() -> bytes:
        raise NotSnapshottable("a lock")

    assert camera.is_due(1.0)
    assert camera.take(refuse) is None
    assert (camera.news(), camera.news()) == ("a lock", "")
    assert not any(camera.is_due(1.0) for _ in range(100))
    again = _camera(_spec(), known="a lock")
    assert again.is_due(1.0)
    assert again.take(refuse) is None
    assert again.news() == ""
