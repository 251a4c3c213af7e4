"""The benchmark of the native vector environment measures both sides by the same count."""

from benchmarks.native import SECTION, rows


def test_player_and_bare_loop_are_measured_beside_each_other() -> None:
    found = {row.what: row for row in rows(rounds=1, seconds=0.1)}
    assert {row.section for row in found.values()} == {SECTION}
    ratio = found["steps/s, player / bare loop"].value.median
    assert 0.05 < ratio < 20
    assert found["player: CPU a step"].value.median > 0
