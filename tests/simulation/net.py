"""The network between processes and the server: what a call may suffer on its way, there and back.

It never retries. A request may be lost, late, repeated or cut in two; so may an answer; the caller then gets an error
that says nothing about what happened.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from redis import exceptions as theirs

from tests.simulation.hub import TIMEOUT, Hub, Process, Task
from tests.simulation.server import SimServer
from tests.simulation.values import ServerError
from tests.simulation.watch import Watcher

Command = list[bytes]
READS_THAT_WAIT = (b"XREADGROUP", b"XREAD")


@dataclass(slots=True)
class Weather:
    """How bad the network is: chances for each call.

    Attributes:
        lost, unanswered: request, or answer, that vanishes with the connection.
        late: request that arrives seconds later, its caller long gone. repeated: request that arrives twice.
        partial: pipeline of which only the first commands arrive. interleaved: pipeline with others in between.
        slow_s: longest way of a packet.
    """

    lost: float = 0.0
    unanswered: float = 0.0
    late: float = 0.0
    repeated: float = 0.0
    partial: float = 0.0
    interleaved: float = 0.0
    slow_s: float = 0.002

    @property
    def worst(self) -> float:
        """Chance that anything happens to a call on its way there."""
        return self.lost + self.late + self.repeated + self.unanswered + self.partial


@dataclass(slots=True)
class Link:
    """One process's way to the server: whether packets pass, each way, and when it last began to be of use."""

    up: bool = True
    down: bool = True
    whole_since: float = -1e9


@dataclass(slots=True, eq=False)
class Call:
    """A request on its way: commands in one round trip, who waits for the answer, and what happens after it."""

    process: Process
    commands: Sequence[Command]
    task: Task
    token: int
    replies: list[Any] = field(default_factory=list)
    answered: bool = False
    unanswered: bool = False
    block_until: float | None = None
    after: Callable[[], None] | None = None


