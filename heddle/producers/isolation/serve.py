"""The child's side: makes a shard's environments and calls them as it is asked to, one call after the other.

It never decides anything: whatever goes wrong is told to the worker, which ends the process.
"""

import contextlib
import json
import mmap
import os
import resource
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from heddle.errors import NotSnapshottable, SnapshotError
from heddle.producers import snapshot
from heddle.producers.choices import choices_for
from heddle.producers.closing import close_env
from heddle.producers.contract import BadAnswer
from heddle.producers.envs import check_env_here, counter_of, demand_fit, make_env
from heddle.producers.isolation import frames
from heddle.producers.isolation.block import BUSY, DONE, ENV, Block
from heddle.producers.kinds import Spaces, has_ended, number_kind
from heddle.producers.reel import Part, put
from heddle.producers.scrutiny import note_info
from heddle.producers.vector_answers import five_of
from heddle.spaces import from_json, to_json
from heddle.spec import Env, spec_from_json
from heddle.spec.objects import MOST_FRAMES, describe_error

SPARE_BYTES = 32 << 20
"""On top of the limit, for telling that it was reached."""
TRACE_CHARS = 6_000


@dataclass(slots=True)
class _Seat:
    """One environment: how it is called and where its answers go."""

    env: Any
    step: Callable[[Any], Any]
    counter: Any
    parts: list[Part]
    spaces: Spaces


class _Server:
    """The loop of a child."""

    def __init__(self, link: socket.socket, block: int) -> None:
        self._link, self._is_fork = link, False
        self._memory = mmap.mmap(block, 0)
        os.close(block)
        self._cells = memoryview(self._memory).cast("B")[:64].cast("Q")
        self._seats: list[_Seat] = []
        self._handlers: dict[int, Callable[[frames.Frame], bytes]] = {
            frames.MAKE: self._make,
            frames.ROUND: self._round,
            frames.RESET: self._reset,
            frames.SAVE: self._save,
            frames.RESTORE: self._restore,
            frames.CHECK: self._check,
            frames.CLOSE: self._close,
        }

    def run(self) -> NoReturn:
        """Answer requests until the worker closes its end."""
        os.register_at_fork(after_in_child=self._forked)
        intake, size = frames.Intake(), frames.HEADER.size
        while data := self._link.recv(size):
            frame, size = intake.take(data), 1 << 16
            if frame is None:
                continue
            size = frames.HEADER.size
            self._send(self._answer(frame))
            if frame.kind == frames.CLOSE:
                break
        _leave(0)

    def _send(self, data: bytes) -> None:
        try:
            self._link.sendall(data)
        except OSError:  # the worker is gone, the user's code closed the line, or it came back from a fork as well
            if self._is_fork:
                _leave(0)
            self._cells[BUSY] = 1
            _leave(frames.HUNG_UP)

    def _forked(self) -> None:
        """In a fork that the user's code made: it must not speak for the child, or keep its line open."""
        self._is_fork = True
        self._link.close()

    def _answer(self, frame: frames.Frame) -> bytes:
        cells = self._cells
        try:
            done = self._handlers[frame.kind](frame)
        except BaseException as error:  # noqa: BLE001  SystemExit too: the user's code shall not end us unheard
            cells[BUSY] = 0
            try:
                return frames.pack(frames.FAILED, cells[ENV], _told(error))
            except MemoryError:
                _leave(frames.OUT_OF_MEMORY)
        cells[BUSY] = 0
        return frames.pack(frames.DONE, frames.NOBODY, done)

    # ---- requests

    def _make(self, frame: frames.Frame) -> bytes:
        wanted = json.loads(frame.payload)
        _limit(wanted["memory"], wanted["files"])
        observation, action = from_json(wanted["observation"]), from_json(wanted["action"])
        self.block = block = Block(observation, action, len(wanted["envs"]), wanted["info_keys"], self._memory)
        self._choose = choices_for(action, raw=False)  # the worker has shifted and clipped them already
        env = Env.model_validate_json(wanted["env"])
        self._cells[DONE] += 1
        for place, (index, seed, kwargs) in enumerate(wanted["envs"]):
            self._begin(place)
            made = make_env(env.model_copy(update={"kwargs": kwargs}), index=index, num_envs=env.num_envs, seed=seed)
            demand_fit(made, observation, action, name=env.id, index=index)
            self._seats.append(_Seat(made, made.step, counter_of(made), block.parts(place), Spaces([made])))
            self._cells[DONE] += 1
        return json.dumps([seat.counter is not None for seat in self._seats]).encode()

    def _round(self, _frame: frames.Frame) -> bytes:
        """Step every environment of the mask with its action."""
        block, cells = self.block, self._cells
        choices, reward, flags = self._choose(block.actions), block.reward, block.flags
        for place in np.flatnonzero(block.mask).tolist():
            seat = self._seats[place]
            cells[ENV], cells[BUSY] = place, 1
            observation, gained, terminated, truncated, info = five_of(seat.step(choices[place]))
            put(seat.parts, 0, observation)
            number_kind(gained)
            reward[place] = gained
            has_ended(terminated, truncated)
            flags[place] = (1 if terminated else 0) | (2 if truncated else 0)
            if (changed := seat.spaces.changed()) is not None:
                raise BadAnswer(changed[1])
            if block.info_keys:
                block.infos[place] = np.nan
                for column, key in enumerate(block.info_keys):
                    note_info(block.infos, (place, column), key, info)
            if seat.counter is not None:
                self._count(place, seat)
            cells[DONE] += 1
        return block.pack_cells(np.flatnonzero(block.mask).tolist())

    def _reset(self, frame: frames.Frame) -> bytes:
        seat = self._seats[frame.env]
        self._begin(frame.env)
        answer = seat.env.reset(seed=int.from_bytes(frame.payload, "little") if frame.payload else None)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise BadAnswer(f"reset returned a {type(answer).__name__}, expected (observation, info)")
        put(seat.parts, 0, answer[0])
        if seat.counter is not None:
            self._count(frame.env, seat)
        self._cells[DONE] += 1
        return self.block.pack_cells([frame.env])

    def _save(self, frame: frames.Frame) -> bytes:
        self._begin(frame.env)
        return snapshot.take(self._seats[frame.env].env)

    def _restore(self, frame: frames.Frame) -> bytes:
        """One environment; or all, when none is named, from what `take_all` gave in one process."""
        if frame.env == frames.NOBODY:
            self._begin(0)
            snapshot.restore_all([seat.env for seat in self._seats], frame.payload)
        else:
            self._begin(frame.env)
            snapshot.restore(self._seats[frame.env].env, frame.payload)
        return b""

    def _check(self, frame: frames.Frame) -> bytes:
        wanted = json.loads(frame.payload)
        _limit(wanted["memory"], wanted["files"])
        self._begin(0)
        observation, action = check_env_here(spec_from_json(wanted["spec"]))
        return json.dumps([to_json(observation), to_json(action)]).encode()

    def _close(self, _frame: frames.Frame) -> bytes:
        for place, seat in enumerate(self._seats):
            self._begin(place)
            close_env(seat.env)
            self._cells[DONE] += 1
        return b""

    # ---- inside

    def _begin(self, place: int) -> None:
        self._cells[ENV], self._cells[BUSY] = place, 1

    def _count(self, place: int, seat: _Seat) -> None:
        if (finished := seat.counter.take()) is not None:
            self.block.returns[place], self.block.lengths[place] = finished
            self.block.finished[place] = 1


