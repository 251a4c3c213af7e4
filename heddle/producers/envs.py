"""Environments: made as a spec says, described in our own spaces, checked before they are believed. The one door to
Gymnasium.

It never steps for experience; the player does.

Returns and lengths come from the innermost environment. Where everything around it leaves rewards and endings alone,
the player's own counting says the same at no cost. Above the first wrapper that may change them (reward clipping,
life loss, frame skip) that is no longer so, and an `EpisodeCounter` is put beneath that wrapper: inside a factory's
own chain too, but above TimeLimit and the like, so that a cut-off episode is counted as it ended.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium import wrappers as gym_wrappers

from heddle.clock import Clock
from heddle.errors import EnvError
from heddle.layout import Layout
from heddle.producers.closing import close_env
from heddle.producers.contract import first_breach
from heddle.producers.envs_async import awaited
from heddle.producers.envs_make import call_factory, call_gymnasium, wrap
from heddle.producers.envs_spaces import demand_same, describe, describe_action
from heddle.producers.isolation.shard import IsolatedEnv, check_isolated, make_isolated, make_spread
from heddle.shard import ShardPlan, env_seed
from heddle.spaces import Space
from heddle.spec import Env, ExperimentSpec
from heddle.spec.objects import is_object_name
from heddle.spec.variants import env_of, first_of_each, variant_of

_NEUTRAL = (
    gym_wrappers.TimeLimit,
    gym_wrappers.OrderEnforcing,
    gym_wrappers.PassiveEnvChecker,
    gym_wrappers.RecordEpisodeStatistics,
)
_PLAIN_STEPS = (gymnasium.Wrapper.step, gymnasium.ObservationWrapper.step, gymnasium.ActionWrapper.step)


class EpisodeCounter(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Counts return and length of the environment beneath, whatever the wrappers above make of them.

    An episode is over when the environment says so, or when it is reset on the way (a time limit further out).
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._return = 0.0
        self._length = 0
        self._finished: tuple[float, int] | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.env, name)  # a wrapper above may ask the raw environment for anything, e.g. `lives`

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self._close_episode()
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        answer = self.env.step(action)
        self._return += float(answer[1])
        self._length += 1
        if answer[2] or answer[3]:
            self._close_episode()
        return answer

    def take(self) -> tuple[float, int] | None:
        """Return and length of the episode that ended since the last call, None if none did."""
        finished, self._finished = self._finished, None
        return finished

    def _close_episode(self) -> None:
        if self._length:
            self._finished = (self._return, self._length)
        self._return, self._length = 0.0, 0


def make_env(env: Env, *, index: int = 0, num_envs: int = 1, seed: int = 0, render_mode: str | None = None) -> Any:
    """One environment of the spec, wrapped, with an `EpisodeCounter` where one is needed.

    Args:
        index: its number within the experiment.
        num_envs: how many the experiment has.
        seed: for factories that want one; resets are seeded by the player.
        render_mode: for one that is filmed, where env.kwargs name none.

    Raises:
        EnvError: it cannot be made; the reason is one line.
    """
    shown: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    if is_object_name(env.id):
        made = call_factory(env, {"env_index": index, "num_envs": num_envs, "seed": seed} | shown)
    else:
        made = call_gymnasium(env, disable_env_checker=True, **shown)
    if isinstance(made, gymnasium.vector.VectorEnv):
        hint = "add vector = true to [env], or return a single one"
        raise EnvError("is a vector environment", value=env.id, hint=hint)
    missing = [name for name in ("reset", "step", "observation_space", "action_space") if not hasattr(made, name)]
    if missing:
        raise EnvError(f"is a {type(made).__name__} without {', '.join(missing)}", value=env.id)
    if env.stepping == "async":
        return awaited(made, name=env.id)
    for place, wrapper in enumerate(env.wrappers):
        made = wrap(made, wrapper, place)
    counted: gymnasium.Env[Any, Any] = _with_counter(made, env.id)
    return counted


def make_envs(
    plan: ShardPlan, spec: ExperimentSpec, seed: int, *, layout: Layout | None = None, clock: Clock | None = None
) -> Sequence[Any]:
    """Every environment of a shard; with `layout` in a child or several, where the spec asks for that.

    Args:
        seed: root of all chance of this shard's kind.

    Raises:
        EnvError: as `make_env` does.
    """
    if spec.env.isolation == "process" and layout is not None:
        return make_isolated(plan, spec, seed, layout.observation, layout.action, clock=clock)
    if spec.env.stepping == "processes" and layout is not None:
        return make_spread(plan, spec, seed, layout.observation, layout.action, clock=clock)
    made: list[Any] = []
    try:
        for env in range(plan.num_envs):
            own_seed = env_seed(seed, plan.index, env, 0)
            index = plan.first_env + env
            made.append(make_env(env_of(spec, index), index=index, num_envs=spec.env.num_envs, seed=own_seed))
            if layout is not None:
                demand_fit(made[-1], layout.observation, layout.action, name=spec.env.id, index=index)
    except EnvError:
        for env_made in made:
            close_env(env_made)
        raise
    return made


def demand_fit(env: Any, observation: Space, action: Space, *, name: str, index: int) -> None:
    """The spaces of environment `index` are the experiment's. Raises EnvError where they are others."""
    found = describe(env.observation_space, value=name), describe_action(env.action_space, value=name)
    demand_same(found, (observation, action), who=f"environment {index}", name=name)


