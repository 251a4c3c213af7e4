"""Since when a coordinator has been in touch: what makes it begin anew although no silence shows."""

from types import SimpleNamespace
from typing import Any

import pytest

from heddle.coord.coordinator import Coordinator
from heddle.coord.leader import Leader
from heddle.coord.watch import Watched
from heddle.errors import BrokerUnreachable
from heddle.stop import StopFlag


class Server:
    """Its clock, and since when it is up; who asks needs `asking_s` of their own time for an answer."""

    def __init__(self) -> None:
        self.at_ms, self.up_ms, self.asking_s = 1_000_000, 600_000, 0.0
        self.ours_s = 50.0
        self.conn = SimpleNamespace(now_ms=self.now_ms, uptime_ms=lambda: self.up_ms)

    def monotonic(self) -> float:
        return self.ours_s

    def now_ms(self) -> int:
        self.ours_s += self.asking_s
        return self.at_ms

    def passes(self, ms: int, *, set_by_ms: int = 0) -> None:
        self.ours_s += ms / 1000
        self.at_ms += ms + set_by_ms
        self.up_ms += ms


def watching() -> tuple[Server, Any]:
    """A coordinator that has asked twice, and was in touch for as long as its server was up."""
    server = Server()
    ours: Any = Coordinator("redis://nowhere", stop=StopFlag(), clock=server)  # type: ignore[arg-type]
    ours._stop.request("nobody waits here")
    ours._touch(server)
    server.passes(300)
    ours._touch(server)
    assert ours._contact_since_ms == 400_000
    return server, ours


def test_a_server_that_was_started_again_at_once_is_in_touch_since_then() -> None:
    server, ours = watching()
    ours._wait_for_broker(0, BrokerUnreachable("connection reset"))
    server.passes(200)
    server.up_ms = 100
    ours._touch(server)
    assert ours._contact_since_ms == server.at_ms - 100


def test_a_call_that_failed_on_a_server_that_stayed_up_begins_nothing() -> None:
    server, ours = watching()
    ours._wait_for_broker(0, BrokerUnreachable("connection reset"))
    server.passes(200)
    ours._touch(server)
    assert ours._contact_since_ms == 400_000


def test_a_silence_that_the_servers_clock_hides_begins_anew_and_a_late_answer_does_not() -> None:
    server, ours = watching()
    server.asking_s = 0.4
    ours._touch(server)
    server.passes(200)
    ours._touch(server)
    assert ours._contact_since_ms == 400_000
    server.asking_s = 0.0
    server.passes(900, set_by_ms=-850)
    ours._touch(server)
    assert ours._contact_since_ms == server.at_ms


def test_a_clock_that_is_set_back_far_does_not_put_reaping_off_for_as_long() -> None:
    server, ours = watching()
    ours._wait_for_broker(0, BrokerUnreachable("connection reset"))
    server.up_ms = 0
    ours._touch(server)
    server.passes(100, set_by_ms=-3_600_000)
    ours._touch(server)
    assert ours._contact_since_ms == server.at_ms


def test_a_late_answer_is_a_gap_for_short_leases_and_none_for_long_ones() -> None:
    server, ours = watching()
    watched = [
        Watched(str(ttl_ms), "default", ttl_ms, 5, "continue", (), contact_since_ms=0, last_ms=server.at_ms)
        for ttl_ms in (2_000, 60_000)
    ]
    leader: Any = Leader.__new__(Leader)
    leader._watched = {one.experiment: one for one in watched}
    server.asking_s = 1.2
    now_ms = ours._touch(server)
    leader.in_touch_since(ours._floor_ms)
    leader.answered_late(now_ms, ours._waited_ms)
    assert [one.contact_since_ms for one in watched] == [now_ms, 0]


def test_a_clock_that_was_set_on_between_two_looks_begins_anew() -> None:
    server, ours = watching()
    server.passes(80, set_by_ms=530)  # no gap, and leases end before their owners know
    ours._touch(server)
    assert ours._contact_since_ms == server.at_ms


def test_what_is_watched_already_has_its_own_ttl_to_compare_a_step_with() -> None:
    server, ours = watching()
    watched = [
        Watched(str(ttl_ms), "default", ttl_ms, 5, "continue", (), contact_since_ms=0, last_ms=server.at_ms)
        for ttl_ms in (600, 60_000)
    ]
    told: list[float] = []
    leader: Any = Leader.__new__(Leader)
    leader._watched = {one.experiment: one for one in watched}
    leader._tell = SimpleNamespace(clock_was_set=lambda by_ms, now_ms: told.append(by_ms))
    server.passes(80, set_by_ms=530)
    now_ms = ours._touch(server)
    leader.in_touch_since(ours._floor_ms)
    leader.clock_was_set(ours._step, now_ms)
    assert [one.contact_since_ms for one in watched] == [now_ms, 0]
    assert [one.reaps_from_ms - now_ms for one in watched] == pytest.approx([0, 546], abs=1)
    assert told == [pytest.approx(530)]
    server.passes(300)
    ours._touch(server)
    assert ours._step is None, "a step is one once"


def test_an_answer_that_comes_late_is_no_clock_that_was_set() -> None:
    server, ours = watching()
    server.asking_s = 0.5
    for _ in range(3):
        server.passes(10)
        ours._touch(server)
        server.at_ms += 500  # it had answered before that time passed
    server.asking_s = 0.0
    server.passes(10)
    ours._touch(server)
    assert ours._contact_since_ms == 400_000
