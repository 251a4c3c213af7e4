"""User code: what of the user's runs in a worker right now, for the watchdog, the heartbeat and the sampler.

It never calls any: the playing thread does, and says so here; everybody else only looks, or asks for an end.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from heddle.broker.failure_types import Failure
from heddle.clock import Clock
from heddle.errors import EnvError
from heddle.lease import Action
from heddle.producers.limits import limit_of
from heddle.producers.mishap import PlayError
from heddle.producers.play import Play
from heddle.producers.report import TRACE_CHARS
from heddle.spec.objects import MOST_FRAMES

Playing = tuple[Play, str, Callable[[], bool]]
"""A player, what is played, and whether its policy is still the one that the segment began with."""
Left = tuple[Action | None, Playing | None, int | None]
"""What `UserCode.leave` gives to `come_back`."""


class UserCode:
    """One call, or one segment being played, at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._calling: Action | None = None
        self._playing: Playing | None = None
        self._thread: int | None = None

    # ---- from the playing thread

    def runs_here(self) -> None:
        """It is this thread that plays from now on."""
        self._thread = threading.get_ident()

    @contextmanager
    def calling(self, what: str, subject: str, limit_s: float) -> Iterator[None]:
        """Within it, one call that must not hang longer than `limit_s`."""
        around = self._calling
        self._calling = Action(what, self._clock.monotonic(), limit_s, subject)
        try:
            yield
        finally:  # whatever was called around it begins anew
            self._calling = None if around is None else replace(around, since=self._clock.monotonic())

    @contextmanager
    def playing(self, player: Play, subject: str, is_same: Callable[[], bool]) -> Iterator[None]:
        """Within it, a player plays; it tells by itself which call it is at."""
        self._playing = (player, subject, is_same)
        try:
            yield
        finally:
            self._playing = None

    def leave(self) -> Left:
        """The playing thread lets another one play: what that must not see."""
        left = (self._calling, self._playing, self._thread)
        self._calling = self._playing = None
        return left

    def come_back(self, left: Left) -> None:
        """It goes on. A segment whose policy was replaced meanwhile ends at the step it is at."""
        self._calling, self._playing, self._thread = left
        if self._playing is not None and not self._playing[2]():
            self._playing[0].cut()

    # ---- from any thread

    @property
    def is_playing(self) -> bool:
        """True while a segment is being played; `doing` tells which call lasts."""
        return self._playing is not None

    def doing(self) -> Action | None:
        """What it is at; None while nothing of the user's runs."""
        if (calling := self._calling) is not None:
            return calling
        if (playing := self._playing) is None:
            return None
        player, subject, _ = playing
        since = player.last_progress  # asked first: polling is what makes it precise
        if (what := player.doing) is None:
            return None
        return Action(what, since, limit_of(player.spec, player.plan, what, beside=player.beside), subject)

    def hanging(self, reason: str) -> EnvError:
        """What is known of the call that lasts too long."""
        frame = sys._current_frames().get(self._thread or -1)
        trace = "" if frame is None else "".join(traceback.format_stack(frame, limit=MOST_FRAMES))[-TRACE_CHARS:]
        if self._calling is None and (playing := self._playing) is not None:
            return playing[0].hanging(reason, trace)
        what = "make" if self._calling is None else self._calling.what
        return PlayError(reason, Failure("timeout", reason, what, traceback=trace))

    def cut(self) -> None:
        """End the segment being played at its next step."""
        if (playing := self._playing) is not None:
            playing[0].cut()
