"""The player: endings, autoreset, final observations, episode statistics, seeds, and what it says when things break."""

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest

from heddle.clock import ManualClock
from heddle.errors import EnvError
from heddle.layout import Segments
from heddle.policies.base import Acted, Array, Arrays, Noise, OutputSpec, ScriptedPolicy
from heddle.producers.evaluate import evaluate
from heddle.producers.mishap import PlayError
from heddle.producers.player import Player
from heddle.producers.report import TRACE_CHARS
from heddle.producers.seeds import EpisodeSeeds
from heddle.segment_checks import first_problem
from heddle.shard import env_seed, first_episode, noise_generator
from heddle.spaces import Box, DictSpace, Discrete
from heddle.spec import objects
from tests.unit.fake_envs import Drawn, Ending, Remembering, Scripted, layout_for, plan_of, spec_of


def player_of(
    *scripts: Sequence[Ending],
    policy: Any = None,
    steps: int = 4,
    envs: Sequence[Any] | None = None,
    layout: Any = None,
    rollout: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Player:
    policy = policy or Drawn()
    made = [Scripted(script) for script in scripts] if envs is None else list(envs)
    spec = spec_of(rollout={"steps": steps, **(rollout or {})})
    layout = layout or layout_for(policy, steps=steps)
    return Player(plan_of(len(made)), spec, policy, layout, envs=made, **kwargs)


def played(player: Player, times: int = 1) -> list[Segments]:
    segments = [player.play(version) for version in range(1, times + 1)]
    assert [first_problem(one) for one in segments] == [None] * times
    return segments


@pytest.mark.parametrize(
    ("how", "terminated", "truncated", "kept"),
    [("terminated", True, False, False), ("truncated", False, True, True), ("both", True, True, False)],
)
def test_flags_are_kept_apart_and_only_a_pure_truncation_keeps_its_final_observation(
    how: str, terminated: bool, truncated: bool, kept: bool
) -> None:
    (segments,) = played(player_of([(2, how)]))
    arrays = segments.arrays
    assert arrays["terminated"].tolist() == [[False, terminated, False, terminated]]
    assert arrays["truncated"].tolist() == [[False, truncated, False, truncated]]
    if kept:
        assert arrays["final_row"].tolist() == [0, 0]
        assert arrays["final_step"].tolist() == [1, 3]
        assert arrays["final.obs"].tolist() == [[0, 2], [1, 2]]
    else:
        assert segments.num_finals == 0


def test_the_row_behind_an_ending_is_the_first_observation_of_the_next_episode() -> None:
    first, second = played(player_of([(3, "terminated"), (2, "truncated")]), times=2)
    # episode 0: steps 0 1 2 3; its end, [0, 3], is nowhere; the environment reuses one buffer throughout
    assert first.arrays["obs"].tolist() == [[[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]]]
    assert second.arrays["obs"].tolist() == [[[1, 1], [2, 0], [2, 1], [2, 2], [3, 0]]]
    assert first.arrays["reward"].tolist() == [[1, 2, 3, 101]]
    assert second.arrays["reward"].tolist() == [[102, 201, 202, 203]]
    assert second.arrays["final.obs"].tolist() == [[1, 2]]


def test_an_episode_that_ends_with_the_segment_begins_anew_in_the_next_one() -> None:
    first, second = played(player_of([(4, "truncated")]), times=2)
    assert first.arrays["obs"][0, 4].tolist() == [1, 0]
    assert first.arrays["final.obs"].tolist() == [[0, 4]]
    assert second.arrays["obs"][0, 0].tolist() == [1, 0]
    assert second.arrays["episode_length"].tolist() == [[0, 0, 0, 4]]


def test_returns_and_lengths_span_segments() -> None:
    segments = played(player_of([(6, "terminated"), (1, "terminated")], [(9, "truncated")]), times=3)
    lengths = np.concatenate([one.arrays["episode_length"] for one in segments], axis=1)
    returns = np.concatenate([one.arrays["episode_return"] for one in segments], axis=1)
    assert [(int(t), int(lengths[0, t])) for t in np.flatnonzero(lengths[0])] == [(5, 6), (6, 1)]
    assert [(int(t), int(lengths[1, t])) for t in np.flatnonzero(lengths[1])] == [(8, 9)]
    assert returns[0, 5] == 1 + 2 + 3 + 4 + 5 + 6
    assert returns[0, 6] == 101
    assert returns[1, 8] == 45
    assert np.isnan(returns[lengths == 0]).all()


def test_every_row_says_who_played_it_and_with_what() -> None:
    (segments,) = played(player_of([(3, "terminated")], [(3, "terminated")]))
    assert segments.arrays["env"].tolist() == [0, 1]
    assert segments.arrays["agent"].tolist() == [0, 0]
    assert segments.arrays["version"].tolist() == [1, 1]
    assert segments.arrays["length"].tolist() == [4, 4]
    assert (segments.version_min, segments.version_max, segments.num_steps) == (1, 1, 8)


def test_outputs_and_actions_stand_at_the_step_they_were_chosen_for() -> None:
    player = player_of([(3, "terminated")])
    (segments,) = played(player)
    arrays = segments.arrays
    assert arrays["out.value"].tolist() == arrays["obs"][:, :-1, 1].tolist()
    np.testing.assert_array_equal(arrays["action"], (arrays["out.log_prob"] * 3).astype(np.int64))
    assert player._envs[0].actions == arrays["action"][0].tolist()


class Silent(Drawn):
    """Has an output of no numbers, too."""

    outputs: Mapping[str, OutputSpec] = {**Drawn.outputs, "nothing": OutputSpec("float32", (0,))}

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        acted = super().act(observations, state, noise, deterministic=deterministic)
        return Acted(acted.actions, {**acted.outputs, "nothing": np.zeros((len(noise), 0), np.float32)})


def test_an_output_of_no_numbers_is_recorded_as_such_and_all_others_as_ever() -> None:
    script: list[Ending] = [(3, "terminated")]
    (plain,), (segments,) = played(player_of(script, script)), played(player_of(script, script, policy=Silent()))
    assert segments.arrays["out.nothing"].shape == (2, 4, 0)
    for name, array in plain.arrays.items():
        np.testing.assert_array_equal(segments.arrays[name], array, err_msg=name)


class Slow(Scripted):
    """Takes a second a step on a hand-driven clock."""

    def __init__(self, clock: ManualClock, script: Sequence[Ending]) -> None:
        super().__init__(script)
        self.clock = clock

    def step(self, action: Any) -> Any:
        self.clock.advance(1.0)
        return super().step(action)


def test_max_seconds_makes_shorter_segments_and_blanks_the_rest() -> None:
    clock = ManualClock()
    player = player_of(
        envs=[Slow(clock, [(2, "terminated"), (9, "terminated")])],
        steps=8,
        clock=clock,
        rollout={"max_seconds": 3.0},
        layout=layout_for(Drawn(), steps=8, info_keys=["fuel"]),
    )
    first, second = played(player, times=2)
    assert first.arrays["length"].tolist() == second.arrays["length"].tolist() == [3]
    assert first.arrays["obs"][0].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]] + [[0, 0]] * 5
    assert first.arrays["reward"][0].tolist() == [1, 2, 101] + [0] * 5
    assert first.arrays["info.fuel"][0, :3].tolist() == [0.5, 1.0, 0.5]
    assert np.isnan(first.arrays["info.fuel"][0, 3:]).all()
    assert second.arrays["obs"][0, 0].tolist() == [1, 1]


