"""The player without a barrier gives what the plain player gives, whoever is ready when, and waits for nobody."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.errors import EnvError, NotSnapshottable, SpecError
from heddle.layout import Segments
from heddle.producers.envs import check_env
from heddle.producers.mishap import PlayError
from heddle.producers.player import Player
from heddle.producers.ready_player import ReadyPlayer
from heddle.producers.steppers import AsyncStepper, Stepper, ThreadStepper
from heddle.segment_checks import first_problem
from heddle.spec import ExperimentSpec
from tests.helpers import eventually
from tests.unit.fake_envs import Drawn, Remembering, layout_for, plan_of, spec_of
from tests.unit.test_vector_player import SPACE, Walk, same, streams

HERE = "tests.unit.test_ready_player"


class Slow(Walk):
    """Takes up to 2 ms a call, another time each time."""

    def reset(self, **kwargs: Any) -> Any:
        time.sleep(np.random.uniform(0, 0.002))
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        time.sleep(np.random.uniform(0, 0.002))
        return super().step(action)


class Remote:
    """`Walk` as coroutines."""

    observation_space, action_space = Walk.observation_space, Walk.action_space

    def __init__(self) -> None:
        self.walk, self.closed = Walk(), False

    async def reset(self, *, seed: int | None = None) -> Any:
        await asyncio.sleep(np.random.uniform(0, 0.002))
        return self.walk.reset(seed=seed)

    async def step(self, action: Any) -> Any:
        await asyncio.sleep(np.random.uniform(0, 0.002))
        return self.walk.step(action)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed = True


class Stuck(Walk):
    """Waits at its third step until somebody lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.go_on, self.waits = 0, threading.Event(), threading.Event()

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 3:
            self.waits.set()
            assert self.go_on.wait(30)
        return super().step(action)


def threads(envs: list[Any]) -> Stepper:
    return ThreadStepper(envs, 64)


def two_threads(envs: list[Any]) -> Stepper:
    return ThreadStepper(envs, 2)


KINDS = [(threads, Slow), (two_threads, Slow), (AsyncStepper, Remote)]


def spec_for(n: int, *, steps: int = 7, sync: bool = False, **env: Any) -> ExperimentSpec:
    rollout = {"steps": steps, "sync": sync, "info_keys": ["fuel"]}
    return spec_of(env={"num_envs": n, "id": f"{HERE}:Walk", **env}, rollout=rollout, trainer={"minibatch": 1})


@pytest.fixture
def made() -> Iterator[Callable[..., ReadyPlayer]]:
    """Makes players, and closes them."""
    players: list[ReadyPlayer] = []

    def make(
        n: int,
        *,
        by: Callable[[list[Any]], Stepper] = threads,
        kind: Any = Walk,
        policy: Any = None,
        envs: list[Any] | None = None,
        **spec: Any,
    ) -> ReadyPlayer:
        chooser, some = policy or Drawn(), envs or [kind() for _ in range(n)]
        wanted = spec_for(n, stepping="threads", **spec)
        layout = layout_for(chooser, steps=wanted.rollout.steps, observation=SPACE, info_keys=["fuel"])
        players.append(ReadyPlayer(plan_of(n), wanted, chooser, layout, envs=some, stepper=by(some)))
        return players[-1]

    yield make
    for player in players:
        player.close()


def plain(n: int, *, policy: Any = None, steps: int = 7) -> Player:
    chooser = policy or Drawn()
    layout = layout_for(chooser, steps=steps, observation=SPACE, info_keys=["fuel"])
    return Player(plan_of(n), spec_for(n, steps=steps), chooser, layout, envs=[Walk() for _ in range(n)])


@pytest.mark.parametrize(("by", "kind"), KINDS)
@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(("n", "steps"), [(1, 7), (4, 1), (5, 7)])
def test_experience_is_that_of_the_plain_player_bit_for_bit(
    made: Callable[..., ReadyPlayer], by: Any, kind: Any, sync: bool, n: int, steps: int
) -> None:
    expected = streams(plain(n, steps=steps), n, 60)
    same(streams(made(n, by=by, kind=kind, sync=sync, steps=steps), n, 60), expected)
    assert all(one["terminated"].any() and one["finals"] for one in expected)


