"""Policies as files: what is written answers as the policy does, and weights from a file begin a run."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import save_file

from heddle.checkpoint import Checkpoint, save
from heddle.cli.policy_export import export as command
from heddle.cli.policy_export import load_policy
from heddle.cli.root import cli
from heddle.errors import EnvError, SpecError, UsageError
from heddle.launch.trying import try_out
from heddle.policies import make_policy
from heddle.policies.initial import give_weights
from heddle.policies.normalise import Normaliser
from heddle.policies.torch_export import export, random_inputs
from heddle.policies.weights import unpack
from heddle.spaces import Box, DictSpace, Discrete, MultiBinary, MultiDiscrete, Space, to_json
from heddle.spec import ExperimentSpec, load_spec
from tests.unit.policy_zoo import CARTPOLE, Plain, make_spec

MASKED = DictSpace({"action_mask": MultiBinary((5,)), "gear": Discrete(3, start=2), "x": CARTPOLE})
CAMERA = DictSpace({"camera": Box((36, 36, 3), "uint8", 0, 255), "speed": Box((), "float64")})
DIAL = Box((2,), "int16", -3, 4)
MANY = DictSpace(
    {"arm": Box((2,), "float32", -1, 4), "bits": MultiBinary((2,)), "dial": DIAL, "gear": Discrete(3)},
)
CASES: dict[str, tuple[Space, Space, dict[str, Any]]] = {
    "mlp, masked": (MASKED, MultiDiscrete((2, 3)), {"shared": True}),
    "cnn, squashed": (CAMERA, Box((2,), "float32", -1, 2), {"id": "cnn", "squash": True}),
    "lstm, many actions": (CARTPOLE, MANY, {"id": "lstm", "recurrent_size": 8, "std": "state"}),
    "a user's": (CARTPOLE, Discrete(2), {"id": "tests.unit.policy_zoo:Remembers"}),
    "a user's in numpy": (CARTPOLE, Discrete(2), {"id": "tests.unit.policy_zoo:Plain"}),
    "q, masked": (DictSpace({"action_mask": MultiBinary((3,)), "x": CARTPOLE}), Discrete(3, start=2), {"id": "q"}),
    "q, dueling images": (CAMERA, Discrete(4), {"id": "q", "torso": "cnn", "dueling": True}),
    "sac": (DictSpace({"gear": Discrete(3), "x": CARTPOLE}), Box((2, 1), "float64", -1, 4), {"id": "sac"}),
    "sac, images": (CAMERA, Box((), "float32", -2, 2), {"id": "sac", "torso": "cnn"}),
}


def spec_of(name: str) -> ExperimentSpec:
    named = CASES[name][2]
    learner = {"q": "dqn", "sac": "sac"}.get(named.get("id", "mlp"), "ppo")
    return make_spec(policy=named, learner=learner)


def build(name: str, *, seed: int = 1) -> Any:
    observation, action, _ = CASES[name]
    made = make_policy(spec_of(name).policy, observation, action, seed=seed)
    normaliser = Normaliser(observation)
    for moments in normaliser.moments.values():
        moments.update(np.random.default_rng(1).standard_normal((50, *moments.mean.shape)) * 3 + 1)
    if normaliser.moments:
        made.set_weights(made.get_weights() | normaliser.weights())
    return made


def checkpoint(folder: Path, name: str = "lstm, many actions") -> Path:
    observation, action, _ = CASES[name]
    spec, made = spec_of(name), build(name)
    return save(
        folder,
        Checkpoint(
            experiment="zoo-1",
            spec_json=spec.canonical_json(),
            spec_sha256=spec.sha256(),
            spaces={"observation": to_json(observation), "action": to_json(action)},
            seat_epoch=1,
            update=7,
            policy_version=8,
            env_steps=100,
            weights=made.get_weights(),
        ),
    )


@pytest.mark.parametrize("name", CASES)
def test_torchscript_answers_as_the_policy_does_to_any_number_of_observations(name: str, tmp_path: Path) -> None:
    made, file = build(name), tmp_path / "policy.pt"
    assert export(made, "torchscript", file, about={"experiment": "zoo"}) < 1e-4
    extra = {"heddle.json": ""}
    loaded = torch.jit.load(str(file), _extra_files=extra)  # type: ignore[no-untyped-call]
    told = json.loads(extra["heddle.json"])
    given = random_inputs(made, 3, np.random.default_rng(1))
    assert told["inputs"] == list(given) and told["experiment"] == "zoo"
    answer = dict(zip(told["outputs"], loaded(*map(torch.from_numpy, given.values())), strict=True))
    acted = made.act(
        {name: given[name] for name in given if not name.startswith("state.")},
        made.initial_state(3),
        np.zeros((3, made.noise.size)),
        deterministic=True,
    )
    assert {name: answer[name].shape for name in acted.actions} == {n: a.shape for n, a in acted.actions.items()}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("onnx", "mlp, masked"),
        ("torch-export", "mlp, masked"),
        ("onnx", "lstm, many actions"),
        ("onnx", "cnn, squashed"),
        ("onnx", "q, masked"),
        ("torch-export", "q, dueling images"),
        ("torch-export", "sac"),
        ("onnx", "sac"),
    ],
)
def test_other_formats_answer_as_the_policy_does(kind: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "policy"
    assert export(build(name), kind, file, about={}) < 1e-4
    assert file.stat().st_size > 1000


@pytest.mark.parametrize("name", ["q, masked", "sac"])
def test_values_and_actors_answer_what_they_do_without_exploring(name: str, tmp_path: Path) -> None:
    # Given a policy whose published weights say that it shall explore
    made, file = build(name), tmp_path / "policy.pt"
    assert 1.0 in (made.get_weights().get("epsilon"), made.get_weights().get("random"))
    export(made, "torchscript", file, about={})
    extra = {"heddle.json": ""}
    loaded = torch.jit.load(str(file), _extra_files=extra)  # type: ignore[no-untyped-call]
    given = random_inputs(made, 64, np.random.default_rng(2))
    outputs = json.loads(extra["heddle.json"])["outputs"]
    answer = dict(
        zip(outputs, (part.detach().numpy() for part in loaded(*map(torch.from_numpy, given.values()))), strict=True)
    )
    # Then the file gives the greedy action that is allowed, and the squashed mean, from the numbers that it tells
    if name == "sac":
        assert outputs == ["action", "mean", "log_std"] and answer["action"].dtype == np.float64
        squashed = -1 + (np.tanh(answer["mean"]) + 1) / 2 * 5
        np.testing.assert_allclose(answer["action"].reshape(64, 2), squashed, rtol=1e-5)
        return
    assert outputs == ["action", "q"]
    allowed = given["obs.action_mask"].astype(bool)
    allowed |= ~allowed.any(axis=1, keepdims=True)
    np.testing.assert_array_equal(answer["action"], np.where(allowed, answer["q"], -np.inf).argmax(axis=1))
    assert (answer["action"] != answer["q"].argmax(axis=1)).any()


def test_a_file_that_answers_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a policy that does not act with the weights that it gives out
    made, other = build("mlp, masked"), build("mlp, masked", seed=2)
    monkeypatch.setattr(made, "get_weights", other.get_weights)
    with pytest.raises(ValueError, match="answers 1 observations otherwise than the policy: .* differs"):
        export(made, "torchscript", tmp_path / "policy.pt", about={})


class Mute(Plain):
    """A policy that does not keep its spaces."""

    def __init__(self, observation: Space, action: Space, *, seed: int) -> None:
        super().__init__(observation, action, seed=seed)
        del self.observation


def test_a_policy_that_tells_no_spaces_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Mute has no attributes `observation` and `action` with its spaces"):
        export(Mute(CARTPOLE, Discrete(2), seed=1), "torchscript", tmp_path / "policy.pt", about={})


def run(*arguments: str) -> Any:
    return CliRunner().invoke(command, list(arguments), catch_exceptions=True)


def test_a_checkpoint_is_exported_by_the_command_line_and_weights_come_back(tmp_path: Path) -> None:
    path, file = checkpoint(tmp_path / "checkpoints"), tmp_path / "weights.safetensors"
    done = run(str(tmp_path), "--format", "safetensors", "--to", str(file), "-o", "json")
    assert json.loads(done.output)["checkpoint"] == str(path)
    _, made = load_policy(path)
    arrays, info = unpack(file.read_bytes())
    assert (info.version, info.update) == (8, 7)
    for name, array in made.get_weights().items():
        np.testing.assert_array_equal(array, arrays[name])
    done = run(str(path), "--format", "torchscript", "--to", str(tmp_path / "policy.pt"))
    assert "torchscript of zoo-1 at update 7" in done.output and "answers as the policy" in done.output
    assert sorted(item.name for item in tmp_path.iterdir()) == ["checkpoints", "policy.pt", "weights.safetensors"]


def test_an_extra_that_is_missing_is_named_and_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = checkpoint(tmp_path / "checkpoints", "a user's")
    monkeypatch.setitem(sys.modules, "onnx", None)
    done = run(str(path), "--format", "onnx", "--to", str(tmp_path / "policy.onnx"))
    assert isinstance(done.exception, UsageError) and "pip install 'heddle-rl[export]'" in str(done.exception)
    assert [item.name for item in tmp_path.iterdir()] == ["checkpoints"]


def test_what_has_no_torch_module_can_only_give_its_weights(tmp_path: Path) -> None:
    scripted = make_policy(make_spec(policy={"id": "random"}).policy, CARTPOLE, Discrete(2))
    with pytest.raises(ValueError, match="RandomPolicy has no torch module; its weights can be"):
        export(scripted, "onnx", tmp_path / "policy.onnx", about={})


@pytest.mark.parametrize("name", ["q, dueling images", "sac"])
def test_exported_weights_of_values_and_actors_begin_another_run(name: str, tmp_path: Path) -> None:
    path, file = checkpoint(tmp_path / "checkpoints", name), tmp_path / "weights.safetensors"
    run(str(path), "--format", "safetensors", "--to", str(file), "-o", "json")
    other = build(name, seed=3)
    give_weights(other, file)
    for weight, array in build(name).get_weights().items():
        np.testing.assert_array_equal(array, other.get_weights()[weight])


def spec_with(init: Path) -> Any:
    return load_spec(
        {
            "experiment": {"name": "zoo"},
            "env": {"id": "CartPole-v1"},
            "policy": {"hidden": [4], "init": str(init)},
            "budget": {"env_steps": 100_000},
        }
    ).spec


def test_first_weights_are_taken_from_weights_checkpoints_and_plain_safetensors(tmp_path: Path) -> None:
    path, made = checkpoint(tmp_path), build("lstm, many actions")
    plain = tmp_path / "plain.safetensors"
    save_file({name: np.asarray(array, order="C") for name, array in made.get_weights().items()}, str(plain))
    for file in (path, plain):
        other = build("lstm, many actions", seed=3)
        give_weights(other, file)
        for name, array in made.get_weights().items():
            np.testing.assert_array_equal(array, other.get_weights()[name])


@pytest.mark.parametrize("what", ["absent", "torn", "foreign", "nan"])
def test_first_weights_that_do_not_fit_are_refused_at_validate(what: str, tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    own = make_policy(make_spec(policy={"hidden": [4]}).policy, CARTPOLE, Discrete(2)).get_weights()
    if what == "foreign":
        save_file(own | {"policy.0.weight": np.zeros((5, 4), np.float32)}, str(file))
    elif what == "nan":
        save_file(own | {"policy.0.bias": np.full(4, np.nan, np.float32)}, str(file))
    elif what == "torn":
        file.write_bytes(b"\x10\0\0\0\0\0\0\0nonsense")
    reasons = {
        "absent": "cannot be read: No such file",
        "torn": "not safetensors",
        "foreign": r"policy.0.weight is float32\[5, 4\], expected float32\[4, 4\]",
        "nan": "policy.0.bias holds numbers that are not finite",
    }
    with pytest.raises(SpecError, match=f"policy.init = .*{reasons[what]}") as refused:
        try_out(spec_with(file))
    assert isinstance(refused.value, EnvError) or refused.value.problems[0].key == "policy.init"


def test_export_is_a_command() -> None:
    assert "torch-export" in CliRunner().invoke(cli, ["policy", "export", "--help"]).output
