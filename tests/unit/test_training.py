"""Training: a probe that leaves nothing behind, and old files that are no trouble."""

import math
import re
from pathlib import Path
from typing import Any, Never

import numpy as np
import pytest
import torch
from torch import nn

from heddle.broker.experience_types import Pointer
from heddle.broker.records import StoredSpec
from heddle.consumers.progress import Progress
from heddle.consumers.reader import Loaded
from heddle.consumers.setting import Setting
from heddle.consumers.training import Training
from heddle.errors import ExperimentFailed
from heddle.layout import Segments, make_layout
from heddle.policies import make_policy
from heddle.spaces import Box, Discrete
from heddle.spec import load_spec
from tests.trainer_kit import ENVS, SPEC, STEPS

OBSERVATION, ACTION = Box((4,), "float32"), Discrete(2)


def make_training(home: Path | None = None, **sections: dict[str, Any]) -> Training:
    """The learner of the kit, or of these sections."""
    spec = load_spec({name: {**SPEC.get(name, {}), **sections.get(name, {})} for name in {*SPEC, *sections}}).spec
    policy = make_policy(spec.policy, OBSERVATION, ACTION, seed=1)
    layout = make_layout(OBSERVATION, ACTION, steps=STEPS, outputs=policy.outputs)
    stored = StoredSpec("test-1", "test", "", "", "", spec.canonical_json(), spec.sha256(), "", "", 2, 0, None)
    return Training(Setting(stored, spec, OBSERVATION, ACTION, policy, layout, ()), home=home, seat_epoch=7)


def batch(training: Training) -> Loaded:
    segments = Segments.empty(training._assembler.layout, ENVS)
    segments.arrays["length"][:] = STEPS
    segments.arrays["env"][:] = np.arange(ENVS)
    pointer = Pointer("1-0", 0, 1, "n", 1, "train", 1, 1, ENVS, ENVS * STEPS, 0, 0, "w1")
    return Loaded(pointer, segments)


def test_a_learner_that_keeps_files_is_probed_without_saving_or_loading_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = {"capacity": "64KiB", "learning_starts": 1, "samples_per_step": 2.0}
    training = make_training(tmp_path, policy={"id": "q"}, trainer={"learner": "dqn", "minibatch": 8, "replay": replay})
    called: list[str] = []
    monkeypatch.setattr(training.learner, "state", lambda: called.append("state"))
    monkeypatch.setattr(training.learner, "load", lambda *state: called.append("load"))
    before = training.weights()
    training.probe(batch(training), Progress())
    assert called == [] and list(tmp_path.iterdir()) == []
    assert all(np.array_equal(array, training.weights()[name]) for name, array in before.items())


def test_a_learner_that_cannot_give_its_state_for_a_probe_fails_with_its_name(tmp_path: Path) -> None:
    training = make_training(trainer={"kwargs": {"hooks": str(tmp_path)}})
    training.probe(batch(training), Progress())
    assert training.state() == ({}, {"seen": []})
    (tmp_path / "fail-state").touch()
    with pytest.raises(ExperimentFailed, match=r"Recorder cannot go back to where it was: .*the learner fell over"):
        training.probe(batch(training), Progress())


def test_old_files_that_a_learner_cannot_delete_are_no_trouble_with_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def keep(metas: list[dict[str, Any]]) -> None:
        raise OSError(13, "Permission denied")

    training = make_training()
    training.keep([{"seen": []}])
    monkeypatch.setattr(training.learner, "keep", keep, raising=False)
    training.keep([{"seen": []}])
    assert "cannot delete old files" in caplog.text


class Unspeakable:
    """Nothing about it can be asked."""

    def __float__(self) -> float:
        raise ZeroDivisionError("no number")

    def __repr__(self) -> str:
        raise ZeroDivisionError("no words")


