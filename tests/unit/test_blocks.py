"""Memory that is used again: never while somebody looks at it, and no more of it is kept than allowed."""

import threading

import numpy as np
import pytest

from heddle.blocks import ALIGNED, Blocks


def address(view: memoryview) -> int:
    found: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return found


def test_memory_is_used_again_once_the_last_view_of_it_is_gone() -> None:
    blocks = Blocks()
    first = blocks.take(1000)
    place = address(first)
    part = np.frombuffer(first.toreadonly()[10:20], np.uint8)
    del first
    other = blocks.take(1000)
    assert address(other) != place, "somebody looks at a part of it"
    other[:] = b"x" * 1000
    assert not (part == ord("x")).all()
    del part
    assert address(blocks.take(900)) == place


@pytest.mark.parametrize("size", [1, 63, 64, 65, 4097])
def test_memory_is_aligned_and_as_large_as_was_asked(size: int) -> None:
    view = Blocks().take(size)
    assert (len(view), address(view) % ALIGNED, view.readonly) == (size, 0, False)


def test_memory_that_is_too_small_or_much_too_large_is_not_given() -> None:
    blocks = Blocks()
    place = address(blocks.take(1000))
    for size in (1001, 499):
        view = blocks.take(size)
        assert len(view) == size
        assert address(view) != place
        del view
    assert address(blocks.take(500)) in {place, address(blocks.take(499))}


def test_no_more_is_kept_than_allowed() -> None:
    blocks = Blocks(kept_free=2500)
    views = [blocks.take(1000) for _ in range(6)]
    places = [address(view) for view in views]
    while views:
        views.pop(0)
    assert len(blocks._free) == 2
    assert {address(view) for view in [blocks.take(1000), blocks.take(1000)]} <= set(places)


def test_threads_never_share_a_piece() -> None:
    blocks, wrong = Blocks(), list[int]()

    def use(number: int) -> None:
        for _ in range(300):
            view = blocks.take(2048)
            view[:] = bytes([number]) * 2048
            if bytes(view) != bytes([number]) * 2048:
                wrong.append(number)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