def test_cut_ends_the_running_segment_at_the_next_step() -> None:
    player = player_of([(3, "terminated")])
    player.cut()
    first, second = played(player, times=2)
    assert first.arrays["length"].tolist() == [1]
    assert second.arrays["length"].tolist() == [4]


def stream_of(player: Player, steps: int) -> dict[str, np.ndarray[Any, Any]]:
    """`steps` steps of environment 0 joined over segments, whatever their lengths."""
    names = ("obs", "action", "reward", "terminated", "truncated", "episode_return", "episode_length")
    pieces: dict[str, list[Any]] = {name: [] for name in names}
    while sum(len(piece) for piece in pieces["reward"]) < steps:
        segments = player.play(1)
        length = int(segments.arrays["length"][0])
        for name in names:
            pieces[name].append(segments.arrays[name][0, :length].copy())
        player.recycle(segments)
    return {name: np.concatenate(pieces[name])[:steps] for name in names}


def cart_pole_player(steps: int, **kwargs: Any) -> Player:
    policy = Drawn(2)
    layout = layout_for(policy, steps=steps, observation=Box((4,), "float32"), action=Discrete(2))
    spec = spec_of(rollout={"steps": steps})
    return Player(plan_of(2, index=3), spec, policy, layout, **kwargs)


def test_a_stream_equals_that_of_a_plain_loop_with_the_same_seeds() -> None:
    # Given the loop that anybody would write for environment 0 of shard 3
    env, length, total = gymnasium.make("CartPole-v1"), 0, 0.0
    expected: dict[str, list[Any]] = {
        name: [] for name in ("obs", "action", "reward", "terminated", "return", "length")
    }
    episode = 0
    observation, _ = env.reset(seed=env_seed(5, 3, 0, episode))
    noise = noise_generator(5, 3, 0, episode)
    for _ in range(300):
        action = int(noise.random() * 2)
        expected["obs"].append(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        length, total = length + 1, total + float(reward)
        over = terminated or truncated
        for name, value in (("action", action), ("reward", reward), ("terminated", terminated)):
            expected[name].append(value)
        expected["length"].append(length if over else 0)
        expected["return"].append(total if over else np.nan)
        if over:
            episode, length, total = episode + 1, 0, 0.0
            observation, _ = env.reset(seed=env_seed(5, 3, 0, episode))
            noise = noise_generator(5, 3, 0, episode)
    # When the player plays the same
    found = stream_of(cart_pole_player(32), 300)
    # Then every bit is the same
    for name, own in (("obs", "obs"), ("action", "action"), ("reward", "reward"), ("terminated", "terminated")):
        np.testing.assert_array_equal(found[own], np.array(expected[name]))
    np.testing.assert_array_equal(found["episode_length"], expected["length"])
    np.testing.assert_array_equal(found["episode_return"], expected["return"])


@pytest.mark.parametrize("steps", [1, 7, 200])
def test_the_stream_does_not_depend_on_where_segments_are_cut(steps: int) -> None:
    expected, found = stream_of(cart_pole_player(32), 300), stream_of(cart_pole_player(steps), 300)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_another_owner_goes_on_with_episodes_that_nobody_played() -> None:
    first, second = Scripted([(2, "terminated")]), Scripted([(2, "terminated")])
    played(player_of(envs=[first]))
    played(player_of(envs=[second], first_episode=50))
    assert first.seeds == [env_seed(5, 0, 0, episode) for episode in range(3)]
    assert second.seeds == [env_seed(5, 0, 0, episode) for episode in range(50, 53)]


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**63 - 1])
def test_seeds_worked_out_in_blocks_are_those_of_the_shard(seed: int) -> None:
    for shard, env, first in ((0, 0, 0), (3, 9, 60), (70_000, 1, 2**32 - 2), (1, 1, 2**40)):
        seeds = EpisodeSeeds(seed, shard, env)
        for episode in range(first, first + 600):  # of each size that a block can have
            assert seeds.reset_seed(episode) == env_seed(seed, shard, env, episode)
            if episode % 41 == 0:
                expected = noise_generator(seed, shard, env, episode).random(3)
                np.testing.assert_array_equal(seeds.noise_generator(episode).random(3), expected)
        for episode in (first, first + 599, first + 3):
            expected = noise_generator(seed, shard, env, episode).random(3)
            np.testing.assert_array_equal(seeds.noise_generator(episode).random(3), expected)


