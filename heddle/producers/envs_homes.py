"""Where well-known environments live: the package that must be imported before Gymnasium knows their ids.

It never makes one. Gymnasium registers what comes with other packages only when those are imported, in every process;
a spec that had to name the package as well would be one more thing to get wrong.
"""

import importlib
from dataclasses import dataclass
from functools import cache

from heddle.errors import EnvError
from heddle.spec.objects import describe_error, module_hint


@dataclass(frozen=True, slots=True)
class Home:
    """One package.

    Attributes:
        begins: what ids of its environments begin with.
        module: that registers them when it is imported.
        package: as pip calls it.
        function: of the module, to be called where importing is not enough.
    """

    begins: tuple[str, ...]
    module: str
    package: str
    function: str = ""


_ROADS = (
    "highway-",
    "merge-",
    "roundabout-",
    "parking-",
    "intersection-",
    "racetrack-",
    "exit-",
    "two-way-",
    "u-turn-",
)

HOMES = (
    Home(("ALE/",), "ale_py", "ale-py"),
    Home(("MiniGrid-", "BabyAI-"), "minigrid", "minigrid"),
    Home(("MinAtar/",), "minatar.gym", "minatar", "register_envs"),
    Home(("dm_control/",), "shimmy", "shimmy[dm-control]"),
    Home(("bsuite/",), "shimmy", "shimmy[bsuite]"),
    Home((*_ROADS, "lane-keeping-"), "highway_env", "highway-env"),
    Home(
        ("Fetch", "HandManipulate", "HandReach", "Adroit", "FrankaKitchen", "PointMaze_", "AntMaze_"),
        "gymnasium_robotics",
        "gymnasium-robotics",
    ),
)
_PACKAGES = {
    "Box2D": "gymnasium[box2d]",
    "ale_py": "ale-py",
    "cv2": "opencv-python-headless",
    "dm_control": "shimmy[dm-control]",
    "dm_env": "shimmy[dm-control]",
    "envpool": "envpool",
    "minatar": "minatar",
    "mujoco": "gymnasium[mujoco]",
    "pygame": "gymnasium[classic-control]",
} | {home.module.partition(".")[0]: home.package for home in HOMES if home.module != "shimmy"}
"""Modules whose package pip calls otherwise, or that come as an extra of another."""


def register(id: str) -> None:
    """Import the package that an id belongs to, where it is one of those above; twice is no mistake.

    Raises:
        EnvError: that package is not installed, or cannot be imported.
    """
    home = next((home for home in HOMES if id.startswith(home.begins)), None)
    if home is None:
        return
    try:
        _import(home)
    except ModuleNotFoundError as error:
        missing = error.name or home.module
        wanted = home.package if home.module.startswith(missing) else install_name(missing)
        raise EnvError(f"needs {missing}, which is not installed", value=id, hint=f"pip install '{wanted}'") from error
    except Exception as error:
        raise EnvError(f"importing {home.module} raised {describe_error(error)}", value=id) from error


@cache
def _import(home: Home) -> None:
    module = importlib.import_module(home.module)
    if home.function:
        getattr(module, home.function)()


def install_name(module: str) -> str:
    """What pip calls the package that holds a module."""
    top = module.partition(".")[0]
    return _PACKAGES.get(top, top)


def install_hint(module: str) -> str:
    """What to do about a module that is not there."""
    if module.partition(".")[0] in _PACKAGES:
        return f"pip install '{install_name(module)}'"
    return module_hint(module)
