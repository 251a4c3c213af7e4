"""The spec: what a file must say, what it may leave out, and what bad input is told."""

import json
import warnings
from pathlib import Path

import pytest

from heddle.errors import NotFound, SpecError
from heddle.spec import Env, Eval, ExperimentSpec, Schedule, Trainer, load_spec, spec_from_json
from heddle.spec.derive import backlog
from heddle.spec.models import LEARNERS, Budget, Experiment
from heddle.spec.template import template

SMALLEST = """
[experiment]
name = "cartpole"
[env]
id = "CartPole-v1"
[budget]
env_steps = 1000
"""
EXAMPLES = Path(__file__).parents[2] / "examples"


def problems(text: str, *overrides: str) -> list[tuple[str, int, int, str, str]]:
    """(key, line, column, reason, hint) of every problem of `text`."""
    with pytest.raises(SpecError) as caught:
        load_spec(text, overrides=overrides)
    return [(each.key, each.line, each.column, each.reason, each.hint) for each in caught.value.problems]


def test_the_smallest_file_gets_every_other_value_filled_in() -> None:
    spec = load_spec(SMALLEST).spec
    assert (spec.env.num_envs, spec.env.envs_per_shard) == (8, 2)
    assert (spec.rollout.steps, spec.rollout.sync, spec.rollout.max_policy_lag) == (32, False, 4)
    assert spec.trainer.batch_steps == 256
    assert spec.trainer.lr == Schedule(start=3e-4, end=3e-4)
    assert spec.eval is None
    assert spec.faults.lease_ttl == 10.0
    assert spec.limits.max_bytes == 512 * 2**20


def test_five_mistakes_are_five_problems_in_file_order_each_with_its_place_and_the_nearest_name() -> None:
    text = """[experiment]
name = "My Run"
[env]
id = "CartPole-v1"
num_env = 8
[rollout]
steps = "32"
[trainer]
learner = "ppoo"
[polciy]
hidden = [64]
[budget]
env_steps = 10
"""
    learners = " or ".join(LEARNERS)
    assert problems(text) == [
        (
            "experiment.name",
            2,
            8,
            "must be 1 to 63 of a-z, 0-9, '-' and '_', starting with a letter or digit",
            "",
        ),
        ("env.num_env", 5, 1, "unknown key", "did you mean num_envs?"),
        ("rollout.steps", 7, 9, "must be a whole number", "write 32 without quotes"),
        (
            "trainer.learner",
            9,
            11,
            f"must be {learners}, or your own as package.module:Name",
            "did you mean ppo?",
        ),
        ("polciy", 10, 2, "unknown section", "did you mean policy?"),
    ]


def test_a_problem_prints_as_one_line_that_an_editor_can_jump_to(tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text(SMALLEST + "[rollout]\nbatch_step = 3\n")
    with pytest.raises(SpecError) as caught:
        load_spec(file)
    assert str(caught.value) == (
        f"{file}:9:1  rollout.batch_step = 3: unknown key  (did you mean trainer.batch_steps?)"
    )
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("[experiment\n", 1, "not TOML: expected ']' at the end of a table declaration"),
        ("[a]\nx = \n", 2, "not TOML: invalid value"),
        ("[a]\nx = 1\nx = 2\n", 3, "not TOML: cannot overwrite a value"),
        ('x = "never ends', 1, "not TOML: unterminated string"),
    ],
)
def test_broken_toml_is_one_problem_with_its_line(text: str, line: int, reason: str) -> None:
    [problem] = problems(text)
    assert (problem[1], problem[3]) == (line, reason)


def test_a_missing_file_and_a_file_that_is_not_text_are_said_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"cannot read .*nowhere.toml: No such file"):
        load_spec(tmp_path / "nowhere.toml")
    binary = tmp_path / "exp.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="is not UTF-8 text"):
        load_spec(binary)


@pytest.mark.parametrize(
    ("addition", "minibatch"),
    [
        ("", 64),
        ("[env]\nid = 'CartPole-v1'\nnum_envs = 1", 32),
        ("[env]\nid = 'CartPole-v1'\nnum_envs = 1\n[rollout]\nsync = true", 32),
        ("[trainer]\nbatch_steps = 40", 40),
        ("[trainer]\nminibatch = 16", 16),
    ],
)
def test_a_minibatch_that_nobody_named_fits_into_an_update(addition: str, minibatch: int) -> None:
    env = "" if "[env]" in addition else "[env]\nid = 'CartPole-v1'\n"
    loaded = load_spec(f"[experiment]\nname = 'x'\n{env}{addition}\n[budget]\nenv_steps = 1000\n")
    assert loaded.spec.trainer.minibatch == minibatch
    assert (loaded.origins["trainer.minibatch"] == "derived") == ("minibatch" not in addition)


