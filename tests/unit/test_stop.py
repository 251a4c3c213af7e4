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


def test_a_first_interrupt_is_gentle_though_the_reader_that_it_ended_too_was_noticed_before_it() -> None:
    flag = StopFlag()
    flag.drain("whoever read the output is gone", arms=False)
    flag.request("SIGINT")
    assert (flag.draining, flag.now) == (True, False)
    flag.request("SIGINT")
    assert flag.now


def test_a_request_behind_a_drain_by_whoever_is_in_charge_stops_at_once() -> None:
    flag = StopFlag()
    flag.drain("ending")
    flag.request("hurried")
    assert flag.now


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


def test_a_closed_terminal_asks_gently_however_often_it_tells() -> None:
    program = """
        import signal, sys
        from heddle.stop import StopFlag, listen_no_more, listen_to_signals
        flag = StopFlag()
        listen_to_signals(flag, (signal.SIGHUP, signal.SIGTERM))
        print("ready", flush=True)
        flag.wait()
        print(flag.reason, flush=True)
        sys.stdin.readline()
        print("now" if flag.now else "gentle", flush=True)
        listen_no_more((signal.SIGHUP, signal.SIGTERM))
        print("shows", flush=True)
        sys.stdin.readline()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "ready\n"
        os.kill(child.pid, signal.SIGHUP)
        assert child.stdout.readline() == "SIGHUP\n"
        os.kill(child.pid, signal.SIGHUP)
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "gentle\n"
        assert child.stdout.readline() == "shows\n"
        os.kill(child.pid, signal.SIGHUP)  # from the same terminal, a moment later
        child.stdin.close()
        assert child.wait(10) == 0


def test_a_hang_up_that_was_ignored_before_stays_so() -> None:
    program = """
        import signal
        from heddle.stop import StopFlag, listen_to_signals
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        listen_to_signals(StopFlag(), (signal.SIGHUP,))
        print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