def test_recurrent_state_starts_afresh_with_every_episode_and_is_recorded_where_a_segment_starts() -> None:
    policy = Remembering()
    player = player_of([(3, "terminated")], [(6, "truncated")], policy=policy)
    first, second = played(player, times=2)
    assert first.arrays["out.value"].tolist() == [[0, 1, 2, 0], [0, 1, 2, 3]]
    assert first.arrays["state.steps"].tolist() == [[0], [0]]
    assert second.arrays["out.value"].tolist() == [[1, 2, 0, 1], [4, 5, 0, 1]]
    assert second.arrays["state.steps"].tolist() == [[1], [4]]


class Robot(Scripted):
    """Dict observations, given in one dict that is used again and again."""

    space = DictSpace(
        {"arm": DictSpace({"angle": Box((), "float64"), "mode": Discrete(9, 1)}), "eye": Box((2, 1), "uint8", 0, 255)}
    )

    def __init__(self, script: Sequence[Ending]) -> None:
        super().__init__(script)
        self.shown: dict[str, Any] = {"arm": {}, "eye": np.zeros((2, 1), np.uint8)}

    def _show(self) -> Any:
        self.shown["arm"]["angle"], self.shown["arm"]["mode"] = np.float64(self.steps), self.episode + 1
        self.shown["eye"][:] = self.steps
        return self.shown


