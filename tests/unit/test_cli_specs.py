"""`init`, `validate`, `plan`, and the spec that ships with the demo."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from heddle.cli.demo import cartpole_toml
from heddle.cli.main import run
from heddle.consumers.learners.none import NoLearner
from heddle.errors import SpecError
from heddle.launch.check import LEAST_S, trial_s
from heddle.launch.trying import try_out
from heddle.producers.isolation.process import START_S
from heddle.spaces import Discrete
from heddle.spec import load_spec
from tests.data_kit import record_cartpole
from tests.unit.policy_zoo import Linear

ROOT = Path(__file__).resolve().parents[2]

FIVE_MISTAKES = """
[experiment]
name = "Not A Slug"
[env]
id = "CartPole-v1"
num_env = 4
[rollout]
steps = 0
[trainer]
learner = "ppoo"
[budget]
env_steps = "many"
"""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEDDLE_REDIS_URL", raising=False)
    return tmp_path


def test_five_mistakes_are_five_lines_with_their_places_and_exit_code_3(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "exp.toml").write_text(FIVE_MISTAKES)
    for arguments in (["validate"], ["plan"], ["enqueue"], ["run"]):
        assert run([*arguments, "exp.toml"]) == 3
        out, err = capsys.readouterr()
        assert out == ""
        lines = err.splitlines()
        assert len(lines) == 5
        assert all(line.startswith("exp.toml:") for line in lines)
        assert "num_envs" in lines[1]
        assert "did you mean ppo?" in lines[3]


def test_a_program_reads_every_mistake_with_its_place(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "exp.toml").write_text(FIVE_MISTAKES)
    assert run(["validate", "exp.toml", "-o", "json"]) == 3
    out, err = capsys.readouterr()
    shown = json.loads(out)
    assert shown["valid"] is False
    assert [problem["line"] for problem in shown["problems"]] == [3, 6, 8, 10, 12]
    assert shown["problems"][3]["key"] == "trainer.learner"
    assert len(err.splitlines()) == 5


HANGING = """
import threading
import gymnasium, numpy as np


def wait(**_):
    threading.Event().wait()


class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        threading.Event().wait()


def later(**_):
    return Env()
