"""The trackers of a run: how far each is, and at the run's end waited for a while and told of what they lack.

It never starts one.
"""

from typing import TYPE_CHECKING

from heddle.cli.follow import Screen
from heddle.launch.children import Role
from heddle.launch.trackers import LEVEL_S, give_time

if TYPE_CHECKING:
    from heddle.broker import Broker
    from heddle.broker.trackers import Tracked
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


def tracker_lines(broker: "Broker", experiment: str, now_ms: int) -> list[str]:
    """How far each tracker of an experiment is, in one line each; [] where somebody damaged what is known of them."""
    from heddle.broker.faults import Damaged

    try:
        return [_line(one, now_ms) for one in broker.trackers.all(experiment)]
    except Damaged:
        return []


def _line(one: "Tracked", now_ms: int) -> str:
    told = one.told
    done, trouble = bool(told.get("done")), str(told.get("trouble") or "")
    if done:
        how = "has everything"
    elif trouble:
        how = f"takes nothing: {trouble}"
    elif one.by and one.until_ms > now_ms:
        how = "is fed"
    elif one.by:
        how = "is fed by nobody: the last process ended without a word"
    else:
        how = "is fed by nobody"
    name = " ".join(str(part) for part in (told.get("kind"), told.get("where")) if part) or one.name
    return f"{name} {how}{f', {one.lag}' if one.lag and not done else ''}"