def test_dict_observations_become_one_array_a_leaf() -> None:
    policy = Drawn()
    layout = layout_for(policy, observation=Robot.space)
    (segments,) = played(player_of(envs=[Robot([(3, "truncated")])], policy=policy, layout=layout))
    assert segments.arrays["obs.arm.angle"].tolist() == [[0, 1, 2, 0, 1]]
    assert segments.arrays["obs.arm.mode"].tolist() == [[1, 1, 1, 2, 2]]
    assert segments.arrays["obs.eye"][0, :, :, 0].tolist() == [[0, 0], [1, 1], [2, 2], [0, 0], [1, 1]]
    assert segments.arrays["final.obs.arm.angle"].tolist() == [3]
    assert segments.arrays["final.obs.eye"].tolist() == [[[3], [3]]]


class Wide(ScriptedPolicy):
    """Normal noise, stretched, as a continuous action."""

    noise = Noise("normal", 2)

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        return Acted({"action": (10 * noise).astype(np.float32)})


def test_box_actions_are_clipped_for_the_environment_only() -> None:
    env, policy = Scripted([(3, "terminated")]), Wide()
    action = Box((2,), "float32", (-1.0, -2.0), (1.0, 2.0))
    (segments,) = played(player_of(envs=[env], policy=policy, layout=layout_for(policy, action=action)))
    raw, given = segments.arrays["action"][0], np.stack(env.actions)
    assert np.abs(raw).max() > 2
    np.testing.assert_array_equal(given, np.clip(raw, [-1, -2], [1, 2]))
    assert given.dtype == np.float32


def test_discrete_actions_are_counted_from_the_start_of_their_space() -> None:
    env = Scripted([(3, "terminated")])
    layout = layout_for(Drawn(), action=Discrete(3, 5))
    (segments,) = played(player_of(envs=[env], layout=layout))
    assert env.actions == (segments.arrays["action"][0] + 5).tolist()
    assert all(type(action) is int for action in env.actions)


def test_wanted_info_keys_are_recorded_and_missing_ones_are_blank() -> None:
    layout = layout_for(Drawn(), info_keys=["fuel", "wind"])
    (segments,) = played(player_of([(3, "terminated")], layout=layout))
    assert segments.arrays["info.fuel"].tolist() == [[0.5, 1.0, 1.5, 0.5]]
    assert np.isnan(segments.arrays["info.wind"]).all()


