"""Traps: what befalls a process at the very moment it sends a chosen command, instead of at a moment drawn blindly.

Between two calls lies what a protocol is about: a trainer that is frozen with an ack in its hands, a reap that arrives
late, a broker that dies right after it accepted. A trap is armed at its time and springs once.
It never looks at replies.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.hub import Process
from tests.simulation.net import Call
from tests.simulation.plan import Fault
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
        self._writer: Process | None = None

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

    def _ages(self, call: Call, fault: Fault) -> bool:
        """The same, but it is much later: the run may be over by then, and removed."""
        return self._late(call, replace(fault, lasts_s=4.0 * fault.lasts_s))

    def _outlived(self, call: Call, fault: Fault) -> bool:
        """It arrives, twice, when its sender has stood still for a TTL and may have claimed the same shard again."""
        process, hub, net = call.process, self._world.hub, self._world.net
        hub.at(0.0, lambda: net.fail(call))
        process.pause()
        hub.at(1.1 + 0.3 * fault.draw, process.go_on)
        for later_s in (1.6, 2.6):
            again = Call(process, call.commands, call.task, -1)
            hub.at(later_s + 2.0 * fault.draw, lambda one=again: net.arrive(one))  # type: ignore[misc]
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

    def _deaf(self, call: Call, fault: Fault) -> bool:
        """It is executed, and the sender freezes before it hears so: when it goes on it sends it again."""
        call.unanswered = True
        process, lasts_s = call.process, max(fault.lasts_s, 1.1 + 0.5 * fault.draw)  # as long as any lease

        def freeze() -> None:
            process.pause()
            self._world.hub.at(lasts_s, process.go_on)

        call.after = freeze
        return False

    def _bare(self, call: Call, fault: Fault) -> bool:
        """It made a group, which is destroyed before anybody can use it."""
        name = call.commands[-1][2:4] if call.commands[-1][0] == b"XGROUP" else []

        def destroy() -> None:
            self._world.server.execute([b"XGROUP", b"DESTROY", *name])

        call.after = destroy if name else None
        return False

    def _relive(self, call: Call, fault: Fault) -> bool:
        """A claim is made, its batches are trained, then the broker is back before it and so is its clock.

        The ticket is read again, and the next claim gets the same epoch. Only where the shard was claimed before: its
        epochs go on from there.
        """
        world, server = self._world, self._world.server
        command = next(one for one in call.commands if self._name_of(one) == fault.what.split()[0])
        shard = f"shard:{int(command[3 + int(command[2])])}"
        epoch = int(world.hash_of(shard).get(b"epoch", b"0"))
        if not epoch:
            self.arm(fault)
            return False
        keep, lasts_s = server.before_last(b"XREADGROUP", b":tickets"), 0.3 + 0.3 * fault.draw

        def set_clock() -> None:
            world.faults.set_clock(min(0.0, (epoch - 2000.0 - server.clock()) / 1000.0))

        def repeat() -> None:
            if int(world.hash_of(shard).get(b"epoch", b"0")) > epoch + 1:
                return  # claimed once more already: what comes would have a lower epoch than that
            world.faults.go_away(replace(fault, lasts_s=0.1), keep)
            set_clock()

        set_clock()
        world.hub.at(lasts_s, repeat)
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
            if not isinstance(reply, list) or reply[0] != b"OK":  # an error, or of an earlier command: it was cut short
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
        if command[0] == b"XGROUP" and command[1] == b"CREATE":
            return "xgroup"
        return "xreadgroup" if command[0] == b"XREADGROUP" and command[-2].endswith(b":experience") else ""

    def writes(self, process: Process) -> None:
        """A checkpoint is about to be written by `process`; in a trap it stands still until another one's is there."""
        hub, stopped = self._world.hub, self._writer
        if stopped is not None and stopped is not process:
            self._writer = None
            hub.at(2.0 * self._world.plan.write_s, stopped.go_on)
        waiting = self._armed.get("checkpoint")
        if waiting:
            waiting.pop(0)
            self._writer = process
            process.pause()
            hub.at(4.0, process.go_on)


def takes(call: Call) -> bool:
    """True for a call that reads a ticket or claims a shard."""
    return any(
        command[0] == b"XREADGROUP" or (command[0] == b"EVALSHA" and VERBS.get(command[1]) in ("claim", "ticket_peek"))
        for command in call.commands
    )
