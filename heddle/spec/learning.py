"""[trainer] and the tables in it that belong to one kind of learner, as [trainer.vtrace].

It never says which learner needs which; `derive.py` fills them in and `learner_checks.py` refuses what has no meaning.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from heddle.spec.values import Bytes, Frozen, Kwargs, Schedule, Seconds, auto_none, builtin_or_own, constant, none_auto

LEARNERS = ("ppo", "vtrace", "dqn", "sac", "bc", "none")
"""Built-in learners; others are named "package.module:Name"."""


class VtraceOptions(Frozen):
    """[trainer.vtrace]: how far the importance weights of old experience may go.

    Attributes:
        rho_clip: of the temporal differences; which policy's value is learned depends on it.
        c_clip: of the traces; how far differences flow back.
        policy_rho_clip: of the policy gradient.
    """

    rho_clip: float = Field(default=1.0, gt=0)
    c_clip: float = Field(default=1.0, gt=0)
    policy_rho_clip: float = Field(default=1.0, gt=0)


class ReplayOptions(Frozen):
    """[trainer.replay]: what learners that replay experience remember, and how often they go back to it.

    Attributes:
        capacity: bytes of memory for steps, and about as much on disk; the oldest ones make room.
        samples_per_step: how often each step is drawn, on average: producers wait for the learner, and it for them.
            256 with minibatch = 256 is one gradient step for each step of an environment.
        learning_starts: steps in the buffer before anything is learned; until then actions are random.
        n_step: rewards in one target, before the value of what followed.
        prioritised: draw in proportion to the last temporal difference instead of uniformly.
        alpha: how much the priority counts: 0 is uniform.
        beta: how much of the bias the importance weights take away, a number or { start, end } over the budget.
    """

    capacity: Bytes = Field(default=256 * 2**20, ge=2**16)
    samples_per_step: float = Field(default=8.0, gt=0)
    learning_starts: int = Field(default=1000, ge=1)
    n_step: int = Field(default=1, ge=1, le=1000)
    prioritised: bool = False
    alpha: float = Field(default=0.6, ge=0, le=1)
    beta: Schedule = Schedule(start=0.4, end=1.0)


class DqnOptions(Frozen):
    """[trainer.dqn].

    Attributes:
        double: the online network chooses the action whose value the target network gives.
        epsilon: share of random actions, a number or { start, end }.
        epsilon_share: share of the budget over which epsilon moves from start to end.
        target_every: gradient steps from one update of the target network to the next.
        tau: how far it moves towards the online network then.
    """

    double: bool = True
    epsilon: Schedule = Schedule(start=1.0, end=0.05)
    epsilon_share: float = Field(default=0.2, gt=0, le=1)
    target_every: int = Field(default=250, ge=1)
    tau: float = Field(default=1.0, gt=0, le=1)


class SacOptions(Frozen):
    """[trainer.sac].

    Attributes:
        tau: how far the target critics move towards the critics after every gradient step.
        temperature: weight of the entropy; None, written "auto": learned so that the entropy is `target_entropy`.
        first_temperature: where learning it starts.
        target_entropy: None: less the number of action dimensions.
        critic_lr: learning rate of critics; `trainer.lr` when not given.
    """

    tau: float = Field(default=0.005, gt=0, le=1)
    temperature: Annotated[
        float | None,
        Field(ge=0),
        BeforeValidator(none_auto),
        PlainSerializer(auto_none, return_type=Any, when_used="json"),
    ] = None
    first_temperature: float = Field(default=1.0, gt=0)
    target_entropy: float | None = None
    critic_lr: Schedule | None = None


class Trainer(Frozen):
    """[trainer]: how it learns.

    Attributes:
        learner: built-in name, or "package.module:Learner".
        lr: learning rate, a number or { start, end } over the budget.
        gamma: discount per agent step.
        gae_lambda: of generalised advantage estimation.
        clip: of the policy ratio, a number or { start, end } over the budget.
        passes: sweeps over the data of one update.
        minibatch: steps in one gradient step; 64, or a whole update where that is less, when not given.
        entropy, value_coef: weights of those terms in the loss.
        max_grad_norm: gradients are scaled down to this norm.
        grad_limit: a gradient longer than this, before it is scaled down, has exploded; None: only one that is not
            finite has.
        on_bad_step: what an exploded gradient or a loss that is not finite does: fail the experiment, skip that
            gradient step, or skip it and pause the experiment, so that somebody looks.
        normalize_advantage: per minibatch.
        target_kl: ends an update early above it.
        value_clip: clips the change of the value; None: not clipped.
        value_clip_pessimistic: the larger of the clipped and the other error counts.
        recompute_advantage: with the current weights before every pass.
        batch_steps: steps in one update when not sync; derived when not given.
        normalize_observations, normalize_rewards: by running statistics.
        ack: entries leave the stream once a durable checkpoint covers them, or once updated on.
        checkpoint_every: updates between checkpoints.
        checkpoints_kept: newest ones kept, the best one aside.
        sync_timeout: seconds a sync update waits for missing shards before it trains on what is there.
        update_timeout: seconds one update of the learner may last before the trainer is ended and started anew.
        device: where it learns.
        compile: the policy's network by torch.compile, which needs a C++ compiler; on a CPU small networks get slower.
        threads: CPU threads that it may use; one is fastest for small networks, and leaves the cores to workers.
        vtrace, dqn, sac: of that learner.
        replay: of learners that go back to old experience.
        kwargs: passed to a learner of your own.
    """

    learner: Annotated[str, builtin_or_own(LEARNERS)] = "ppo"
    lr: Schedule = constant(3e-4)
    gamma: float = Field(default=0.99, ge=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    clip: Schedule = constant(0.2)
    passes: int = Field(default=10, ge=1)
    minibatch: int = Field(default=64, ge=1)
    entropy: float = Field(default=0.0, ge=0)
    value_coef: float = Field(default=0.5, ge=0)
    max_grad_norm: float = Field(default=0.5, gt=0)
    grad_limit: float | None = Field(default=None, gt=0)
    on_bad_step: Literal["fail", "skip", "pause"] = "fail"
    normalize_advantage: bool = True
    target_kl: float | None = Field(default=None, gt=0)
    value_clip: float | None = Field(default=None, gt=0)
    value_clip_pessimistic: bool = False
    recompute_advantage: bool = False
    batch_steps: int = Field(default=0, ge=1)
    normalize_observations: bool = False
    normalize_rewards: bool = False
    ack: Literal["checkpoint", "update"] = "checkpoint"
    checkpoint_every: int = Field(default=1, ge=1)
    checkpoints_kept: int = Field(default=3, ge=1)
    sync_timeout: Seconds = Field(default=30.0, gt=0)
    update_timeout: Seconds = Field(default=600.0, gt=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    compile: bool = False
    threads: int = Field(default=1, ge=1, le=1024)
    vtrace: VtraceOptions | None = None
    replay: ReplayOptions | None = None
    dqn: DqnOptions | None = None
    sac: SacOptions | None = None
    kwargs: Kwargs = Field(default_factory=dict)
