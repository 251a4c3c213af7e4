"""Past versions that play: which ones, for how long, told in the batch, and never trained."""

from typing import Any

import numpy as np
import pytest

from heddle.errors import EnvError
from heddle.layout import Segments
from heddle.policies import make_policy
from heddle.policies.groups import GroupsPolicy
from heddle.policies.past import LEAST_KEPT, PastPolicy, named
from heddle.spaces import Box, Discrete
from heddle.spec import ExperimentSpec, load_spec
from tests.unit.test_groups import PAIR, Table, spec_with

SEEN, DONE = Box((3,), "float32", 0.0, 1e6), Discrete(4)


def with_past(**keys: Any) -> ExperimentSpec:
    return spec_with([PAIR[0], {**PAIR[1], "past_of": "duo", **keys}])


def trained(table: Table, updates: int) -> list[dict[str, Any]]:
    """Weights after each update, from none on; the player has the last ones."""
    learner = table.learner()
    found = [learner.get_weights()]
    for _ in range(updates):
        learner.update(table.batch(1), 0.0)
        found.append(learner.get_weights())
    table.policy.set_weights(found[-1])
    return found


def published(weights: dict[str, Any]) -> list[int]:
    return sorted({int(name.split("/")[1]) for name in weights if name.startswith("solo/")})


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"pick": "uniform", "last": 3, "every": 2}, [[0], [0], [0, 2], [0, 2], [0, 2, 4], [0, 2, 4], [2, 4, 6]]),
        ({"pick": "latest", "every": 2}, [[0], [0], [2], [2], [4], [4], [6]]),
        ({"pick": "fixed", "update": 3}, [[0], [0], [0], [3], [3], [3], [3]]),
    ],
)
def test_the_versions_that_the_rule_wants_are_published_and_no_others(keys: Any, expected: list[list[int]]) -> None:
    versions = trained(Table(with_past(**keys)), 6)
    assert [published(weights) for weights in versions] == expected
    for weights in versions:
        for update in published(weights):
            for name in (name for name in weights if name.startswith("duo/")):
                was = versions[update][name]
                np.testing.assert_array_equal(weights[f"solo/{update}/{name.removeprefix('duo/')}"], was)


def test_each_episode_meets_one_version_and_every_step_says_which() -> None:
    table = Table(with_past(last=4, every=1))
    versions = trained(table, 5)
    policy = {update: table.another() for update in published(versions[-1])}
    for update, one in policy.items():
        one.set_weights(versions[update])
    met: dict[int, list[int]] = {0: [], 1: []}
    for segments in (table.player.play(6) for _ in range(30)):
        arrays = segments.arrays
        for row in np.flatnonzero(arrays["agent"] == 2).tolist():
            length, env = int(arrays["length"][row]), int(arrays["env"][row])
            past = arrays["out.past"][row, :length]
            met[env] += past.tolist()
            for update in set(past.tolist()) & policy.keys():
                own = (
                    policy[update]
                    .members[0]
                    .policy.act({"obs": arrays["obs"][row, :length]}, {}, np.zeros((length, 1)), deterministic=True)
                )
                at = past == update
                np.testing.assert_allclose(arrays["out.value"][row, :length][at], own.outputs["value"][at], rtol=1e-5)
        others = arrays["agent"] != 2
        assert not arrays["out.past"][others].any()
    episodes = [steps[begin : begin + 5] for steps in met.values() for begin in range(0, len(steps) // 5 * 5, 5)]
    later = [one for one in episodes[10:]]
    assert len(later) > 20 and all(len(set(one)) == 1 for one in later), "agent 2 plays episodes of five steps"
    assert {one[0] for one in later} == set(published(versions[-1])), "and meets all that are kept"


def test_the_same_seeds_meet_the_same_versions_whoever_plays() -> None:
    first, second = Table(with_past(last=4, every=1)), Table(with_past(last=4, every=1))
    weights = trained(Table(with_past(last=4, every=1)), 4)[-1]
    seen: list[Segments] = []
    for table in (first, second):
        table.policy.set_weights(weights)
        seen.append(table.player.play(4))
    np.testing.assert_array_equal(seen[0].arrays["out.past"], seen[1].arrays["out.past"])
    np.testing.assert_array_equal(seen[0].arrays["action"], seen[1].arrays["action"])


def test_a_version_that_is_kept_no_more_is_played_to_the_end_of_its_episode() -> None:
    past, pool = one_past()
    state = past.initial_state(1)
    acted = past.act({"obs": np.zeros((1, 3), np.float32)}, state, np.zeros((1, past.noise.size)))
    assert acted.outputs["past"].tolist() == [0]
    past.set_weights(named({update: pool(update) for update in (1, 2)}))
    acted = past.act({"obs": np.zeros((1, 3), np.float32)}, acted.state, np.zeros((1, past.noise.size)))
    assert acted.outputs["past"].tolist() == [0] and acted.state["past"].tolist() == [1]
    fresh = past.act({"obs": np.zeros((1, 3), np.float32)}, past.initial_state(1), np.zeros((1, past.noise.size)))
    assert fresh.outputs["past"].tolist() == [1]


def test_what_is_remembered_is_bounded_and_what_is_forgotten_is_chosen_anew() -> None:
    past, pool = one_past()
    first = past.act({"obs": np.zeros((1, 3), np.float32)}, past.initial_state(1), np.zeros((1, past.noise.size)))
    for update in range(1, 4 * LEAST_KEPT):
        past.set_weights(named({update: pool(update)}))
    assert len(past._known) <= LEAST_KEPT
    acted = past.act({"obs": np.zeros((1, 3), np.float32)}, first.state, np.zeros((1, past.noise.size)))
    assert acted.outputs["past"].tolist() == [4 * LEAST_KEPT - 1]


def test_a_rolled_back_update_of_the_same_number_is_loaded_anew() -> None:
    past, pool = one_past()
    past.set_weights(named({1: pool(1)}))
    past.set_weights(named({1: pool(2)}))
    np.testing.assert_array_equal(past.get_weights()["1/policy.0.bias"], pool(2)["policy.0.bias"])


def one_past() -> tuple[PastPolicy, Any]:
    spec = load_spec({"experiment": {"name": "x"}, "env": {"id": "x"}, "budget": {"env_steps": 1}}).spec.policy
    past = PastPolicy(lambda: make_policy(spec, SEEN, DONE), agents=1)
    template = make_policy(spec, SEEN, DONE).get_weights()
    return past, lambda update: {name: array + np.float32(update) for name, array in template.items()}


def test_past_versions_cannot_play_where_spaces_are_others() -> None:
    spec = with_past()
    table = Table(spec_with(env={"id": "tests.unit.test_groups:unequal"}))
    with pytest.raises(EnvError, match="group solo has other spaces than duo"):
        make_policy(spec.policy, table.observation, table.action)


def test_groups_are_one_policy_only_for_whole_games() -> None:
    policy = make_policy(with_past().policy, SEEN, DONE)
    assert isinstance(policy, GroupsPolicy)
    with pytest.raises(ValueError, match="4 rows are no whole games of 3 agents"):
        policy.act({"obs": np.zeros((4, 3), np.float32)}, policy.initial_state(4), np.zeros((4, policy.noise.size)))
