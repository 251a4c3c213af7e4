"""What arrives of a public environment is, bit for bit, what a plain loop of one process sees."""

import os
from typing import Any

import numpy as np
import pytest

from heddle.broker import Broker
from heddle.shard import env_seed
from tests.conformance import plain, plain_vector
from tests.conformance.cases import CASES, STEPS, Case
from tests.conformance.pipeline import Experience, collect, spec_of
from tests.fixtures import with_worker

SEED = 11
ALL = bool(os.environ.get("HEDDLE_SOAK"))

broker = with_worker


def installed(case: Case) -> None:
    """Leave a case out where its package is not there; where everything must be, that is a failure."""
    if os.environ.get("HEDDLE_ALL_SERVERS"):
        return
    module = {"gymnasium": "gymnasium", "minatar": "minatar.gym"}.get(case.package, case.package.replace("-", "_"))
    pytest.importorskip(module)
    if any(wrapper == "AtariPreprocessing" for wrapper, _ in case.wrappers):
        pytest.importorskip("cv2")
    if case.package == "shimmy":
        suite = pytest.importorskip("dm_control.suite")
        try:
            suite.load("cartpole", "balance")
        except AttributeError as error:
            pytest.skip(f"this dm_control does not work with this MuJoCo: {error}")


def chosen() -> list[Any]:
    return [pytest.param(case, id=str(case)) for case in CASES if (ALL or case.is_quick) and not case.is_vector]


def chosen_vectors() -> list[Any]:
    return [pytest.param(case, id=str(case)) for case in CASES if (ALL or case.is_quick) and case.is_vector]


@pytest.mark.parametrize("case", chosen())
def test_experience_equals_that_of_a_plain_loop_bit_for_bit(broker: Broker, case: Case) -> None:
    installed(case)
    # Given what arrived of every environment of a shard
    spec = spec_of(case, SEED)
    arrived = collect(broker, spec, STEPS)
    # When a plain loop plays the same actions from the same seeds
    for env, experience in enumerate(arrived):
        seeds = [env_seed(SEED, 0, env, episode) for episode in range(STEPS)]
        expected = plain.play(case, seeds, experience.arrays["action"])
        # Then nothing differs
        compare(experience, expected)


@pytest.mark.parametrize("case", chosen_vectors())
def test_experience_of_a_vector_environment_equals_that_of_a_plain_loop_bit_for_bit(broker: Broker, case: Case) -> None:
    installed(case)
    # Given what arrived of every environment of a shard, and more than is compared: their chance may be one
    arrived = collect(broker, spec_of(case, SEED), 2 * STEPS)
    # When a plain loop plays the same actions from the same seeds
    seeds = [env_seed(SEED, 0, env, 0) for env in range(case.num_envs)]
    expected = plain_vector.play(case, seeds, [one.arrays["action"] for one in arrived], STEPS)
    # Then nothing differs
    for found, wanted in zip(arrived, expected, strict=True):
        finals = {step: final for step, final in found.finals.items() if step < STEPS}
        compare(Experience({name: array[:STEPS] for name, array in found.arrays.items()}, finals), wanted)


def test_the_suite_has_forty_environments_of_eight_packages_and_its_short_form_one_of_each() -> None:
    assert len({(case.id, str(case.kwargs), str(case.wrappers), case.is_vector) for case in CASES}) == len(CASES) >= 40
    packages = {case.package for case in CASES}
    assert {case.package for case in CASES if case.is_quick} >= packages - {"highway-env"}  # seconds a step


def compare(found: Experience, expected: plain.Stream) -> None:
    arrays, steps = found.arrays, len(expected.rewards)
    for name in [name for name in arrays if name == "obs" or name.startswith("obs.")]:
        want = np.stack([_leaf(name, one, arrays[name].dtype) for one in expected.observations])
        np.testing.assert_array_equal(arrays[name], want, err_msg=name)
    np.testing.assert_array_equal(arrays["reward"], np.array(expected.rewards, np.float32))
    np.testing.assert_array_equal(arrays["terminated"], expected.terminated)
    np.testing.assert_array_equal(arrays["truncated"], expected.truncated)
    assert found.finals.keys() == expected.finals.keys()
    for step, final in found.finals.items():
        for name, value in final.items():
            np.testing.assert_array_equal(
                value, _leaf(name, expected.finals[step], np.asarray(value).dtype), err_msg=name
            )
    np.testing.assert_array_equal(arrays["episode_length"], [expected.lengths.get(t, 0) for t in range(steps)])
    np.testing.assert_array_equal(arrays["episode_return"], [expected.returns.get(t, np.nan) for t in range(steps)])
    for name in [name for name in arrays if name.startswith("info.")]:
        want = np.array([info.get(name.removeprefix("info."), np.nan) for info in expected.infos], np.float64)
        np.testing.assert_array_equal(arrays[name], want, err_msg=name)


def _leaf(name: str, observation: Any, dtype: Any) -> Any:
    """A leaf of an observation, in the dtype that its space declares."""
    for key in name.split(".")[1:]:
        observation = observation[int(key) if isinstance(observation, tuple) else key]
    return np.asarray(observation).astype(dtype)


def test_a_comparison_notices_one_wrong_bit() -> None:
    case = CASES[0]
    stream = plain.play(case, range(STEPS), [0] * STEPS)
    arrays: dict[str, Any] = {
        "obs": np.stack(stream.observations),
        "reward": np.array(stream.rewards, np.float32),
        "terminated": np.array(stream.terminated),
        "truncated": np.array(stream.truncated),
        "episode_length": np.array([stream.lengths.get(t, 0) for t in range(STEPS)]),
        "episode_return": np.array([stream.returns.get(t, np.nan) for t in range(STEPS)]),
    }
    compare(Experience(arrays), stream)
    for name, array in arrays.items():
        wrong = array.copy()
        place = (STEPS // 2, 1) if name == "obs" else (STEPS // 2,)
        wrong[place] = np.nextafter(wrong[place], np.inf) if name in ("obs", "reward") else not wrong[place]
        with pytest.raises(AssertionError):
            compare(Experience({**arrays, name: wrong}), stream)
