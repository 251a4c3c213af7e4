"""The intake gives out what was read, by what it is."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest

from heddle.broker.experience_types import Pointer
from heddle.clock import SystemClock
from heddle.consumers.intake import Intake, is_high_water
from heddle.consumers.ledger import Ledger
from heddle.consumers.quorum import Rules
from heddle.consumers.reader import Loaded, Reader


def loaded(nonce: str, *, version: int = 5) -> Loaded:
    """A batch under the one entry id that all of them here have."""
    pointer = Pointer(
        entry_id="7-1", shard=0, epoch=3, nonce=nonce, seq=6, kind="train", version_min=version, version_max=version,
        segments=1, steps=2, bytes=1, crc32=0, blob_key=nonce, given=version, waited_ms=0, location="redis",
    )  # fmt: skip
    segments: Any = nonce
    return Loaded(pointer, segments)


def take(items: list[Loaded], steps: int) -> tuple[list[Any], Any]:
    """What an update is made of, and the ledger."""
    reader, ledger = create_autospec(Reader, instance=True), create_autospec(Ledger, instance=True)
    reader.poll.return_value, ledger.excused = items, {}
    flow: Any = SimpleNamespace
    rules = Rules(sync=False, max_lag=2, batch_steps=steps, timeout_s=1.0, min_steps=1, usual_steps=2)
    intake = Intake(reader, ledger, rules, clock=SystemClock(), flow=flow)
    intake.poll(block_ms=0)
    ctl: Any = SimpleNamespace(active=1)
    taken = intake.take(ctl, version=5, same=frozenset())
    return [item.segments for item in taken.batches], ledger


def test_batches_to_which_a_broker_gave_one_entry_id_are_trained_on_once_each() -> None:
    # A broker that lost its tail, and its clock with it, gives out an id again while what had it first is in hand.
    assert take([loaded("first"), loaded("second")], 4)[0] == ["first", "second"]
    assert take([loaded("first"), loaded("second")], 2)[0] == ["first"]


@pytest.mark.parametrize(("parked", "is_high"), [(0, False), (94, False), (95, True)])
def test_parked_bytes_count_towards_high_water(parked: int, is_high: bool) -> None:
    flow: Any = SimpleNamespace(entries=1, bytes=0, parked=parked, waiting=0)
    ctl: Any = SimpleNamespace(max_entries=100, max_bytes=100)
    assert is_high_water(flow, ctl) == is_high


def test_a_stale_batch_takes_no_other_one_of_its_entry_id_along() -> None:
    given, ledger = take([loaded("new"), loaded("old", version=1)], 2)
    assert given == ["new"]
    assert [call.args[0].nonce for call in ledger.set_aside.call_args_list] == ["old"]
