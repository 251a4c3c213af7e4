"""The end of `heddle`: nothing is lost, and nobody waits for libraries to be taken apart."""

import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import atexit, os, sys, threading
    from heddle.__main__ import QuickExit

    end = QuickExit()
    atexit.register(end.leave)
    atexit.register(print, "a handler ran")

    class Library:
        def __del__(self):
            os.write(1, b"taken apart")

    library = Library()
    sys.modules["library"] = library
    if os.fork() == 0:
        print("a fork of it ends its own way")
        sys.exit(5)
    forked = os.waitstatus_to_exitcode(os.wait()[1])
    print("forked", forked)
    threading.Timer(0.2, print, ["a thread was waited for"]).start()
    end.code = 3
    sys.exit(3)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_threads_and_handlers_and_what_was_printed_come_before_the_end_and_nothing_else() -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM)], text=True, capture_output=True, timeout=60)
    assert done.returncode == 3, done.stderr
    own = done.stdout.partition("forked 5\n")[2]
    assert own == "a thread was waited for\na handler ran\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--help"], 0), (["no-such-command"], 2), (["status", "x", "--redis-url", "redis://127.0.0.1:1/0"], 5)],
)
def test_the_exit_code_is_the_commands(arguments: list[str], code: int) -> None:
    done = subprocess.run([sys.executable, "-m", "heddle", *arguments], text=True, capture_output=True, timeout=60)
    assert done.returncode == code
    assert done.stdout or done.stderr


def test_a_reader_that_went_away_does_no_harm() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        argv = [sys.executable, "-m", "heddle", "--help"]
        done = subprocess.run(argv, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(writing)
    assert done.returncode in (0, 1), "click says 1"
    assert done.stderr == ""


LAST_WORDS = """
    import _thread, os, sys, threading
    from heddle import quick_exit

    def no_thread(*_):
        raise MemoryError

    class Broken:
        def flush(self):
            raise ZeroDivisionError

    def gives_up():
        sys.exit(5)

    class Child:
        def close(self):
            os.write(1, b"a child's")

    child, gone = Child(), Child()
    quick_exit.keep_last_words(child, Child.close)
    quick_exit.keep_last_words(gone, Child.close)
    del gone
    with quick_exit.with_last_words(lambda: os.write(1, b", and the first's")), quick_exit.with_last_words(gives_up):
        {trouble}
        quick_exit.exit_now(70, within_s=60)
"""


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("pass", ", and the first'sa child's"),
        ("sys.stdout = Broken()", ", and the first'sa child's"),
        ("_thread.start_new_thread = no_thread", ""),
        ("threading._active_limbo_lock.acquire()", ", and the first'sa child's"),
    ],
)
def test_whatever_fails_at_the_end_the_process_ends_with_its_code_and_who_can_says_the_last(
    trouble: str, said: str
) -> None:
    program = textwrap.dedent(LAST_WORDS).replace("{trouble}", trouble)
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True, timeout=120)
    assert (done.returncode, done.stdout) == (70, said), done.stderr