class Net:
    """Carries calls.

    Attributes:
        weather: chances now.
        is_up, is_frozen: the server answers at all; it is stopped in its tracks, and will go on.
        published: told the messages that a command published.
        trap: asked about every call that is sent; True when it has taken it.
        refuses: True for a call that never gets through.
        weights_s: seconds that a chunk of large weights takes at most, on top: the rest passes it by.
        back_at: when it was last seen again by everybody after it had been away for long.
    """

    def __init__(self, hub: Hub, server: SimServer, watcher: Watcher) -> None:
        self.weather = Weather()
        self.is_up = True
        self.is_frozen = False
        self.back_at = -1e9
        self.weights_s = 0.0
        self.published: Callable[[list[tuple[bytes, bytes]]], None] = lambda messages: None
        self.trap: Callable[[Call], bool] | None = None
        self.refuses: Callable[[Call], bool] | None = None
        self._hub = hub
        self._rng: random.Random = hub.rng
        self._server = server
        self._watcher = watcher
        self._links: dict[Process, Link] = {}
        self._stuck: list[Call] = []
        self._waiting: dict[bytes, list[Call]] = {}

    def link(self, process: Process) -> Link:
        """The way of one process."""
        try:
            return self._links[process]
        except KeyError:
            found = self._links[process] = Link()
            return found

    def call(self, commands: Sequence[Command], timeout_s: float) -> list[Any]:
        """One round trip of the running thread.

        Raises:
            redis ConnectionError, TimeoutError: no answer.
        """
        task = self._hub.task()
        call = Call(task.process, commands, task, task.token)
        if self.trap is None or not self.trap(call):
            self.send(call)
        answer = self._hub.wait(timeout_s)
        if answer is TIMEOUT:
            raise theirs.TimeoutError("Timeout reading from socket")
        if answer is None:
            raise theirs.ConnectionError("Connection closed by server.")
        replies: list[Any] = answer
        return replies

    # ---- there

    def send(self, call: Call) -> None:
        """Put it on its way."""
        weather, rng = self.weather, self._rng
        way_s = weather.slow_s * rng.random()
        if self.weights_s and _carries_weights(call):
            way_s += self.weights_s * rng.random()
        chance = 1.0 if call.process.steady else rng.random()
        if chance < weather.lost or (self.refuses is not None and self.refuses(call)):
            self._hub.at(way_s, partial(self.fail, call))
        elif chance < weather.worst:
            self._send_badly(call, way_s, chance)
        else:
            self._hub.at(way_s, partial(self.arrive, call))

    def _send_badly(self, call: Call, way_s: float, chance: float) -> None:
        """Late, twice, for nothing, or in part."""
        weather, rng = self.weather, self._rng
        chance -= weather.lost
        if chance < weather.late:
            self._hub.at(way_s, lambda: self.fail(call))
            way_s += 8.0 * rng.random() ** 2
        chance -= weather.late
        if 0 <= chance < weather.repeated:
            again = Call(call.process, call.commands, call.task, -1)
            self._hub.at(way_s + 4.0 * rng.random() ** 2, lambda: self.arrive(again))
        chance -= weather.repeated
        if 0 <= chance < weather.unanswered:
            call.unanswered = True
        chance -= weather.unanswered
        if len(call.commands) > 1 and 0 <= chance < weather.partial:
            call.commands = call.commands[: rng.randrange(1, len(call.commands))]
            call.unanswered = True
        self._hub.at(way_s, lambda: self.arrive(call))

    def arrive(self, call: Call) -> None:
        """It is there."""
        if not self.is_up:
            self._hub.at(0.001, lambda: self.fail(call))
        elif not self.link(call.process).up:
            pass  # nobody hears it, and nobody says so
        elif self.is_frozen:
            self._stuck.append(call)
        else:
            self._execute(call)

    def thaw(self) -> None:
        """The server goes on with what came meanwhile."""
        self.is_frozen = False
        stuck, self._stuck = self._stuck, []
        for call in stuck:
            self._hub.at(0.0, lambda one=call: self.arrive(one))  # type: ignore[misc]

    def reset(self) -> None:
        """The server died: every connection with it."""
        waiting, self._waiting = self._waiting, {}
        for call in [*self._stuck, *(call for calls in waiting.values() for call in calls)]:
            self.fail(call)
        self._stuck = []

    def _execute(self, call: Call) -> None:
        """The next commands of a call; all at once, or with others in between."""
        commands, done, interleaved = call.commands, len(call.replies), self.weather.interleaved
        while done < len(commands):
            if not self._run(call, commands[done]):
                return
            done += 1
            if interleaved and done < len(commands) and self._rng.random() < interleaved:
                self._hub.at(0.003 * self._rng.random(), lambda: self.arrive(call))
                return
        self._answer(call)

    def _run(self, call: Call, command: Command) -> bool:
        """Run one command; False when it waits for an entry."""
        reply = self._server.execute(command)
        if reply is None and command[0] in READS_THAT_WAIT and b"BLOCK" in command and self._may_wait(call, command):
            return False
        call.block_until = None
        call.replies.append(reply)
        self._watcher.executed(call.process.name, command, reply)
        if self._server.db.published or self._server.db.woken:
            self._wake()
        return True

    def _may_wait(self, call: Call, command: Command) -> bool:
        now = self._hub.now
        if call.block_until is None:
            block_s = int(command[command.index(b"BLOCK") + 1]) / 1000
            call.block_until = now + block_s
            self._hub.at(block_s, lambda: self._give_up(call))
        if now >= call.block_until:
            return False
        key = command[command.index(b"STREAMS") + 1]
        self._waiting.setdefault(key, []).append(call)
        return True

    def _give_up(self, call: Call) -> None:
        for calls in self._waiting.values():
            if call in calls:
                calls.remove(call)
                self._execute(call)
                return

    def _wake(self) -> None:
        """Pass messages on, and serve those who wait for the streams that got entries."""
        db = self._server.db
        if db.published:
            published, db.published = db.published, []
            self.published(published)
        while db.woken:
            key = min(db.woken)
            db.woken.discard(key)
            for call in self._waiting.pop(key, []):
                self._hub.at(0.0, lambda one=call: self.arrive(one))  # type: ignore[misc]

    # ---- and back

    def _answer(self, call: Call) -> None:
        if call.after is not None:
            call.after()
        way_s = self.weather.slow_s * self._rng.random()
        if call.unanswered:
            self._hub.at(way_s, lambda: self.fail(call))
        elif self.link(call.process).down:
            self._hub.at(way_s, partial(self._deliver, call))

    def _deliver(self, call: Call) -> None:
        if call.token >= 0 and self.link(call.process).down:
            call.task.resume(call.token, call.replies)

    def fail(self, call: Call) -> None:
        """Its connection is gone."""
        if call.token >= 0:
            call.task.resume(call.token, None)


def _carries_weights(call: Call) -> bool:
    first = call.commands[0]
    return first[0] == b"SET" and b":policy:" in first[1]


def error_of(reply: ServerError) -> Exception:
    """As redis-py reads an error reply."""
    from redis._parsers.base import BaseParser

    error: Exception = BaseParser.parse_error(str(reply))  # type: ignore[no-untyped-call]
    return error
