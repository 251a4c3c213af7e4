"""Traps: what befalls a process at the very moment it sends a chosen command, instead of at a moment drawn blindly.

Between two calls lies what a protocol is about: a trainer that is frozen with an ack in its hands, a reap that arrives
late, a broker that dies right after it accepted. A trap is armed at its time and springs once.
It never looks at replies.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.net import Call
from tests.simulation.plan import Fault
from tests.simulation.values import ServerError
from tests.simulation.watch import VERBS

if TYPE_CHECKING:
    from tests.simulation.world import World

MOST_FORGOTTEN = 6
"""Commands that a broker that dies in a trap has not kept, at most."""


class Traps:
    """Of one world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._armed: dict[str, list[Fault]] = {}
        self._read: Call | None = None

    def arm(self, fault: Fault) -> None:
        """Lay one."""
        self._armed.setdefault(fault.what.split()[0], []).append(fault)
        self._world.net.trap = self.springs

    def disarm(self) -> None:
        self._armed.clear()
        self._world.net.trap = None

    def springs(self, call: Call) -> bool:
        """True when the call was taken out of its sender's hands."""
        if call.token < 0 or not self._world.hosts.is_of_a_role(call.process):
            return False
        for command in call.commands:
            name = self._name_of(command)
            if name == "xreadgroup":
                self._read = call
            waiting = self._armed.get(name)
            if waiting:
                fault = waiting.pop(0)
                return bool(getattr(self, f"_{fault.what.split()[1]}")(call, fault))
        return False

    def _freeze(self, call: Call, fault: Fault) -> bool:
        """The sender stops right before the call leaves, and sends it when it goes on."""
        process = call.process
        process.pause()
        process.deferred.append(lambda: self._world.net.send(call))
        self._world.hub.at(fault.lasts_s, process.go_on)
        return True

    def _late(self, call: Call, fault: Fault) -> bool:
        """It arrives when its sender has long given it up."""
        net = self._world.net
        self._world.hub.at(0.0, lambda: net.fail(call))
        self._world.hub.at(fault.lasts_s, lambda: net.arrive(call))
        return True

    def _again(self, call: Call, fault: Fault) -> bool:
        """A copy of it arrives later."""
        again = Call(call.process, call.commands, call.task, -1)
        self._world.hub.at(fault.lasts_s, lambda: self._world.net.arrive(again))
        return False

    def _unheard(self, call: Call, fault: Fault) -> bool:
        """It is executed, and its answer is lost."""
        call.unanswered = True
        return False

    def _rewind(self, call: Call, fault: Fault) -> bool:
        """The sender freezes before the call leaves; when it goes on, the broker is back where it was then."""
        keep = self._world.server.written
        self._freeze(call, fault)
        self._world.hub.at(fault.lasts_s, lambda: self._go_back(fault, keep))
        return True

    def _undo(self, call: Call, fault: Fault) -> bool:
        """It is executed, the sender freezes before it hears so, and when it goes on the broker has forgotten it."""
        call.unanswered = True
        keep = self._world.server.written
        process = call.process

        def freeze() -> None:
            process.pause()
            self._world.hub.at(fault.lasts_s, process.go_on)
            self._world.hub.at(fault.lasts_s, lambda: self._go_back(fault, keep))

        call.after = freeze
        return False

    def _go_back(self, fault: Fault, keep: int) -> None:
        """The broker dies and comes back soon; sometimes what the next owner gives is read by nobody at first."""
        self._world.faults.go_away(replace(fault, lasts_s=0.3 * fault.draw), keep)
        if fault.draw * 7919 % 1.0 < 0.6 and self._world.net.trap is not None:
            self.arm(replace(fault, what="claim stray"))

    def _stray(self, call: Call, fault: Fault) -> bool:
        """The next batch that is accepted is read by a call that was given up long ago: its answer is nobody's."""
        if self._name_of(call.commands[-1]) != "append":
            self.arm(replace(fault, what="append stray"))
            return False

        def read() -> None:
            reply = call.replies[-1]
            if isinstance(reply, ServerError) or reply[0] != b"OK":
                self.arm(fault)
            elif self._read is not None:
                self._world.net.arrive(Call(self._read.process, self._read.commands, self._read.task, -1))

        call.after = read
        return False

    def _die(self, call: Call, fault: Fault) -> bool:
        """It is executed, and its sender is no more."""
        call.after = call.process.kill
        return False

    def _forget(self, call: Call, fault: Fault) -> bool:
        """It is executed, and the broker dies and forgets it, or what was just before it as well, or nothing.

        At once, or in a moment, when the sender has heard that it was done.
        """
        call.unanswered = fault.draw * 104_729 % 1.0 < 0.5
        lost = int(fault.draw * 1_299_709 % 1.0 * (MOST_FORGOTTEN + 1))
        soon_s = 0.0 if call.unanswered else 0.05 * fault.draw

        def die() -> None:
            keep = self._world.server.written - lost
            self._world.hub.at(soon_s, lambda: self._world.faults.go_away(fault, keep))

        call.after = die
        return False

    def _name_of(self, command: list[bytes]) -> str:
        """A script's name, or the command's; "" for a script to be loaded first, and for reads of other streams."""
        if command[0] == b"EVALSHA":
            return VERBS.get(command[1], "") if self._world.server.knows(command[1]) else ""
        return "xreadgroup" if command[0] == b"XREADGROUP" and command[-2].endswith(b":experience") else ""
