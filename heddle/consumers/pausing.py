"""Pausing by the trainer: where a learner says after an update that somebody should look before it goes on.

It never judges an update, and never ends an experiment.
"""

import logging

from heddle.consumers.parts import Parts
from heddle.errors import Conflict

log = logging.getLogger("heddle.trainer")


def pause_if_asked(parts: Parts) -> None:
    """Pause the experiment where the learner complains of its last update, and say why.

    Raises:
        SeatLost, Gone: it is not this trainer's any more.
    """
    why = parts.training.complaint()
    if not why:
        return
    log.warning("pauses the experiment reason=%s", why)
    parts.report.tell(
        "error", f"paused: {why}; to go on from the weights as they are: heddle resume {parts.experiment}"
    )

    def tell() -> None:
        try:
            parts.broker.experiments.set_command(parts.experiment, "pause", seat_epoch=parts.seat.epoch)
        except Conflict as error:  # it was told to stop meanwhile
            log.info("cannot say pause error=%s", error)

    parts.patience.call("say pause", tell)
