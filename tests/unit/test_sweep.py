"""Sweeps: which experiments they make, how those are named, what is refused, and how results are put together."""

from pathlib import Path
from typing import Any

import pytest

from heddle.broker.records import Status
from heddle.errors import SpecError
from heddle.launch.sweep import load_sweep
from heddle.spec import load_spec
from heddle.spec.models import Experiment
from heddle.spec.sweep import combine, parse_axes, split_values
from heddle.states.results import Reached, interval95, results_of

BASE: dict[str, Any] = {
    "experiment": {"name": "pole", "seed": 3, "tags": ["mine"]},
    "env": {"id": "CartPole-v1"},
    "budget": {"env_steps": 1_000},
}


def test_a_sweep_is_every_combination_with_every_seed_under_names_that_tell_the_values() -> None:
    swept = load_sweep(BASE, sweeps=["trainer.lr=1e-3,3e-4", "trainer.gamma=0.9"], seeds=2, try_out=False)
    specs = [one.loaded.spec for one in swept]
    assert [spec.experiment.name for spec in specs] == [
        "pole-lr-1e-3-gamma-0_9-s3",
        "pole-lr-1e-3-gamma-0_9-s4",
        "pole-lr-3e-4-gamma-0_9-s3",
        "pole-lr-3e-4-gamma-0_9-s4",
    ]
    assert [(spec.trainer.lr.start, spec.trainer.gamma, spec.experiment.seed) for spec in specs] == [
        (1e-3, 0.9, 3),
        (1e-3, 0.9, 4),
        (3e-4, 0.9, 3),
        (3e-4, 0.9, 4),
    ]
    assert {spec.experiment.group for spec in specs} == {"pole"}
    assert specs[0].experiment.tags == ("mine", "pole", "trainer.lr=1e-3", "trainer.gamma=0.9")
    assert len({spec.sha256() for spec in specs}) == 4


def test_the_same_sweep_makes_the_same_specs() -> None:
    first, second = (load_sweep(BASE, sweeps=["trainer.lr=1e-3,3e-4"], seeds=3, try_out=False) for _ in range(2))
    assert [one.loaded.spec.sha256() for one in first] == [one.loaded.spec.sha256() for one in second]


def test_commas_within_brackets_and_quotes_belong_to_a_value() -> None:
    assert split_values('[64, 64], [32],"a,b", {x = 1, y = 2}') == ["[64, 64]", "[32]", '"a,b"', "{x = 1, y = 2}"]
    swept = load_sweep(BASE, sweeps=["policy.hidden=[64,64],[32]"], try_out=False)
    assert [one.loaded.spec.policy.hidden for one in swept] == [(64, 64), (32,)]
    assert [one.combination.name for one in swept] == ["pole-hidden--64-64", "pole-hidden--32"]


def test_names_that_would_be_too_long_or_the_same_get_a_number() -> None:
    made = combine(parse_axes(["env.kwargs.word=a.b,a_b"]), None, Experiment(name="x" * 60))
    assert len({one.name for one in made}) == 2 and all(len(one.name) <= 63 for one in made)
    short = combine(parse_axes(["env.kwargs.word=a.b,a_b"]), None, Experiment(name="x"))
    assert [one.name for one in short] == ["x-word-a_b", "x-word-a_b-2"]


def test_a_mistake_of_one_combination_names_it_and_a_mistake_of_all_is_told_once() -> None:
    with pytest.raises(SpecError) as caught:
        load_sweep(BASE, sweeps=["trainer.lr=1e-3,fast", "trainer.gamma=0.9,2"], seeds=2, try_out=False)
    told = [str(problem) for problem in caught.value.problems]
    assert len(told) == 2
    assert all(line.startswith("--sweep") for line in told)
    assert any("'fast'" in line and "trainer.lr=fast, trainer.gamma=0.9, seed 3 and 3 more" in line for line in told)
    assert any("trainer.gamma = 2" in line and "trainer.lr=1e-3, trainer.gamma=2" in line for line in told)
    with pytest.raises(SpecError) as caught:
        load_sweep(BASE, sweeps=["trainer.lrr=1,2"], overrides=["env.num_env=3"], try_out=False)
    told = [str(problem) for problem in caught.value.problems]
    assert len(told) == 3, "the two values of the unknown key, and the other mistake once"
    assert sum("num_env" in line and "combination" not in line for line in told) == 1


