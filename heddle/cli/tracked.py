"""The trackers of a run at its end: waited for a while, and told of where they have not everything.

It never starts one.
"""

from typing import TYPE_CHECKING

from heddle.cli.follow import Screen
from heddle.launch.children import Role
from heddle.launch.trackers import LEVEL_S, give_time

if TYPE_CHECKING:
    from heddle.cli.running import Running
    from heddle.client import Client


def see_through(running: "Running", screen: Screen, role: Role | None, client: "Client") -> tuple[str, ...]:
    """What is lacking at trackers that have not everything once they were waited for.

    Args:
        role: the one that feeds them; None where the spec names none.
    """
    reader, stop = running.reader, running.session.stop
    if role is None:
        return ()
    if not reader.ended:  # nobody will tell them that it is over
        role.terminate(LEVEL_S)
    if not role.finished:
        reader.say(f"its trackers have {LEVEL_S:g} s for what is left; Ctrl-C twice does not wait")

    def step() -> None:
        running.local.step()
        screen.update()

    found = give_time(step, role, client.broker, reader.experiment, stop)
    return tuple(f"{kind} has not everything: {why}" for kind, why in found.items())