"""


@pytest.mark.parametrize(("env", "line"), [("hanging_env:wait", 7), ("hanging_env:later", 18)])
def test_an_environment_that_never_answers_is_named_with_the_place_where_it_was(
    env: str, line: int, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heddle.launch.check.LEAST_S", 1.5)
    (here / "hanging_env.py").write_text(HANGING)
    (here / "exp.toml").write_text(
        f'[experiment]\nname = "a"\n[env]\nid = "{env}"\nstep_timeout = 0.2\n[budget]\nenv_steps = 10_000\n'
    )
    assert run(["validate", "exp.toml"]) == 3
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("exp.toml:4:")
    assert f"hanging_env.py:{line}" in said
    assert "step_timeout" in said


def test_an_environment_of_quick_steps_has_time_to_be_imported_and_its_child_to_start() -> None:
    def limit_s(**env: Any) -> float:
        spec = {"experiment": {"name": "a"}, "env": {"id": "CartPole-v1", **env}, "budget": {"env_steps": 1}}
        return trial_s(load_spec(spec).spec)

    assert limit_s(step_timeout=0.5) == limit_s(step_timeout=0.5, reset_timeout=3.0) == LEAST_S
    assert limit_s(step_timeout=20.0, reset_timeout=50.0) == 110.0
    assert limit_s(step_timeout=0.5, isolation="process") > LEAST_S + START_S


def test_init_writes_a_spec_that_is_valid_and_never_overwrites(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init"]) == 0
    assert run(["validate", "exp.toml"]) == 0
    assert run(["init"]) == 8
    assert run(["init", "--force", "--name", "other"]) == 0
    assert 'name = "other"' in (here / "exp.toml").read_text()
    assert "Traceback" not in capsys.readouterr().err


def test_an_unknown_environment_is_found_with_its_line_and_the_nearest_name(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "exp.toml").write_text('[experiment]\nname = "a"\n[env]\nid = "CartPol-v1"\n[budget]\nenv_steps = 10_000\n')
    assert run(["validate", "exp.toml"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("exp.toml:4:")
    assert "CartPole-v1" in line
    assert run(["validate", "--no-check", "exp.toml"]) == 0


def test_an_unknown_environment_is_told_together_with_the_other_mistakes_in_file_order(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = '[experiment]\nname = "a"\n[env]\nid = "CartPol-v1"\n[trainer]\nlr = -1\n[budget]\nenv_steps = 10_000\n'
    (here / "exp.toml").write_text(text)
    assert run(["validate", "exp.toml"]) == 3
    env, lr = capsys.readouterr().err.splitlines()
    assert env.startswith("exp.toml:4:") and "CartPole-v1" in env
    assert lr.startswith("exp.toml:6:") and "trainer.lr = -1.0" in lr
    (here / "exp.toml").write_text(text.replace("[trainer]", "num_env = 3\n[trainer]"))
    assert run(["validate", "exp.toml"]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 3, "also beside a mistake of its own section"
    (here / "exp.toml").write_text(text.replace("[trainer]", "kwargs = 3\n[trainer]"))
    assert run(["validate", "exp.toml"]) == 3
    assert "CartPole-v1" not in capsys.readouterr().err, "nothing is made with arguments that are wrong themselves"


def test_a_wrapper_that_is_not_there_is_found_with_its_place(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        '[experiment]\nname = "a"\n[env]\nid = "CartPole-v1"\nwrappers = ["nope.mod:W"]\n[budget]\nenv_steps = 1000\n'
    )
    (here / "exp.toml").write_text(text)
    assert run(["validate", "exp.toml"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("exp.toml:5:") and "env.wrappers[0]" in line


def test_a_factory_that_raises_is_found_with_its_own_place(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "raising_env.py").write_text("def make(**_):\n    raise RuntimeError('no licence')\n")
    (here / "exp.toml").write_text(
        '[experiment]\nname = "a"\n[env]\nid = "raising_env:make"\n[budget]\nenv_steps = 10_000\n'
    )
    assert run(["validate", "exp.toml"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "no licence" in line
    assert "raising_env.py:2" in line


def test_plan_shows_every_value_with_its_origin_and_needs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "exp.toml").write_text(cartpole_toml())
    assert run(["plan", "exp.toml", "--set", "env.num_envs=16", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["values"]["env.num_envs"] == {"value": 16, "origin": "--set"}
    assert shown["values"]["env.id"]["origin"] == "exp.toml:9"
    assert shown["values"]["trainer.minibatch"]["value"] == 256
    assert shown["values"]["rollout.compression"]["origin"] == "default"
    assert shown["needs"]["train_shards"] == 4
    assert shown["needs"]["batch_bytes"] > 1000
    assert run(["plan", "exp.toml"]) == 0
    out = capsys.readouterr().out
    assert "KiB" in out
    assert "derived" in out
    assert [path.name for path in here.iterdir()] == ["exp.toml"]  # nothing else was written


def test_a_missing_file_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", "nowhere.toml"]) == 4
    assert "nowhere.toml" in capsys.readouterr().err


def test_the_demo_ships_the_spec_of_the_examples() -> None:
    assert cartpole_toml() == (ROOT / "examples" / "cartpole.toml").read_text()


class HalfLearner:
    """Takes what a learner takes, and is none."""

    def __init__(self, spec: object, policy: object, *, device: object, seed: int) -> None:
        """Nothing to keep."""

    def update(self, batch: object, progress: float) -> dict[str, float]:
        return {}


def learner_of(spec: Any, policy: Any, *, device: Any, seed: int, knob: int = 0) -> object:
    return (NoLearner if knob else HalfLearner)(spec, policy, device=device, seed=seed)


class NoMinimum:
    """A learner but for `min_steps`."""

    def __init__(self, spec: object, policy: object, *, device: object, seed: int) -> None:
        """Nothing to keep."""

    def update(self, *given: object) -> dict[str, float]:
        return {}

    get_weights = set_weights = state = load = update


class Anyhow(Linear):
    """`Linear` in whatever kind of numbers it is made of."""

    def forward(self, observations: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        hidden = self.body(observations["obs"].to(self.body.weight.dtype))
        return {"logits": self.head(hidden), "value": self.critic(hidden)}


def doubled(observation: Any, action: Any) -> torch.nn.Module:
    return Anyhow(observation, action).double()


def halved(observation: Any, action: Any) -> torch.nn.Module:
    return Anyhow(observation, action).to(torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "kwargs", "why"),
    [
        ("os:getcwd", "", r"cannot be called as NAME\(spec, policy, \*, device, seed\)"),
        ("os:path", "", "is a module, expected a class or function"),
        ("os:sep", "", "is a str, expected a class or function"),
        ("collections:OrderedDict", "", "is no learner: the class lacks get_weights, set_weights, state, load"),
        ("tests.unit.test_cli_specs:HalfLearner", "", "the class lacks get_weights, set_weights, state, load"),
        ("tests.unit.test_cli_specs:learner_of", "", "is no learner: HalfLearner lacks min_steps, get_weights"),
        ("tests.unit.test_cli_specs:NoMinimum", "", "is no learner: NoMinimum lacks min_steps"),
        ("tests.unit.test_cli_specs:learner_of", "nob = 1", "got an unexpected keyword argument 'nob'"),
    ],
)
def test_a_name_that_is_no_learner_is_found_before_anything_runs(name: str, kwargs: str, why: str) -> None:
    text = f'[experiment]\nname = "x"\n[env]\nid = "CartPole-v1"\n[trainer]\nlearner = "{name}"\n'
    loaded = load_spec(f"{text}[trainer.kwargs]\n{kwargs}\n[budget]\nenv_steps = 10_000\n")
    with pytest.raises(SpecError, match=why) as refused:
        try_out(loaded.spec)
    assert [problem.key for problem in refused.value.problems] == ["trainer.learner"]


def test_a_function_that_makes_a_learner_is_taken() -> None:
    text = '[experiment]\nname = "x"\n[env]\nid = "CartPole-v1"\n[budget]\nenv_steps = 10_000\n'
    loaded = load_spec(f'{text}[trainer]\nlearner = "tests.unit.test_cli_specs:learner_of"\nkwargs = {{knob = 3}}\n')
    assert try_out(loaded.spec).action == Discrete(2)


@pytest.mark.parametrize(
    ("learner", "policy", "why"),
    [
        ("bc", "random", "cannot be trained by bc: RandomPolicy has no torch module"),
        ("bc", "tests.unit.policy_zoo:AlwaysRight", "cannot be trained by bc: AlwaysRight has no torch module"),
        ("dqn", "tests.unit.policy_zoo:AlwaysRight", "cannot be trained by dqn: AlwaysRight has no torch module"),
        ("ppo", "tests.unit.test_cli_specs:doubled", "needs float32 parameters to be trained, found torch.float64"),
        ("ppo", "tests.unit.test_cli_specs:halved", "needs float32 parameters, .* is torch.bfloat16, which numpy"),
        ("none", "tests.unit.test_cli_specs:halved", "needs float32 parameters, .* is torch.bfloat16, which numpy"),
        ("dqn", "tests.unit.policy_zoo:Plain", "cannot be trained by dqn: Plain has no epsilon among its weights"),
        ("sac", "tests.unit.policy_zoo:Plain", "cannot be trained by sac: Plain has no random among its weights"),
    ],
)
def test_a_policy_that_its_learner_cannot_train_is_found_before_anything_runs(
    here: Path, learner: str, policy: str, why: str
) -> None:
    record_cartpole(here / "demos", episodes=1, files=1)
    data = '[data]\npath = "demos"\n' if learner == "bc" else ""
    text = f'[experiment]\nname = "x"\n[env]\nid = "CartPole-v1"\n{data}[policy]\nid = "{policy}"\n'
    loaded = load_spec(f'{text}[trainer]\nlearner = "{learner}"\n[budget]\nenv_steps = 10_000\n')
    with pytest.raises(SpecError, match=why):
        try_out(loaded.spec)
