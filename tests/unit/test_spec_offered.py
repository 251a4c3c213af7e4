"""Arguments of [kwargs] that Heddle itself passes: refused with their place, or told where they may be meant."""

import json
from pathlib import Path

import pytest

from heddle.cli.main import run
from heddle.errors import SpecError
from heddle.spec import load_spec
from heddle.spec.offered import fixed_seed

HEAD = '[experiment]\nname = "a"\n[budget]\nenv_steps = 10_000\n[env]\n'
FACTORY = 'id = "examples.catch_env:make"\n'


def problems(env: str) -> list[tuple[str, int]]:
    with pytest.raises(SpecError) as caught:
        load_spec(f"{HEAD}{env}\n")
    return [(problem.key, problem.line) for problem in caught.value.problems]


def test_validate_refuses_a_number_that_heddle_tells_each_environment_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("exp.toml").write_text(f"{HEAD}{FACTORY}kwargs = {{ env_index = 1 }}\n")
    assert run(["validate", "--no-check", "exp.toml"]) == 3
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("exp.toml:7:24  env.kwargs.env_index = 1: would give all environments the same number")


@pytest.mark.parametrize(
    ("env", "key", "line"),
    [
        (f"{FACTORY}[env.kwargs]\nrows = 5\nnum_envs = 2", "env.kwargs.num_envs", 9),
        (f'{FACTORY}[[env.variants]]\nname = "b"\nkwargs = {{ env_index = 0 }}', "env.variants[0].kwargs.env_index", 9),
        ('id = "envpool:CartPole-v1"\nvector = true\nkwargs = { num_envs = 2 }', "env.kwargs.num_envs", 8),
        ('id = "CartPole-v1"\n[policy]\nid = "own:Policy"\nkwargs = { seed = 3 }', "policy.kwargs.seed", 9),
    ],
)
def test_each_argument_of_heddles_own_is_refused_by_its_key(env: str, key: str, line: int) -> None:
    assert problems(env) == [(key, line)]


def test_arguments_of_the_same_names_that_heddle_does_not_pass_are_free() -> None:
    spec = load_spec(f'{HEAD}id = "Own-v0"\nkwargs = {{ env_index = 1, num_envs = 2, seed = 3 }}\n').spec
    assert spec.env.kwargs == {"env_index": 1, "num_envs": 2, "seed": 3}
    assert fixed_seed(spec) == ""


def test_one_seed_for_all_games_of_envpool_is_told() -> None:
    spec = load_spec(f'{HEAD}id = "envpool:CartPole-v1"\nvector = true\nkwargs = {{ seed = 3 }}\n').spec
    assert fixed_seed(spec).startswith("env.kwargs.seed makes all environments with one seed")


def test_plan_warns_of_one_seed_for_all_environments_which_may_be_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("exp.toml").write_text(f"{HEAD}{FACTORY}kwargs = {{ seed = 3 }}\n")
    warning = "env.kwargs.seed makes all environments with one seed, where Heddle passes each its own"
    assert run(["plan", "--no-check", "exp.toml"]) == 0
    assert f"warning  {warning}" in capsys.readouterr().out
    assert run(["plan", "--no-check", "exp.toml", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["warning"] == warning
