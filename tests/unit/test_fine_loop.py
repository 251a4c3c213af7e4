"""The event loop of environments of coroutines: timers as they were asked for, and all else as in any loop."""

import asyncio
import select
import selectors
import socket
import threading
from typing import Any

import pytest

from heddle.producers import fine_loop

on_epoll = pytest.mark.skipif(
    selectors.DefaultSelector is not getattr(selectors, "EpollSelector", None), reason="no epoll on this system"
)


@on_epoll
def test_a_wait_is_never_longer_than_the_next_timer_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[float]()

    def recorded(*args: Any) -> Any:
        waits.append(args[3])
        return select_as_it_is(*args)

    select_as_it_is = select.select
    monkeypatch.setattr(select, "select", recorded)
    with asyncio.Runner(loop_factory=fine_loop.new_loop) as runner:
        for _ in range(20):
            runner.run(asyncio.sleep(0.0004))
    assert waits
    assert max(waits) <= 0.0004


def test_other_threads_sockets_and_timers_wake_it() -> None:
    async def all_of_it() -> tuple[bytes, str, str]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        loop, called = asyncio.get_running_loop(), asyncio.Event()
        threading.Timer(0.01, lambda: loop.call_soon_threadsafe(called.set)).start()
        threading.Timer(0.02, lambda: theirs.send(b"here")).start()
        await asyncio.wait_for(called.wait(), 30)  # with a timer far away
        got = await asyncio.wait_for(loop.sock_recv(ours, 16), 30)
        late = await asyncio.sleep(0.01, "late")
        ours.close()
        theirs.close()
        return got, late, await asyncio.sleep(0, "at once")

    with asyncio.Runner(loop_factory=fine_loop.new_loop) as runner:
        assert runner.run(all_of_it()) == (b"here", "late", "at once")


@on_epoll
def test_a_descriptor_that_select_cannot_look_at_is_left_to_epoll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fine_loop, "MOST_DESCRIPTORS", 0)
    monkeypatch.setattr(select, "select", None)
    with asyncio.Runner(loop_factory=fine_loop.new_loop) as runner:
        assert runner.run(asyncio.sleep(0.002, "slept")) == "slept"
