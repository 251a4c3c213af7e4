"""A deadline for code of the user's: what never answers is an error, what answers in time is left alone."""

import signal
import threading

import pytest

from heddle.errors import EnvError
from heddle.launch.deadline import within


def deaf() -> None:
    """Takes every Exception for one of its own, and goes on waiting."""
    while True:
        try:
            threading.Event().wait()
        except Exception:  # noqa: BLE001 - the user's code does so
            continue


def test_what_swallows_exceptions_is_interrupted_too_and_named_with_its_place() -> None:
    with (
        pytest.raises(EnvError) as caught,
        within(0.05, what="was not made", key="policy.id", value="my:Net", hint="h"),
    ):
        deaf()
    (problem,) = caught.value.problems
    assert (problem.key, problem.value, problem.hint) == ("policy.id", "my:Net", "h")
    assert "was not made within 0.05 s; it was at" in problem.reason
    assert "test_deadline.py" in problem.reason


def test_what_answers_in_time_leaves_no_alarm_and_another_ones_timer_goes_on() -> None:
    mine = signal.getsignal(signal.SIGALRM)
    before = signal.setitimer(signal.ITIMER_REAL, 60.0)
    try:
        with within(5.0, what="was not made", key="env.id", value="x"):
            pass
        assert signal.getsignal(signal.SIGALRM) is mine
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 50.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)


def test_outside_the_main_thread_code_runs_without_a_deadline() -> None:
    done = threading.Event()

    def play() -> None:
        with within(5.0, what="was not made", key="env.id", value="x"):
            done.set()

    thread = threading.Thread(target=play)
    thread.start()
    thread.join()
    assert done.is_set()
