"""Advantages, against cases worked out by hand."""

import torch
from torch import Tensor

from heddle.consumers.learners.gae import gae, next_values, scatter_finals

GAMMA, LAM = 0.5, 0.5


def row(*numbers: float) -> Tensor:
    """One segment."""
    return torch.tensor([numbers], dtype=torch.float32)


def flags(*numbers: int) -> Tensor:
    return torch.tensor([numbers], dtype=torch.bool)


def advantages(
    rewards: Tensor,
    values: Tensor,
    *,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor | None = None,
    final_values: Tensor | None = None,
    lam: float = LAM,
) -> list[float]:
    following = next_values(
        values,
        terminated=terminated,
        truncated=truncated,
        final_values=torch.zeros_like(rewards) if final_values is None else final_values,
    )
    return gae(
        rewards,
        values,
        following,
        ended=terminated | truncated,
        valid=torch.ones_like(terminated) if valid is None else valid,
        gamma=GAMMA,
        lam=lam,
    )[0].tolist()


def test_a_segment_inside_an_episode_bootstraps_from_its_last_observation() -> None:
    # delta: 1+.5*4-2 = 1; 1+.5*6-4 = 0; 1+.5*8-6 = -1.  A2 = -1; A1 = 0+.25*-1; A0 = 1+.25*-.25
    none = flags(0, 0, 0)
    found = advantages(row(1, 1, 1), row(2, 4, 6, 8), terminated=none, truncated=none)
    assert found == [0.9375, -0.25, -1.0]


def test_termination_cuts_the_bootstrap_and_the_trace() -> None:
    # delta: 1+.5*4-2 = 1; 1+0-4 = -3; 1+.5*8-6 = -1.  A2 = -1; A1 = -3; A0 = 1+.25*-3
    found = advantages(row(1, 1, 1), row(2, 4, 6, 8), terminated=flags(0, 1, 0), truncated=flags(0, 0, 0))
    assert found == [0.25, -3.0, -1.0]


def test_truncation_bootstraps_from_the_final_observation_and_cuts_the_trace() -> None:
    # delta1: 1+.5*10-4 = 2; the next episode's first value, 6, plays no part in it
    found = advantages(
        row(1, 1, 1),
        row(2, 4, 6, 8),
        terminated=flags(0, 0, 0),
        truncated=flags(0, 1, 0),
        final_values=row(0, 10, 0),
    )
    assert found == [1.5, 2.0, -1.0]


def test_terminated_and_truncated_together_count_as_terminated() -> None:
    both = advantages(
        row(1, 1, 1), row(2, 4, 6, 8), terminated=flags(0, 1, 0), truncated=flags(0, 1, 0), final_values=row(0, 99, 0)
    )
    one = advantages(row(1, 1, 1), row(2, 4, 6, 8), terminated=flags(0, 1, 0), truncated=flags(0, 0, 0))
    assert both == one


def test_a_short_segment_bootstraps_from_the_observation_after_its_last_step() -> None:
    # Length 2: delta0 = 1, delta1 = 1+.5*6-4 = 0; what lies beyond, even NaN, changes nothing
    found = advantages(
        row(1, 1, float("nan")),
        row(2, 4, 6, float("nan")),
        terminated=flags(0, 0, 0),
        truncated=flags(0, 0, 0),
        valid=flags(1, 1, 0),
    )
    assert found == [1.0, 0.0, 0.0]


def test_an_episode_that_ends_with_the_segment_ignores_the_next_one() -> None:
    found = advantages(row(1, 1), row(2, 4, 100), terminated=flags(0, 1), truncated=flags(0, 0))
    assert found == [0.25, -3.0]
    found = advantages(
        row(1, 1), row(2, 4, 100), terminated=flags(0, 0), truncated=flags(0, 1), final_values=row(0, 10)
    )
    assert found == [1.5, 2.0]


def test_lambda_one_gives_discounted_returns_minus_values() -> None:
    # 1+.5*(1+.5*(1+.5*8)) = 2.75; 1+.5*5 = 3.5; 1+4 = 5
    none = flags(0, 0, 0)
    found = advantages(row(1, 1, 1), row(2, 4, 6, 8), terminated=none, truncated=none, lam=1.0)
    assert found == [0.75, -0.5, -1.0]


def test_lambda_zero_gives_one_step_differences() -> None:
    none = flags(0, 0, 0)
    assert advantages(row(1, 1, 1), row(2, 4, 6, 8), terminated=none, truncated=none, lam=0.0) == [1.0, 0.0, -1.0]


def test_segments_do_not_touch_each_other() -> None:
    # Given two segments in one call, and each alone
    rewards, values = torch.randn(2, 5), torch.randn(2, 6)
    terminated = torch.tensor([[0, 0, 1, 0, 0], [0, 1, 0, 0, 0]], dtype=torch.bool)
    valid = torch.ones(2, 5, dtype=torch.bool)

    def run(rows: slice) -> Tensor:
        following = next_values(
            values[rows], terminated=terminated[rows], truncated=~valid[rows], final_values=torch.zeros(2, 5)[rows]
        )
        return gae(
            rewards[rows], values[rows], following, ended=terminated[rows], valid=valid[rows], gamma=0.9, lam=0.8
        )

    # Then together is as alone
    torch.testing.assert_close(run(slice(0, 2)), torch.cat([run(slice(0, 1)), run(slice(1, 2))]))


def test_final_values_land_on_their_steps() -> None:
    spread = scatter_finals(torch.tensor([7.0, 8.0]), torch.tensor([[0, 1], [1, 0]]), like=torch.zeros(2, 2))
    assert spread.tolist() == [[0.0, 7.0], [8.0, 0.0]]
    assert scatter_finals(torch.zeros(0), torch.zeros(0, 2, dtype=torch.int64), like=torch.zeros(1, 2)).tolist() == [
        [0, 0]
    ]
