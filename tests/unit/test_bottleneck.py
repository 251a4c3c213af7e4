"""Where batches spend their time, in words: a table of what was measured and what that means."""

import re

import pytest

from heddle.broker.experience_types import Pointer
from heddle.consumers.journey import play_step_metrics, quantile
from heddle.states.bottleneck import STAGES, find_bottleneck, find_uneven


def values(**seconds: float) -> dict[str, float]:
    """What an update measures, a tenth of a second in everything that is not said."""
    names = {f"{stage.replace(' ', '_')}_seconds": 0.1 for stage in STAGES}
    names |= {f"slowest_{stage}_seconds": 0.2 for stage in ("rollout", "append", "stream", "queue")}
    names |= {"slowest_shard": 3.0, "slowest_epoch": 17.0, "slowest_seq": 9.0, "wait_seconds": 0.0}
    names |= {"longest_shard": 3.0, "longest_rollout_seconds": 0.1}
    return names | {f"{name}_seconds" if name in STAGES else name: value for name, value in seconds.items()}


@pytest.mark.parametrize(
    ("measured", "who", "told"),
    [
        (values(stream=1.0, update=0.3), "trainer", r"^56% of the time batches wait in the stream: the trainer is the"),
        (values(append=5.0), "trainer", "wait for room in the stream: the trainer is the bottleneck"),
        (values(append=5.0, wait_seconds=9.0), "broker", "the broker, or the way to it, is the bottleneck"),
        (values(stream=5.0, wait_seconds=9.0), "broker", "though the trainer waits for them"),
        (values(rollout=5.0, wait_seconds=5.0), "workers", r"batches are being played: the workers are .*waits 96%"),
        (values(rollout=5.0, update=4.0), "trainer", "and yet the trainer is the bottleneck; the trainer learns 98%"),
        (values(queue=5.0, wait_seconds=5.0), "workers", "the slowest workers are the bottleneck"),
        (values(queue=5.0), "trainer", "the update before theirs"),
        (values(update=5.0, wait_seconds=9.0), "trainer", "the learner is the bottleneck"),
        (values(publish=5.0), "broker", "publishing is the bottleneck"),
        (values(first_use_seconds=5.0), "policy", "a new policy lies unused"),
    ],
)
def test_the_stage_that_takes_most_and_who_waits_say_who_the_bottleneck_is(
    measured: dict[str, float], who: str, told: str
) -> None:
    found = find_bottleneck([(1, measured), (2, measured)])
    assert found is not None
    assert found.who == who
    assert re.search(told, found.verdict), found.verdict
    assert found.do


def test_shares_add_up_and_stages_stand_in_their_order() -> None:
    found = find_bottleneck([(1, values(stream=1.0)), (2, values(stream=2.0))])
    assert found is not None
    assert [stage.name for stage in found.stages] == list(STAGES)
    assert sum(stage.share for stage in found.stages) == pytest.approx(1.0)
    assert next(stage.seconds for stage in found.stages if stage.name == "stream") == 1.5
    assert found.total == pytest.approx(1.5 + 0.6)


def test_what_an_update_did_not_measure_counts_in_no_mean() -> None:
    first = {name: value for name, value in values().items() if "stream" not in name and "first_use" not in name}
    found = find_bottleneck([(1, first), (2, values(stream=1.0))])
    assert found is not None
    assert next(stage.seconds for stage in found.stages if stage.name == "stream") == 1.0


def test_runs_of_versions_that_measured_nothing_have_no_bottleneck() -> None:
    assert find_bottleneck([]) is None
    assert find_bottleneck([(1, {"update_seconds": 1.0, "return": 3.0})]) is None


def test_the_slowest_batches_come_first_with_the_stage_they_were_longest_in() -> None:
    slow = values() | {"slowest_stream_seconds": 4.0, "slowest_shard": 1.0, "slowest_seq": 7.0}
    found = find_bottleneck([(1, values()), (2, slow)])
    assert found is not None
    first, second = found.slowest
    assert (first.update, first.shard, first.epoch, first.seq, first.most_in) == (2, 1, 17, 7, "stream")
    assert first.total == pytest.approx(4.0 + 3 * 0.2 + 0.1)
    assert second.total < first.total


def test_a_shard_that_plays_much_longer_than_the_others_is_named() -> None:
    points = [(n, values(queue=5.0, wait_seconds=0.9) | {"longest_rollout_seconds": 0.9}) for n in range(3)]
    found = find_bottleneck(points)
    assert found is not None
    assert found.verdict.endswith("; shard 3 takes 0.90 s to play a batch, the mean is 0.10 s")
    assert "heddle why EXP/3" in found.do and "more workers" not in found.do, "more workers do not help"
    two = find_bottleneck([(n, one | {"longest_shard": float(n % 2)}) for n, one in points * 4])
    assert two is not None
    assert "; shards 0, 1 take 0.90 s" in two.verdict
    chance = find_bottleneck([(n, one | {"longest_shard": float(n)}) for n, one in enumerate([points[0][1]] * 8)])
    assert chance is not None
    assert "shard" not in chance.verdict, "each time another one is chance"


def test_no_shard_is_called_slow_whose_time_does_not_explain_what_is_waited() -> None:
    # Given one that takes 20 ms where the others take 10, while the trainer waits half a second for something else
    took = values(rollout=0.01, queue=5.0, wait_seconds=0.5) | {"longest_rollout_seconds": 0.02}
    found = find_bottleneck([(update, took) for update in range(50)])
    assert found is not None and found.uneven is None
    assert "shard" not in found.verdict
    # When that is what it waits for, then it is
    mostly = [(update, took | {"wait_seconds": 0.02}) for update in range(1, 8)]
    assert find_uneven(mostly) is not None
    # Nor does the first update hide it, which waited for workers that had yet to come
    assert find_uneven([(0, took | {"wait_seconds": 30.0}), *mostly]) is not None


def test_no_shard_is_called_slow_where_playing_takes_less_than_batches_tell() -> None:
    took = {"rollout_seconds": 0.0, "longest_shard": 0.0, "longest_rollout_seconds": 0.0}
    assert find_uneven([(update, took) for update in range(50)]) is None


def test_quantiles_are_values_that_were_seen_and_an_empty_batch_has_no_time_of_a_step() -> None:
    assert [quantile([3.0, 1.0, 2.0], share) for share in (0.01, 0.5, 0.95, 1.0)] == [1.0, 2.0, 3.0, 3.0]
    pointers = [pointer(played_ms=ms, steps=steps) for ms, steps in ((10, 100), (20, 100), (900, 100), (5, 0))]
    assert play_step_metrics(pointers) == {
        "play_step_p50_seconds": 0.0002,
        "play_step_p95_seconds": 0.009,
        "play_step_max_seconds": 0.009,
    }
    assert play_step_metrics([pointer(played_ms=5, steps=0)]) == {}


def pointer(*, played_ms: int, steps: int) -> Pointer:
    zeros = {"version_min": 1, "version_max": 1, "segments": 1, "bytes": 1, "crc32": 0, "blob_key": "k"}
    return Pointer("1-0", 0, 1, "n", 1, "train", steps=steps, played_ms=played_ms, **zeros)  # type: ignore[arg-type]
