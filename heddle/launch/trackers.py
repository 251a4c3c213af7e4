"""The host of trackers: one process beside each experiment whose spec has [track].

It never waits for one, and nothing else does: what a tracker does or fails to do is no concern of training.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from heddle.broker import Broker
from heddle.broker.faults import Damaged
from heddle.broker.records import Status
from heddle.clock import SystemClock
from heddle.consumers.tracking.make import kinds_of
from heddle.consumers.tracking.tracker import ROLE
from heddle.errors import Gone, HeddleError, NotFound, SpecError
from heddle.launch.children import STAMP, Ending, Role
from heddle.launch.local import Local
from heddle.launch.role_host import OnLine, RoleHost
from heddle.spec import spec_from_json
from heddle.spec.tracking import Track
from heddle.stop import StopFlag

log = logging.getLogger("heddle.trackers")

LOOK_S = 1.0
LEVEL_S = 25.0
"""How long the trackers of a run that is over are waited for, where its server ends with it."""
LEVEL_LOOP_S, LEAVE_S = 0.1, 5.0
DONE_CODES = (0, 2, 4, 6, 8)
"""Through; a library is missing; removed; a key is refused; fed by somebody else: nothing to start again."""

Lacking = dict[str, str]


def tracker_role(
    experiment: str,
    *,
    url: str,
    directory: Path,
    log_file: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> Role:
    """The role that feeds the trackers of one experiment's spec."""
    arguments = ["track", experiment, "--dir", str(directory)]
    return Role("trackers", arguments, url=url, done=DONE_CODES, log_file=log_file, on_line=on_line)


def add_trackers(local: Local, track: Track | None, experiment: str, directory: Path) -> Role | None:
    """Feed the trackers of an experiment's spec, where it names any, beside the services of this terminal."""
    if track is None or track.is_empty:
        return None
    return local.add(tracker_role(experiment, url=local.url, directory=directory, log_file=local.log_file("trackers")))


def give_time(step: Callable[[], None], role: Role, broker: Broker, experiment: str, stop: StopFlag) -> Lacking:
    """Give the trackers of an experiment that is over a while to have everything, then end them.

    Args:
        step: looks at everything once, `role` among it.

    Returns:
        Those that have not, by kind, and what is known of why.
    """
    clock = SystemClock()
    deadline = clock.monotonic() + LEVEL_S
    try:
        while (missing := lacking(broker, experiment)) and not role.finished:
            if stop.now or clock.monotonic() >= deadline:
                break
            step()
            stop.wait_now(LEVEL_LOOP_S)
        missing = lacking(broker, experiment)
    except HeddleError as error:
        log.info("cannot see trackers through experiment=%s error=%s", experiment, error)
        missing = {"its tracker": "the broker cannot be asked"}
    role.terminate(LEAVE_S)
    return missing


def lacking(broker: Broker, experiment: str) -> Lacking:
    """Trackers that have not everything yet, by kind, and what is known of why. Raises BrokerError."""
    track = _track_of(broker, experiment)
    if track is None:
        return {}
    known = {str(one.told.get("kind")): one for one in broker.trackers.all(experiment)}
    found = {}
    for kind in kinds_of(track):
        one = known.get(kind)
        if one is None:
            found[kind] = "it took nothing"
        elif not one.told.get("done"):
            found[kind] = str(one.told.get("trouble") or one.lag or "not done yet")
    return found


@contextlib.contextmanager
def hosting_trackers(url: str, *, directory: Path, stop: StopFlag, on_line: OnLine | None = None) -> Iterator[None]:
    """Within it a thread of this process is a host of trackers; leaving ends them, and raises `stop` for that."""
    host = TrackerHost(url, directory=directory, stop=stop, on_line=on_line)
    thread = threading.Thread(target=host.run_quietly, name="trackers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.drain("ending")
        thread.join()


class TrackerHost(RoleHost):
    """Runs trackers until it is asked to stop.

    Args:
        directory: where runs leave their checkpoints here.
        connect: opens the broker instead of `url`; the children still get `url`.
        on_line: told every line of a tracker and what it is about.
    """

    def __init__(
        self,
        url: str,
        *,
        directory: Path,
        stop: StopFlag,
        connect: Callable[[], Broker] | None = None,
        on_line: OnLine | None = None,
    ) -> None:
        about: dict[str, Any] = {"directory": directory, "stop": stop, "look_s": LOOK_S}
        super().__init__("tracker", url, connect=connect, on_line=on_line, **about)
        self._through: set[str] = set()
        self._wanted: dict[str, Track | None] = {}

    def run_quietly(self) -> None:
        """As `run`; a broker that cannot be used is told, and is no reason to end anything else."""
        try:
            self.run()
        except HeddleError as error:
            self.log.error("tracks nothing: %s", error)

    def missing(self, broker: Broker) -> dict[str, Role]:
        """One for each experiment whose spec names trackers and has not been told to them all."""
        known = broker.experiments.ls()
        untold = [one.experiment for one in known if self._is_untold(broker, one)]
        ids = {one.experiment for one in known}
        self._through &= ids
        self._wanted = {name: track for name, track in self._wanted.items() if name in ids}
        for name in untold:
            self.log.info("tracking experiment=%s", name)
            broker.events.log(name, ROLE, None, "info", "started a process for the trackers of its spec")
        return {name: self._role(name) for name in untold}

    def _role(self, experiment: str) -> Role:
        on_line = None if self._on_line is None else partial(self._on_line, {"experiment": experiment})
        return tracker_role(experiment, url=self.url, directory=self.directory, on_line=on_line)

    def stepped(self, broker: Broker, experiment: str, role: Role, ending: Ending | None) -> None:
        """What it ended with is told here alone, since it concerns no training."""
        if ending is not None:
            self.log.warning("%s: %s", experiment, ending.why)
            broker.events.log(experiment, ROLE, None, "warning", f"{ending.why}; another one goes on")
        if role.finished:
            self._through.add(experiment)
            if said := " | ".join(STAMP.sub("", line) for line in role.tail()):
                self.log.info("%s: %s", experiment, said)

    def _is_untold(self, broker: Broker, status: Status) -> bool:
        name = status.experiment
        if name in self.roles or name in self._through:
            return False
        if name not in self._wanted:
            self._wanted[name] = _track_of(broker, name)
        if (track := self._wanted[name]) is None:
            return False
        try:
            done = [one for one in broker.trackers.all(name) if one.told.get("done")]
        except Damaged as error:  # the leader mends it
            self.log.debug("starting no tracker experiment=%s error=%s", name, error)
            return False
        if status.ended and len(done) >= len(kinds_of(track)):
            self._through.add(name)
            return False
        return True


def _track_of(broker: Broker, experiment: str) -> Track | None:
    """What its spec names; None for nothing, and for a spec that this version cannot read."""
    try:
        track = spec_from_json(broker.experiments.spec(experiment).json).track
    except (Damaged, NotFound, Gone, SpecError) as error:
        log.info("tracks nothing experiment=%s error=%s", experiment, error)
        return None
    return None if track is None or track.is_empty else track
