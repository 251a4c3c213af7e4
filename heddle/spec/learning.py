"""[trainer] and the tables in it that belong to one kind of learner, as [trainer.vtrace].

It never says which learner needs which; `derive.py` fills them in and `learner_checks.py` refuses what has no meaning.
"""

from typing import Annotated, Literal

from pydantic import Field

from heddle.spec.values import Frozen, Kwargs, Schedule, Seconds, builtin_or_own, constant

LEARNERS = ("ppo", "vtrace", "none")
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
        on_bad_step: what an exploded gradient or a loss that is not finite does: fail the experiment, or skip that
            gradient step.
        normalize_advantage: per minibatch.
        target_kl: ends an update early above it.
        value_clip: clips the change of the value; None: not clipped.
        recompute_advantage: with the current weights before every pass.
        batch_steps: steps in one update when not sync; derived when not given.
        normalize_observations, normalize_rewards: by running statistics.
        ack: entries leave the stream once a durable checkpoint covers them, or once updated on.
        checkpoint_every: updates between checkpoints.
        checkpoints_kept: newest ones kept, the best one aside.
        sync_timeout: seconds a sync update waits for missing shards before it trains on what is there.
        update_timeout: seconds one update of the learner may last before the trainer is ended and started anew.
        device: where it learns.
        vtrace: of that learner.
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
    on_bad_step: Literal["fail", "skip"] = "fail"
    normalize_advantage: bool = True
    target_kl: float | None = Field(default=None, gt=0)
    value_clip: float | None = Field(default=None, gt=0)
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
    vtrace: VtraceOptions | None = None
    kwargs: Kwargs = Field(default_factory=dict)
