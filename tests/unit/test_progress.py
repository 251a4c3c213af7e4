"""Counters that a checkpoint carries over, and what is reported of them."""

import json

import numpy as np
import pytest

from heddle.checkpoint import Checkpoint
from heddle.consumers.progress import Progress
from heddle.consumers.report import lag_metrics, progress_metrics


def trained(episodes: int) -> Progress:
    progress = Progress()
    progress.add_batches(batches=2, steps=64)
    progress.add_episodes(np.arange(episodes, dtype=np.float64), np.full(episodes, 3))
    return progress


def checkpoint_of(progress: Progress) -> Checkpoint:
    return Checkpoint(
        experiment="e",
        spec_json="{}",
        spec_sha256="",
        spaces={},
        seat_epoch=1,
        update=progress.update,
        policy_version=1,
        env_steps=progress.env_steps,
        episodes=progress.episodes,
        counters=json.loads(json.dumps(progress.counters())),
        extra=json.loads(json.dumps(progress.extra())),
        best_return=progress.best_return,
    )


def test_a_mean_over_fewer_episodes_than_the_window_decides_nothing() -> None:
    assert (trained(0).mean_return, trained(99).whole_window_return) == (None, None)
    assert trained(99).mean_return == pytest.approx(49.0)
    assert trained(120).whole_window_return == pytest.approx(np.arange(20, 120).mean())


def test_progress_survives_a_checkpoint() -> None:
    progress = trained(5)
    progress.best_return, progress.eval_return, progress.wall_s = 4.0, 3.0, 12.5
    assert Progress.resumed(checkpoint_of(progress), same_stream=True) == progress


def test_another_experiments_checkpoint_says_nothing_about_this_stream() -> None:
    continued = Progress.resumed(checkpoint_of(trained(5)), same_stream=False)
    assert (continued.env_steps, continued.flow_batches, continued.flow_steps) == (64, 0, 0)


def test_lags_are_counted_from_the_weights_that_the_update_began_with() -> None:
    metrics = lag_metrics([9, 9, 8, 3, 2], latest=9, same=frozenset({9, 8}))
    assert metrics == {"lag_mean": 13 / 5, "lag_max": 7, "lag_0": 3, "lag_6": 1, "lag_7": 1}


def test_returns_are_reported_once_there_are_some() -> None:
    assert "return" not in progress_metrics(trained(0))
    assert progress_metrics(trained(3))["return"] == pytest.approx(1.0)
