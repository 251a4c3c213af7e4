"""Salvage: what a dead batch holds, whether it could be used now, and offering it to the trainer again.

It never trains, and changes no batch: one that was set aside for a good reason stays where it is.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from heddle.broker import Broker
from heddle.broker.dead import DeadBatch
from heddle.broker.types import Ctl
from heddle.consumers.opening import Opener
from heddle.consumers.setting import Describe, Setting, read_setting
from heddle.errors import BatchError, BrokerUnfit, Conflict, NotFound, SpecError
from heddle.layout import Segments
from heddle.policies.lag import is_stale

SHOWN_VALUES = 4


@dataclass(frozen=True, slots=True)
class Examined:
    """What is known of a dead batch.

    Attributes:
        batch: as it is kept.
        data: its bytes; None when none are kept.
        problem: why it cannot be used now; "" when it can.
        columns: of its bytes, where they can be decoded: name to dtype, shape and first values.
    """

    batch: DeadBatch
    data: bytes | None
    problem: str
    columns: dict[str, str] = field(default_factory=dict)


def examine(broker: Broker, experiment: str, dead_id: str, *, describe: Describe | None = None) -> Examined:
    """Look at one dead batch.

    Args:
        describe: makes an environment to see its spaces, where whoever submitted the spec did not.

    Raises:
        NotFound: no such experiment or batch.
    """
    batch = broker.dead.find(experiment, dead_id)
    data = broker.dead.data(batch)
    try:
        setting = read_setting(broker, experiment, describe=describe)
    except (SpecError, BrokerUnfit) as error:
        return Examined(batch, data, f"what its batches hold is not known: {error}")
    try:
        segments = _opened(setting, batch, data)
    except BatchError as error:
        return Examined(batch, data, str(error))
    return Examined(batch, data, _objection(setting, broker.experiments.ctl(experiment), batch), _columns(segments))


def offer_again(
    broker: Broker, experiment: str, dead_ids: Iterable[str], *, describe: Describe | None = None
) -> Iterator[tuple[str, str]]:
    """Offer each to the trainer again, where it could be used now.

    Yields:
        (id, why it stays where it is; "" when it was offered).

    Raises:
        Gone: the experiment was removed.
    """
    for dead_id in dead_ids:
        try:
            found = examine(broker, experiment, dead_id, describe=describe)
            if not found.problem:
                broker.dead.replay(experiment, found.batch)
        except (NotFound, Conflict) as error:
            yield dead_id, str(error)
        else:
            yield dead_id, found.problem


def _opened(setting: Setting, batch: DeadBatch, data: bytes | None) -> Segments:
    if batch.pointer is None:
        raise BatchError("it has no pointer that says what it is")
    if data is None:
        raise BatchError("its bytes are not kept")
    opener = Opener.of(setting.layout, setting.plans, setting.spec.limits.batch_bytes)
    return opener.open(batch.pointer, data).whole()


def _objection(setting: Setting, ctl: Ctl, batch: DeadBatch) -> str:
    """Why a batch that can be decoded is nevertheless not to be trained on; "" when it may be."""
    pointer, rollout = batch.pointer, setting.spec.rollout
    assert pointer is not None
    if batch.foreign:
        return batch.reason
    if ctl.command == "stop":
        return "the experiment is stopping or over"
    if pointer.kind == "eval":
        return "its evaluation went on without it"
    if rollout.sync:
        return f"the experiment is synchronous, and version {pointer.version_min} went on without it"
    if is_stale(pointer.version_min, ctl.policy, rollout.max_policy_lag):
        return f"version {pointer.version_min} played it, which is too far behind {ctl.policy}: it would be stale"
    return ""


def _columns(segments: Segments) -> dict[str, str]:
    shown = {}
    for name, array in segments.arrays.items():
        first = ", ".join(str(value) for value in np.asarray(array).reshape(-1)[:SHOWN_VALUES])
        shown[name] = f"{array.dtype}{list(array.shape)} {first}{', ...' if array.size > SHOWN_VALUES else ''}"
    return shown