@pytest.mark.parametrize(
    ("addition", "key", "reason"),
    [
        ("[rollout]\nsync = true\nmax_policy_lag = 3", "rollout.max_policy_lag", "has no meaning with rollout.sync"),
        ("[trainer]\nminibatch = 4096", "trainer.minibatch", "is more than the 256 steps of one update"),
        (
            "[rollout]\nsync = true\n[limits]\nmax_entries = 3",
            "limits.max_entries",
            "is below the 4 batches of one quorum",
        ),
        ("[trainer]\nbatch_steps = 64\nminibatch = 64\n[rollout]\nsync = true", "trainer.batch_steps", "no meaning"),
        ("[eval]\nnum_envs = 30\nepisodes = 20", "eval.num_envs", "is more than eval.episodes = 20"),
        ("[eval]\nseed = 0", "eval.seed", "is experiment.seed"),
        ("[limits]\nbatch_bytes = '64MiB'\nmax_bytes = '1MiB'", "limits.batch_bytes", "is more than limits.max_bytes"),
        ("[faults]\nlease_ttl = '10 parsecs'", "faults.lease_ttl", "must be seconds as a number, or a text"),
        ("[limits]\nmax_bytes = '1 horse'", "limits.max_bytes", "must be bytes as a whole number, or a text"),
        ("[policy]\nactivation = 'tan'", "policy.activation", "must be tanh or relu"),
        ("[policy]\nhidden = [64, 0]", "policy.hidden[1]", "must be at least 1"),
        ("[trainer]\ngamma = 1.5", "trainer.gamma", "must be at most 1"),
        ("[trainer]\ngamma = nan", "trainer.gamma", "must be finite"),
        ("[trainer]\nlr = { start = 1e-3 }", "trainer.lr.end", "is required"),
        ("[trainer]\nkwargs = { x = inf }", "trainer.kwargs", "must be finite: nan and inf cannot be stored"),
        ("[trainer]\nnormalize_rewards = 1", "trainer.normalize_rewards", "must be true or false"),
        ("[rollout]\nsteps = 0", "rollout.steps", "must be at least 1"),
        ("[rollout]\nsteps = 2.5", "rollout.steps", "must be a whole number"),
    ],
)
def test_a_value_that_cannot_work_is_named_with_its_reason(addition: str, key: str, reason: str) -> None:
    [problem] = problems(SMALLEST + addition)
    assert problem[0] == key
    assert reason in problem[3]
    assert problem[1] > 7  # it stands in the addition


def test_what_two_keys_contradict_is_found_beside_single_mistakes() -> None:
    found = problems(SMALLEST + "[rollout]\nsync = true\nmax_policy_lag = 2\nstepz = 3\n")
    assert [problem[0] for problem in found] == ["rollout.max_policy_lag", "rollout.stepz"]


def test_what_is_missing_is_said_with_how_to_write_it() -> None:
    found = problems("[experiment]\nseed = 1\n")
    assert [(each[0], each[3]) for each in found] == [
        ("experiment.name", "is required"),
        ("env", "is required"),
        ("budget", "is required"),
    ]
    assert found[2][4] == "add [budget] with env_steps = 100_000"
    empty = problems('[experiment]\nname = "x"\n[env]\nid = "y"\n[budget]\n')
    assert [(each[0], each[1], each[3]) for each in empty] == [
        ("budget", 5, "needs at least one of env_steps, updates, wall and target_return")
    ]


@pytest.mark.parametrize(
    ("trainer", "key"),
    [
        ("lr = { start = 1e-3, end = 0.0 }", "trainer.lr"),
        ("clip = { start = 0.2, end = 0.1 }", "trainer.clip"),
        ('learner = "dqn"', "trainer.dqn.epsilon"),
        ('learner = "dqn"\ndqn = { epsilon = 0.1 }\nreplay = { prioritised = true }', "trainer.replay.beta"),
        ('learner = "sac"\nsac = { critic_lr = { start = 1e-3, end = 0.0 } }', "trainer.sac.critic_lr"),
    ],
)
def test_a_number_that_moves_over_the_budget_needs_one_that_ends(trainer: str, key: str) -> None:
    text = f'[experiment]\nname = "x"\n[env]\nid = "y"\n[trainer]\n{trainer}\n[budget]\ntarget_return = 1\n'
    (found,) = problems(text)
    assert found[0] == key and "budget.target_return alone does not say how long that is" in found[3]
    assert "add env_steps, updates or wall to [budget]" in found[4]
    load_spec(text + "env_steps = 1_000_000\n")


