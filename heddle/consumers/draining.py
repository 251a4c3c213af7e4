"""Draining: the end of a run, from saying stop to the last batch that workers still deliver.

It never settles a batch: what is read goes to the intake and to `turn`.
"""

import logging
from collections.abc import Callable

from heddle.broker import Broker
from heddle.clock import Clock
from heddle.consumers.intake import Intake
from heddle.consumers.patience import Patience
from heddle.consumers.reader import Loaded
from heddle.errors import Conflict, SeatLost

log = logging.getLogger("heddle.trainer")

RELEASE_EXTRA_S = 5.0
"""Beyond the lease's TTL, how long the end waits for workers to let go of their shards."""
POLL_MS = 100


def say_stop(broker: Broker, experiment: str, patience: Patience, *, seat_epoch: int) -> None:
    """Tell workers to release their shards; no mistake when somebody did already.

    Raises:
        SeatLost: it is not this trainer's to end any more.
    """

    def tell() -> None:
        try:
            broker.experiments.set_command(experiment, "stop", seat_epoch=seat_epoch)
        except SeatLost:
            raise
        except Conflict as error:  # it is over already
            log.info("cannot say stop error=%s", error)

    patience.call("say stop", tell)


def drain(
    broker: Broker,
    experiment: str,
    partition: int,
    *,
    intake: Intake,
    patience: Patience,
    clock: Clock,
    lease_ttl_s: float,
    turn: Callable[[list[Loaded]], object],
    make_room: Callable[[], None],
) -> None:
    """Read on until no worker holds a shard and nothing comes any more.

    Args:
        turn: given the eval batches of every poll; train batches stay in the intake.
        make_room: called while workers hold shards and nothing comes: a worker that found the stream full keeps its
            batch and its lease until there is room, and only an ack makes some.
    """
    deadline = clock.monotonic() + lease_ttl_s + RELEASE_EXTRA_S
    has_looked = False
    while True:
        shards = patience.call("look at shards", lambda: broker.shards.shards(experiment, partition))
        leased = [shard.shard for shard in shards if shard.state == "leased"]
        turn(intake.poll(block_ms=POLL_MS if leased else 0))
        if not intake.quiet:
            continue
        if not leased and has_looked:
            return
        if not leased:  # a frozen trainer may have read some, or an answer came too late: nobody else will look for it
            intake.look_again()
            has_looked = True
            continue
        if clock.monotonic() >= deadline:
            log.warning("ending although workers hold shards=%s", leased)
            return
        make_room()
