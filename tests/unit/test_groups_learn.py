"""Several agents learn together what none of them could alone, and against their past what they could not before.

The bounds are out of reach when one group does not learn, learns from another's rows, or acts with another's weights.
"""

from pathlib import Path

import numpy as np

from heddle.spec import ExperimentSpec, load_spec
from tests.unit.test_groups import Table

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str, *overrides: str) -> ExperimentSpec:
    given = (f"env.id=examples.{name}_env:make", *overrides)
    return load_spec(EXAMPLES / f"{name}.toml", overrides=given).spec


def learned(spec: ExperimentSpec, updates: int, agent: int) -> float:
    """Mean return of an agent's episodes over the last five updates."""
    table = Table(spec, steps=spec.rollout.steps)
    learner, returns = table.learner(), list[float]()
    for number in range(updates):
        played = table.player.play(number)
        arrays = played.arrays
        if number >= updates - 5:
            returns += arrays["episode_return"][
                (arrays["episode_length"] > 0) & (arrays["agent"] == agent)[:, None]
            ].tolist()
        learner.update(table.assembler.assemble([played], [0]), number / updates)
        table.policy.set_weights(learner.get_weights())
    assert len(returns) > 50
    return float(np.mean(returns))


def test_a_speaker_and_a_listener_come_to_understand_each_other() -> None:
    assert learned(example("signals", "env.envs_per_shard=16"), 25, agent=1) > 12.0  # of 16; 8 when one does not learn


def test_a_runner_beats_the_version_that_it_began_as() -> None:
    rival = '{name="rival", agents=["right"], past_of="runner", pick="fixed"}'
    fixed = f'policy.groups=[{{name="runner", agents=["left"]}}, {rival}]'
    spec = example("race", "env.envs_per_shard=32", fixed)
    assert learned(spec, 25, agent=0) > 0.7  # 0 when it does not learn, or its rival does, too