def test_overrides_win_and_every_value_tells_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text(SMALLEST)
    loaded = load_spec(
        file, overrides=["rollout.steps=64", "policy.activation=relu", "eval.episodes=8"], name="other-name"
    )
    assert loaded.spec.rollout.steps == 64
    assert loaded.spec.policy.activation == "relu"
    assert loaded.spec.eval is not None
    assert loaded.spec.experiment.name == "other-name"
    origins = loaded.origins
    assert origins["env.id"] == f"{file}:5"
    assert origins["rollout.steps"] == origins["policy.activation"] == origins["eval.episodes"] == "--set"
    assert origins["experiment.name"] == "--name"
    assert origins["env.envs_per_shard"] == origins["trainer.batch_steps"] == "derived"
    assert origins["trainer.gamma"] == "default"
    assert loaded.toml.startswith("# --set rollout.steps=64\n")
    assert load_spec(loaded.toml).spec.experiment.name == "cartpole"


@pytest.mark.parametrize(
    ("override", "key", "reason"),
    [
        ("rollout.stepz=3", "rollout.stepz", "unknown key"),
        ("rollout.steps=many", "rollout.steps", "must be a whole number"),
        ("rollout.steps", "rollout.steps", "cannot read 'rollout.steps'"),
        ("experiment.name.x=3", "experiment.name.x", "experiment.name is not a table"),
        ("rollout=3", "rollout", "must be a table"),
    ],
)
def test_a_bad_override_is_named_as_one(override: str, key: str, reason: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(SMALLEST, overrides=[override])
    [problem] = caught.value.problems
    assert (problem.file, problem.key, problem.reason) == ("--set", key, reason)


def test_units_and_plain_numbers_say_the_same() -> None:
    loaded = load_spec(
        SMALLEST, overrides=["budget.wall=3h", "faults.lease_ttl=500ms", "limits.max_bytes=64MiB", "eval.episodes=9"]
    ).spec
    assert (loaded.budget.wall, loaded.faults.lease_ttl, loaded.limits.max_bytes) == (10800.0, 0.5, 64 * 2**20)


def test_a_file_without_end_is_no_spec() -> None:
    with pytest.raises(SpecError, match="is longer than"):
        load_spec(Path("/dev/zero"))


def test_a_mapping_is_as_good_as_a_file() -> None:
    raw = {
        "experiment": {"name": "a"},
        "env": {"id": "X-v0", "kwargs": {"deep": {"x": [1, 'é"']}}},
        "budget": {"wall": 3},
    }
    loaded = load_spec(raw)
    assert load_spec(loaded.toml).spec == loaded.spec
    assert loaded.origins["env.id"] == "given"
    with pytest.raises(SpecError, match=r"^<spec>  env.num_env = 3: unknown key  \(did you mean num_envs\?\)$"):
        load_spec({**raw, "env": {"id": "X-v0", "num_env": 3}})


def test_a_resolved_spec_survives_json_and_equal_specs_have_equal_digests() -> None:
    spec = load_spec(EXAMPLES / "cartpole.toml").spec
    again = spec_from_json(spec.canonical_json())
    assert again == spec
    assert again.sha256() == spec.sha256()
    assert spec_from_json(spec.model_dump_json()) == spec
    assert load_spec(json.loads(spec.canonical_json())).spec == spec
    other = load_spec(EXAMPLES / "cartpole.toml", overrides=["experiment.seed=2"]).spec
    assert other.sha256() != spec.sha256()
    with pytest.raises(SpecError):
        spec_from_json('{"experiment": {}}')


def test_a_spec_built_from_its_sections_has_the_same_derived_values() -> None:
    sections = ExperimentSpec(
        experiment=Experiment(name="cartpole"),
        env=Env(id="CartPole-v1"),
        trainer=Trainer(lr=Schedule(start=1e-3, end=0.0)),
        eval=Eval(episodes=8),
        budget=Budget(env_steps=1000),
    )
    assert sections == load_spec(SMALLEST + "[eval]\nepisodes=8\n[trainer]\nlr={start=1e-3,end=0.0}").spec


def test_a_spec_cannot_be_changed() -> None:
    spec = load_spec(SMALLEST).spec
    with pytest.raises(ValueError, match="frozen"):
        spec.env.num_envs = 3  # type: ignore[misc]


def test_a_schedule_moves_in_a_straight_line_over_the_budget() -> None:
    schedule = Schedule(start=1.0, end=0.0)
    assert [schedule.at(progress) for progress in (-1.0, 0.0, 0.25, 1.0, 2.0)] == [1.0, 1.0, 0.75, 0.0, 0.0]


def test_what_init_writes_is_valid_and_its_comments_show_the_defaults() -> None:
    spec = load_spec(template(name="a-name", env_id="Acrobot-v1")).spec
    assert (spec.experiment.name, spec.env.id) == ("a-name", "Acrobot-v1")
    shown = "\n".join(
        line.removeprefix("# ") if line.startswith("# ") and " = " in line.split("#")[1] else line
        for line in template().splitlines()[3:]
        if not any(skip in line for skip in ("gravity", ":Wrapper", "policy_lag", "wall =", "target_"))
    )
    assert load_spec(shown).spec.policy == ExperimentSpec.model_fields["policy"].get_default(call_default_factory=True)


def test_the_cartpole_example_is_the_tuned_public_one() -> None:
    spec = load_spec(EXAMPLES / "cartpole.toml").spec
    assert (spec.env.num_envs, spec.rollout.steps, spec.trainer.minibatch, spec.trainer.passes) == (8, 32, 256, 20)
    assert (spec.trainer.lr.at(0.5), spec.trainer.clip.at(0.5)) == (5e-4, 0.1)


@pytest.mark.parametrize(
    ("lag", "batches", "every", "shards", "entries"),
    [(4, 4, 1, 4, 16), (1, 4, 1, 4, 8), (4, 4, 1, 256, 8), (4, 256, 1, 256, 1024), (4, 4, 10, 4, 52)],
)
def test_an_asynchronous_run_keeps_no_more_in_flight_than_it_can_train(
    lag: int, batches: int, every: int, shards: int, entries: int
) -> None:
    assert backlog(lag=lag, batches=batches, every=every, shards=shards) == entries


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            '[experiment]\nnme = "x"\n[env]\nid = "X-v0"\n[bugdet]\nenv_steps = 1\n',
            [
                ":2:1  experiment.nme = 'x': unknown key  (did you mean name?)",
                ":5:2  bugdet: unknown section  (did you mean budget?)",
            ],
        ),
        (
            '[env]\nid = "X-v0"\n[experiment]\nname = "x"\n',
            [":1:1  budget: is required  (add [budget] with env_steps = 100_000)"],
        ),
        ("[env]\n[env]\n", [":2:5  not TOML: cannot declare env twice  (the line reads: [env])"]),
    ],
)
def test_one_mistake_is_one_line_and_every_line_names_a_place(tmp_path: Path, text: str, lines: list[str]) -> None:
    file = tmp_path / "exp.toml"
    file.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_spec(file)
    assert str(caught.value).splitlines() == [f"{file}{line}" for line in lines]


def test_a_number_for_a_whole_schedule_is_wrong_once_and_one_end_under_its_own_name() -> None:
    assert problems(SMALLEST + "[trainer]\nlr = -1\n") == [("trainer.lr", 9, 6, "must be at least 0.0", "")]
    (end,) = problems(SMALLEST + "[trainer]\nlr = { start = 1.0, end = -1.0 }\n")
    assert end[0] == "trainer.lr.end"
    assert len(problems(SMALLEST + "[trainer]\nlr = { start = -2.0, end = -1.0 }\n")) == 2


def test_every_word_that_may_stand_for_a_compression_is_named() -> None:
    (problem,) = problems(SMALLEST + '[rollout]\ncompression = "gzip"\n')
    assert problem[3] == "must be none, lz4 or zstd"


@pytest.mark.parametrize("every", ["auto", 0, 1, 7])
def test_what_is_a_number_or_a_word_is_written_and_read_without_a_warning(every: object) -> None:
    spec = load_spec(f"{SMALLEST}\n[faults]\nsnapshot_every = {json.dumps(every)}\n").spec
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written = spec.canonical_json()
    assert json.loads(written)["faults"]["snapshot_every"] == every
    assert spec_from_json(written) == spec
