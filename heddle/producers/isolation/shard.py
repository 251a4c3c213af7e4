"""The environments of one shard in a child: stand-ins that a player resets, steps and closes as if they were here.

It never looks at numbers; what is wrong with them shows where the player looks at those of any environment.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from heddle.clock import Clock
from heddle.errors import EnvError, NotSnapshottable, SnapshotError
from heddle.producers.contract import BadAnswer
from heddle.producers.isolation import frames
from heddle.producers.isolation.block import Block, size_of
from heddle.producers.isolation.process import EnvProcess, Limits
from heddle.producers.mishap import Mishap
from heddle.shard import ShardPlan, env_seed
from heddle.spaces import Space, from_json, to_json
from heddle.spec import ExperimentSpec
from heddle.spec.beside import children_of
from heddle.spec.last_words import telling
from heddle.spec.variants import env_of

Answer = tuple[Any, float, bool, bool, dict[str, float]]


class IsolatedEnvs(list["IsolatedEnv"]):
    """The stand-ins of one shard, and what they share: none before they are made.

    Attributes:
        process: their child.
    """

    def __init__(
        self,
        spec: ExperimentSpec,
        observation: Space,
        action: Space,
        envs: Sequence[tuple[int, int]],
        *,
        clock: Clock | None = None,
    ) -> None:
        """Start a child for `envs`, each an index within the experiment and the seed for factories that want one."""
        super().__init__()
        keys = spec.rollout.info_keys
        self.limits = limits_of(spec)
        self.process = EnvProcess(size_of(observation, action, len(envs), len(keys)), self.limits, clock=clock)
        self._block = Block(observation, action, len(envs), keys, self.process.memory)
        self._pending: set[int] = set()
        self._answers: dict[int, Answer] = {}
        self._error: tuple[int, Exception] | None = None
        self._name = spec.env.id
        self._indexes = [index for index, _ in envs]
        self._wanted = {
            "env": spec.env.model_dump_json(),
            "envs": [(index, seed, dict(env_of(spec, index).kwargs)) for index, seed in envs],
            "info_keys": list(keys),
            "observation": to_json(observation),
            "action": to_json(action),
            "memory": self.limits.memory,
            "files": self.limits.files,
        }

    def make(self) -> "IsolatedEnvs":
        """Make the environments; once.

        Raises:
            EnvError: one cannot be made, or its process ended over it.
        """
        counted = json.loads(_asked(self.process, frames.MAKE, self._wanted, "make", self.limits.reset_s, self._name))
        self += [IsolatedEnv(self, env, has_counter=bool(has)) for env, has in enumerate(counted)]
        return self

    def begin(self, choices: Sequence[Any] | Mapping[int, Any], envs: Sequence[int]) -> None:
        """Step `envs` with their `choices`, all in one request; their `step` then gives the answers, in that order."""
        block = self._block
        block.mask.fill(0)
        for env in envs:
            block.put_action(env, choices[env])
            block.mask[env] = 1
        self._pending = set(envs)
        self._answers = {}

    def step(self, env: int, action: Any) -> Answer:
        """The answer of one environment."""
        if env in self._pending:
            self._play()
        elif env not in self._answers and self._error is None:
            self.begin({env: action}, [env])
            self._play()
        if env in self._answers:
            return self._answers.pop(env)
        assert self._error is not None
        raise self._error[1]

    def reset(self, env: int, seed: int | None) -> Any:
        """The first observation of a fresh episode."""
        payload = b"" if seed is None else seed.to_bytes(8, "little")
        self._block.take_cells([env], self._ask(frames.RESET, env, payload, "reset", self.limits.reset_s))
        return self._block.view(env)

    def save(self, env: int) -> bytes:
        """One environment's state. Raises NotSnapshottable."""
        try:
            return self._ask(frames.SAVE, env, b"", "snapshot", self.limits.reset_s)
        except (Mishap, BadAnswer) as error:
            raise NotSnapshottable(f"{self._called(env)}: {error}") from error

    def restore(self, env: int, data: bytes) -> None:
        """Put one environment into a state. Raises SnapshotError."""
        try:
            self._ask(frames.RESTORE, env, data, "restore", self.limits.reset_s)
        except (Mishap, BadAnswer) as error:
            raise SnapshotError(f"cannot be restored by {self._called(env)}: {error}") from error

    def _called(self, env: int) -> str:
        """For people: "my_env:make (environment 8)"."""
        return f"{self._name} (environment {self._indexes[env]})"

    def take_finished(self, env: int) -> tuple[float, int] | None:
        """As `EpisodeCounter.take`."""
        block = self._block
        if not block.finished[env]:
            return None
        block.finished[env] = 0
        return float(block.returns[env]), int(block.lengths[env])

    def close(self) -> None:
        """End the child; again is no mistake."""
        self.process.close()

    def _ask(self, kind: int, env: int, payload: bytes, doing: str, limit_s: float) -> bytes:
        try:
            return self.process.ask(kind, env=env, payload=payload, doing=doing, limit_s=limit_s)
        except Mishap as mishap:
            raise _inline(mishap) from mishap

    def _play(self) -> None:
        """Have the pending ones stepped; what went wrong is kept for the one that it happened to."""
        pending, self._pending = sorted(self._pending), set()
        try:
            answer = self.process.ask(frames.ROUND, doing="step", limit_s=self.limits.step_s)
            self._block.take_cells(pending, answer)
            played = pending
        except Mishap as mishap:
            failed = mishap.env if mishap.env in pending else pending[0]
            self._error = (failed, _inline(mishap))
            played = pending[: pending.index(failed)]
        block = self._block
        reward, flags = block.reward.tolist(), block.flags.tolist()
        for env in played:
            flag = flags[env]
            self._answers[env] = (self[env].show(), reward[env], bool(flag & 1), bool(flag & 2), self._info(env))

    def _info(self, env: int) -> dict[str, float]:
        keys = self._block.info_keys
        if not keys:
            return {}
        values = zip(keys, self._block.infos[env].tolist(), strict=True)
        return {key: value for key, value in values if value == value}  # noqa: PLR0124  NaN: it gave none