def test_gathering_changes_nothing_but_how_many_act_at_once(made: Callable[..., ReadyPlayer]) -> None:
    same(streams(made(4, kind=Slow, gather=0.001), 4, 60), streams(plain(4), 4, 60))


@pytest.mark.parametrize("sync", [False, True])
def test_a_memory_begins_anew_with_every_episode_and_a_segment_says_with_which_it_began(
    made: Callable[..., ReadyPlayer], sync: bool
) -> None:
    player = made(3, kind=Slow, policy=Remembering(), sync=sync, steps=3)
    same(streams(player, 3, 60), streams(plain(3, policy=Remembering(), steps=3), 3, 60))
    begun = []
    for _ in range(30):
        arrays = player.play(1).arrays
        # this policy's memory counts its steps of the episode, and it tells the count as its value
        np.testing.assert_array_equal(arrays["state.steps"][:, 0], arrays["out.value"][:, 0])
        begun += (arrays["state.steps"][:, 0] == 0).tolist()
    assert any(begun) and not all(begun)


def lengths(segments: Segments, n: int) -> list[int]:
    found = dict(zip(segments.arrays["env"].tolist(), segments.arrays["length"].tolist(), strict=True))
    return [found.get(env, 0) for env in range(n)]


def test_a_stuck_environment_delays_nobody_and_what_it_was_at_is_recorded_when_it_comes_back(
    made: Callable[..., ReadyPlayer],
) -> None:
    envs = [Walk(), stuck := Stuck(), Walk()]
    player, pieces = made(3, envs=envs, steps=5), list[Segments]()
    for _ in range(4):
        pieces.append(kept := (played := player.play(1)).select(np.arange(played.rows)))
        assert first_problem(kept) is None
        player.recycle(played)
    given = [lengths(one, 3) for one in pieces]
    assert all(max(one) == 5 for one in given)
    assert sum(one[1] for one in given) == 2
    stuck.go_on.set()
    eventually(lambda: lengths(player.play(1), 3)[1] > 0)
    # it was seeded as all are, and nothing of what it did is lost: the stream is that of a plain loop
    envs = [Walk(), again := Stuck(), Walk()]
    timer = threading.Timer(0.2, again.go_on.set)
    timer.start()
    same(streams(made(3, envs=envs, steps=5), 3, 60), streams(plain(3, steps=5), 3, 60))
    timer.join()


def test_with_a_barrier_every_segment_is_full(made: Callable[..., ReadyPlayer]) -> None:
    player = made(4, kind=Slow, sync=True)
    for _ in range(5):
        assert lengths(player.play(1), 4) == [7, 7, 7, 7]


def test_without_one_a_batch_leaves_with_the_first_full_segment(made: Callable[..., ReadyPlayer]) -> None:
    player = made(4, kind=Slow)
    for _ in range(10):
        assert max(lengths(player.play(1), 4)) == 7


def test_max_seconds_and_cut_end_a_segment_although_an_environment_is_stuck(made: Callable[..., ReadyPlayer]) -> None:
    envs: list[Any] = [Slow(), Stuck()]
    player = made(2, envs=envs, steps=100_000, sync=True)

    def cut() -> None:
        assert envs[1].waits.wait(30)
        player.cut()

    cutter = threading.Thread(target=cut)
    cutter.start()
    assert lengths(player.play(1), 2)[1] == 2
    cutter.join()
    envs[1].go_on.set()


def test_an_environment_that_lasts_too_long_is_named_with_its_episode(made: Callable[..., ReadyPlayer]) -> None:
    envs: list[Any] = [Walk(), Stuck()]
    player = made(2, envs=envs, sync=True, step_timeout=0.3)
    with pytest.raises(PlayError, match=r"environment 1 .* failed in step: lasts longer than 0.3 s; seed \d+") as told:
        for _ in range(3):
            player.play(1)
    assert (told.value.failure.cause, told.value.failure.env) == ("timeout", 1)
    envs[1].go_on.set()


class Raising(Walk):
    def step(self, action: Any) -> Any:
        raise RuntimeError("no such street")


def test_what_an_environment_raises_is_told_with_where_it_was(made: Callable[..., ReadyPlayer]) -> None:
    player = made(3, envs=[Walk(), Walk(), Raising()])
    with pytest.raises(PlayError, match=r"environment 2 .* failed in step: RuntimeError: no such street") as told:
        player.play(1)
    assert "test_ready_player.py" in told.value.failure.traceback


