"""What a trainer that resumes takes back, and what comes back: the broker's count beside the checkpoint's."""

from dataclasses import fields, replace
from typing import Any

import pytest

from heddle.broker.experience_types import Amount, Flow
from heddle.consumers.progress import Progress
from heddle.consumers.resuming import taken_back

AMOUNTS = {field.name for field in fields(Flow) if "Amount" in str(field.type)}
NOTHING: Any = {field.name: Amount(0, 0) if field.name in AMOUNTS else 0 for field in fields(Flow)}


@pytest.mark.parametrize(
    ("trained", "held", "rolled_back", "by", "written_by", "expected"),
    [
        (6, 4, 0, 0, 10, (2, 20)),  # acked, and in no checkpoint
        (4, 4, 0, 0, 10, (0, 0)),
        (2, 0, 0, 0, 0, (2, 20)),  # there is no checkpoint at all
        (0, 2, 2, 20, 10, (-2, -20)),  # its heir had rolled back what the frozen one saved then
        (0, 5, 2, 20, 10, (-2, -20)),  # no more comes back than was rolled back
        (0, 2, 2, 20, 20, (0, 0)),  # the broker lost its tail: those entries are acked again
        (0, 2, 0, 0, 10, (0, 0)),
    ],
)
def test_what_goes_from_trained_to_rolled_back_and_what_comes_back(
    trained: int, held: int, rolled_back: int, by: int, written_by: int, expected: tuple[int, int]
) -> None:
    flow = replace(
        Flow(**NOTHING),
        trained=Amount(trained, 10 * trained),
        rolled_back=Amount(rolled_back, 10 * rolled_back),
        rolled_back_by=by,
    )
    progress = Progress()
    progress.flow_batches, progress.flow_steps = held, 10 * held
    assert taken_back(flow, progress, written_by=written_by) == expected
