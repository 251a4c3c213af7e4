"""`heddle record`: films of a checkpoint that can be read back, and what is said where there can be none."""

import importlib
import json
import sys
import weakref
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from heddle.checkpoint import Checkpoint, save
from heddle.cli.main import run
from heddle.errors import UsageError
from heddle.policies.factory import make_policy
from heddle.producers.film import open_film
from heddle.spaces import Box, Discrete, to_json
from heddle.spec import load_spec
from tests.tracking_kit import needs

WIDTH, HEIGHT = 33, 21
OBSERVED, ACTED = Box((2,), "float32"), Discrete(2, 0)


class Counter(gymnasium.Env[Any, Any]):
    """Episodes of `length` steps of reward 1; its picture is as bright as the step's number, on odd sizes.

    Args:
        modes: what it says it renders; render_mode is taken whatever they say.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - Gymnasium's own word

    def __init__(self, render_mode: str | None = None, length: int = 7, shows: str = "pictures") -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1e6, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.render_mode = render_mode
        self._length, self._shows, self._at = length, shows, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at += 1
        return np.full(2, self._at, np.float32), 1.0, self._at >= self._length, False, {}

    def render(self) -> Any:
        if self._shows == "text":
            return "a picture"
        if self._shows == "errors":
            raise RuntimeError("no screen")
        return np.full((HEIGHT, WIDTH, 3), 10 * self._at % 256, np.uint8)


class Blind(Counter):
    """Takes no render_mode."""

    def __init__(self, length: int = 7) -> None:
        super().__init__(None, length)


class OnScreen(Counter):
    """Renders for people only."""

    metadata = {"render_modes": ["human"], "render_fps": 10}  # noqa: RUF012 - Gymnasium's own word

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__("human" if render_mode is not None else None)


gymnasium.register("HeddleFilmCounter-v0", entry_point="tests.unit.test_film:Counter")
gymnasium.register("HeddleFilmBlind-v0", entry_point="tests.unit.test_film:Blind")


def checkpoint(folder: Path, env_id: str = "tests.unit.test_film:Counter", **env: Any) -> Path:
    """One of a policy that was never trained, for an environment of this file."""
    raw = {
        "experiment": {"name": "film"},
        "env": {"id": env_id, "num_envs": 1, **env},
        "policy": {"hidden": [4]},
        "budget": {"env_steps": 1000},
    }
    spec = load_spec(raw).spec
    spaces = {"observation": to_json(OBSERVED), "action": to_json(ACTED)}
    weights = make_policy(spec.policy, OBSERVED, ACTED, seed=1).get_weights()
    told: dict[str, Any] = {"spec_json": spec.canonical_json(), "spec_sha256": spec.sha256(), "spaces": spaces}
    told |= {"seat_epoch": 3, "update": 7, "policy_version": 8, "env_steps": 10}
    return save(folder / "film-aaaaaa" / "checkpoints", Checkpoint(experiment="film-aaaaaa", weights=weights, **told))


def brightness_of_gif(path: Path) -> list[int]:
    """Of each frame, in its middle."""
    image: Any = importlib.import_module("PIL.Image").open(path)
    assert image.size == (WIDTH, HEIGHT)
    found = []
    for frame in range(image.n_frames):
        image.seek(frame)
        found.append(int(np.asarray(image.convert("RGB"))[HEIGHT // 2, WIDTH // 2, 0]))
    return found


def test_a_gif_has_every_frame_of_every_episode_in_order_and_its_facts_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("PIL")
    path = checkpoint(tmp_path)
    target = tmp_path / "out" / "film.gif"
    assert run(["record", str(path), "--episodes", "2", "--seed", "5", "--to", str(target), "-o", "json"]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert brightness_of_gif(target) == [10 * step for step in range(8)] * 2
    assert (told["frames"], told["width"], told["height"], told["fps"]) == (16, WIDTH, HEIGHT, 10)
    assert [(one["return"], one["length"], one["frames"]) for one in told["episodes"]] == [(7.0, 7, 8)] * 2
    assert told["episodes"][0]["seed"] != told["episodes"][1]["seed"]
    assert "filming: 1 of 2 episodes" in said.err
    # And the same seed plays the same episodes
    assert run(["record", str(path), "--episodes", "2", "--seed", "5", "--to", str(target), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == told["episodes"]
    assert [one.name for one in target.parent.iterdir()] == ["film.gif"]


def test_a_gif_lasts_as_long_as_its_frames_a_second_say(tmp_path: Path) -> None:
    needs("PIL")
    with open_film(tmp_path / "a.gif", 30.0) as film:
        for step in range(30):
            film.add(np.full((4, 4, 3), step * 8, np.uint8))
    image: Any = importlib.import_module("PIL.Image").open(tmp_path / "a.gif")
    shown = []
    for frame in range(image.n_frames):
        image.seek(frame)
        shown.append(image.info["duration"])
    assert sum(shown) == pytest.approx(1000, abs=10)
    assert image.info["loop"] == 0


def test_an_mp4_has_every_frame_whatever_the_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs("imageio_ffmpeg")
    target = tmp_path / "film.mp4"
    assert run(["record", str(checkpoint(tmp_path)), "--episodes", "1", "--to", str(target)]) == 0
    assert "1 episodes, 8 frames of 33 x 21 at 10 a second" in capsys.readouterr().out
    frames = importlib.import_module("imageio_ffmpeg").read_frames(str(target))
    assert (next(frames)["size"], len(list(frames))) == ((34, 22), 8)


def test_frames_go_into_the_file_as_they_come_and_none_is_kept(tmp_path: Path) -> None:
    needs("PIL")
    chance, sizes, frames = np.random.default_rng(1), [], []
    with open_film(tmp_path / "a.gif", 30.0) as film:
        for _ in range(40):
            frame = chance.integers(0, 256, (64, 64, 3), np.uint8)
            frames.append(weakref.ref(frame))
            film.add(frame)
            sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
        assert sum(one() is not None for one in frames) <= 2, "of 40 frames"
    assert sizes[-1] > 0.5 * (tmp_path / "a.gif").stat().st_size, "half a film was on disk before its end"


def test_gymnasiums_own_environments_are_filmed_by_id(tmp_path: Path) -> None:
    needs("PIL")
    gif = tmp_path / "a.gif"
    path = checkpoint(tmp_path, "HeddleFilmCounter-v0", kwargs={"render_mode": "human"}, isolation="process")
    assert run(["record", str(path), "--episodes", "1", "--to", str(gif)]) == 0
    assert len(brightness_of_gif(gif)) == 8


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"env_id": "tests.unit.test_film:Blind"}, "does not render: the factory was offered render_mode"),
        ({"env_id": "HeddleFilmBlind-v0"}, "does not render pictures"),
        ({"env_id": "tests.unit.test_film:OnScreen"}, "does not render pictures: its render_mode is 'human'"),
        ({"kwargs": {"shows": "text"}}, "render() returned a str, no picture"),
        ({"kwargs": {"shows": "errors"}}, "rendering raised RuntimeError: no screen"),
        ({"stepping": "async"}, "only single environments can be filmed"),
    ],
)
def test_an_environment_without_pictures_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], env: dict[str, Any], said: str
) -> None:
    needs("PIL")
    path = checkpoint(tmp_path, **env)
    assert run(["record", str(path), "--to", str(tmp_path / "film.gif")]) == 3
    err = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("filming")]
    assert len(err) == 1 and said in err[0], err
    assert not list(tmp_path.glob("*.gif")) and not list(tmp_path.glob(".*"))


def test_what_is_missing_is_told_with_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(checkpoint(tmp_path))
    assert run(["record", str(tmp_path / "nothing")]) == 4
    assert "no checkpoint" in capsys.readouterr().err
    assert run(["record", path, "--to", "film.avi"]) == 2
    assert "film.avi ends with neither .mp4 nor .gif" in capsys.readouterr().err
    for kind, module in (("gif", "PIL.Image"), ("mp4", "imageio_ffmpeg")):
        monkeypatch.setitem(sys.modules, module, None)
        assert run(["record", path, "--to", str(tmp_path / f"film.{kind}")]) == 2
        assert f"writing a{'n' if kind == 'mp4' else ''} {kind} needs an optional dependency: pip install" in (
            capsys.readouterr().err
        )


def test_a_picture_of_another_size_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    needs("PIL")
    with (
        pytest.raises(UsageError, match="renders 5 x 4 now, and 4 x 4 before"),
        open_film(tmp_path / "a.gif", 5) as film,
    ):
        film.add(np.zeros((4, 4, 3), np.uint8))
        film.add(np.zeros((4, 5, 3), np.uint8))
    assert not list(tmp_path.iterdir())