def counter_of(env: Any) -> Any:
    """The `EpisodeCounter` within `env`; None when its rewards and endings are the innermost environment's own."""
    if isinstance(env, IsolatedEnv):
        return env.episode_counter
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, EpisodeCounter):
            return env
        env = env.env
    return None


def check_env(spec: ExperimentSpec, *, steps: int = 16) -> tuple[Space, Space]:
    """Make one environment, in a child where the spec asks for that, play a few steps of it twice, return its spaces.

    Args:
        steps: how many to try.

    Raises:
        EnvError: it cannot be made, has spaces that Heddle does not carry, raises, or breaks Gymnasium's contract.
    """
    return check_isolated(spec) if spec.env.in_children else check_env_here(spec, steps=steps)


def check_env_here(spec: ExperimentSpec, *, steps: int = 16) -> tuple[Space, Space]:
    """As `check_env`, but always in this process."""
    found: tuple[Space, Space] | None = None
    first = ""
    for variant, index in first_of_each(spec).items():
        spaces = _check_one(spec, index, steps)
        if found is not None and spaces != found:
            which = next(
                what for what, one, other in zip(("observation", "action"), spaces, found, strict=True) if one != other
            )
            reason = f"variant {variant!r} has another {which} space than variant {first!r}: one policy plays them all"
            raise EnvError(reason, key="env.variants", value=variant)
        found, first = spaces, first or variant
    assert found is not None
    return found


def _check_one(spec: ExperimentSpec, index: int, steps: int) -> tuple[Space, Space]:
    """As `check_env_here`, of environment `index` of the experiment."""
    name, seed, asked = spec.env.id, env_seed(spec.experiment.seed, 0, index, 0), spec.rollout.info_keys
    make = partial(make_env, env_of(spec, index), index=index, num_envs=spec.env.num_envs, seed=seed)
    env, again = make(), make if spec.env.deterministic else None
    try:
        observation = describe(env.observation_space, value=name)
        action = describe_action(env.action_space, value=name)
        breach = first_breach(env, observation, action, seed=seed, steps=steps, info_keys=asked, again=again)
        if breach:
            variant = variant_of(spec, index)
            raise EnvError(breach if variant is None else f"variant {variant.name!r} {breach}", value=name)
    finally:
        close_env(env)
    return observation, action


def _with_counter(env: Any, name: str) -> Any:
    """Put an `EpisodeCounter` beneath the innermost wrapper that may change rewards or endings, if there is one."""
    chain: list[Any] = [env]
    while isinstance(chain[-1], gymnasium.Wrapper):
        chain.append(chain[-1].env)
    if any(isinstance(layer, gym_wrappers.Autoreset) for layer in chain):
        raise EnvError("resets itself (wrapper Autoreset): the player does that", value=name, hint="remove Autoreset")
    for layer in reversed(chain[:-1]):
        if not _is_neutral(layer):
            layer.env = EpisodeCounter(layer.env)
            break
    return env


def _is_neutral(wrapper: Any) -> bool:
    return type(wrapper) in _NEUTRAL or type(wrapper).step in _PLAIN_STEPS