class IsolatedEnv:
    """One environment of a child, as a player sees it.

    Attributes:
        episode_counter: of the innermost environment, where one is needed.
    """

    def __init__(self, shard: IsolatedEnvs, env: int, *, has_counter: bool) -> None:
        self._shard, self._env = shard, env
        self.episode_counter = _Counter(shard, env) if has_counter else None
        self._view = shard._block.view(env) if shard._block.is_fixed else None

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[Any, dict[str, Any]]:
        """As an environment's."""
        return self._shard.reset(self._env, seed), {}

    def step(self, action: Any) -> Answer:
        """As an environment's; the info holds the keys that the spec asks for."""
        return self._shard.step(self._env, action)

    def show(self) -> Any:
        """Its last observation."""
        return self._shard._block.view(self._env) if self._view is None else self._view

    @property
    def home(self) -> tuple["IsolatedEnvs", int]:
        """Those it shares a child with, and its place among them."""
        return self._shard, self._env

    def get_state(self) -> bytes:
        """A snapshot, taken in the child. Raises NotSnapshottable."""
        return self._shard.save(self._env)

    def set_state(self, state: bytes) -> None:
        """Go to the state of a snapshot. Raises SnapshotError."""
        self._shard.restore(self._env, bytes(state))

    def close(self) -> None:
        """End the child, and so every environment of the shard."""
        self._shard.close()


class _Counter:
    """Stands for the `EpisodeCounter` in the child."""

    def __init__(self, shard: IsolatedEnvs, env: int) -> None:
        self.take: Callable[[], tuple[float, int] | None] = lambda: shard.take_finished(env)


def limits_of(spec: ExperimentSpec) -> Limits:
    """What a child of this experiment may take."""
    return Limits(step_s=spec.env.step_timeout, reset_s=spec.env.reset_timeout, memory=spec.env.memory)


def make_isolated(
    plan: ShardPlan, spec: ExperimentSpec, seed: int, observation: Space, action: Space, *, clock: Clock | None = None
) -> IsolatedEnvs:
    """Every environment of a shard, in a child. Raises EnvError."""
    envs = [(plan.first_env + env, env_seed(seed, plan.index, env, 0)) for env in range(plan.num_envs)]
    return IsolatedEnvs(spec, observation, action, envs, clock=clock).make()


def make_spread(
    plan: ShardPlan, spec: ExperimentSpec, seed: int, observation: Space, action: Space, *, clock: Clock | None = None
) -> list[IsolatedEnv]:
    """Every environment of a shard, spread over its children as evenly as may be. Raises EnvError.

    All children are started before the first one is asked for anything, so they load beside each other.
    """
    count = children_of(spec.env, plan.num_envs)
    made: list[IsolatedEnvs] = []
    try:
        for child in range(count):
            places = range(plan.num_envs * child // count, plan.num_envs * (child + 1) // count)
            envs = [(plan.first_env + env, env_seed(seed, plan.index, env, 0)) for env in places]
            made.append(IsolatedEnvs(spec, observation, action, envs, clock=clock))
        for envs_made in made:
            envs_made.make()
    except BaseException:
        for envs_made in made:
            envs_made.close()
        raise
    return [env for envs_made in made for env in envs_made]


def check_isolated(spec: ExperimentSpec) -> tuple[Space, Space]:
    """As `envs.check_env`, in a child of its own. Raises EnvError."""
    limits = limits_of(spec)
    process = EnvProcess(4096, limits)
    try:
        wanted = {"spec": spec.canonical_json(), "memory": limits.memory, "files": limits.files}
        limit_s = 3 * limits.step_s + limits.reset_s
        answer = json.loads(_asked(process, frames.CHECK, wanted, "check", limit_s, spec.env.id))
    finally:
        process.close()
    return from_json(answer[0]), from_json(answer[1])


def _asked(process: EnvProcess, kind: int, wanted: dict[str, Any], doing: str, limit_s: float, name: str) -> bytes:
    """The answer to a request that comes before any episode; its mishaps are errors of the environment as such."""
    try:
        return process.ask(kind, payload=json.dumps(wanted).encode(), doing=doing, limit_s=limit_s)
    except Mishap as mishap:
        process.close()
        said = f"; it said: {' | '.join(line[:120] for line in telling(mishap.output)[-3:])}" if mishap.output else ""
        raise EnvError(f"failed in {doing}: {mishap.what}{said}", value=name) from mishap
    except BaseException:
        process.close()
        raise


def _inline(mishap: Mishap) -> Exception:
    """What the same thing would have raised here, where that is no more than an answer against the contract."""
    return mishap.__cause__ if isinstance(mishap.__cause__, BadAnswer) else mishap
