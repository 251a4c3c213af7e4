"""Networks that are too large: told by their key, their value and the bytes of their weights, before any is made."""

import resource
import subprocess
from pathlib import Path

import pytest

from heddle.cli.main import run
from heddle.errors import SpecError
from heddle.spec import load_spec
from heddle.spec.weights_size import MOST_BYTES
from tests.e2e.shell import HEDDLE, environment

HEAD = '[experiment]\nname = "a"\n[env]\nid = "CartPole-v1"\n[budget]\nenv_steps = 10_000\n[policy]\n'
MOST_OF_A_PROCESS = 8 * 2**30


def test_a_network_that_nobody_could_publish_is_refused_with_its_place_its_value_and_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("exp.toml").write_text(f"{HEAD}hidden = [2000000000]\n")
    assert run(["validate", "exp.toml"]) == 3
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("exp.toml:8:10  policy.hidden = [2000000000]: makes one version of the weights at least ")
    assert f"24,000,000,004 bytes, more than {MOST_BYTES:,}" in said


@pytest.mark.parametrize(
    ("policy", "key"),
    [
        ("hidden = [60_000, 60_000]", "policy.hidden"),
        ('id = "q"\nhidden = [4_000_000_000]\n[trainer]\nlearner = "dqn"', "policy.hidden"),
        ('id = "lstm"\nrecurrent_size = 40_000', "policy.recurrent_size"),
        ('id = "gru"\nrecurrent_size = 40_000', "policy.recurrent_size"),
        ('id = "cnn"\nfilters = [[30_000, 8, 4], [30_000, 4, 2]]', "policy.filters"),
    ],
)
def test_each_key_that_makes_a_network_large_is_named(policy: str, key: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(f"{HEAD}{policy}\n")
    assert [problem.key for problem in caught.value.problems] == [key]


@pytest.mark.parametrize("policy", ["hidden = [20_000, 20_000]", "hidden = []", 'id = "lstm"\nrecurrent_size = 10_000'])
def test_a_large_network_that_can_be_published_is_none_of_them(policy: str) -> None:
    load_spec(f"{HEAD}{policy}\n")


def test_a_network_that_does_not_fit_into_this_machine_is_no_fault_of_heddles(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text(f"{HEAD}hidden = [350_000_000]\n")
    command = [*HEDDLE, "validate", "exp.toml"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), text=True, capture_output=True, preexec_fn=_little_memory
    )
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("exp.toml:8:1  policy.hidden = [350000000]: makes a network that does not fit")


def _little_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_OF_A_PROCESS, MOST_OF_A_PROCESS))