def serve(link: socket.socket, block: int) -> NoReturn:
    """Serve the worker at the other end of `link`; never returns."""
    _Server(link, block).run()


def _leave(code: int) -> NoReturn:
    """End at once, whatever threads and exit handlers the user's code left behind."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _limit(memory: int | None, files: int) -> None:
    """No core files, few descriptors, and on Linux so much private memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = files if most == resource.RLIM_INFINITY else min(files, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if memory is not None and sys.platform.startswith("linux"):
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory + SPARE_BYTES))


def _told(error: BaseException) -> bytes:
    """What the worker is told of `error`."""
    if isinstance(error, MemoryError) and sys.platform.startswith("linux"):
        resource.setrlimit(resource.RLIMIT_DATA, (resource.getrlimit(resource.RLIMIT_DATA)[1],) * 2)
    text = str(error) if isinstance(error, BadAnswer) else describe_error(error)
    trace = "".join(traceback.format_exception(error, limit=-MOST_FRAMES))[-TRACE_CHARS:]
    told: dict[str, Any] = {"kind": _kind(error), "text": text, "traceback": trace}
    if problems := getattr(error, "problems", None):
        told["problems"] = [[p.key, p.value, p.reason, p.hint] for p in problems]
    if isinstance(error, SystemExit):
        told |= {"text": f"sys.exit({error.code!r})"}
    if isinstance(error, NotSnapshottable | SnapshotError):
        told["text"] = str(error)
    return json.dumps(told, default=str).encode()


def _kind(error: BaseException) -> str:
    kinds: list[tuple[type[BaseException], str]] = [
        (BadAnswer, "answer"),
        (MemoryError, "memory"),
        (SystemExit, "exit"),
        (NotSnapshottable, "unsnapshottable"),
        (SnapshotError, "snapshot"),
    ]
    return next((name for kind, name in kinds if isinstance(error, kind)), "exception")
