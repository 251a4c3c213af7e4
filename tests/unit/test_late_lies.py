"""Environments that break their contract only late are named with the place, and nothing of it is handed out."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from heddle.errors import EnvError
from heddle.layout import Layout
from heddle.policies import make_policy
from heddle.policies.base import Acted
from heddle.producers.envs_agents import AgentLanes
from heddle.producers.mishap import PlayError
from heddle.producers.play import Play
from heddle.producers.player import Player
from heddle.producers.ready_player import ReadyPlayer
from heddle.producers.returns import _is_early
from heddle.producers.steppers import AsyncStepper, ThreadStepper
from heddle.producers.vector_player import VectorPlayer
from heddle.segment_checks import first_problem
from heddle.shard import ShardPlan
from heddle.spaces import Discrete
from heddle.spec import ExperimentSpec
from tests.agents_kit import Countdown
from tests.unit.fake_envs import Drawn, layout_for, plan_of, spec_of
from tests.unit.lying_env import (
    EPISODE,
    LIES,
    NESTED,
    PART_LIES,
    PLAIN,
    ROWS_LIES,
    Coroutines,
    Counting,
    Liar,
    LyingRows,
    Outside,
)
from tests.unit.test_envs_agents import AGENTS, SEEN, spec_with

HERE = "tests.unit.lying_env"
AFTER = 20
ALL = {**{name: (*lie, False) for name, lie in LIES.items()}, **{name: (*lie, True) for name, lie in PART_LIES.items()}}
"""Name to lie, what is told, and whether it takes a nested observation."""
Maker = Callable[..., Play]


def scene(nested: bool = False, *, n: int = 2, **env: Any) -> tuple[ShardPlan, ExperimentSpec, Drawn, Layout]:
    """A shard of `n` environments of an experiment, and what plays it."""
    wanted = {"num_envs": 8, "envs_per_shard": n, "id": f"{HERE}:Liar", **env}
    spec = spec_of(env=wanted, rollout={"steps": 16, "max_policy_lag": 4}, trainer={"minibatch": 1})
    layout = layout_for(Drawn(), steps=16, observation=NESTED if nested else PLAIN)
    return plan_of(n, index=3, first_env=6), spec, Drawn(), layout


def inline(lie: str, nested: bool, after: int) -> Play:
    return Player(*scene(nested), envs=[Liar(nested=nested), Liar(lie, after, nested)])


def threads(lie: str, nested: bool, after: int) -> Play:
    envs = [Liar(nested=nested), Liar(lie, after, nested)]
    return ReadyPlayer(*scene(nested, stepping="threads"), envs=envs, stepper=ThreadStepper(envs, 2))


def coroutines(lie: str, nested: bool, after: int) -> Play:
    envs = [Coroutines("", after, nested), Coroutines(lie, after, nested)]
    return ReadyPlayer(*scene(nested, stepping="threads"), envs=envs, stepper=AsyncStepper(envs))


def isolated(lie: str, nested: bool, after: int) -> Play:
    kwargs = {"lie": lie, "after": after, "nested": nested}
    return Player(*scene(nested, n=1, isolation="process", kwargs=kwargs))


def processes(lie: str, nested: bool, after: int) -> Play:
    kwargs = {"lie": lie, "after": after, "nested": nested}
    return ReadyPlayer(*scene(nested, n=1, stepping="processes", processes=1, kwargs=kwargs))


@pytest.fixture
def closing() -> Iterator[list[Play]]:
    """Players that are closed at the end."""
    players: list[Play] = []
    yield players
    for player in players:
        player.close()


def lied(player: Play, segments: int = 40) -> tuple[PlayError, int]:
    """What is told when the lie comes, and how many steps were handed out before of the environment that lies."""
    given = 0
    for _ in range(segments):
        try:
            batch = player.play(7)
        except PlayError as told:
            return told, given
        assert first_problem(batch) is None
        liars = batch.arrays["env"] == batch.arrays["env"].max()
        given += int(batch.arrays["length"][liars].sum())
        player.recycle(batch)
    raise AssertionError(f"{segments} segments were handed out as if nothing were wrong")


@pytest.mark.parametrize("lie", ALL)
@pytest.mark.parametrize("make", [inline, threads, coroutines])
def test_a_late_lie_is_named_with_its_place_and_never_handed_out(make: Maker, lie: str, closing: list[Play]) -> None:
    _, told, nested = ALL[lie]
    player = make(lie, nested, AFTER)
    closing.append(player)
    error, given = lied(player)
    text = str(error)
    # Then shard, environment, episode, seed, step and the policy that played are named, and what it was
    with pytest.raises(PlayError, match=rf"environment 7 \(number 1 of shard 3\) .*{told}"):
        raise error
    assert "policy version 7" in text and f"seed {error.failure.seed}, episode " in text
    if "space" not in lie:  # which is asked for behind a segment
        assert (error.failure.episode, error.failure.step) == (1 + (AFTER - 1) // EPISODE, 1 + (AFTER - 1) % EPISODE)
    assert given < AFTER


@pytest.mark.parametrize("make", [isolated, processes])
@pytest.mark.parametrize("lie", ["list", "reward text", "terminated array", "info None", "action space", "part wraps"])
def test_so_is_one_in_a_child(make: Maker, lie: str, closing: list[Play]) -> None:
    _, told, nested = ALL[lie]
    player = make(lie, nested, AFTER)
    closing.append(player)
    error, given = lied(player)
    with pytest.raises(PlayError, match=rf"environment 6 \(number 0 of shard 3\) .*{told}"):
        raise error
    assert (error.failure.episode, error.failure.step) == (1 + (AFTER - 1) // EPISODE, 1 + (AFTER - 1) % EPISODE)
    assert given < AFTER


class Picky(Drawn):
    """Raises, as networks do, when it is shown what is no observation."""

    def act(self, observations: Any, state: Any, noise: Any, *, deterministic: bool = False) -> Acted:
        color, pair = observations["obs.color"], observations["obs.pair.0"]
        if not (np.isin(color, (1, 2, 3)).all() and np.isfinite(pair).all()):
            raise IndexError("index is out of bounds")
        return super().act(observations, state, noise, deterministic=deterministic)


@pytest.mark.parametrize("lie", ["outside", "below", "part nan"])
@pytest.mark.parametrize("make", [inline, threads, coroutines, isolated, processes])
def test_a_lie_that_makes_the_policy_raise_is_told_of_the_environment(
    make: Maker, lie: str, closing: list[Play]
) -> None:
    player = make(lie, True, AFTER)
    player.policy = Picky()
    closing.append(player)
    error, given = lied(player)
    with pytest.raises(PlayError, match=rf"environment \d \(number . of shard 3\) {PART_LIES[lie][1]}"):
        raise error
    assert (error.failure.doing, error.failure.cause) == ("step", "answer")
    assert (error.failure.episode, error.failure.step) == (1 + (AFTER - 1) // EPISODE, 1 + (AFTER - 1) % EPISODE)
    assert error.problems[0].key != "policy.id" and given < AFTER


@pytest.mark.parametrize("at_once", [False, True])
def test_an_integer_above_its_space_is_not_the_networks_fault(at_once: bool) -> None:
    spec = spec_of(env={"num_envs": 2, "id": f"{HERE}:Counting"}, rollout={"steps": 16})
    policy = make_policy(spec.policy, Discrete(3), Discrete(3))
    layout = layout_for(policy, steps=16, observation=Discrete(3))
    if at_once:
        vector = gymnasium.vector.SyncVectorEnv([lambda: Counting(10_000), lambda: Counting(AFTER)])
        player: Play = VectorPlayer(plan_of(2), spec, policy, layout, vector=vector)
    else:
        player = Player(plan_of(2), spec, policy, layout, envs=[Counting(10_000), Counting(AFTER)])
    error, _ = lied(player)
    assert "environment 1 (number 1 of shard 0) gave obs = 3, which is outside 0..2; seed " in str(error)
    assert error.failure.env == 1 and error.failure.doing == "step"


def test_a_policy_that_raises_at_what_is_well_is_blamed_itself() -> None:
    class Broken(Drawn):
        def act(self, *given: Any, **named: Any) -> Acted:
            raise IndexError("index is out of bounds")

    plan, spec, _, layout = scene()
    with pytest.raises(PlayError, match="failed to act for shard 3 at step 0 of a segment.*IndexError"):
        Player(plan, spec, Broken(), layout, envs=[Liar(), Liar()]).play(7)


@pytest.mark.parametrize("make", [inline, threads, isolated])
def test_a_failure_says_whether_the_environment_that_failed_had_finished_an_episode(
    make: Maker, closing: list[Play]
) -> None:
    soon, later, number = make("list", False, EPISODE - 1), make("list", False, AFTER), make("nan", False, AFTER)
    closing.extend([soon, later, number])
    assert lied(soon)[0].early
    assert not lied(later)[0].early and not lied(number)[0].early


def test_one_that_cannot_be_made_or_reset_at_first_says_nothing_of_what_its_batches_are_worth() -> None:
    shy = Liar()
    shy.reset = None  # type: ignore[assignment, method-assign]
    with pytest.raises(PlayError, match="reset") as told:
        Player(*scene(), envs=[shy, Liar()]).play(7)
    assert not told.value.early
    assert not _is_early(EnvError("cannot be made")) and not _is_early(None)


def test_an_episode_that_its_neighbour_finished_is_none_of_the_environment_that_failed() -> None:
    endless = Liar("list", EPISODE + 5)
    step = endless.step
    endless.step = lambda action: (*step(action)[:2], False, False, {})  # type: ignore[method-assign]
    with pytest.raises(PlayError, match="environment 7") as told:
        Player(*scene(), envs=[Liar(), endless]).play(7)
    assert told.value.early


def test_the_ten_thousandth_step_is_looked_at_like_the_first(closing: list[Play]) -> None:
    for lie in ("list", "nan", "reward text", "terminated None", "info None", "action space"):
        player = Player(*scene(n=1), envs=[Liar(lie, 10_000)])
        error, given = lied(player, segments=1_000)
        assert 10_000 - 16 <= given < 10_000 and error.failure.cause == "answer", lie


@pytest.mark.parametrize("lie", ROWS_LIES)
def test_so_is_one_of_a_vector_environment(lie: str) -> None:
    plan, spec, policy, layout = scene(vector=True)
    player = VectorPlayer(plan, spec, policy, layout, vector=LyingRows(lie, AFTER))
    error, given = lied(player)
    where = ROWS_LIES[lie][1].replace("environment 0 .*", r"environment 6 \(number 0 of shard 3\)")
    with pytest.raises(PlayError, match=where):
        raise error
    assert "shard 3" in str(error) and given < AFTER


AGENT_LIES: dict[str, tuple[dict[str, Any], str]] = {
    "reward": ({"rewards": "2.5"}, "the reward '2.5', expected one finite number"),
    "no reward": ({"rewards": None}, "the reward None, expected one finite number"),
    "flag": ({"ended": np.array([False])}, r"terminated = array\(\[False\]\), expected a bool"),
    "shape": ({"seen": np.zeros(4, np.float32)}, r"the observation has shape \(4,\), its space \(3,\)"),
    "kind": ({"seen": np.array(["1", "2", "3"])}, "the observation has dtype <U1, its space float32"),
}


class LyingAgent(Countdown):
    """`Countdown` whose agent 1 is told something wrong in its second step."""

    def __init__(self, wrong: dict[str, Any]) -> None:
        super().__init__(AGENTS)
        self._wrong = wrong

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        seen, rewards, ended, cut, infos = super().step(actions)
        if self.step_count == 2:
            for part, name in ((seen, "seen"), (rewards, "rewards"), (ended, "ended")):
                part["agent_1"] = self._wrong.get(name, part["agent_1"])
        return seen, rewards, ended, cut, infos


@pytest.mark.parametrize("lie", AGENT_LIES)
def test_so_is_one_of_an_agent_with_its_name(lie: str) -> None:
    wrong, told = AGENT_LIES[lie]
    policy, spec = Drawn(4), spec_with(num_envs=1)
    layout = layout_for(policy, steps=7, observation=SEEN, action=Discrete(4), info_keys=["alive"])
    lanes = AgentLanes([LyingAgent(wrong)], name="x")
    plan = ShardPlan(index=0, kind="train", first_env=0, num_envs=1, agents=AGENTS)
    error, _ = lied(VectorPlayer(plan, spec, policy, layout, vector=lanes))
    with pytest.raises(PlayError, match=rf"agent 1 of environment 0 .* of agent 'agent_1': .*{told}.* step 2"):
        raise error


@pytest.mark.parametrize("cut", [False, True])
def test_an_observation_outside_its_bounds_is_told_once_and_trained(cut: bool) -> None:
    # Given that well-known environments leave their bounds now and then
    player = Player(*scene(), envs=[Liar(), Outside(AFTER, cut)])
    for _ in range(4):
        player.recycle(player.play(7))
    (told,) = player.hear()
    assert "environment 7 (number 1 of shard 3) gave obs[1] = " in told and "which is outside -1..1; seed " in told
    assert "episode 3, step 6" in told and "env.bounds" in told
    assert player.hear() == []


def test_where_the_spec_refuses_that_it_is_a_failure() -> None:
    player = Player(*scene(bounds="refuse"), envs=[Liar(), Outside(AFTER)])
    error, given = lied(player)
    assert "gave obs[1] = 2.3" in str(error) and "which is outside -1..1" in str(error)
    assert given < AFTER and error.failure.cause == "answer"


def test_spaces_that_are_made_anew_whenever_they_are_asked_for_are_no_change() -> None:
    class Anew(Liar):
        @property
        def action_space(self) -> Any:
            return Liar().action_space

        @action_space.setter
        def action_space(self, space: Any) -> None:
            pass

    player = Player(*scene(), envs=[Anew(), Anew()])
    for _ in range(4):
        segments = player.play(7)
        assert segments.arrays["length"].tolist() == [16, 16]
        player.recycle(segments)
    assert player.hear() == []


class Buggy(Countdown):
    """`Countdown` that breaks in the second step of its second game, or when its third one begins."""

    def __init__(self, bug: str) -> None:
        super().__init__(AGENTS)
        self._bug = bug

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if self._bug == "reset" and self.episode == 2:
            raise IndexError("no such level")
        return super().reset(seed, options)

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        answer = super().step(actions)
        if (self.episode, self.step_count) != (2, 2):
            return answer
        if self._bug == "step":
            raise IndexError("tag bug")
        if self._bug == "four":
            return answer[:4]
        if self._bug == "missing":
            del answer[0]["agent_1"]
        return answer


@pytest.mark.parametrize(
    ("bug", "told", "at"),
    [
        ("step", "^environment 1 .number 1 of shard 0. failed in step: IndexError: tag bug", (2, 2)),
        ("four", "^environment 1 .number 1 of shard 0. failed in step: step returned something else than five", (2, 2)),
        (
            "missing",
            "^agent 1 of environment 1 .* failed in step: step gave no observations for agent 'agent_1'",
            (2, 2),
        ),
        ("reset", "^environment 1 .number 1 of shard 0. failed in step: IndexError: no such level", None),
    ],
)
def test_a_game_that_fails_is_named_among_those_beside_it(bug: str, told: str, at: tuple[int, int] | None) -> None:
    policy, spec = Drawn(4), spec_with(num_envs=2)
    layout = layout_for(policy, steps=7, observation=SEEN, action=Discrete(4), info_keys=["alive"])
    lanes = AgentLanes([Countdown(AGENTS), Buggy(bug)], name="x")
    plan = ShardPlan(index=0, kind="train", first_env=0, num_envs=2, agents=AGENTS)
    error, _ = lied(VectorPlayer(plan, spec, policy, layout, vector=lanes))
    assert re.search(told, error.problems[0].reason), error
    assert error.failure.env == 1 and error.failure.seed
    if at is not None:
        assert (error.failure.episode, error.failure.step) == at


def test_a_game_that_cannot_even_begin_is_named_as_well() -> None:
    policy, spec = Drawn(4), spec_with(num_envs=2)
    layout = layout_for(policy, steps=7, observation=SEEN, action=Discrete(4), info_keys=["alive"])
    broken = Buggy("reset")
    broken.episode = 2
    lanes = AgentLanes([Countdown(AGENTS), broken], name="x")
    plan = ShardPlan(index=0, kind="train", first_env=0, num_envs=2, agents=AGENTS)
    with pytest.raises(PlayError, match="environment 1 .number 1 of shard 0. failed in reset: IndexError: no such"):
        VectorPlayer(plan, spec, policy, layout, vector=lanes).play(7)
