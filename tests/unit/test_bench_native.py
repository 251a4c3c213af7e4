"""The benchmark of the native vector environment measures both sides by the same count."""

from typing import Any

import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from benchmarks.native import SECTION, Bare, Hosted, rows
from benchmarks.workload import LARGE, scene, w1_source
from heddle.spec import load_spec


def test_player_and_bare_loop_are_measured_beside_each_other() -> None:
    found = {row.what: row for row in rows(rounds=1, seconds=0.1)}
    assert {row.section for row in found.values()} == {SECTION}
    player, bare = (found[f"{name}: steps/s"].value.median for name in ("player", "bare loop"))
    assert found["steps/s, player / bare loop"].value.median == pytest.approx(player / bare)
    assert min(player, bare) > 0
    assert found["player: CPU a step"].value.median > 0


@pytest.mark.parametrize("kind", [Hosted, Bare])
def test_a_step_is_one_of_an_environment_and_a_call_that_only_resets_it_is_none(
    kind: type[Hosted | Bare], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a count of what the vector environment was really stepped
    made, over, step = 0, dict[int, Any](), CartPoleVectorEnv.step

    def counted(self: CartPoleVectorEnv, action: Any) -> Any:
        nonlocal made
        made += self.num_envs - int(over[id(self)].sum() if id(self) in over else 0)
        answer = step(self, action)
        over[id(self)] = answer[2] | answer[3]
        return answer

    monkeypatch.setattr(CartPoleVectorEnv, "step", counted)
    side = kind(scene(load_spec(w1_source(LARGE), overrides=["env.vector=true"]).spec))
    # Then either side counts just that
    try:
        assert side.play(0.05).steps == made > 0
    finally:
        side.close()
