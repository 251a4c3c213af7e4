"""[policy] of exp.toml as a frozen model: what acts.

It never builds a network; `heddle.policies` does.
"""

from typing import Annotated, Literal

from pydantic import Field

from heddle.spec.values import Frozen, Kwargs, builtin_or_own

POLICIES = ("mlp", "cnn", "impala", "lstm", "gru", "random", "q", "sac")
"""Built-in policies; others are named "package.module:Name"."""
RECURRENT = ("lstm", "gru")
NATURE_FILTERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))

Positive = Annotated[int, Field(ge=1)]
Filter = Annotated[tuple[Positive, Positive, Positive], Field(strict=False)]


class PolicySpec(Frozen):
    """[policy]: what acts.

    Attributes:
        id: built-in name, or "package.module:Name".
        torso: what a recurrent policy looks through.
        hidden: widths of the hidden layers, behind the convolutions if there are any; derived when not given.
        activation: between them; derived when not given.
        shared: one network for policy and value, up to their heads; derived when not given.
        filters: of "cnn": channels, kernel and stride of each convolution.
        image: order of an image's axes: height, width, channels or channels, height, width.
        recurrent_size: numbers that an LSTM or GRU carries from step to step.
        std: how far actions of floats spread: a weight beside the network, or what it says for each observation.
        squash: actions of floats go through tanh to their bounds, instead of being clipped there.
        dueling: of "q": a value and advantages instead of values of actions.
        init: safetensors file of first weights, read where the trainer runs; None: they are drawn.
        kwargs: passed to a policy of your own.
    """

    id: Annotated[str, builtin_or_own(POLICIES)] = "mlp"
    torso: Literal["mlp", "cnn", "impala"] = "mlp"
    hidden: Annotated[tuple[Positive, ...], Field(strict=False)] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    shared: bool = False
    filters: Annotated[tuple[Filter, ...], Field(strict=False, min_length=1)] = NATURE_FILTERS
    image: Literal["auto", "hwc", "chw"] = "auto"
    recurrent_size: int = Field(default=128, ge=1)
    std: Literal["parameter", "state"] = "parameter"
    squash: bool = False
    dueling: bool = False
    init: Annotated[str, Field(min_length=1)] | None = None
    kwargs: Kwargs = Field(default_factory=dict)

    @property
    def builtin(self) -> bool:
        """A network of Heddle's own from which actions are drawn by their probabilities."""
        return self.id in POLICIES and self.id not in ("random", "q", "sac")

    @property
    def recurrent(self) -> bool:
        """A built-in policy with a memory."""
        return self.id in RECURRENT

    @property
    def looks_through(self) -> str:
        """The torso of a built-in policy: "mlp", "cnn" or "impala"."""
        return self.torso if self.recurrent else self.id


def derived_policy(policy_id: object, torso: object) -> dict[str, object]:
    """What follows for [policy] from its id and torso when it is not given.

    Hidden layers and activation are those of the papers; convolutions and memories serve policy and value alike.
    """
    sight = torso if policy_id in RECURRENT else policy_id
    found: dict[str, object] = {}
    if sight in ("cnn", "impala"):
        found = {"hidden": (512,) if sight == "cnn" else (256,), "activation": "relu", "shared": True}
    elif policy_id in ("q", "sac"):
        found = {"hidden": (256, 256) if policy_id == "sac" else (128, 128), "activation": "relu", "shared": True}
    elif policy_id in RECURRENT:
        found = {"hidden": (64,), "shared": True}
    return found
