"""[env] of exp.toml as frozen models: what is played, its wrappers and its variants.

It never makes an environment and never checks one key against another; `heddle/producers/` and `checks.py` do.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from heddle.spec.values import Bytes, Frozen, Kwargs, Seconds, Slug, Word

ENVPOOL = "envpool:"
"""What ids of EnvPool's environments begin with."""


def _wrapper(value: object) -> object:
    return {"id": value} if isinstance(value, str) else value


class Wrapper(Frozen):
    """One environment wrapper, outermost last.

    Attributes:
        id: "package.module:Class", or a class name of gymnasium.wrappers.
        kwargs: passed to it.
    """

    id: Word
    kwargs: Kwargs = Field(default_factory=dict)


class Variant(Frozen):
    """[[env.variants]]: one kind of environment among several of the same spaces.

    Attributes:
        name: shown by `plan` and `shards`.
        weight: its share of the environments, beside the others' weights.
        count: that many of env.num_envs; every variant has one, or none has.
        kwargs: over those of [env].
    """

    name: Slug
    weight: float = Field(default=1.0, gt=0)
    count: int | None = Field(default=None, ge=1)
    kwargs: Kwargs = Field(default_factory=dict)


class Env(Frozen):
    """[env]: what is played.

    Attributes:
        id: Gymnasium id, or "package.module:factory", called with kwargs, env_index, num_envs and seed.
        num_envs: environments in all, over every worker.
        envs_per_shard: environments that one worker takes at once; derived when not given.
        kwargs: passed to the environment.
        wrappers: put around it, innermost first.
        step_timeout: seconds one step or act may last: longer ends the environment's process, or inline the worker.
        reset_timeout: seconds making or resetting one environment may last; `step_timeout` when not given.
        isolation: where environments run: inline is the worker's own process, process a child of it for each shard.
        memory: bytes that the child of a shard may take; None: as much as there is.
        variants: environments that differ in their kwargs, spread evenly over all shards.
        vector: one object steps all environments of a shard: id names a vector environment, or what makes one.
        agents: how many act in one environment, all by the experiment's policy; id then names what makes a PettingZoo
            parallel environment. Each agent's steps count.
        deterministic: the same seed and actions give the same experience, which is tried out; False: they need not.
        stepping: inline steps the environments of a shard one after the other, the others beside each other: threads in
            threads, processes in children of the worker, async as coroutines; the policy acts for whichever is ready.
            auto times the first steps, and goes on in threads where they mostly wait.
        threads: of a shard; one for each environment, 64 at most, when not given.
        processes: children of a shard, each with as many of its environments; those of one child wait for each other.
            One for each environment, 16 at most, when not given.
        bounds: what follows where an observation leaves the bounds of its Box, or a mask allows nothing: warn tells of
            the first one of each shard and goes on, refuse takes it for a failure. (In other spaces it always is one.)
        gather: seconds to wait for more environments once one is ready, so that the policy is asked less often.
    """

    id: Word
    num_envs: int = Field(default=8, ge=1, le=1_000_000)
    envs_per_shard: int = Field(default=0, ge=1, le=4096)
    kwargs: Kwargs = Field(default_factory=dict)
    wrappers: Annotated[tuple[Annotated[Wrapper, BeforeValidator(_wrapper)], ...], Field(strict=False)] = ()
    step_timeout: Seconds = Field(default=60.0, gt=0)
    reset_timeout: Seconds = Field(default=60.0, gt=0)
    isolation: Literal["inline", "process"] = "inline"
    memory: Bytes | None = Field(default=None, ge=64 * 2**20)
    variants: Annotated[tuple[Variant, ...], Field(strict=False)] = ()
    vector: bool = False
    agents: int | None = Field(default=None, ge=1, le=1024)
    deterministic: bool = True
    stepping: Literal["inline", "threads", "processes", "async", "auto"] = "inline"
    threads: int | None = Field(default=None, ge=1, le=1024)
    processes: int | None = Field(default=None, ge=1, le=1024)
    gather: Seconds = Field(default=0.0, ge=0, le=1)
    bounds: Literal["warn", "refuse"] = "warn"

    @property
    def agents_each(self) -> int:
        """How many act in one environment."""
        return self.agents or 1

    @property
    def in_children(self) -> bool:
        """Whether environments run in children of their worker."""
        return self.isolation == "process" or self.stepping == "processes"

    @property
    def at_once(self) -> bool:
        """Whether one call steps all environments of a shard."""
        return self.vector or self.agents is not None