def test_recycled_segments_are_played_as_if_they_were_new() -> None:
    scripts: list[list[Ending]] = [[(3, "truncated"), (2, "terminated")], [(5, "both")]]
    kept = played(player_of(*scripts), times=6)
    player = player_of(*scripts)
    for version, expected in enumerate(kept, start=1):
        segments = player.play(version)
        for name, array in expected.arrays.items():
            np.testing.assert_array_equal(segments.arrays[name], array, err_msg=name)
        player.recycle(segments)
        player.recycle(segments)  # twice is once
    assert len(player._spare) == 1


class Breaking(Scripted):
    """Does something wrong at step 2 of its second episode."""

    def __init__(self, wrong: Callable[[Any], Any]) -> None:
        super().__init__([(3, "terminated")])
        self.wrong = wrong

    def step(self, action: Any) -> Any:
        answer = super().step(action)
        return self.wrong(answer) if (self.episode, self.steps) == (1, 2) else answer


def raising(answer: Any) -> Any:
    raise RuntimeError("the motor\nis stuck")


def recursing(answer: Any) -> Any:
    return recursing(answer)


class Own(BaseException):
    """No Exception, and no error of Heddle's either."""


def ending_with(error: BaseException) -> Callable[[Any], Any]:
    def end(_: Any) -> Any:
        raise error

    return end


