"""Whether a child is still at work: tables of what is seen, and the count of silence over answers that come and go."""

import pytest

from heddle.broker.presence import Pulse
from heddle.launch.hearing import GAP_S, Hearing
from heddle.launch.vigil import Patience, Silence, lost, may_start

PATIENCE = Patience(stopped_s=20.0, silent_s=60.0, ttls=3.0, birth_s=300.0)


@pytest.mark.parametrize(
    ("stopped_s", "silence", "words"),
    [
        (0.0, None, ""),
        (19.9, None, ""),
        (20.0, None, "stopped (SIGSTOP)"),
        (20.0, Silence(0.0, True), "stopped (SIGSTOP)"),
        (0.0, Silence(59.0, True, ttl_s=10.0), ""),
        (0.0, Silence(60.0, True, ttl_s=10.0), "no heartbeat for 60 s"),
        (0.0, Silence(60.0, True, ttl_s=30.0), ""),
        (0.0, Silence(90.0, True, ttl_s=30.0), "no heartbeat for 90 s"),
        (0.0, Silence(90.0, True, ttl_s=10.0, limit_s=60.0), ""),
        (0.0, Silence(120.0, True, ttl_s=10.0, limit_s=60.0), "no heartbeat for 120 s"),
        (0.0, Silence(299.0), ""),
        (0.0, Silence(300.0), "since its start"),
    ],
)
def test_a_child_is_lost_only_when_it_could_have_been_heard_and_had_its_time(
    stopped_s: float, silence: Silence | None, words: str
) -> None:
    told = lost(stopped_s, silence, PATIENCE)
    assert words in told
    assert bool(told) == bool(words)


@pytest.mark.parametrize(("starting", "at_once", "more"), [(0, 4, 4), (3, 4, 1), (4, 4, 0), (9, 4, 0)])
def test_as_many_start_as_may_do_so_at_once(starting: int, at_once: int, more: int) -> None:
    assert may_start(starting, at_once) == more


def test_silence_is_counted_from_the_last_new_heartbeat_whatever_the_brokers_clock_says() -> None:
    hearing = Hearing()
    for second in range(4):
        hearing.hear(second, ["w"], {"w": Pulse(1_000_000 * second, ttl_ms=2_000, limit_ms=9_000 - second)})
    for second in range(4, 8):
        hearing.hear(second, ["w"], {"w": Pulse(3_000_000)})
    told = hearing.silence("w", 7.5)
    assert told == Silence(4.0, True, 0.0, 9.0)


def test_silence_counts_anew_after_nobody_could_hear() -> None:
    hearing = Hearing()
    hearing.hear(0.0, ["w"], {"w": Pulse(1)})
    hearing.hear(3.0, ["w"], {"w": Pulse(1)})
    assert hearing.silence("w", 3.0 + GAP_S + 0.1) is None
    hearing.hear(100.0, ["w"], {"w": Pulse(1)})
    hearing.hear(101.0, ["w"], {"w": Pulse(1)})
    assert hearing.silence("w", 101.0) == Silence(1.0, True)


def test_one_that_never_beat_is_silent_since_it_is_listened_for() -> None:
    hearing = Hearing()
    hearing.hear(0.0, [], {})
    assert hearing.silence("w", 0.0) is None
    hearing.hear(1.0, ["w"], {})
    hearing.hear(4.0, ["w"], {})
    assert (hearing.silence("w", 4.0), hearing.was_heard("w")) == (Silence(3.0), False)
    hearing.hear(5.0, ["w"], {"w": Pulse(7)})
    assert (hearing.silence("w", 5.0), hearing.was_heard("w")) == (Silence(0.0, True), True)
    hearing.hear(6.0, ["v"], {})
    assert hearing.silence("w", 6.0) is None
