"""Hosts: whoever starts processes, notices that one ended, and starts another in its place.

It never kills; faults do.
"""

from typing import TYPE_CHECKING

from heddle.errors import HeddleError
from tests.simulation.hub import Process
from tests.simulation.roles import Running, coordinator_main, trainer_main, worker_main

if TYPE_CHECKING:
    from tests.simulation.world import World

LEASE_TTL_S = 1.0


class Hosts:
    """Every process of a world, but its client."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._slots: dict[tuple[str, int], Running] = {}
        self._ever: dict[str, Process] = {}
        self._generation = 0
        self._closing = False
        self._supervisor = Process(world.hub, "supervisor")

    def start(self) -> None:
        """Start all roles, in any order."""
        plan = self._world.plan
        for role, number in (("coordinator", plan.coordinators), ("worker", plan.workers), ("trainer", plan.trainers)):
            for index in range(number):
                self._start_soon(role, index, 0.2)

    def running(self, role: str = "") -> list[Running]:
        """Those that live, by slot."""
        found = [self._slots[slot] for slot in sorted(self._slots) if role in ("", slot[0])]
        return [running for running in found if running.process.alive]

    def everybody(self) -> list[Process]:
        """Every process there ever was."""
        return [*self._ever.values(), self._supervisor]

    def is_of_a_role(self, process: Process) -> bool:
        """True for a coordinator, worker or trainer."""
        return process.name in self._ever

    def is_dead(self, name: str) -> bool:
        """True for a process that ended."""
        return name in self._ever and not self._ever[name].alive

    def is_healthy(self, name: str) -> bool:
        """True for a worker that nothing but the broker's absence, over since less than a TTL, kept from renewing."""
        process, net, now = self._ever.get(name), self._world.net, self._world.hub.now
        if process is None or not process.alive or process.paused or now - net.back_at >= LEASE_TTL_S:
            return False
        link = net.link(process)
        return link.up and link.down and link.whole_since <= net.back_at

    def stop_all(self) -> None:
        """SIGTERM to everybody; nobody is started any more."""
        self._closing = True
        for running in self.running():
            if running.stop is not None:
                running.stop.request("the world ends")
            else:
                running.process.kill()

    def all_ended(self) -> bool:
        return not self.running()

    def _start_soon(self, role: str, index: int, within_s: float) -> None:
        self._world.hub.at(within_s * self._world.hub.rng.random(), lambda: self._start(role, index))

    def _start(self, role: str, index: int) -> None:
        if self._closing:
            return
        world = self._world
        self._generation += 1
        process = Process(world.hub, f"{role}{index}-{self._generation}")
        if "drift" in world.plan.permanent:
            process.rate, process.offset_s = world.hub.rng.uniform(0.9, 1.1), world.hub.rng.uniform(0.0, 1e5)
        process.on_end = lambda ended: self._ended(role, index, ended)
        running = self._slots[role, index] = Running(process)
        self._ever[process.name] = process
        if role == "worker":
            running.start(worker_main(world.connect, world.hub))
        elif role == "coordinator":
            running.start(coordinator_main())
        else:
            update_s = world.hub.rng.choice((0.01, 0.05, 0.2))
            running.start(trainer_main(world.connect, world.nature, world.experiment, update_s=update_s))

    def _ended(self, role: str, index: int, process: Process) -> None:
        if self._closing:
            return
        if role == "worker" and self._world.hub.rng.random() < self._world.plan.vouched:
            self._supervisor.spawn(lambda: self._vouch(process.name), "vouch")
        self._start_soon(role, index, 1.0)

    def _vouch(self, worker: str) -> None:
        """As the supervisor does for a child that died."""
        try:
            self._world.connect().shards.release_worker(worker)
        except HeddleError:
            return  # the lease runs out in time
