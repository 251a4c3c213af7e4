"""What a leader tells of a fleet that died at once."""

from types import SimpleNamespace
from typing import Any

import pytest

from heddle.broker.lines import Line
from heddle.broker.types import Reaped
from heddle.coord.telling import FEW, Teller


class Events:
    """Keeps lines, call by call."""

    def __init__(self) -> None:
        self.calls: list[list[Line]] = []

    def log(self, experiment: str | None, role: str, worker: str | None, level: str, message: str) -> None:
        self.log_all([Line(experiment, role, worker or "", level, message)])

    def log_all(self, lines: list[Line]) -> bool:
        self.calls.append(list(lines))
        return True


@pytest.mark.parametrize(("shards", "calls"), [(1, 1), (FEW, FEW), (FEW + 1, 1), (500, 1)])
def test_every_reaped_shard_has_its_line_and_many_go_in_one_round_trip(shards: int, calls: int) -> None:
    events: Any = Events()
    teller = Teller(SimpleNamespace(events=events), "me")  # type: ignore[arg-type]
    gone = [Reaped(shard, f"w {shard}", 3, "queued", "", "exp", 0, False) for shard in range(shards)]
    teller.reaped("exp", gone)
    lines = [line for call in events.calls for line in call]
    assert len(events.calls) == calls
    expected = [f"reaped shard={n} worker='w {n}' epoch=3 state=queued" for n in range(shards)]
    assert [line.message for line in lines] == expected
    assert {(line.experiment, line.role, line.worker, line.level) for line in lines} == {
        ("exp", "coordinator", "me", "warning")
    }
