"""Numbers of an update that nothing fails over: told once, in words."""

from heddle.consumers.oddities import Oddities, where_of


def test_a_metric_that_is_not_finite_and_a_gradient_that_exploded_are_told_once_each() -> None:
    oddities = Oddities()
    assert oddities.among({"policy_loss": 0.3, "grad_norm": 1e5}) == []
    loss, gradient = oddities.among({"policy_loss": float("nan"), "runner.grad_norm": 1.75e8})
    assert loss.startswith("the learner gives policy_loss = nan;")
    assert (
        gradient.startswith("the gradient exploded, runner.grad_norm = 1.75e+08,") and "trainer.grad_limit" in gradient
    )
    assert oddities.among({"policy_loss": float("nan"), "runner.grad_norm": 1e9}) == []
    assert len(oddities.among({"value_loss": float("-inf")})) == 1


def test_an_update_is_named_with_the_first_of_its_shards() -> None:
    assert where_of(3, [1, 0, 1]) == "update 3 on shards 0, 1"
    assert where_of(3, range(20)) == "update 3 on shards 0, 1, 2, 3, 4, 5, 6, 7..."