def test_an_evaluation_plays_the_same_episodes_as_the_plain_player(made: Callable[..., ReadyPlayer]) -> None:
    assert returns(made(3, kind=Slow), 8) == returns(plain(3), 8)


def returns(player: Player | ReadyPlayer, episodes: int) -> list[tuple[int, int, float]]:
    found = []
    for segments, _ in player.play_episodes(1, episodes, deterministic=False):
        arrays = segments.arrays
        for row, step in np.argwhere(arrays["episode_length"]):
            length, total = arrays["episode_length"][row, step], arrays["episode_return"][row, step]
            found.append((int(arrays["env"][row]), int(length), float(total)))
    assert len(found) == episodes
    return sorted(found, key=lambda one: one[0])


def test_a_snapshot_is_taken_at_a_barrier_and_refused_while_environments_move(
    made: Callable[..., ReadyPlayer],
) -> None:
    # Given a player that waits for all, whose snapshot another one takes over
    first = made(3, kind=Slow, sync=True)
    for _ in range(4):
        first.play(1)
    snapshot = first.standing.pack()
    second = made(3, kind=Slow, sync=True)
    second.resume(snapshot)
    # Then both go on alike
    same(streams(second, 3, 30), streams(first, 3, 30))
    # And one that waits for nobody has none to give
    third = made(2, envs=[Walk(), stuck := Stuck()])
    third.play(1)
    with pytest.raises(NotSnapshottable, match="always at a step"):
        third.standing.pack()
    stuck.go_on.set()


def test_closing_closes_every_environment_and_ends_every_thread(made: Callable[..., ReadyPlayer]) -> None:
    remote = [Remote(), Remote()]
    before = threading.active_count()
    player = made(2, by=AsyncStepper, envs=remote)
    player.play(1)
    player.close()
    assert all(one.closed for one in remote)
    player = made(2)
    player.play(1)
    player.close()
    eventually(lambda: threading.active_count() == before)


def plain_factory() -> Walk:
    return Walk()


class Unlucky(Walk):
    """Raises, hangs or ends its process in the third step of environment 3."""

    def __init__(self, env_index: int, kind: str) -> None:
        super().__init__()
        self._kind, self._steps = kind if env_index == 3 else "", 0

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == 3 and self._kind == "raise":
            raise RuntimeError("no such street")
        if self._steps == 3 and self._kind == "exit":
            os._exit(7)
        while self._steps == 3 and self._kind == "hang":
            time.sleep(0.01)
        return super().step(action)


def in_children(n: int, kind: Any = ReadyPlayer, *, sync: bool = False, **env: Any) -> Any:
    """A player that makes its environments in children, as workers do."""
    wanted = spec_for(n, sync=sync, **{"id": f"{HERE}:plain_factory", "stepping": "processes"} | env)
    return kind(plan_of(n), wanted, Drawn(), layout_for(Drawn(), steps=7, observation=SPACE, info_keys=["fuel"]))


@pytest.mark.parametrize(("n", "processes", "sync"), [(1, 1, False), (5, 2, True), (5, 2, False), (3, 3, False)])
def test_environments_spread_over_children_give_the_same_experience(n: int, processes: int, sync: bool) -> None:
    player = in_children(n, processes=processes, sync=sync)
    try:
        same(streams(player, n, 40), streams(plain(n), n, 40))
    finally:
        player.close()


class Parked(Walk):
    """Environment 1 waits in its third step until the file `go_on` is there."""

    def __init__(self, env_index: int, go_on: str) -> None:
        super().__init__()
        self._go_on, self._steps = Path(go_on) if env_index == 1 else None, 0

    def step(self, action: Any) -> Any:
        self._steps += 1
        while self._steps == 3 and self._go_on is not None and not self._go_on.exists():
            time.sleep(0.01)
        return super().step(action)


