"""Stepping that is left to us: what follows from how steps were seen, and that a change is seen in no experience."""

import resource
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from heddle.clock import ManualClock, SystemClock, thread_seconds
from heddle.errors import SpecError
from heddle.layout import Segments
from heddle.producers.pace import UNDECIDED, Choice, Meter, Pace, Timed, choose, known_from_spec
from heddle.producers.play import Play
from heddle.producers.player import Player
from heddle.producers.ready_player import ReadyPlayer
from heddle.spec import ExperimentSpec
from tests.unit.fake_envs import Drawn, Remembering, layout_for, plan_of, spec_of
from tests.unit.test_vector_player import SPACE, Walk, same, streams

STEPS = 7


@pytest.mark.parametrize(
    ("timed", "mode", "reason"),
    [
        (Timed(64, 64 * 0.010, 0.0), "threads", "a step takes 10 ms and waits for 100% of it"),
        (Timed(64, 64 * 0.008, 64 * 0.002), "threads", "a step takes 10 ms and waits for 80% of it"),
        (Timed(8, 16.0, 0.1), "threads", "a step takes 2.01e+03 ms and waits for 99% of it"),
        (Timed(64, 64 * 0.0005, 0.0), "threads", "a step takes 0.5 ms and waits for 100% of it"),
        (Timed(64, 64 * 0.0003, 0.0), "inline", "a step takes 0.3 ms and waits for 100% of it: too short for a thread"),
        (Timed(64, 0.0, 64 * 0.010), "inline", "a step takes 10 ms and waits for 0% of it: too short for a thread"),
        (Timed(64, 64 * 0.002, 64 * 0.008), "inline", "a step takes 10 ms and waits for 20% of it: it computes"),
        (Timed(64, 0.0, 0.0), "inline", "a step takes 0 ms"),
        (Timed(0, 0.0, 0.0), "inline", "a step takes 0 ms"),
    ],
)
def test_environments_that_mostly_wait_and_for_long_get_threads_and_no_others(
    timed: Timed, mode: str, reason: str
) -> None:
    chosen = choose(timed)
    assert chosen.mode == mode
    assert chosen.reason.startswith(reason)


@pytest.mark.parametrize(
    ("timed", "enough"),
    [
        (Timed(63, 0.01, 0.0), False),
        (Timed(64, 0.01, 0.0), True),
        (Timed(7, 60.0, 0.0), False),
        (Timed(8, 1.9, 0.0), False),
        (Timed(8, 1.0, 1.0), True),
    ],
)
def test_short_steps_are_timed_more_often_than_long_ones(timed: Timed, enough: bool) -> None:
    assert timed.is_enough == enough


def test_time_in_which_others_had_the_processor_says_nothing_of_a_step() -> None:
    # Given a step of 10 ms, of which it computes 1 ms and is kept from the processor for 6 ms
    clock, spent = ManualClock(), [0.0, 0.0]
    meter, told = Meter(clock, lambda: (spent[0], spent[1]), lambda: told.append(meter.timed.steps)), list[int]()

    def step(action: int) -> int:
        clock.advance(0.010)
        spent[0], spent[1] = spent[0] + 0.001, spent[1] + 0.006
        return action + 1

    timed = meter.around(step)
    assert [timed(number) for number in range(5)] == [1, 2, 3, 4, 5]
    # Then it waits for 3 ms, and the first one is not looked at
    assert meter.timed.steps == 4
    assert (meter.timed.waited_s, meter.timed.computed_s) == pytest.approx((0.012, 0.004))
    # And once it was seen often enough it is seen no more
    for _ in range(200):
        timed(0)
    assert told == [meter.timed.steps] == [64]


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF if sys.platform == "darwin" else resource.RUSAGE_THREAD)
    return used.ru_utime + used.ru_stime


def test_a_thread_that_waits_computes_little_however_long_and_one_that_computes_is_told_all_of_it() -> None:
    before = thread_seconds()[0]
    threading.Event().wait(0.3)
    waited, began = thread_seconds()[0] - before, processor_s()
    while processor_s() - began < 0.2:
        pass
    computed = thread_seconds()[0] - before - waited
    assert waited < 0.1
    assert computed >= 0.19  # the two clocks of a processor round differently


def test_for_how_long_others_had_the_processor_is_what_the_system_says_where_it_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heddle.clock._SCHEDSTAT", tmp_path / "schedstat")
    assert thread_seconds()[1] == 0.0
    (tmp_path / "schedstat").write_text("7000000000 2500000000 41\n")
    assert thread_seconds()[1] == 2.5
    (tmp_path / "schedstat").write_text("what is this\n")
    assert thread_seconds()[1] == 0.0


def spec_for(n: int = 4, *, sync: bool = False, **sections: Any) -> ExperimentSpec:
    env = {"num_envs": n, "envs_per_shard": n, "id": "tests.unit.test_pace:Walk", "stepping": "auto"}
    rollout = {"steps": STEPS, "sync": sync, "info_keys": ["fuel"]}
    return spec_of(env={**env, **sections.pop("env", {})}, rollout=rollout, trainer={"minibatch": 1}, **sections)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (spec_for(1), "a shard has one environment"),
        (spec_for(faults={"snapshot_every": 2}), "faults.snapshot_every = 2, and threads allow no snapshots"),
    ],
)
def test_where_threads_cannot_help_or_would_take_something_away_nothing_is_timed(
    spec: ExperimentSpec, reason: str
) -> None:
    assert known_from_spec(spec) == Choice("inline", reason)
    assert Pace(spec, clock=ManualClock()).choice == Choice("inline", reason)


