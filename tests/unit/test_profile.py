"""What `heddle profile` counts and shows."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from heddle.broker.metrics import Metric
from heddle.broker.pools import WorkerBeat, WorkerInfo
from heddle.broker.presence import beat_fields, read_worker
from heddle.cli.profile import share_of, trainer_shares
from heddle.lease import Action
from heddle.producers.sampler import Sampler, Seen, phase_of
from tests.helpers import eventually

IDLE = Seen(action=None, is_playing=False, is_stepping=False, is_waiting=False, is_sending=False)


@pytest.mark.parametrize(
    ("seen", "phase"),
    [
        (replace(IDLE, action=Action("step", 0.0, 1.0), is_playing=True, is_stepping=True), "env"),
        (replace(IDLE, action=Action("act", 0.0, 1.0), is_playing=True, is_stepping=True), "policy"),
        (replace(IDLE, action=Action("load", 0.0, 1.0), is_stepping=True), "weights"),
        (replace(IDLE, action=Action("snapshot", 0.0, 1.0), is_stepping=True), "snapshot"),
        (replace(IDLE, is_playing=True, is_stepping=True), "books"),
        (replace(IDLE, is_stepping=True), "encode"),
        (replace(IDLE, is_waiting=True), "wait"),
        (IDLE, "other"),
    ],
)
def test_each_moment_counts_for_what_the_playing_thread_is_at(seen: Seen, phase: str) -> None:
    assert phase_of(seen) == phase


def test_a_sampler_looks_until_it_is_stopped_and_counts_sending_beside_the_rest() -> None:
    sampler = Sampler(lambda: replace(IDLE, is_waiting=True, is_sending=True), every_s=0.001)
    sampler.start()
    eventually(lambda: sampler.counts.get("wait", 0) > 5)
    sampler.stop()
    assert set(sampler.counts) == {"wait", "sending"}
    counted = dict(sampler.counts)
    sampler.sample()
    assert sampler.counts == {what: count + 1 for what, count in counted.items()}


def info(steps: int, profile: Mapping[str, int], *, at_ms: int, pid: int = 7) -> WorkerInfo:
    """As a broker gives it back."""
    beat = WorkerBeat(worker="w1", state="playing", steps=steps, profile=dict(profile), pid=pid)
    flat = [str(part) for part in beat_fields(beat, 10_000)]
    return read_worker("default", "w1", dict(zip(flat[::2], flat[1::2], strict=True)), at_ms, at_ms)


def test_shares_are_those_of_the_time_between_two_looks() -> None:
    before = info(100, {"env": 50, "wait": 100, "sending": 5}, at_ms=1_000)
    after = info(700, {"env": 110, "policy": 20, "wait": 120, "sending": 30, "close": 0}, at_ms=3_000)
    share = share_of(before, after)
    assert share is not None
    assert share["steps_per_second"] == 300.0
    assert (share["env"], share["policy"], share["wait"], share["sending"]) == (0.6, 0.2, 0.2, 0.25)


def test_a_worker_that_was_replaced_or_hardly_seen_has_no_shares() -> None:
    before = info(0, {"env": 5}, at_ms=1_000)
    assert share_of(before, info(9, {"env": 9}, at_ms=2_000)) is None
    assert share_of(before, info(9, {"env": 90}, at_ms=2_000, pid=8)) is None
    assert share_of(before, info(9, {"env": 90}, at_ms=1_000)) is None


def test_a_trainer_learns_waits_or_does_something_else() -> None:
    updates = [Metric(f"{n}-0", n, n, {"update_seconds": 1.0, "wait_seconds": 0.5}) for n in range(2)]
    assert trainer_shares(updates, 10.0) == {"updates": 2, "learning": 0.2, "waiting": 0.1, "other": pytest.approx(0.7)}
    assert trainer_shares([], 10.0) is None
