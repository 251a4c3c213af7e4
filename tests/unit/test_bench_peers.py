"""The comparison with other libraries pairs what was played in the same round."""

import pytest

from benchmarks.measure import Played
from benchmarks.peers.__main__ import compared
from benchmarks.peers.installing import HOME, PEERS, python_of


def test_ratios_are_taken_round_by_round() -> None:
    ours, theirs = iter([100, 200, 400]), iter([50, 50, 100])

    def heddle() -> Played:
        return Played(next(ours), 1.0, 0.5)

    def other() -> Played:
        return Played(next(theirs), 1.0, 0.5)

    rows = {row.what: row.value for row in compared({"w1": {"heddle": heddle, "other": other}}, rounds=2)}
    assert rows["steps/s, heddle / other"].median == pytest.approx(4.0)  # the first of each only warms up
    assert rows["heddle: steps/s"].rounds == 2


def test_every_peer_has_an_environment_of_its_own_and_a_module() -> None:
    homes = {python_of(HOME / one.name) for one in PEERS}
    assert len(homes) == len(PEERS)
    assert all((HOME.parent / "benchmarks" / "peers" / f"{one.module}.py").exists() for one in PEERS)