@pytest.mark.parametrize(
    "spec", [spec_for(), spec_for(sync=True, faults={"snapshot_every": 1}), spec_for(faults={"snapshot_every": 0})]
)
def test_else_it_is_timed(spec: ExperimentSpec) -> None:
    assert known_from_spec(spec) is None
    assert Pace(spec, clock=ManualClock()).choice is UNDECIDED


class Lasting(Walk):
    """Each step lasts as long as it is told."""

    def __init__(self, clock: ManualClock, lasts_s: float) -> None:
        super().__init__()
        self._clock, self._lasts_s = clock, lasts_s

    def step(self, action: Any) -> Any:
        self._clock.advance(self._lasts_s)
        return super().step(action)


class Paced:
    """As the worker plays: between two segments the pace may put another player in the place of the first one."""

    def __init__(self, n: int, *, waits: bool, sync: bool, policy: Any) -> None:
        clock, spec, self.kinds = ManualClock(), spec_for(n, sync=sync), list[type[Play]]()
        layout = layout_for(policy, steps=STEPS, observation=SPACE, info_keys=["fuel"])
        envs = [Lasting(clock, 0.010) for _ in range(n)]
        self.pace = Pace(spec, clock=clock, spent=lambda: (0.0 if waits else clock.monotonic(), 0.0))
        self.player: Play = Player(plan_of(n), spec, policy, layout, envs=envs)
        self._remake = lambda player: ReadyPlayer(
            player.plan, spec, policy, layout, envs=player.standing.envs, clock=SystemClock()
        )

    def play(self, version: int) -> Segments:
        self.player = self.pace.follow(self.player, self._remake)
        self.kinds.append(type(self.player))
        return self.player.play(version)

    def recycle(self, segments: Segments) -> None:
        self.player.recycle(segments)


@pytest.mark.parametrize("policy", [Drawn, Remembering])
@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_experience_is_that_of_the_plain_player_bit_for_bit_across_the_change(
    policy: Any, sync: bool, waits: bool
) -> None:
    n, plainly = 4, spec_for(sync=sync, env={"stepping": "inline"})
    layout = layout_for(policy(), steps=STEPS, observation=SPACE, info_keys=["fuel"])
    expected = streams(Player(plan_of(n), plainly, policy(), layout, envs=[Walk() for _ in range(n)]), n, 120)
    paced: Any = Paced(n, waits=waits, sync=sync, policy=policy())
    same(streams(paced, n, 120), expected)
    assert paced.kinds[:2] == [Player, Player]
    assert paced.kinds[-1] is (ReadyPlayer if waits else Player)
    assert paced.player.pace.startswith("threads: a step" if waits else "inline: a step")
    assert not getattr(paced.player, "_is_timed", False)
    paced.player.close()


def test_a_segment_of_steps_that_wait_is_not_finished_one_by_one() -> None:
    n, steps = 4, 1_000
    clock, spec = ManualClock(), spec_for(n)
    layout = layout_for(Drawn(), steps=steps, observation=SPACE, info_keys=["fuel"])
    envs = [Lasting(clock, 1.0) for _ in range(n)]
    pace = Pace(spec, clock=clock, spent=lambda: (0.0, 0.0))
    player = pace.follow(Player(plan_of(n), spec, Drawn(), layout, envs=envs), lambda _: pytest.fail("too early"))
    segments = player.play(1)
    assert pace.choice.mode == "threads"
    assert segments.arrays["length"].tolist() == [3] * n  # the first steps, which are not timed, and eight that are


def test_a_player_that_has_not_begun_is_followed_by_one_that_begins_alike() -> None:
    n = 3
    paced: Any = Paced(n, waits=True, sync=False, policy=Drawn())
    paced.pace.choice = Choice("threads", "for the test")
    layout = layout_for(Drawn(), steps=STEPS, observation=SPACE, info_keys=["fuel"])
    plain = Player(plan_of(n), spec_for(n), Drawn(), layout, envs=[Walk() for _ in range(n)])
    same(streams(paced, n, 40), streams(plain, n, 40))
    assert set(paced.kinds) == {ReadyPlayer}
    paced.player.close()


@pytest.mark.parametrize(
    ("env", "key", "reason"),
    [
        ({"vector": True}, "env.stepping", "has no meaning with vector = true"),
        ({"isolation": "process"}, "env.stepping", "cannot be joined with isolation"),
        ({"processes": 2}, "env.processes", "has no meaning with stepping = 'auto'"),
    ],
)
def test_what_it_cannot_be_joined_with_is_refused(env: dict[str, Any], key: str, reason: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec_for(env=env)
    assert [problem.key for problem in refused.value.problems] == [key]
    assert reason in str(refused.value)


def test_threads_and_gather_are_for_the_case_that_it_chooses_threads() -> None:
    spec = spec_for(env={"threads": 3, "gather": 0.01})
    assert (spec.env.stepping, spec.env.threads, spec.env.gather) == ("auto", 3, 0.01)
