"""Statuses: how an experiment is by its own keys, also where somebody put something else in their place.

It never judges whether that is true any more: `heddle/states/` does, from leases and progress. Nor does it ask for more
keys where these are damaged: everybody looks at statuses, at all of them, and some may read nothing else.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from heddle.broker import damage, keys, numbers
from heddle.broker.damage import Key
from heddle.broker.faults import Damaged, NoNumber
from heddle.broker.records import SPEC_FIELDS, State, Status, hurt_status, read_status, text, texts

UNTOLD: dict[str, State] = {"run": "running", "pause": "paused", "stop": "stopping"}
"""The state of an experiment whose own account of it is damaged, until the leader writes it anew."""


def ask(pipe: Any, experiment: str) -> None:
    """Add the three calls whose replies `read` takes."""
    pipe.hgetall(keys.status(experiment))
    pipe.hgetall(keys.ctl(experiment))
    pipe.hmget(keys.spec(experiment), *SPEC_FIELDS)


def read(experiment: str, replies: Sequence[Any]) -> Status | None:
    """What the replies tell; None where there is no such experiment. One whose keys are damaged has failed by them.

    Raises:
        BrokerError: as a reply that is one.
    """
    for reply in replies:
        if isinstance(reply, Exception) and not isinstance(reply, Damaged):
            raise reply
    status, ctl, spec = replies
    command = "stop" if isinstance(ctl, Damaged) else texts(ctl).get("command", "run")
    fields = [None] * len(SPEC_FIELDS) if isinstance(spec, Damaged) else spec
    named = {field: text(value) for field, value in zip(SPEC_FIELDS, fields, strict=True)}
    asked = {keys.ctl(experiment): ctl, keys.spec(experiment): spec}
    if hurt := [Key(name, "hash", is_needed=True) for name, reply in asked.items() if isinstance(reply, Damaged)]:
        return hurt_status(experiment, damage.told(experiment, hurt), command=command, spec=named)
    if not ctl:
        return None
    written = {"state": UNTOLD.get(command, "running")} if isinstance(status, Damaged) else texts(status)
    try:
        known = read_status(experiment, written, texts(ctl), named)
        return replace(known, damaged=str(status)) if isinstance(status, Damaged) else known
    except NoNumber as error:
        lost = numbers.lost_of_ctl(experiment, ctl)
        reason = numbers.told(experiment, lost) or damage.told_of_field(experiment, error)
        return hurt_status(experiment, reason, command=command, spec=named)
