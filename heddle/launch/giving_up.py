"""Giving up: a trainer that ends the same way again and again, with nothing trained between, is not started any more.

It never ends a process. A trainer that somebody killed is none of these, for that proves nothing about it; one that
crashed, or that the system killed for want of memory, is.
"""

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from heddle.broker import Broker
from heddle.broker.faults import Damaged
from heddle.checkpoint import highest_epoch
from heddle.errors import BrokerError, CheckpointError, Conflict, Denied, Gone, NotFound, SpecError
from heddle.launch.children import Ending
from heddle.launch.left_behind import free_seat
from heddle.launch.process import CRASHES
from heddle.spec import spec_from_json

log = logging.getLogger("heddle.launch")

CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+")
"""What differs between two tellings of one failure: addresses, times, counts."""
SEAT_MS = 2_000
MOST_CHARS = 400
TRIED_ALONE = 2
"""After so many deaths each batch that it had in hand was tried alone."""
MOST_NAMED = 6
"""So many of the batches that a trainer died with are named."""


@dataclass(slots=True)
class Repeats:
    """The failures of one trainer that say the same.

    Attributes:
        count: in a row, the last one included.
    """

    count: int = 0
    _cause: str = ""
    _progress: tuple[int, ...] = ()

    def note(self, ending: Ending, progress: tuple[int, ...]) -> int:
        """One more; how many in a row it makes. `progress` changes when something was trained or set aside."""
        if ending.code < 0 and -ending.code not in CRASHES and not ending.of_memory:
            self.count = 0
            return 0
        said = CHANGING.sub("#", ending.why.rpartition(" | ")[2]) if ending.code > 0 else ""  # a crash says nothing
        cause = f"{ending.code} {said}"
        same = cause == self._cause and progress == self._progress
        self.count = self.count + 1 if same else 1
        self._cause, self._progress = cause, progress
        return self.count


def progress_of(broker: Broker, experiment: str) -> tuple[int, ...]:
    """Batches that were trained, and that were set aside as the cause of a trainer's death; the newest update.

    An offline run settles no batch; what it did shows in its metrics.
    """
    flow, newest = broker.experience.flow(experiment, 0), broker.events.metrics_newest(experiment)
    return (flow.trained.batches, flow.dead.batches, newest.update if newest is not None else 0)


def most_of(broker: Broker, experiment: str) -> int:
    """How many the experiment's spec puts up with; 0 for any number. Raises NotFound."""
    return spec_from_json(broker.experiments.spec(experiment).json).faults.trainer_failures


def in_hand(broker: Broker, experiment: str, count: int) -> str:
    """What a trainer was loading or training on when it ended last, for people; "" when that was nothing.

    Args:
        count: so often it did. A batch that does it alone was set aside by the third time.
    """
    named = broker.experience.find(experiment, 0, sorted(broker.experience.loading(experiment, 0)))
    batches = [f"shard {one.shard} seq {one.seq} ({one.entry_id})" for one in named if one is not None]
    if not batches:
        return ""
    shown, left = ", ".join(batches[:MOST_NAMED]), len(batches) - MOST_NAMED
    more = f" and {left} more" if left > 0 else ""
    alone = ", none of which does it alone" if count > TRIED_ALONE else ""
    return f"; it ended with these batches in hand{alone}: {shown}{more}"


def give_up(broker: Broker, experiment: str, host: str, directory: Path, *, count: int, why: str) -> bool:
    """Have the experiment end as failed, with the reason. False when another trainer sits, or it is over already.

    Raises:
        BrokerError: nothing was done, or all of it.
    """
    reason = (
        f"its trainer failed {count} times in a row in the same way and trained nothing (faults.trainer_failures): "
        f"{why[-MOST_CHARS:]}"
    )
    try:
        reason += in_hand(broker, experiment, count)
        epoch = broker.seats.claim_seat(experiment, host, ttl_ms=SEAT_MS, above=_above(directory / experiment))
        if epoch is None:
            return False
        broker.experiments.finish(experiment, epoch, "failed", reason, {})
        broker.seats.release_seat(experiment, epoch)
    except (Conflict, Gone, NotFound):
        return False
    broker.events.log(experiment, "trainer", host, "error", reason)
    return True


def has_given_up(broker: Broker, experiment: str, host: str, directory: Path, repeats: Repeats, ending: Ending) -> bool:
    """Note one more ending of a trainer; True when it was one too many and the experiment has failed.

    The next one need not wait until the seat of this one is over.
    """
    try:
        free_seat(broker, experiment)
        count, most = repeats.note(ending, progress_of(broker, experiment)), most_of(broker, experiment)
        if not most or count < most:
            return False
        return give_up(broker, experiment, host, directory, count=count, why=ending.why)
    except (BrokerError, NotFound, Gone) as error:  # away, or removed meanwhile: the next ending asks again
        log.debug("cannot tell whether to give up experiment=%s error=%s", experiment, error)
    except (Damaged, Denied, SpecError) as error:  # stays so until somebody mends it
        log.warning(
            "cannot give up experiment=%s, whose trainer is started again however often it fails, error=%s",
            experiment,
            error,
        )
    except Exception:  # a fault of ours, in one experiment: the trainers of others have the same host
        log.exception("cannot tell whether to give up experiment=%s", experiment)
    return False


def _above(folder: Path) -> int:
    """The seat epoch of the newest checkpoint; 0 where nobody can tell, which may be the very reason to give up."""
    try:
        return highest_epoch(folder / "checkpoints")
    except CheckpointError as error:
        log.warning("giving up without a look at checkpoints error=%s", error)
        return 0


def counting(broker: Broker, experiment: str, directory: Path) -> Callable[[Ending], bool]:
    """`has_given_up` for whoever runs the one trainer of an experiment, and notes each of its endings."""
    repeats, host = Repeats(), f"run-{os.uname().nodename}-{os.getpid()}"
    return lambda ending: has_given_up(broker, experiment, host, directory, repeats, ending)
