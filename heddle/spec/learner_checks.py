"""Rules between the chosen learner and the other keys: a key that means nothing to it is refused, not ignored.

Pure, and it never raises: it returns what it finds. A learner of the user's own may read any key.
"""

from collections.abc import Iterator

from heddle.spec.derive import REPLAYING
from heddle.spec.explain import Fault
from heddle.spec.learning import ReplayOptions, SacOptions
from heddle.spec.models import ExperimentSpec, Trainer
from heddle.spec.values import Schedule, is_user_code

METHODS = ("update", "get_weights", "set_weights", "state", "load")
"""What every learner has, those of the user's own, too."""
_ON_POLICY = ("ppo", "vtrace")
_REPLAYING = tuple(REPLAYING)
_ONLY_FOR: dict[str, tuple[str, ...]] = {
    "clip": ("ppo",),
    "target_kl": ("ppo",),
    "value_clip": ("ppo",),
    "recompute_advantage": ("ppo",),
    "value_clip_pessimistic": ("ppo",),
    "vtrace": ("vtrace",),
    "dqn": ("dqn",),
    "sac": ("sac",),
    "replay": _REPLAYING,
    "passes": _ON_POLICY,
    "gae_lambda": _ON_POLICY,
    "entropy": (*_ON_POLICY, "bc"),
    "value_coef": _ON_POLICY,
    "normalize_advantage": _ON_POLICY,
    "normalize_rewards": _ON_POLICY,
}
"""Keys of [trainer] -> the built-in learners that read them; keys that are not here are read by all."""


def learner_faults(spec: ExperimentSpec) -> Iterator[Fault]:
    """What contradicts `trainer.learner`."""
    learner = spec.trainer.learner
    if is_user_code(learner):
        return
    for key, readers in _ONLY_FOR.items():
        field = Trainer.model_fields.get(key)
        if field is None or learner in readers:
            continue
        value = getattr(spec.trainer, key)
        if value != field.default:
            yield Fault(
                ("trainer", key),
                value if isinstance(value, str | int | float | bool) else None,
                f"has no meaning with trainer.learner = {learner}",
                f"leave it out, or use trainer.learner = {' or '.join(readers)}",
            )
    if spec.trainer.value_clip_pessimistic and spec.trainer.value_clip is None:
        yield Fault(
            ("trainer", "value_clip_pessimistic"),
            True,
            "has no meaning without trainer.value_clip",
            "add value_clip = 0.2",
        )
    yield from _replay(spec)
    yield from _temperature(spec)
    yield from _policy(spec)


def schedule_faults(spec: ExperimentSpec) -> Iterator[Fault]:
    """A number that shall move over the budget, where nothing says how long that is."""
    budget, trainer = spec.budget, spec.trainer
    if budget.target_return is None or any((budget.env_steps, budget.updates, budget.passes, budget.wall)):
        return
    schedules: dict[tuple[str, ...], Schedule | None] = {("lr",): trainer.lr, ("clip",): trainer.clip}
    if trainer.dqn is not None:
        schedules["dqn", "epsilon"] = trainer.dqn.epsilon
    if trainer.sac is not None:
        schedules["sac", "critic_lr"] = trainer.sac.critic_lr
    if trainer.replay is not None and trainer.replay.prioritised:
        schedules["replay", "beta"] = trainer.replay.beta
    for path, schedule in schedules.items():
        if schedule is not None and schedule.start != schedule.end:
            yield Fault(
                ("trainer", *path),
                None,
                f"moves from {schedule.start:g} to {schedule.end:g} over the budget, and budget.target_return alone"
                " does not say how long that is: it would stay where it begins",
                "add env_steps, updates or wall to [budget], or use one number",
            )


def _replay(spec: ExperimentSpec) -> Iterator[Fault]:
    replay, steps = spec.trainer.replay, spec.budget.env_steps
    if replay is None:
        return
    if steps is not None and replay.learning_starts > steps:
        yield Fault(
            ("trainer", "replay", "learning_starts"),
            replay.learning_starts,
            f"is more than budget.env_steps = {steps}: nothing would ever be learned",
            "use fewer, or a larger budget",
        )
    for key in () if replay.prioritised else ("alpha", "beta"):
        value = getattr(replay, key)
        if value != ReplayOptions.model_fields[key].default:
            shown = value if isinstance(value, float) else None
            yield Fault(
                ("trainer", "replay", key), shown, "has no meaning without prioritised", "add prioritised = true"
            )


def _temperature(spec: ExperimentSpec) -> Iterator[Fault]:
    sac = spec.trainer.sac
    if sac is None or sac.temperature is None:
        return
    for key in ("target_entropy", "first_temperature"):
        value = getattr(sac, key)
        if value != SacOptions.model_fields[key].default:
            yield Fault(
                ("trainer", "sac", key),
                value,
                f"has no meaning with trainer.sac.temperature = {sac.temperature:g}, which is not learned",
                'leave it out, or use temperature = "auto"',
            )


def _policy(spec: ExperimentSpec) -> Iterator[Fault]:
    """A built-in policy that this learner cannot train."""
    learner, policy = spec.trainer.learner, spec.policy.id
    if is_user_code(policy):
        return
    needed = REPLAYING.get(learner)
    if needed is not None and policy != needed:
        yield Fault(
            ("policy", "id"),
            policy,
            f"cannot be trained by trainer.learner = {learner}",
            f"use {needed}, or leave it out",
        )
    for other, its in REPLAYING.items():
        if needed is None and policy == its:
            yield Fault(
                ("policy", "id"),
                policy,
                f"can be trained by trainer.learner = {other} only, not by {learner}",
                f"use trainer.learner = {other}",
            )