@pytest.fixture
def as_in_a_role() -> Iterator[None]:
    """Signals are heard in another way than by an interrupt."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("wrong", "cause", "reason"),
    [
        (recursing, "exception", r"RecursionError: maximum recursion depth exceeded.* at .*test_player.py:\d+"),
        (ending_with(MemoryError("no room")), "memory", "MemoryError: no room"),
        (ending_with(SystemExit(3)), "exit", r"sys.exit\(3\)"),
        (ending_with(KeyboardInterrupt()), "exception", "KeyboardInterrupt"),
        (ending_with(GeneratorExit()), "exception", "GeneratorExit"),
        (ending_with(Own("enough")), "exception", "Own: enough"),
    ],
)
@pytest.mark.parametrize("call", ["step", "reset", "act"])
def test_whatever_user_code_ends_with_is_its_own_failure(
    as_in_a_role: None, wrong: Callable[[Any], Any], cause: str, reason: str, call: str
) -> None:
    policy, env = Drawn(), Scripted([(3, "terminated")])
    changed: Any = policy if call == "act" else env
    setattr(changed, call, lambda *_, **__: wrong(None))
    with pytest.raises(PlayError, match=reason) as failed:
        player_of(envs=[env], policy=policy).play(1)
    assert (failed.value.failure.cause, failed.value.failure.doing) == (cause, call)
    assert len(failed.value.failure.traceback) <= TRACE_CHARS


@pytest.mark.parametrize("error", [RecursionError(), MemoryError(), SystemExit(3), KeyboardInterrupt()])
def test_whatever_an_environment_ends_with_as_it_is_closed_interests_nobody(
    as_in_a_role: None, error: BaseException
) -> None:
    env = Scripted([(3, "terminated")])
    asked: list[str] = []

    def close() -> None:
        asked.append("close")
        raise error

    env.close = close  # type: ignore[method-assign]
    player = player_of(envs=[env])
    player.play(1)
    player.close()
    assert asked == ["close"]


def test_an_interrupt_is_the_persons_where_ctrl_c_comes_as_one() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    player = player_of(envs=[Breaking(ending_with(KeyboardInterrupt()))], steps=6)
    with pytest.raises(KeyboardInterrupt):
        player.play(1)


def test_endless_recursion_is_told_without_a_look_at_each_of_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []

    def look(frames: Iterable[tuple[str, int]]) -> str:
        looked_at.extend(file for file, _ in frames)
        return ""

    monkeypatch.setattr(objects, "place_of", look)
    with pytest.raises(RecursionError) as failed:
        recursing(None)
    objects.blame(failed.value)
    assert len(looked_at) == objects.MOST_FRAMES < 200


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (raising, r"failed in step: RuntimeError: the motor is stuck at .*test_player.py:\d+"),
        (lambda answer: (np.zeros(3, np.float32), *answer[1:]), r"shape \(3,\), its space \(2,\)"),
        (lambda answer: (np.zeros((), np.float32), *answer[1:]), r"shape \(\), its space \(2,\)"),
        (lambda answer: answer[:4], "step returned no .observation, reward, .*: not enough values to unpack"),
        (
            lambda answer: (answer[0], None, *answer[2:]),
            "the reward None, expected one finite number; seed \\d+, episode 2, step 2, last actions",
        ),
        (
            lambda answer: (answer[0], np.nan, *answer[2:]),
            "gave reward = nan, which is not a finite number; seed \\d+, episode 2, step 2, last actions",
        ),
        (
            lambda answer: (answer[0] * np.nan, *answer[1:]),
            "gave obs = .*nan.*, which is not a finite number; seed \\d+, episode 2, step 2, last actions",
        ),
        (lambda answer: (answer[0] * np.nan, 0.0, False, True, {}), "last observation of a truncated episode"),
        (lambda answer: (*answer[:4], {"fuel": "much"}), r"info\['fuel'\] is much"),
    ],
)
def test_what_an_environment_does_wrong_is_told_in_one_line(wrong: Callable[[Any], Any], reason: str) -> None:
    layout = layout_for(Drawn(), steps=6, info_keys=["fuel"])
    player = player_of(envs=[Scripted(), Breaking(wrong)], steps=6, layout=layout)
    with pytest.raises(EnvError, match=reason) as failed:
        player.play(1)
    (problem,) = failed.value.problems
    assert "environment 1 (number 1 of shard 0)" in problem.reason
    assert "\n" not in problem.reason
    assert (problem.key, player.doing) == ("env.id", None)


def test_a_failure_says_how_to_get_there_again() -> None:
    player = player_of(envs=[Breaking(raising)], steps=3)
    with pytest.raises(EnvError) as failed:
        played(player, times=3)
    seed, actions = env_seed(5, 0, 0, 1), [int(action) for action in player._envs[0].actions]
    # steps 0 to 2 were the first segment and the first episode
    assert f"seed {seed}, episode 2, step 2, last actions {actions[3:]}" in str(failed.value)
    assert isinstance(failed.value.__cause__, RuntimeError)


@pytest.mark.parametrize("claim", [1, 2, 7])
def test_a_failure_counts_episodes_as_its_owner_played_them_whichever_claim_that_is(claim: int) -> None:
    begin = first_episode(claim, seq=4, steps=3)
    player = player_of(envs=[Breaking(raising)], steps=3, first_episode=begin)
    with pytest.raises(EnvError) as failed:
        played(player, times=3)
    assert f"seed {env_seed(5, 0, 0, begin + 1)}, episode 2, step 2," in str(failed.value)


class Misfit(ScriptedPolicy):
    """Answers what it was given."""

    outputs: Mapping[str, OutputSpec] = {"value": OutputSpec("float32")}

    def __init__(self, acted: Callable[[], Acted]) -> None:
        self.acted = acted

    def act(
        self, observations: Mapping[str, Array], state: Arrays, noise: Array, *, deterministic: bool = False
    ) -> Acted:
        return self.acted()


GOOD, VALUES = np.zeros(2, np.int64), np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("acted", "reason"),
    [
        (lambda: Acted({"action": GOOD}), r"outputs\['value'\] is missing"),
        (lambda: Acted({}, {"value": VALUES}), r"actions\['action'\] is missing"),
        (lambda: Acted({"action": GOOD[:1]}, {"value": VALUES}), r"is int64\[1\], expected int64\[2\]"),
        (lambda: Acted({"action": GOOD}, {"value": VALUES[:, None]}), r"is float32\[2, 1\], expected float32\[2\]"),
        (lambda: Acted({"action": VALUES}, {"value": VALUES}), r"is float32\[2\], expected int64\[2\]"),
        (
            lambda: Acted({"action": GOOD + 3}, {"value": VALUES}),
            "chose an action = 3, which is outside 0..2, at step 0",
        ),
        (
            lambda: Acted({"action": GOOD}, {"value": VALUES * np.nan}),
            r"gave value = nan, which is not a finite number, .* environment 0 \(number 0 of shard 0\)",
        ),
        (lambda: 1 / 0, "act for shard 0 at step 0 of a segment, policy version 3: ZeroDivision.* at .*test_player.py"),
    ],
)
def test_what_a_policy_does_wrong_is_told_in_one_line(acted: Callable[[], Acted], reason: str) -> None:
    player = player_of([(3, "terminated")], [(3, "terminated")], policy=Misfit(acted))
    with pytest.raises(PlayError, match=reason) as failed:
        player.play(3)
    assert failed.value.problems[0].key == "policy.id"
    assert failed.value.failure.version == 3


def test_a_policy_whose_memory_cannot_begin_is_told_in_one_line() -> None:
    class Forgetful(Drawn):
        def initial_state(self, n: int) -> Arrays:
            raise LookupError("no memory here")

    with pytest.raises(EnvError, match=r"initial_state\(1\) raised LookupError: no memory here at .*player.py:\d+"):
        player_of([(3, "terminated")], policy=Forgetful())


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        (
            lambda: Acted({"action": GOOD[:1]}, {"value": VALUES}),
            r"actions\['action'\] is int64\[1\], expected int64\[2\]",
        ),
        (lambda: Acted({"action": VALUES + 0.5}, {"value": VALUES}), r"is float32\[2\], expected int64\[2\]"),
        (lambda: Acted({"action": GOOD}, {"value": VALUES[:1]}), r"outputs\['value'\] is float32\[1\]"),
        (lambda: Acted({"action": GOOD}), r"outputs\['value'\] is missing"),
    ],
)
def test_a_policy_that_answers_otherwise_in_the_middle_of_a_batch_is_told_too(
    later: Callable[[], Acted], reason: str
) -> None:
    answers = iter([lambda: Acted({"action": GOOD}, {"value": VALUES}), later])
    player = player_of([(3, "terminated")], [(3, "terminated")], policy=Misfit(lambda: next(answers)()))
    with pytest.raises(EnvError, match=reason) as failed:
        player.play(1)
    assert failed.value.problems[0].key == "policy.id"


def test_an_evaluation_plays_the_same_number_of_episodes_in_every_environment() -> None:
    # Given one environment whose episodes are ten times as long
    policy = Drawn()
    player = player_of([(2, "terminated")], [(20, "truncated")], policy=policy)
    # When five episodes are asked for
    batches = list(player.play_episodes(7, 5))
    # Then three of one and two of the other are there, deterministic, and the last batch says so
    ended = np.zeros(2, np.int64)
    for segments, _ in batches:
        assert first_problem(segments) is None
        assert segments.version_min == segments.version_max == 7
        np.add.at(ended, segments.arrays["env"], (segments.arrays["episode_length"] > 0).sum(axis=1))
    assert ended.tolist() == [3, 2]
    assert [last for _, last in batches] == [False] * (len(batches) - 1) + [True]
    assert sum(segments.num_steps for segments, _ in batches) == 3 * 2 + 2 * 20
    assert all(policy.deterministic)


def test_evaluations_play_the_same_episodes_again_and_training_goes_on_afterwards() -> None:
    env = Scripted([(2, "terminated")])
    player = player_of(envs=[env])
    for _ in range(2):
        list(player.play_episodes(1, 3))
    assert env.seeds[:4] == env.seeds[4:]
    played(player)


def test_more_environments_than_episodes_leave_some_idle() -> None:
    batches = list(player_of([(2, "terminated")], [(2, "terminated")], [(2, "terminated")]).play_episodes(1, 2))
    assert [segments.arrays["env"].tolist() for segments, _ in batches] == [[0, 1]]
    assert list(player_of([(2, "terminated")]).play_episodes(1, 0)) == []


def test_an_evaluation_waits_no_longer_for_an_episode_that_does_not_end_and_says_so() -> None:
    player = player_of([(2, "terminated")], [(10**9, "terminated")])
    batches = list(player.play_episodes(1, 4, most_steps=40))
    assert [last for _, last in batches] == [False] * (len(batches) - 1) + [True]
    assert sum((segments.arrays["episode_length"] > 0).sum() for segments, _ in batches) == 2
    (told,) = player.hear()
    assert "environment 1 (number 1 of shard 0) ended no episode of the evaluation within 40 steps" in told
    list(player.play_episodes(2, 4, most_steps=40))
    assert player.hear() == []
    played(player)


class Endless(Scripted):
    def __init__(self, **_: Any) -> None:
        super().__init__([(10**9, "terminated")])


def test_an_evaluation_of_which_no_episode_ends_is_an_error_that_says_what_to_do() -> None:
    spec = spec_of(env={"id": "tests.unit.test_player:Endless"}, eval={"num_envs": 1, "episodes": 1, "max_steps": 100})
    with pytest.raises(EnvError, match="within 100 steps.*TimeLimit.*eval.max_steps"):
        evaluate(Drawn(), spec, episodes=2, seed=1)


def test_progress_is_seen_from_outside_while_something_hangs() -> None:
    clock = ManualClock()
    seen: list[tuple[str | None, float]] = []

    class Watched(Scripted):
        def step(self, action: Any) -> Any:
            seen.append((player.doing, player.last_progress))
            clock.advance(10.0)
            seen.append((player.doing, player.last_progress))  # nothing moved for ten seconds
            return super().step(action)

    player = player_of(envs=[Watched([(3, "terminated")])], clock=clock, steps=2)
    assert player.doing is None
    player.play(1)
    assert [doing for doing, _ in seen] == ["step"] * 4
    assert seen[0][1] == seen[1][1]
    assert seen[2][1] > seen[1][1]
    assert player.doing is None


def test_closing_a_player_closes_every_environment_even_after_one_that_fails_at_it() -> None:
    class Stuck(Scripted):
        def close(self) -> None:
            raise RuntimeError("still running")

    envs = [Stuck(), Scripted()]
    player_of(envs=envs).close()
    assert envs[1].closed


def test_evaluate_returns_one_number_an_episode_and_the_same_ones_for_the_same_seed() -> None:
    spec, policy = spec_of(), Drawn(2)
    first = evaluate(policy, spec, episodes=7, seed=3, num_envs=3, deterministic=False)
    again = evaluate(policy, spec, episodes=7, seed=3, num_envs=3, deterministic=False)
    other = evaluate(policy, spec, episodes=7, seed=4, num_envs=3, deterministic=False)
    assert (len(first.returns), len(first.lengths)) == (7, 7)
    np.testing.assert_array_equal(first.returns, first.lengths)  # CartPole gives 1 a step
    np.testing.assert_array_equal(first.returns, again.returns)
    assert first.returns.tolist() != other.returns.tolist()
    assert first.mean == first.returns.mean()
    assert first.std == first.returns.std()


def test_only_wrappers_that_may_change_rewards_pay_for_a_counter_and_returns_stay_the_innermost_ones() -> None:
    clipped = spec_of(env={"wrappers": [{"id": "ClipReward", "kwargs": {"min_reward": 0.0, "max_reward": 0.5}}]})
    plain = evaluate(Drawn(2), spec_of(), episodes=4, seed=1)
    wrapped = evaluate(Drawn(2), clipped, episodes=4, seed=1)
    np.testing.assert_array_equal(plain.returns, wrapped.returns)
    np.testing.assert_array_equal(plain.lengths, wrapped.lengths)