def test_an_environment_that_only_one_combination_cannot_make_is_named_before_anything_is_submitted() -> None:
    with pytest.raises(SpecError, match=r"CartPole-v77.*in the combination env.id=CartPole-v77, seed 3"):
        load_sweep(BASE, sweeps=["env.id=CartPole-v1,CartPole-v77"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("trainer.lr", "cannot read"),
        ("=1,2", "cannot read"),
        ("trainer.lr=", "empty value"),
        ("trainer.lr=1,,2", "empty value"),
        ("trainer.lr=1,1", "value 1 twice"),
        ("experiment.name=a,b", "cannot be swept"),
    ],
)
def test_what_is_no_axis_is_refused(text: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        parse_axes([text])


def test_a_key_swept_twice_a_seed_given_twice_and_a_sweep_that_is_too_large_are_refused() -> None:
    with pytest.raises(SpecError, match="swept twice"):
        parse_axes(["trainer.lr=1", "trainer.lr=2"])
    with pytest.raises(SpecError, match="use one of them"):
        combine(parse_axes(["experiment.seed=1,2"]), 2, Experiment(name="x"))
    with pytest.raises(SpecError, match="makes 2000 experiments"):
        combine(parse_axes(["trainer.lr=1,2"]), 1_000, Experiment(name="x"))
    with pytest.raises(SpecError, match=f"makes {10**30} experiments, at most 1000 go"):
        combine([], 10**30, Experiment(name="x"))  # counted, not listed


def test_the_interval_is_that_of_students_t() -> None:
    # scipy.stats.t.interval(0.95, 4, loc=3, scale=sem([1, 2, 3, 4, 5])) = (1.0367568, 4.9632432)
    low, high = interval95([1.0, 2.0, 3.0, 4.0, 5.0]) or (0.0, 0.0)
    assert (low, high) == pytest.approx((1.0367568, 4.9632432), abs=1e-3)
    assert interval95([1.0]) is None
    low, high = interval95([0.0, 1.0] * 100) or (0.0, 0.0)
    assert high - low == pytest.approx(2 * 1.98 * 0.501255 / 200**0.5, rel=1e-3)


def reached(name: str, *, state: str, score: float | None, seed: int, created_ms: int, **sections: Any) -> Reached:
    raw = {**BASE, **sections, "experiment": {**BASE["experiment"], "name": name, "seed": seed, "group": "g"}}
    fields: dict[str, Any] = dict.fromkeys(Status.__dataclass_fields__, 0)
    result = {} if score is None else {"return": score, "env_steps": 10}
    status = {"experiment": f"{name}-1", "name": name, "state": state, "created_ms": created_ms, "result": result}
    return Reached.of(Status(**{**fields, **status}), load_spec(raw).spec, {})


def test_results_are_per_combination_over_seeds_without_failed_runs_and_with_the_newest_of_each_name() -> None:
    found = [
        reached("a-s1", state="completed", score=1.0, seed=1, created_ms=1),
        reached("a-s2", state="completed", score=3.0, seed=2, created_ms=2),
        reached("a-s3", state="failed", score=900.0, seed=3, created_ms=3),
        reached("b-s1", state="running", score=None, seed=1, created_ms=4, trainer={"lr": 0.1}),
        reached("a-s1", state="completed", score=5.0, seed=1, created_ms=9),
    ]
    a, b = sorted(results_of(found, "return"), key=lambda one: one.name)
    assert (a.name, a.scores, a.mean, a.done) == ("a", (5.0, 3.0, None), 4.0, 2)
    assert a.low is not None and a.high is not None and a.low < 4 < a.high
    assert (b.name, b.scores, b.mean, b.low) == ("b-s1", (None,), None, None)


def test_a_spec_of_a_file_is_swept_with_its_places(tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text('[experiment]\nname = "x"\n[env]\nid = "CartPole-v1"\nnum_env = 2\n[budget]\nenv_steps = 10\n')
    with pytest.raises(SpecError, match=r"exp.toml:5"):
        load_sweep(file, sweeps=["trainer.lr=1e-3,3e-4"], try_out=False)


def test_seeds_that_are_swept_are_runs_of_one_combination_as_those_that_are_counted() -> None:
    base = Experiment(name="pole", seed=3)
    named = combine(parse_axes(["trainer.lr=1,2", "experiment.seed=4,9"]), None, base)
    assert [(one.name, one.seed) for one in named] == [
        ("pole-lr-1-s4", 4),
        ("pole-lr-1-s9", 9),
        ("pole-lr-2-s4", 4),
        ("pole-lr-2-s9", 9),
    ]
    assert combine(parse_axes(["trainer.lr=1,2", "experiment.seed=3,4"]), None, base) == combine(
        parse_axes(["trainer.lr=1,2"]), 2, base
    )
    with pytest.raises(SpecError, match="experiment.seed = 'x': must be a whole number"):
        combine(parse_axes(["experiment.seed=1,x"]), None, base)
