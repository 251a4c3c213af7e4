"""A train batch is the rows of its batches, in order, with nothing changed."""

import numpy as np
import pytest
import torch

from heddle.batch import decode_stacks
from heddle.consumers.assemble import Assembler
from heddle.layout import Layout, Segments, make_layout
from heddle.policies.base import OutputSpec
from heddle.spaces import Box, Discrete
from tests.unit import test_stacks
from tests.unit.policy_zoo import MASKED

SCALAR = OutputSpec("float32")
CPU = torch.device("cpu")


def layout() -> Layout:
    outputs, state = {"log_prob": SCALAR, "value": SCALAR}, {"hidden": OutputSpec("float32", (3,))}
    return make_layout(MASKED, Discrete(3), steps=4, outputs=outputs, state=state, info_keys=["lives"])


def filled(plan: Layout, rows: int, seed: int) -> Segments:
    """Segments full of recognisable numbers, row 0 short, the last row truncated at step 1."""
    rng = np.random.default_rng(seed)
    segments = Segments.empty(plan, rows)
    for column in plan.columns:
        array = segments.arrays[column.name]
        array[...] = rng.integers(0, 2, array.shape)
    segments.arrays["reward"][...] = rng.standard_normal((rows, 4))
    segments.arrays["obs.position"][...] = rng.standard_normal((rows, 5, 2))
    segments.arrays["length"][:] = 4
    segments.arrays["length"][0] = 2
    segments.arrays["obs.goal"][...] = rng.integers(2, 6, (rows, 5))
    segments.arrays["obs.goal"][0, 3:] = 2  # nothing was seen there
    segments.arrays["env"][:], segments.arrays["agent"][:] = np.arange(rows), 0
    segments.arrays["version"][:] = seed
    final = {"obs.position": np.full(2, seed, float), "obs.goal": np.array(3), "obs.action_mask": np.ones(3, np.int8)}
    segments.set_finals([(rows - 1, 1, final)])
    return segments


def test_rows_stand_in_order_and_final_observations_follow_their_rows() -> None:
    # Given batches of 2 and 3 rows, of shards 7 and 4
    plan = layout()
    batches = [filled(plan, 2, seed=1), filled(plan, 3, seed=2)]
    # When assembled
    train = Assembler(plan, device=CPU).assemble(batches, [7, 4], [50, 60])

    # Then each column is the two put together
    def joined(name: str) -> np.ndarray:
        return np.concatenate([batch.arrays[name] for batch in batches])

    np.testing.assert_array_equal(train.reward.numpy(), joined("reward"))
    np.testing.assert_array_equal(train.terminated.numpy(), joined("terminated"))
    np.testing.assert_array_equal(train.truncated.numpy(), joined("truncated"))
    np.testing.assert_array_equal(train.actions["action"].numpy(), joined("action"))
    np.testing.assert_array_equal(train.outputs["log_prob"].numpy(), joined("out.log_prob"))
    np.testing.assert_array_equal(train.info["lives"].numpy(), joined("info.lives"))
    np.testing.assert_array_equal(train.state["hidden"].numpy(), joined("state.hidden"))
    assert sorted(train.observations) == ["obs.action_mask", "obs.goal", "obs.position"]
    for name, tensor in train.observations.items():
        assert tensor.shape[:2] == (5, 5)
        np.testing.assert_array_equal(tensor.numpy(), joined(name))
    # and so are the facts about rows
    assert train.shard.tolist() == [7, 7, 4, 4, 4]
    assert train.epoch.tolist() == [50, 50, 60, 60, 60]
    assert train.env.tolist() == [0, 1, 0, 1, 2]
    assert train.version.tolist() == [1, 1, 2, 2, 2]
    assert train.valid.sum(1).tolist() == [2, 4, 2, 4, 4]
    assert train.num_steps == 16
    assert train.final_index.tolist() == [[1, 1], [4, 1]]
    assert train.final_observations["obs.position"].tolist() == [[1.0, 1.0], [2.0, 2.0]]
    assert train.final_observations["obs.goal"].tolist() == [3, 3]