ODD: dict[str, tuple[Any, str]] = {
    "a list": ({"policy_loss": [1, 2]}, "the metric 'policy_loss' = [1, 2], expected one number"),
    "a text": ({"x": "1.0"}, "the metric 'x' = '1.0', expected one number"),
    "nothing": ({"a": 1.0, "x": None}, "the metric 'x' = None, expected one number"),
    "numpy": ({"x": np.ones(2)}, "the metric 'x' = a ndarray of shape [2], expected one number; of a tensor give"),
    "torch": (
        {"loss": torch.ones(2, 3, requires_grad=True) * 2},
        "the metric 'loss' = a Tensor of shape [2, 3], expected one number; of a tensor give its mean, say",
    ),
    "too large": ({"x": 10**400}, "the metric 'x' = 1000"),
    "of thousands of digits": ({"x": 10**5_000}, "the metric 'x' = a int, expected one number"),
    "complex": ({"x": torch.tensor(1j)}, "the metric 'x' = tensor(0.+1.j), expected one number"),
    "one that raises": ({"x": Unspeakable()}, "the metric 'x' = a Unspeakable, expected one number"),
    "a name that is none": ({3: 1.0}, "a metric named 3, expected a dict of names to numbers"),
    "no dict": (None, "the metrics None, expected a dict of names to numbers"),
    "pairs": ([("x", 1.0)], "the metrics [('x', 1.0)], expected a dict of names to numbers"),
}


