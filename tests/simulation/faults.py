"""Faults: makes a plan's events happen, ends them in time, and heals everything at the end.

It never decides what happens when; the plan does.
"""

from typing import TYPE_CHECKING

from heddle.broker import keys
from tests.simulation.hub import Process
from tests.simulation.net import Weather
from tests.simulation.plan import Fault
from tests.simulation.roles import Running
from tests.simulation.traps import Traps, takes

if TYPE_CHECKING:
    from tests.simulation.world import World

LONG_S = 0.7
"""A coordinator takes a shorter absence of the broker for none: two thirds of the TTL."""

POLICIES_BYTES = 1_100
"""What the kept versions, a pinned one and two that were never finished take, where they lie in chunks."""


class Faults:
    """Of one world.

    Attributes:
        floor: so many commands are never lost: the client was told that its experiment is there.
    """

    def __init__(self, world: "World") -> None:
        self._world = world
        self.floor = 0
        self._traps = Traps(world)
        world.disk.writing = self._traps.writes
        self._over = False
        self._away_since = 0.0
        self._come_back_with: int | None = None

    def schedule(self) -> None:
        """Let every event of the plan come at its time, and what is permanent be so."""
        world = self._world
        for fault in world.plan.faults:
            world.hub.at(fault.at_s, lambda one=fault: self._happen(one))  # type: ignore[misc]
        if "jitter" in world.plan.permanent:
            world.hub.jitter = 0.1
        if "storm" in world.plan.permanent:
            self._weather(Fault(0.0, "weather", world.plan.calm_s))
        if "memory" in world.plan.permanent:
            world.server.memory = world.hub.rng.choice((500, 1000)) + (POLICIES_BYTES if world.plan.large else 0)
        if "poison" in world.plan.permanent:
            world.nature.poison = frozenset(world.hub.rng.sample(range(2, 40, 2), 2))
        train = list(range(world.plan.shards))
        if "broken" in world.plan.permanent:
            world.nature.broken.add(world.hub.rng.choice(train))
        if "shy" in world.plan.permanent:
            world.net.refuses = lambda call: call.process.name.startswith("worker0-") and takes(call)
        if "deadly" in world.plan.permanent:
            world.nature.deadly.add(world.hub.rng.choice(train))

    def heal(self) -> None:
        """End all that is going on; nothing more happens."""
        self._over = True
        world = self._world
        self._traps.disarm()
        for process in world.hosts.everybody():
            if process.paused:
                process.go_on()
            self._mend(process)
        world.net.weather = Weather()
        world.server.full = world.disk.is_full = False
        if world.net.is_frozen:
            world.net.thaw()
        if not world.net.is_up:
            self._come_back()
        world.order_command("run")

    def _happen(self, fault: Fault) -> None:
        if self._over:
            return
        getattr(self, f"_{fault.kind.replace(' ', '_')}")(fault)

    def _later(self, fault: Fault, what: object) -> None:
        def end() -> None:
            if not self._over:
                what()  # type: ignore[operator]

        self._world.hub.at(fault.lasts_s, end)

    def _target(self, fault: Fault) -> Running | None:
        """Somebody of a role that is drawn first, for there are more workers than others."""
        place = 3.0 * fault.draw
        found = self._world.hosts.running(("coordinator", "trainer", "worker")[int(place)])
        return found[int(place % 1.0 * len(found))] if found else None

    # ---- processes

    def _kill(self, fault: Fault) -> None:
        if (target := self._target(fault)) is not None:
            target.process.kill()

    def _term(self, fault: Fault) -> None:
        target = self._target(fault)
        if target is not None and target.stop is not None:
            target.stop.request("a fault")

    def _pause(self, fault: Fault) -> None:
        if (target := self._target(fault)) is None or target.process.paused:
            return
        process = target.process
        process.pause()
        self._later(fault, lambda: self._wake(process))

    def _wake(self, process: Process) -> None:
        process.go_on()
        self._world.net.link(process).whole_since = self._world.hub.now

    def _cut(self, fault: Fault) -> None:
        if (target := self._target(fault)) is None:
            return
        link, share = self._world.net.link(target.process), fault.draw * 7919 % 1.0
        link.up, link.down = share > 0.66, 0.33 < share <= 0.66
        self._later(fault, lambda: self._mend(target.process))

    def _mend(self, process: object) -> None:
        link = self._world.net.link(process)  # type: ignore[arg-type]
        link.up = link.down = True
        link.whole_since = self._world.hub.now

    def _weather(self, fault: Fault) -> None:
        rng, net = self._world.hub.rng, self._world.net
        lost, unanswered, late, repeated, partial = (rng.choice((0.0, 0.05, 0.2)) for _ in range(5))
        interleaved, slow_s = rng.choice((0.0, 0.5)), rng.choice((0.002, 0.02, 0.2))
        net.weather = Weather(lost, unanswered, late, repeated, partial, interleaved, slow_s)
        self._later(fault, self._clear_up)

    def _clear_up(self) -> None:
        self._world.net.weather = Weather()

    # ---- the server

    def _server_kill(self, fault: Fault) -> None:
        lost_ms = 2000.0 * max(0.0, fault.draw - 0.4) / 0.6
        server = self._world.server
        self.go_away(fault, server.writes_since(lost_ms) if lost_ms else server.written)

    def _backup(self, fault: Fault) -> None:
        self.go_away(fault, self._world.server.writes_since(1000.0 + 5000.0 * fault.draw))

    def go_away(self, fault: Fault, keep: int) -> None:
        """The server dies; it comes back with the first `keep` commands it ever wrote, the submission at least."""
        net = self._world.net
        if not net.is_up or self._over:
            return
        if net.is_frozen:
            net.thaw()
        net.is_up = False
        net.reset()
        self._away_since = self._world.hub.now
        self._come_back_with = keep
        self._later(fault, self._come_back)

    def _come_back(self) -> None:
        world = self._world
        if world.net.is_up or self._come_back_with is None:
            return
        keep = max(self.floor, self._come_back_with)  # the client may have heard of its submission after the death
        world.server.come_back(keep)
        world.watcher.came_back(keep)
        world.net.is_up = True
        self._returned(self._away_since)

    def _returned(self, since: float) -> None:
        hub, net = self._world.hub, self._world.net
        if hub.now - since >= LONG_S:
            net.back_at = hub.now

    def _server_freeze(self, fault: Fault) -> None:
        net, since = self._world.net, self._world.hub.now
        if net.is_frozen or not net.is_up:
            return
        net.is_frozen = True

        def thaw() -> None:
            if net.is_frozen:
                net.thaw()
                self._returned(since)

        self._later(fault, thaw)

    def _scripts(self, fault: Fault) -> None:
        self._world.server.forget_scripts()

    def _groups(self, fault: Fault) -> None:
        """Somebody destroys a group."""
        experiment, net = self._world.experiment, self._world.net
        streams = (
            (keys.experience(experiment, 0), keys.TRAINER_GROUP),
            (keys.pool_tickets("default"), keys.TICKET_GROUP),
            (keys.QUEUE, keys.QUEUE_GROUP),
        )
        key, group = streams[int(fault.draw * len(streams))]
        if net.is_up:
            self._world.server.execute([b"XGROUP", b"DESTROY", key.encode(), group.encode()])

    def _full(self, fault: Fault) -> None:
        self._world.server.full = True
        self._later(fault, self._empty)

    def _empty(self) -> None:
        self._world.server.full = False

    def _jump(self, fault: Fault) -> None:
        """The server's clock is set: forward by up to 3 s, or back by up to 1.5 s."""
        self.set_clock(3.0 * fault.draw if fault.draw < 0.6 else -1.5 * (fault.draw - 0.6) / 0.4)

    def set_clock(self, by_s: float) -> None:
        """The server's clock jumps."""
        world = self._world
        world.clock_ms += 1000.0 * by_s
        world.watcher.truth.clock_went_back |= by_s < 0
        if by_s >= LONG_S:
            world.net.back_at = world.hub.now

    # ---- the rest

    def _trap(self, fault: Fault) -> None:
        self._traps.arm(fault)

    def _stop(self, fault: Fault) -> None:
        self._world.order_command("stop")

    def _disk(self, fault: Fault) -> None:
        self._world.disk.is_full = True
        self._later(fault, self._clean)

    def _clean(self) -> None:
        self._world.disk.is_full = False

    def _command(self, fault: Fault) -> None:
        self._world.order_command("pause")
        self._later(fault, lambda: self._world.order_command("run"))