def test_buffers_are_used_again_and_grow_when_they_must() -> None:
    plan = layout()
    assembler = Assembler(plan, device=CPU)
    first = assembler.assemble([filled(plan, 3, seed=1)], [0])
    place = first.reward.data_ptr()
    second = assembler.assemble([filled(plan, 2, seed=2)], [0])
    assert second.reward.data_ptr() == place
    assert second.reward.shape == (2, 4)
    third = assembler.assemble([filled(plan, 50, seed=3)], [0])
    np.testing.assert_array_equal(third.reward.numpy(), filled(plan, 50, seed=3).arrays["reward"])


def test_batches_without_final_observations_give_none() -> None:
    plan = layout()
    batch = filled(plan, 2, seed=1)
    batch.set_finals([])
    train = Assembler(plan, device=CPU).assemble([batch], [0])
    assert train.final_index.shape == (0, 2)
    assert train.final_observations["obs.position"].shape == (0, 2)


def test_read_only_views_can_be_assembled() -> None:
    plan = layout()
    batch = filled(plan, 2, seed=1)
    for array in batch.arrays.values():
        array.flags.writeable = False
    train = Assembler(plan, device=CPU).assemble([batch], [0])
    train.reward.zero_()
    assert batch.arrays["reward"].any()


def test_types_that_torch_cannot_compute_with_are_widened() -> None:
    plan = make_layout(Box((2,), "uint32", 0, 2**32 - 1), Discrete(2), steps=1, outputs={})
    batch = Segments.empty(plan, 1)
    batch.arrays["obs"][...] = 2**32 - 1
    batch.arrays["length"][:] = 1
    train = Assembler(plan, device=CPU).assemble([batch], [0])
    assert train.observations["obs"].tolist() == [[[2**32 - 1] * 2] * 2]


def test_beyond_a_segments_end_a_discrete_observation_is_one_of_its_space() -> None:
    # Given a Discrete leaf that starts at 2, and a segment of 2 steps of 4, zeros behind
    plan = layout()
    segments = filled(plan, 2, seed=1)
    segments.arrays["obs.goal"][...] = 5
    segments.arrays["obs.goal"][0, 3:] = 0
    # When assembled
    train = Assembler(plan, device=CPU).assemble([segments], [0])
    # Then what was played is as it was, and the rest can be looked up
    assert train.observations["obs.goal"].tolist() == [[5, 5, 5, 2, 2], [5, 5, 5, 5, 5]]


def test_nothing_to_assemble_is_an_error() -> None:
    with pytest.raises(ValueError, match="no segments"):
        Assembler(layout(), device=CPU).assemble([], [])


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_stacks_are_put_together_in_the_train_batch_as_whole_observations_are_copied_there(dtype: str) -> None:
    layout = test_stacks.layout_of(4, dtype=dtype, steps=10)
    batches = [test_stacks.played(layout, 2, seed=seed, ending=0.2 * seed, full=False) for seed in range(4)]
    stacked = [decode_stacks(layout, test_stacks.sent(one), crc32=None, size_cap=1 << 24) for one in batches]
    assert [bool(one.stacks) for one in stacked].count(True) >= 3
    assembler, twin = (Assembler(layout, device=CPU) for _ in range(2))
    for _ in range(2):  # buffers are used again
        found, expected = assembler.assemble(stacked, [0, 1, 2, 3]), twin.assemble(batches, [0, 1, 2, 3])
        assert torch.equal(found.observations["obs"], expected.observations["obs"])
        assert torch.equal(found.final_observations["obs"], expected.final_observations["obs"])
        assert torch.equal(found.final_index, expected.final_index)
        stacked, batches = stacked[::-1], batches[::-1]
