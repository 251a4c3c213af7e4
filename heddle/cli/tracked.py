"""The trackers of a run: how far each is, and at the run's end waited for a while and told of what they lack.

It never starts one.
"""

from typing import TYPE_CHECKING, Any

from heddle.broker.counts import whole
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


def trackers_of(broker: "Broker", experiment: str) -> tuple["Tracked", ...]:
    """The trackers of an experiment; none where somebody damaged what is known of them."""
    from heddle.broker.faults import Damaged

    try:
        return tuple(broker.trackers.all(experiment))
    except Damaged:
        return ()


def as_json(one: "Tracked", now_ms: int) -> dict[str, Any]:
    """How far a tracker is, for programs: what `track -o json` says of one, and who feeds it and how far it is behind.

    `fed_by` is "" where nobody does now; `behind` counts entries, None where the server cannot tell.
    """
    told = one.told
    return {
        **{name: str(told.get(name) or "") for name in ("kind", "where")},
        **{name: whole(told.get(name)) or 0 for name in ("points", "missed", "rolled_back")},
        "done": bool(told.get("done")),
        "trouble": str(told.get("trouble") or ""),
        "fed_by": one.by if one.until_ms > now_ms else "",
        "behind": one.behind,
    }


def line_of(one: "Tracked", now_ms: int) -> str:
    """How far a tracker is, for people."""
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