@pytest.mark.parametrize("what", ODD)
def test_a_metric_that_is_no_number_is_a_failure_of_the_learner_with_its_name(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, told = ODD[what]
    training = make_training()
    monkeypatch.setattr(training.learner, "update", lambda batch, progress: given)
    with pytest.raises(ExperimentFailed, match=rf"update 1 on shards 0: learner .*Recorder returned {re.escape(told)}"):
        training.update([batch(training)], Progress())


def test_metrics_may_be_numbers_of_any_library(monkeypatch: pytest.MonkeyPatch) -> None:
    training = make_training()
    given = {"a": np.float32(1), "b": torch.tensor(2), "c": np.array([3]), "d": True, "e": float("nan")}
    monkeypatch.setattr(training.learner, "update", lambda batch, progress: given)
    told = training.update([batch(training)], Progress())
    assert [told[name] for name in "abcd"] == [1.0, 2.0, 3.0, 1.0] and told["e"] != told["e"]


@pytest.mark.filterwarnings("error")
def test_a_metric_that_carries_its_gradient_is_a_number_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    training = make_training()
    loss = torch.ones((), requires_grad=True) * 3
    given = {"loss": loss, "in brackets": loss[None], "numpy's": np.array([[3.0]])}
    monkeypatch.setattr(training.learner, "update", lambda batch, progress: given)
    told = training.update([batch(training)], Progress())
    assert {name: told[name] for name in given} == dict.fromkeys(given, 3.0)
    assert {type(value) for value in told.values()} == {float}, "nothing else goes on from here"


class Moody(nn.Module):
    """Well as long as it acts; with gradients it does what `bug` says."""

    def __init__(self, observation: Any, action: Any, bug: str) -> None:
        super().__init__()
        self.layer, self.bug = nn.Linear(4, 3), bug

    def forward(self, observations: dict[str, torch.Tensor], state: object) -> Any:
        found = self.layer(observations["obs"])
        answer = {"logits": found[:, :2], "value": found[:, 2]}
        if not torch.is_grad_enabled() or not self.bug:
            return answer
        if self.bug == "raises":
            raise ZeroDivisionError("only while it trains")
        if self.bug == "nothing":
            return None
        if self.bug == "detached":
            return {name: values.detach() for name, values in answer.items()}
        return (
            answer
            | {
                "narrow": {"logits": found[:, :1]},
                "wide": {"logits": torch.cat([found, found], dim=1)},
                "values": {"value": found[:, :2]},
            }[self.bug]
        )


@pytest.mark.parametrize("learner", ["ppo", "vtrace"])
@pytest.mark.parametrize(
    ("bug", "reason"),
    [
        ("raises", r"the policy's forward raised ZeroDivisionError: only while it trains at .*test_training.py:\d+"),
        ("nothing", "the policy's forward gave a NoneType, expected a dict"),
        ("detached", "the policy's forward gave numbers without gradients"),
        ("narrow", r"the policy's forward gave logits \[\d+, 1\] for \d+ observations, expected \[\d+, 2\]"),
        ("wide", r"the policy's forward gave logits \[\d+, 6\] for \d+ observations, expected \[\d+, 2\]"),
        ("values", r"the policy's forward gave value \[\d+, 2\] for \d+ observations, expected \[\d+\]"),
    ],
)
def test_a_policy_that_answers_wrongly_only_while_it_trains_is_named_with_update_and_shards(
    learner: str, bug: str, reason: str
) -> None:
    policy = {"id": "tests.unit.test_training:Moody", "kwargs": {"bug": bug}}
    training = make_training(policy=policy, trainer={"learner": learner, "kwargs": {}, "minibatch": 8})
    before = training.weights()
    with pytest.raises(ExperimentFailed, match=f"update 1 on shards 0: {reason}"):
        training.update([batch(training)], Progress())
    assert all(np.array_equal(array, training.weights()[name]) for name, array in before.items())


def breaking(training: Training, method: str) -> None:
    """From now on the learner raises there."""

    def broken(*_: Any) -> Never:
        raise KeyError(method)

    setattr(training.learner, method, broken)


@pytest.mark.parametrize("method", ["get_weights", "state", "complaint"])
def test_a_learner_that_raises_beside_its_update_is_named_with_it(method: str) -> None:
    training = make_training()
    progress = Progress()
    training.update([batch(training)], progress)
    breaking(training, method)
    reason = rf"update 1: learner .*Recorder raised in {method}: KeyError: '{method}' at .*test_training.py:\d+"
    with pytest.raises(ExperimentFailed, match=reason):
        {"get_weights": training.weights, "state": training.state, "complaint": training._asked}[method]()


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda weights: dict(list(weights.items())[1:]), r"missing \['\w+"),
        (lambda weights: weights | {"more": np.zeros(1)}, r"unknown \['more'\]"),
        (lambda weights: {name: array[None] for name, array in weights.items()}, r"expected float32\["),
    ],
)
def test_weights_other_than_those_that_a_learner_began_with_are_never_published_nor_saved(
    made: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = make_training()
    training.update([batch(training)], Progress())
    odd = made(training.weights())
    monkeypatch.setattr(training.learner, "get_weights", lambda: odd)
    with pytest.raises(ExperimentFailed, match=f"update 1: learner .*Recorder gave other weights than .*{reason}"):
        training.weights()


def test_a_state_that_no_checkpoint_can_hold_is_a_failure_of_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    training = make_training()
    monkeypatch.setattr(training.learner, "state", lambda: ({}, {"when": object()}))
    with pytest.raises(ExperimentFailed, match="update 0: learner .*Recorder raised in state: TypeError: .*JSON"):
        training.state()


def telling(monkeypatch: pytest.MonkeyPatch, *, options: dict[str, Any], **metrics: float) -> Training:
    """A learner of one's own that tells these of every update."""
    training = make_training(trainer=options)
    monkeypatch.setattr(training.learner, "update", lambda *_: metrics)
    return training


@pytest.mark.parametrize(
    ("told", "options"),
    [
        ({"critic.Loss": math.nan}, {}),
        ({"loss": math.nan, "grad_norm": 1.0}, {"grad_limit": 5.0}),
        ({"seeker/policy_loss": math.nan}, {}),
        ({"policy_loss": 1.0, "grad_norm": math.inf}, {}),
        ({"runner.grad_norm": 5.5}, {"grad_limit": 5.0}),
    ],
)
def test_what_a_learner_of_ones_own_tells_of_a_bad_update_does_what_the_spec_says(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, float], options: dict[str, Any]
) -> None:
    (bad,) = [f"{name} = {value:g}" for name, value in told.items() if value not in (1.0,)]
    fails = telling(monkeypatch, options=options, **told)
    with pytest.raises(ExperimentFailed, match=rf"^update 1 on shards 0: the learner tells of {re.escape(bad)}"):
        fails.update([batch(fails)], Progress())
    pauses = telling(monkeypatch, options={**options, "on_bad_step": "pause"}, **told)
    pauses.update([batch(pauses)], Progress())
    assert bad in pauses.complaint() and pauses.complaint() == ""
    skips, progress = telling(monkeypatch, options={**options, "on_bad_step": "skip"}, **told), Progress()
    for _ in range(100):
        skips.update([batch(skips)], progress)
    assert skips.complaint() == ""
    with pytest.raises(ExperimentFailed, match="101 times one after another"):
        skips.update([batch(skips)], progress)


@pytest.mark.parametrize(
    "told", [{"loss": 1e9, "grad_norm": 1e9}, {"best_loss": math.inf}, {"mean_return": math.nan, "lossless": math.nan}]
)
def test_numbers_that_are_no_sign_of_a_bad_update_fail_nothing(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, float]
) -> None:
    training = telling(monkeypatch, options={}, **told)
    training.update([batch(training)], Progress())
    assert training.complaint() == ""
