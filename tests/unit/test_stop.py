"""Ending in two steps."""

import os
import signal
import subprocess
import sys
import textwrap

from heddle.stop import StopFlag


def test_the_first_request_drains_and_the_second_stops_at_once() -> None:
    flag, heard = StopFlag(), list[bool]()
    flag.on_request(lambda: heard.append(flag.now))
    flag.request("SIGTERM")
    assert (flag.draining, flag.now, flag.reason) == (True, False, "SIGTERM")
    flag.request("SIGINT")
    assert (flag.draining, flag.now, flag.reason) == (True, True, "SIGTERM")
    assert heard == [False, True]


def test_draining_twice_is_still_draining() -> None:
    flag = StopFlag()
    flag.drain("asked")
    flag.drain("asked again")
    assert flag.draining
    assert not flag.now


def test_signals_become_requests_even_while_the_main_thread_waits_on_the_flag() -> None:
    program = """
        from heddle.stop import StopFlag, listen_to_signals
        flag = StopFlag()
        listen_to_signals(flag)
        print("ready", flush=True)
        flag.wait()
        print("draining", flush=True)
        flag.wait_now()
        print("now", flush=True)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        os.kill(child.pid, signal.SIGTERM)
        assert child.stdout.readline() == "draining\n"
        os.kill(child.pid, signal.SIGINT)
        assert child.stdout.readline() == "now\n"
        assert child.wait(10) == 0


def test_once_nobody_listens_any_more_a_signal_ends_the_process_at_once() -> None:
    program = """
        import time
        from heddle.stop import StopFlag, listen_no_more, listen_to_signals
        listen_to_signals(StopFlag())
        listen_no_more()
        print("ready", flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(10) == -signal.SIGINT