def test_a_stuck_environment_in_a_child_holds_up_nobody_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a shard in as many children as there are without a word, one environment stuck in its third step
    go_on, counts, until = tmp_path / "go-on", np.zeros(4, np.int64), time.monotonic() + 60
    player = in_children(4, id=f"{HERE}:Parked", kwargs={"go_on": str(go_on)})
    play = player.play

    def counted(version: int) -> Segments:
        played: Segments = play(version)
        counts[:] += lengths(played, 4)
        if not go_on.exists():
            # Then every other one fills segment after segment, and then only it is let go
            assert counts[1] <= 2
            assert time.monotonic() < until, f"those beside it stand still: {counts}"
            if min(counts[[0, 2, 3]]) >= 70:
                go_on.touch()
        return played

    monkeypatch.setattr(player, "play", counted)
    try:
        same(streams(player, 4, 90), streams(plain(4), 4, 90))  # nothing of what it was at is lost
        assert go_on.exists()
    finally:
        go_on.touch()
        player.close()


def test_environments_of_one_child_give_the_same_experience() -> None:
    player = in_children(3, Player, stepping="inline", isolation="process")
    try:
        same(streams(player, 3, 40), streams(plain(3), 3, 40))  # numbers of no dimensions among them
    finally:
        player.close()


@pytest.mark.parametrize(
    ("kind", "cause", "what"),
    [("raise", "exception", "no such street"), ("hang", "timeout", "0.5 s"), ("exit", "exit", "code 7")],
)
def test_what_happens_to_one_of_several_children_is_told_with_its_environment(kind: str, cause: str, what: str) -> None:
    player = in_children(
        5, sync=True, processes=2, id=f"{HERE}:Unlucky", kwargs={"kind": kind}, step_timeout=0.5, reset_timeout=30.0
    )
    children = {id(env.home[0]): env.home[0].process.pid for env in player._envs}
    with pytest.raises(PlayError, match=f"environment 3 .*{what}") as told:
        for _ in range(5):
            player.play(1)
    assert (told.value.failure.cause, told.value.failure.env) == (cause, 3)
    player.close()
    assert len(children) == 2
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children.values()))


def test_closing_ends_children_of_which_one_is_stuck() -> None:
    player = in_children(
        4, processes=2, id=f"{HERE}:Unlucky", kwargs={"kind": "hang"}, step_timeout=60.0, reset_timeout=60.0
    )
    children = [env.home[0].process.pid for env in player._envs]
    for _ in range(3):
        player.play(1)
    began = time.monotonic()
    player.close()
    assert time.monotonic() - began < 30
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def test_coroutines_are_checked_like_any_environment_and_what_has_none_is_refused() -> None:
    observation, _ = check_env(spec_for(2, id=f"{HERE}:Remote", stepping="async"))
    assert observation == SPACE
    with pytest.raises(EnvError, match="reset and step of Walk is no async def"):
        check_env(spec_for(2, id=f"{HERE}:plain_factory", stepping="async"))


@pytest.mark.parametrize(
    ("env", "key", "reason"),
    [
        ({"stepping": "async", "id": "CartPole-v1"}, "env.id", "are no coroutines"),
        ({"stepping": "async", "wrappers": ["FlattenObservation"]}, "env.wrappers", "around an environment of corout"),
        ({"stepping": "threads", "vector": True}, "env.stepping", "has no meaning with vector = true"),
        ({"stepping": "threads", "isolation": "process"}, "env.stepping", "cannot be joined with isolation"),
        ({"threads": 4}, "env.threads", "has no meaning with stepping = 'inline'"),
        ({"stepping": "async", "threads": 4}, "env.threads", "has no meaning with stepping = 'async'"),
        ({"gather": 0.1}, "env.gather", "has no meaning with stepping = 'inline'"),
        ({"stepping": "processes", "isolation": "process"}, "env.stepping", "cannot be joined with isolation"),
        ({"processes": 4}, "env.processes", "has no meaning with stepping = 'inline'"),
        ({"stepping": "processes", "threads": 4}, "env.threads", "has no meaning with stepping = 'processes'"),
        ({"memory": "1GiB", "stepping": "threads"}, "env.memory", "share the memory of their worker"),
        ({"stepping": "fibers"}, "env.stepping", "processes"),
    ],
)
def test_what_cannot_be_joined_is_refused(env: dict[str, Any], key: str, reason: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec_for(2, **env)
    assert [problem.key for problem in refused.value.problems] == [key]
    assert reason in str(refused.value)
