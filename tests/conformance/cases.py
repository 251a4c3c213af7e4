"""Public environments that anybody may want to play, as a spec names them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STEPS = 200
Wrappers = Sequence[tuple[str, Mapping[str, Any]]]
SOLO = "tests.conformance.solo"


@dataclass(frozen=True, slots=True)
class Case:
    """One environment.

    Attributes:
        id: as in [env], with `kwargs` and `wrappers`; a wrapper is (id, kwargs), innermost first.
        package: that it comes from, as pip calls it.
        num_envs: in one shard.
        is_quick: takes part when there is no time for all.
        is_vector: one object for all environments of a shard.
        info_keys: as in [rollout].
    """

    id: str
    package: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: Wrappers = ()
    num_envs: int = 2
    is_quick: bool = False
    is_vector: bool = False
    info_keys: Sequence[str] = ()

    def __str__(self) -> str:
        inner = "+".join(name.rpartition(":")[2] for name, _ in self.wrappers)
        name = f"{self.id}+{inner}" if inner else self.id
        return f"{name}+vector" if self.is_vector else name


def _gym(id: str, **rest: Any) -> Case:
    return Case(id, "gymnasium", **rest)


def _short(steps: int) -> dict[str, Any]:
    """Episodes so short that some are cut off within the steps that are compared."""
    return {"max_episode_steps": steps}


ATARI: Wrappers = [
    ("AtariPreprocessing", {"noop_max": 30, "frame_skip": 4, "terminal_on_life_loss": True}),
    ("FrameStackObservation", {"stack_size": 4}),
    ("ClipReward", {"min_reward": -1.0, "max_reward": 1.0}),
]
WITHOUT_MISSION: Wrappers = [("FilterObservation", {"filter_keys": ["direction", "image"]})]

CLASSIC = [
    _gym("CartPole-v1", is_quick=True),
    _gym("CartPole-v1", kwargs=_short(15), is_quick=True),
    _gym("Acrobot-v1", kwargs=_short(60)),
    _gym("MountainCar-v0", kwargs=_short(150)),
    _gym("MountainCarContinuous-v0", kwargs=_short(80)),
    _gym("Pendulum-v1", kwargs=_short(70), is_quick=True),
    _gym("FrozenLake-v1", is_quick=True, info_keys=["prob"]),
    _gym("Taxi-v4", kwargs=_short(90)),
    _gym("CliffWalking-v1", kwargs=_short(50)),
    _gym("Blackjack-v1"),
    _gym("Blackjack-v1", wrappers=[("FlattenObservation", {})]),
]
BOX2D = [
    _gym("LunarLander-v3", is_quick=True),
    _gym("LunarLanderContinuous-v3"),
    _gym("BipedalWalker-v3", kwargs=_short(60)),
]
MUJOCO = [
    _gym("HalfCheetah-v5", kwargs=_short(75), is_quick=True, info_keys=["x_position", "reward_ctrl"]),
    _gym("Hopper-v5"),
    _gym("Walker2d-v5"),
    _gym("Ant-v5"),
    _gym("Swimmer-v5", kwargs=_short(75)),
    _gym("Reacher-v5"),
    _gym("Pusher-v5"),
    _gym("InvertedPendulum-v5"),
    _gym("InvertedDoublePendulum-v5"),
    _gym("Humanoid-v5"),
]
ALE = [
    Case("ALE/Pong-v5", "ale-py", wrappers=ATARI, kwargs={"frameskip": 1}, is_quick=True),
    Case("ALE/Breakout-v5", "ale-py", wrappers=ATARI, kwargs={"frameskip": 1}, num_envs=1),
    Case("ALE/Breakout-v5", "ale-py", kwargs={"obs_type": "ram", **_short(90)}),
    Case("ale_py:ALE/SpaceInvaders-v5", "ale-py", kwargs={"obs_type": "grayscale"}, num_envs=1),
]
MINATAR = [
    Case("MinAtar/Breakout-v1", "minatar", is_quick=True),
    Case("MinAtar/Asterix-v1", "minatar"),
    Case("MinAtar/Freeway-v1", "minatar", kwargs=_short(150)),
    Case("MinAtar/Seaquest-v1", "minatar"),
    Case("MinAtar/SpaceInvaders-v1", "minatar"),
]
MINIGRID = [
    Case("MiniGrid-Empty-5x5-v0", "minigrid", wrappers=WITHOUT_MISSION, kwargs=_short(30), is_quick=True),
    Case("MiniGrid-Empty-5x5-v0", "minigrid", kwargs=_short(30)),  # with the mission, a text
    Case("MiniGrid-DoorKey-5x5-v0", "minigrid", wrappers=WITHOUT_MISSION),
    Case("MiniGrid-LavaGapS5-v0", "minigrid", wrappers=[("minigrid.wrappers:ImgObsWrapper", {})]),
    Case("BabyAI-GoToObj-v0", "minigrid", wrappers=[("minigrid.wrappers:FlatObsWrapper", {})]),
]
DM_CONTROL = [
    Case("dm_control/cartpole-balance-v0", "shimmy", kwargs=_short(90), is_quick=True),
    Case("dm_control/cheetah-run-v0", "shimmy", kwargs=_short(90)),
    Case("dm_control/ball_in_cup-catch-v0", "shimmy"),
    Case("dm_control/walker-walk-v0", "shimmy", wrappers=[("FlattenObservation", {})]),
]
DM_ENV = [Case("tests.conformance.dm:falling", "dm_env", is_quick=True)]
HIGHWAY = [
    Case(
        "highway-fast-v0",
        "highway-env",
        num_envs=1,
        kwargs={"config": {"vehicles_count": 5, "duration": 20, "observation": {"type": "OccupancyGrid"}}},
    ),
    Case("parking-v0", "highway-env", num_envs=1, kwargs=_short(60)),
]
PETTINGZOO = [
    Case(f"{SOLO}:against", "pettingzoo", kwargs={"game": "tictactoe_v3"}, is_quick=True),
    Case(f"{SOLO}:against", "pettingzoo", kwargs={"game": "connect_four_v3"}),
]

VECTORS = [
    _gym("CartPole-v1", is_vector=True, num_envs=5, is_quick=True),
    _gym("CartPole-v1", is_vector=True, num_envs=3, kwargs=_short(9)),
    Case("envpool:CartPole-v1", "envpool", is_vector=True, num_envs=5, is_quick=True),
    Case("envpool:Pendulum-v1", "envpool", is_vector=True, num_envs=3, kwargs=_short(70)),
    Case("envpool:HalfCheetah-v5", "envpool", is_vector=True, kwargs=_short(70), info_keys=["x_position"]),
    Case("envpool:FrozenLake-v1", "envpool", is_vector=True, num_envs=4),
    Case("envpool:Pong-v5", "envpool", is_vector=True, kwargs=_short(80)),
    Case("envpool:Acrobot-v1", "envpool", is_vector=True, num_envs=3, kwargs=_short(60)),
]

CASES = [*CLASSIC, *BOX2D, *MUJOCO, *ALE, *MINATAR, *MINIGRID, *DM_CONTROL, *DM_ENV, *HIGHWAY, *PETTINGZOO, *VECTORS]
