"""Groups of agents with a policy each: who acts with what, who learns from what, and who plays past versions."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym

from heddle.consumers.assemble import Assembler
from heddle.consumers.learners import make_learner
from heddle.consumers.learners.base import TrainBatch
from heddle.consumers.learners.groups import GroupsLearner, part_of
from heddle.consumers.learners.none import NoLearner
from heddle.consumers.learners.suspects import suspect
from heddle.errors import CheckpointError, EnvError, ExperimentFailed, SpecError
from heddle.launch.trying import try_out
from heddle.layout import make_layout
from heddle.policies import Acted, ScriptedPolicy, WeightsError, make_policy, pack, unpack
from heddle.policies.groups import GroupsPolicy
from heddle.policies.initial import begin_with_files
from heddle.producers.vector_check import check_vector
from heddle.producers.vector_player import VectorPlayer
from heddle.segment_checks import first_problem
from heddle.shard import plan_shards
from heddle.spec import ExperimentSpec, load_spec, spec_from_json
from tests.agents_kit import Countdown

CPU = torch.device("cpu")


class Unequal(Countdown):
    """Agent 2 sees and does other things than agents 0 and 1; its policy may not do what its mask forbids."""

    def observation_space(self, agent: str) -> Any:
        if agent != "agent_2":
            return super().observation_space(agent)
        return gym.Dict({"far": gym.Box(0.5, 2.0, (2,), np.float32), "action_mask": gym.MultiBinary(3)})

    def action_space(self, agent: str) -> Any:
        return gym.Discrete(3) if agent == "agent_2" else gym.Box(-1.0, 1.0, (2,), np.float32)

    def step(self, actions: dict[str, Any]) -> Any:
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action), (agent, action)
            assert agent != "agent_2" or action == 1, "the only one that is allowed"
        return super().step({agent: float(np.sum(action)) for agent, action in actions.items()})

    def _seen(self, agent: str) -> Any:
        if agent != "agent_2":
            return super()._seen(agent)
        return {"far": np.array([1.0, 1.5], np.float32), "action_mask": np.array([0, 1, 0], np.int8)}


def unequal() -> Unequal:
    return Unequal()


PAIR = [{"name": "duo", "agents": ["agent_{0..1}"]}, {"name": "solo", "agents": ["agent_2"]}]


def spec_with(groups: Any = PAIR, *, env: Any = None, policy: Any = None, **sections: Any) -> ExperimentSpec:
    return load_spec(
        {
            "experiment": {"name": "x"},
            "env": {"id": "tests.agents_kit:countdown", "num_envs": 2, "agents": 3, "envs_per_shard": 2, **(env or {})},
            "policy": {"hidden": [8], **(policy or {}), "groups": groups},
            "rollout": {"steps": 7, "sync": True},
            "budget": {"env_steps": 1000},
            "trainer": {"passes": 2, "minibatch": 16},
            **sections,
        }
    ).spec


class Table:
    """A policy, a player and a learner of one spec, as a worker and a trainer have them."""

    def __init__(self, spec: ExperimentSpec, *, steps: int = 7) -> None:
        self.spec = spec
        self.observation, self.action = check_vector(spec)
        self.policy = self.another()
        self.layout = make_layout(
            self.observation, self.action, steps=steps, outputs=self.policy.outputs, state=self.policy.state
        )
        self.player = VectorPlayer(plan_shards(spec)[0], spec, self.policy, self.layout)
        self.assembler = Assembler(self.layout, device=CPU)

    def another(self) -> GroupsPolicy:
        made = make_policy(self.spec.policy, self.observation, self.action)
        assert isinstance(made, GroupsPolicy)
        return made

    def learner(self) -> GroupsLearner:
        made = make_learner(self.spec, self.another(), device=CPU, seed=0)
        assert isinstance(made, GroupsLearner)
        return made

    def batch(self, segments: int = 1) -> TrainBatch:
        played = [self.player.play(1) for _ in range(segments)]
        assert all(first_problem(one) is None for one in played)
        return self.assembler.assemble(played, [0] * segments)


def test_every_agent_acts_by_the_policy_of_its_group_and_batches_say_which_that_is() -> None:
    table = Table(spec_with())
    segments = table.player.play(1)
    arrays = segments.arrays
    for row in range(segments.rows):
        length, agent = int(arrays["length"][row]), int(arrays["agent"][row])
        place = int(agent == 2)
        assert arrays["out.group"][row, :length].tolist() == [place] * length
        seen = {"obs": arrays["obs"][row, :length]}
        own = table.policy.members[place].policy.act(seen, {}, np.zeros((length, 1)), deterministic=True)
        np.testing.assert_allclose(arrays["out.value"][row, :length], own.outputs["value"], rtol=1e-5)
    values = [set(np.unique(arrays["out.value"][row, :1]).tolist()) for row in (0, 2)]
    assert values[0].isdisjoint(values[1]), "groups begin with other weights, and so with other opinions"


def test_groups_with_other_spaces_see_and_do_their_own_only() -> None:
    table = Table(spec_with(env={"id": "tests.unit.test_groups:unequal"}))
    arrays = table.player.play(1).arrays
    lone = arrays["agent"] == 2
    played = np.arange(7) < arrays["length"][:, None]
    assert (arrays["action.solo"][lone][played[lone]] == 1).all()
    assert (arrays["obs.solo.far"][~lone][:, 0] == 0.5).all() and not arrays["obs.duo"][lone].any()
    assert np.abs(arrays["action.duo"][~lone]).sum() > 0 and not arrays["action.duo"][lone].any()
    metrics = table.learner().update(table.batch(3), 0.0)
    assert np.isfinite(list(metrics.values())).all()


def test_each_group_learns_what_it_would_have_learned_from_its_own_rows_alone() -> None:
    table = Table(spec_with())
    batch, learner = table.batch(2), table.learner()
    alone = table.another().members[1]
    own_spec = table.spec.model_copy(update={"policy": table.spec.policy.of_group(table.spec.policy.groups[1])})
    one = make_learner(own_spec, alone.policy, device=CPU, seed=1)
    rows = alone.rows(batch.env >> 32)
    part = part_of(batch, alone, rows)
    assert part.num_steps == int(batch.valid[rows].sum()) and len(part.reward) == len(rows)
    told = one.update(part, 0.0)
    metrics = learner.update(batch, 0.0)
    assert metrics["solo.policy_loss"] == told["policy_loss"] and metrics["solo.steps"] == part.num_steps
    weights = learner.get_weights()
    for name, array in one.get_weights().items():
        np.testing.assert_array_equal(weights[f"solo/{name}"], array)


def test_rows_keep_their_true_last_observations_within_their_group() -> None:
    table = Table(spec_with(env={"kwargs": {"limit": 4}}))
    batch = table.batch(2)
    assert len(batch.final_index)
    for member in table.policy.members:
        part = part_of(batch, member, member.rows(batch.env >> 32))
        assert part.truncated[part.final_index[:, 0], part.final_index[:, 1]].all()
        np.testing.assert_array_equal(
            part.observations["obs"][part.final_index[:, 0], 0, 2], part.final_observations["obs"][:, 2]
        )
    only = table.policy.members[1]
    assert {float(row[2]) for row in part_of(batch, only, only.rows(batch.env >> 32)).final_observations["obs"]} == {
        2.0
    }


def test_one_version_holds_all_groups_and_a_worker_that_loads_it_acts_as_the_learner_does() -> None:
    table = Table(spec_with(trainer={"normalize_observations": True, "passes": 1, "minibatch": 16}))
    learner = table.learner()
    learner.update(table.batch(2), 0.0)
    data = pack(learner.get_weights(), version=3, update=1)
    table.policy.set_weights(unpack(data)[0])
    for name, array in table.policy.get_weights().items():
        np.testing.assert_array_equal(array, learner.get_weights()[name])
    assert "duo/norm.obs.mean" in table.policy.get_weights()
    with pytest.raises(WeightsError, match="group duo: weights belong to another policy"):
        table.policy.set_weights({name: a for name, a in learner.get_weights().items() if name != "duo/value.0.bias"})
    with pytest.raises(WeightsError, match="'policy.0.weight' is of none of duo, solo"):
        table.policy.set_weights({"policy.0.weight": np.zeros(1)})


def test_a_learner_that_goes_on_from_its_state_gets_the_same_weights() -> None:
    table = Table(
        spec_with([PAIR[0], {"name": "solo", "agents": ["agent_2"], "past_of": "duo", "every": 1, "last": 2}])
    )
    first = table.learner()
    batches = [table.batch(1) for _ in range(4)]
    batches = [replace(batch, **{k: _copied(v) for k, v in vars_of(batch).items()}) for batch in batches]
    for batch in batches[:2]:
        first.update(batch, 0.0)
    tensors, meta = first.state()
    saved, meta = {name: np.array(a) for name, a in tensors.items()}, json.loads(json.dumps(meta))
    second = table.learner()
    second.set_weights(first.get_weights())
    second.load(saved, meta)
    for batch in batches[2:]:
        first.update(batch, 0.5), second.update(batch, 0.5)
    one, other = first.get_weights(), second.get_weights()
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
    with pytest.raises(CheckpointError, match="not of learners of the groups duo"):
        second.load(saved, {"learner": "ppo", "updates": 1})


def vars_of(batch: TrainBatch) -> dict[str, Any]:
    return {name: getattr(batch, name) for name in TrainBatch.__slots__}


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: part.clone() for key, part in value.items()}
    return value.clone() if isinstance(value, torch.Tensor) else value


def test_a_group_whose_numbers_go_wrong_is_named() -> None:
    table = Table(spec_with())
    batch = table.batch(1)
    batch.reward[batch.env >> 32 == 2] = float("nan")
    with pytest.raises(ExperimentFailed, match="group solo: update 1 gave numbers that are not finite"):
        table.learner().update(batch, 0.0)


def test_a_group_that_does_not_learn_keeps_its_weights_and_a_random_one_draws_in_evaluations_too() -> None:
    groups = [{"name": "duo", "agents": ["agent_{0..1}"], "learn": False}, {"name": "solo", "agents": ["agent_2"]}]
    table = Table(spec_with(groups))
    learner = table.learner()
    before = learner.get_weights()
    metrics = learner.update(table.batch(2), 0.0)
    after = learner.get_weights()
    assert {name.partition("/")[0] for name in before if not np.array_equal(before[name], after[name])} == {"solo"}
    assert not any(name.startswith("duo.") for name in metrics)
    chance = Table(spec_with([PAIR[0], {"name": "solo", "agents": ["agent_2"], "id": "random"}]))
    actions = chance.player.play(1, deterministic=True).arrays["action"]
    assert len(set(actions[2].tolist())) > 1
    table.player.close()


def test_groups_of_several_kinds_share_one_noise_and_carry_their_own_memories() -> None:
    groups = [
        {"name": "duo", "agents": ["agent_{0..1}"], "id": "lstm", "recurrent_size": 4},
        {"name": "solo", "agents": ["agent_2"]},
    ]
    table = Table(spec_with(groups, env={"id": "tests.unit.test_groups:unequal"}))
    assert table.policy.noise.kind == "uniform" and table.policy.noise.size == 4
    segments = [table.player.play(1) for _ in range(2)]
    names = [name for name in segments[0].arrays if name.startswith("state.duo.")]
    assert names
    state = segments[1].arrays[names[0]]
    assert not state[segments[1].arrays["agent"] == 2].any()
    learner = table.learner()
    assert np.isfinite(list(learner.update(table.batch(3), 0.0).values())).all()


@pytest.mark.parametrize(
    ("groups", "sections", "key", "reason"),
    [
        (PAIR[:1], {}, "policy.groups", "name 2 agents in all, and env.agents is 3"),
        ([PAIR[0], {**PAIR[1], "name": "duo"}], {}, "policy.groups", "names two groups"),
        ([PAIR[0], {"name": "solo", "agents": ["agent_1"]}], {}, "policy.groups", "is an agent that is named twice"),
        (PAIR, {"env": {"agents": None}}, "policy.groups", "has no meaning in an environment of one agent"),
        (PAIR, {"trainer": {"learner": "sac"}}, "trainer.learner", "trains one policy"),
        ([{**one, "learn": False} for one in PAIR], {}, "policy.groups", "hold no group that learns"),
        ([PAIR[0], {**PAIR[1], "last": 3}], {}, "policy.groups[1].last", "has no meaning without past_of"),
        ([PAIR[0], {**PAIR[1], "past_of": "trio"}], {}, "policy.groups[1].past_of", "names no group"),
        ([PAIR[0], {**PAIR[1], "past_of": "duo", "hidden": [4]}], {}, "policy.groups[1].hidden", "differs from that"),
        (
            [PAIR[0], {**PAIR[1], "past_of": "duo", "update": 4}],
            {},
            "policy.groups[1].update",
            "has no meaning with pick",
        ),
        ([PAIR[0], {**PAIR[1], "dueling": True}], {}, "policy.groups[1].dueling", "has no meaning with policy.id"),
        ([PAIR[0], {**PAIR[1], "id": "q"}], {}, "policy.groups[1].id", "learners that train no groups"),
    ],
)
def test_groups_that_cannot_be_meant_are_refused(groups: Any, sections: Any, key: str, reason: str) -> None:
    env = {k: v for k, v in {"agents": 3, **sections.pop("env", {})}.items() if v is not None}
    given = {
        "experiment": {"name": "x"},
        "env": {"id": "tests.agents_kit:countdown", **env},
        "policy": {"groups": groups},
        "budget": {"env_steps": 1000},
        **sections,
    }
    with pytest.raises(SpecError) as caught:
        load_spec(given)
    found = {problem.key: problem.reason for problem in caught.value.problems}
    assert key in found and reason in found[key], found


@pytest.mark.parametrize(
    ("groups", "env", "reason"),
    [
        ([PAIR[0], {"name": "solo", "agents": ["agent_7"]}], {}, "no agent_7; also agent_2"),
        (
            [{"name": "a", "agents": ["agent_{1..2}"]}, {"name": "b", "agents": ["agent_0"]}],
            {"id": "tests.unit.test_groups:unequal"},
            "has agents with different observation_spaces",
        ),
    ],
)
def test_groups_that_do_not_fit_the_environment_are_refused(groups: Any, env: Any, reason: str) -> None:
    with pytest.raises(EnvError, match=reason):
        check_vector(spec_with(groups, env=env))


def test_groups_get_the_keys_of_the_policy_and_survive_storing() -> None:
    spec = spec_with([PAIR[0], {**PAIR[1], "id": "lstm"}])
    assert [group.hidden for group in spec.policy.groups] == [(8,), (8,)]
    assert [group.shared for group in spec.policy.groups] == [False, True]
    assert spec_from_json(spec.canonical_json()) == spec


def test_a_spec_with_groups_is_tried_out_whole_and_its_versions_are_counted_with_all_past_ones() -> None:
    unequal_spec = spec_with(env={"id": "tests.unit.test_groups:unequal"})
    assert try_out(unequal_spec, with_snapshot=True).no_snapshot
    one = try_out(spec_with()).needed.policy_bytes
    assert try_out(spec_with([PAIR[0], {**PAIR[1], "past_of": "duo", "last": 5}])).needed.policy_bytes == 3 * one
    with pytest.raises(SpecError, match=r"policy\.groups\[1\]\.id .*: cannot be trained by ppo"):
        try_out(spec_with([PAIR[0], {**PAIR[1], "id": "tests.unit.test_groups:Stays"}]))
    assert try_out(spec_with([PAIR[0], {**PAIR[1], "id": "tests.unit.test_groups:Stays", "learn": False}]))


class Stays(ScriptedPolicy):
    """Does nothing."""

    def __init__(self, observation: Any, action: Any) -> None:
        pass

    def act(self, observations: Any, state: Any, noise: Any, *, deterministic: bool = False) -> Acted:
        return Acted({"action": np.zeros(len(noise), np.int64)})


def test_a_group_begins_with_its_part_of_a_file_of_all_or_with_a_file_of_its_own(tmp_path: Path) -> None:
    learner = Table(spec_with()).learner()
    weights = {name: array + np.float32(1) for name, array in learner.get_weights().items()}
    part = {name.removeprefix("solo/"): array for name, array in weights.items() if name.startswith("solo/")}
    for name, given in (("all", weights), ("own", part)):
        file = tmp_path / name
        file.write_bytes(pack(given, version=1, update=1))
        spec = spec_with([PAIR[0], {**PAIR[1], "init": str(file)}])
        policy = make_policy(spec.policy, *check_vector(spec))
        begin_with_files(policy, spec.policy)
        got = policy.get_weights()
        assert all(np.array_equal(got[key], weights[key]) == key.startswith("solo/") for key in got)


def test_a_number_that_made_trouble_is_told_with_its_environment_and_agent() -> None:
    batch = Table(spec_with()).batch(1)
    batch.reward[(batch.env >> 32 == 2) & (batch.env & 0xFF == 1)] = float("inf")
    assert "reward = inf (shard 0, environment 1, agent 2, step 0 of its segment)" in suspect(batch)


@pytest.mark.parametrize("learner", ["vtrace", "examples.own_learner:A2c"])
def test_other_learners_have_one_for_each_group_too(learner: str) -> None:
    table = Table(spec_with(trainer={"learner": learner}))
    made = table.learner()
    before = made.get_weights()
    metrics = made.update(table.batch(2), 0.0)
    moved = {
        name.partition("/")[0] for name, array in made.get_weights().items() if not np.array_equal(array, before[name])
    }
    assert moved == {"duo", "solo"} and np.isfinite(list(metrics.values())).all()


class Keeps(NoLearner):
    """A learner with files of its own."""

    def open(self, directory: Path, seat_epoch: int) -> None:
        raise AssertionError("nobody opens it")


def test_a_learner_with_files_of_its_own_is_refused() -> None:
    table = Table(spec_with(trainer={"learner": "tests.unit.test_groups:Keeps"}))
    with pytest.raises(EnvError, match="keeps files of its own, and would do so once for each"):
        table.learner()
