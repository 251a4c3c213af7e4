"""Weights travel as bytes that are checked before they are believed."""

import json

import numpy as np
import pytest
from safetensors.numpy import save

from heddle.policies.base import Arrays
from heddle.policies.weights import HEADER_CAP_BYTES, WeightsError, check, pack, sha256, split_norm, unpack

WEIGHTS: Arrays = {
    "policy.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "policy.0.bias": np.zeros(2, np.float32),
    "norm.obs.mean": np.ones(3),
    "norm.obs.count": np.array(7.0),
}


def test_weights_come_back_as_they_went() -> None:
    weights, info = unpack(pack(WEIGHTS, version=41, update=40))
    assert (info.version, info.update) == (41, 40)
    assert weights.keys() == WEIGHTS.keys()
    for name, array in WEIGHTS.items():
        np.testing.assert_array_equal(weights[name], array)
        assert weights[name].dtype == array.dtype


def test_a_view_that_is_not_contiguous_is_packed_right() -> None:
    turned = np.arange(6, dtype=np.float32).reshape(2, 3).T
    weights, _ = unpack(pack({"w": turned}, version=1, update=1))
    np.testing.assert_array_equal(weights["w"], turned)


def test_no_weights_at_all_can_travel() -> None:
    assert unpack(pack({}, version=1, update=0))[0] == {}


def test_equal_weights_have_equal_digests_and_others_do_not() -> None:
    assert sha256(pack(WEIGHTS, version=1, update=1)) == sha256(pack(dict(WEIGHTS), version=1, update=1))
    assert sha256(pack(WEIGHTS, version=1, update=1)) != sha256(pack(WEIGHTS, version=2, update=1))


def test_a_header_above_the_cap_is_not_parsed() -> None:
    data = (HEADER_CAP_BYTES + 1).to_bytes(8, "little") + b" " * (HEADER_CAP_BYTES + 1)
    with pytest.raises(WeightsError, match="header of 1048577 bytes"):
        unpack(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        b"\xff" * 64,
        (4).to_bytes(8, "little") + b"nope",
        (2).to_bytes(8, "little") + b"[]",
        b"\x80\x04pickle...",
        (10_000).to_bytes(8, "little") + b"[" * 10_000,
    ],
)
def test_what_is_not_safetensors_is_refused(data: bytes) -> None:
    with pytest.raises(WeightsError):
        unpack(data)


def test_every_truncation_is_refused() -> None:
    data = pack(WEIGHTS, version=1, update=1)
    for length in range(len(data)):
        with pytest.raises(WeightsError):
            unpack(data[:length])


def test_offsets_that_do_not_add_up_are_refused() -> None:
    header = {
        "w": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4]},
        "__metadata__": {"heddle": '{"format": "heddle-weights/1", "version": 1, "update": 1}'},
    }
    text = json.dumps(header).encode()
    with pytest.raises(WeightsError, match="not safetensors"):
        unpack(len(text).to_bytes(8, "little") + text + b"\0" * 4)


def test_safetensors_of_others_are_refused() -> None:
    with pytest.raises(WeightsError, match="not written by Heddle"):
        unpack(save({"w": np.zeros(1)}))
    with pytest.raises(WeightsError, match="no format, version and update"):
        unpack(save({"w": np.zeros(1)}, {"format": "other"}))
    with pytest.raises(WeightsError, match="format 'other'"):
        unpack(save({"w": np.zeros(1)}, {"heddle": '{"format": "other"}'}))
    with pytest.raises(WeightsError, match="no format, version and update"):
        unpack(save({"w": np.zeros(1)}, {"heddle": '{"format": "heddle-weights/1", "version": "many"}'}))


def test_check_names_what_differs() -> None:
    check(WEIGHTS, dict(WEIGHTS))
    with pytest.raises(WeightsError, match=r"policy\.0\.bias is float32\[3\], expected float32\[2\]"):
        check(WEIGHTS | {"policy.0.bias": np.zeros(3, np.float32)}, WEIGHTS)


def test_statistics_are_told_from_weights_by_their_prefix() -> None:
    proper, norm = split_norm(WEIGHTS)
    assert sorted(proper) == ["policy.0.bias", "policy.0.weight"]
    assert sorted(norm) == ["norm.obs.count", "norm.obs.mean"]
