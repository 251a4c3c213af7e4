"""What a registered vector form would gain: measured where there is one, told where it is worth a change."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from heddle.cli.main import run
from heddle.cli.specs import describe_gain
from heddle.clock import Clock
from heddle.errors import EnvError
from heddle.launch.checked import Checked, checked_of
from heddle.launch.trying import try_out
from heddle.policies import make_policy
from heddle.producers.envs import check_env
from heddle.producers.vector_gain import vector_gain
from tests.unit.fake_envs import spec_of

SPEC = """
[experiment]
name = "poles"
[env]
id = "CartPole-v1"
[budget]
env_steps = 1_000
"""


class Ticking(Clock):
    """A clock that moves by a thousandth with every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1e-3
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def gain_of(**sections: Mapping[str, Any]) -> float:
    spec = spec_of(**sections)
    observation, action = check_env(spec)
    return vector_gain(spec, observation, action, make_policy(spec.policy, observation, action), clock=Ticking())


def test_a_registered_vector_form_is_played_beside_single_environments() -> None:
    # Given a clock by which a segment lasts as long either way; then the ratio is that of the steps within
    assert gain_of(env={"num_envs": 8, "envs_per_shard": 8}) == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize(
    "env",
    [
        {"id": "MountainCar-v0"},
        {"envs_per_shard": 1},
        {"isolation": "process"},
        {"stepping": "threads"},
        {"wrappers": ["gymnasium.wrappers:NormalizeObservation"]},
        {"variants": [{"name": "a", "kwargs": {}}, {"name": "b", "kwargs": {"sutton_barto_reward": True}}]},
    ],
    ids=lambda env: str(next(iter(env))),
)
def test_nothing_is_offered_where_a_vector_form_is_not_to_be_had_or_would_not_do_what_the_spec_says(
    env: dict[str, Any],
) -> None:
    assert gain_of(env={"id": "CartPole-v1", "num_envs": 4, "envs_per_shard": 4} | env) == 0.0


def test_a_vector_form_that_takes_too_long_to_try_out_is_no_mistake_of_a_spec_that_does_not_ask_for_it() -> None:
    tried = list[str]()

    @contextmanager
    def impatient(*, what: str, key: str, value: object, hint: str = "") -> Iterator[None]:
        tried.append(what)
        if "as a vector" in what:
            raise EnvError(f"{what} within 30 s", key=key, value=value)
        yield

    assert try_out(spec_of(), guard=impatient, with_snapshot=True).vector_gain == 0.0
    assert "as a vector" in tried[-1]


@pytest.mark.parametrize(("gain", "told"), [(3.44, "3.4 times as many steps"), (1.49, ""), (0.0, "")])
def test_a_gain_is_told_with_its_price_and_a_small_one_is_not(gain: float, told: str) -> None:
    text = describe_gain(gain)
    assert told in text and bool(text) == bool(told)
    assert not told or ("vector = true in [env]" in text and "other seeds" in text)


def test_validate_tries_a_vector_form_out_and_tells_what_it_gained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a trial in the child as it is, and one that measured a lot
    (tmp_path / "exp.toml").write_text(SPEC)
    seen = list[Checked]()

    def faster(told: Mapping[str, Any]) -> Checked:
        seen.append(checked_of(told))
        return checked_of({**told, "vector_gain": 4.0})

    monkeypatch.setattr("heddle.launch.check.checked_of", faster)
    assert run(["validate", str(tmp_path / "exp.toml")]) == 0
    shown = capsys.readouterr().out
    # Then it was measured, and what was measured is shown
    assert seen[0].vector_gain > 0
    assert "vector = true in [env] played 4.0 times as many steps a second" in " ".join(shown.split())
