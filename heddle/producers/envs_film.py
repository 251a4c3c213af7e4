"""Environments that are filmed: made to render arrays, and every frame handed on as it comes.

It never keeps a frame, and never knows where they go.
"""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from heddle.errors import EnvError
from heddle.producers.closing import close_env
from heddle.producers.envs import make_env
from heddle.spec import Env, ExperimentSpec
from heddle.spec.objects import describe_error, is_object_name
from heddle.spec.variants import env_of

MODE = "rgb_array"
FPS = 30.0
"""Of environments that do not say."""

Frame = NDArray[np.uint8]
"""[height, width, 3]"""


class Filmed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Hands on a frame of the first observation and of each step.

    The first frame of an episode is handed on with its first step: an episode that nobody plays is not filmed.

    Attributes:
        seeds: of the episodes that were begun, in order.
        frames: of each of them, so far.

    Args:
        take: is given each frame.
    """

    def __init__(self, env: Any, take: Callable[[Frame], None], *, name: str) -> None:
        super().__init__(env)
        self.seeds: list[int | None] = []
        self.frames: list[int] = []
        self._take = take
        self._name = name
        self._first: Frame | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        answer = self.env.reset(seed=seed) if options is None else self.env.reset(seed=seed, options=options)
        self._first = self._frame()
        self.seeds.append(seed)
        self.frames.append(0)
        return answer

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._first is not None:
            self._hand_on(self._first)
            self._first = None
        answer = self.env.step(action)
        self._hand_on(self._frame())
        return answer

    def _hand_on(self, frame: Frame) -> None:
        self._take(frame)
        self.frames[-1] += 1

    def _frame(self) -> Frame:
        """What the environment shows now. Raises EnvError."""
        try:
            shown = self.env.render()
        except (Exception, SystemExit) as error:
            raise EnvError(f"rendering raised {describe_error(error)}", value=self._name) from error
        frame = np.asarray(shown)
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] not in (3, 4) or not frame.size:
            what = (
                f"{frame.dtype} array of shape {frame.shape}" if isinstance(shown, np.ndarray) else type(shown).__name__
            )
            hint = f"render_mode = {MODE!r} is to give one picture: [height, width, 3], uint8"
            raise EnvError(f"render() returned a {what}, no picture", value=self._name, hint=hint)
        return frame[:, :, :3]


def make_filmed(spec: ExperimentSpec, take: Callable[[Frame], None], *, seed: int) -> Filmed:
    """The first environment of a spec, in this process, made to render.

    Raises:
        EnvError: it cannot be made, or does not render arrays.
    """
    env = env_of(spec, 0)
    if env.at_once or env.stepping == "async":
        kind = "agents" if env.agents is not None else "vector" if env.vector else "stepping"
        hint = "make a spec of one environment of it, stepped inline, and record with that"
        raise EnvError("only single environments can be filmed", key=f"env.{kind}", value=getattr(env, kind), hint=hint)
    plain = env.model_copy(update={"kwargs": _without_mode(env), "isolation": "inline", "stepping": "inline"})
    try:
        made = make_env(plain, num_envs=spec.env.num_envs, seed=seed, render_mode=MODE)
    except EnvError as error:
        raise _told(plain, spec, error, seed) from error
    try:
        _check_mode(made, env)
        return Filmed(made, take, name=env.id)
    except EnvError:
        close_env(made)
        raise


def frames_per_second(env: Any) -> float:
    """How fast an environment says that it goes."""
    said = (getattr(env, "metadata", None) or {}).get("render_fps")
    return float(said) if isinstance(said, int | float) and said > 0 else FPS


def _without_mode(env: Env) -> dict[str, Any]:
    return {key: value for key, value in env.kwargs.items() if key != "render_mode"}


def _modes(env: Any) -> Sequence[str]:
    said = (getattr(env, "metadata", None) or {}).get("render_modes") or ()
    return [str(mode) for mode in said]


def _check_mode(made: Any, env: Env) -> None:
    """Refuse one that renders otherwise, or not at all. Raises EnvError."""
    mode = getattr(made, "render_mode", None)
    if mode == MODE:
        return
    modes = ", ".join(_modes(made)) or "none"
    if mode is None and is_object_name(env.id):
        hint = "give it a parameter render_mode, and have what it makes keep it"
        raise EnvError(
            f"does not render: the factory was offered render_mode = {MODE!r} and did not take it",
            value=env.id,
            hint=hint,
        )
    raise EnvError(
        f"does not render pictures: its render_mode is {mode!r}",
        value=env.id,
        hint=f"it knows: {modes}; {MODE} is needed",
    )


def _told(plain: Env, spec: ExperimentSpec, error: EnvError, seed: int) -> EnvError:
    """The same error, or, where it can be made without pictures, that it does not render."""
    try:
        close_env(made := make_env(plain, num_envs=spec.env.num_envs, seed=seed))
    except EnvError:
        return error
    why = error.problems[0].reason
    return EnvError(
        f"does not render pictures: made with render_mode = {MODE!r} it fails: {why}",
        value=plain.id,
        hint=f"it knows: {', '.join(_modes(made)) or 'no render_mode'}",
    )
