"""Rules between the chosen learner and the other keys: a key that means nothing to it is refused, not ignored.

Pure, and it never raises: it returns what it finds. A learner of the user's own may read any key.
"""

from collections.abc import Iterator

from heddle.spec.explain import Fault
from heddle.spec.models import LEARNERS, ExperimentSpec, Trainer
from heddle.spec.values import is_user_code

_ONLY_FOR: dict[str, tuple[str, ...]] = {
    "clip": ("ppo",),
    "target_kl": ("ppo",),
    "value_clip": ("ppo",),
    "recompute_advantage": ("ppo",),
    "symmetric_value_loss": ("ppo",),
    "vtrace": ("vtrace",),
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


def reads(learner: str, key: str) -> bool:
    """True when the built-in `learner` looks at trainer.`key`."""
    return learner in _ONLY_FOR.get(key, LEARNERS)
