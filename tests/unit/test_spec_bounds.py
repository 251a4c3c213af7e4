"""A spec that holds more than anything behind it can carry is a mistake like any other, named where it stands."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from heddle.errors import MOST_SHOWN, SpecError, UsageError
from heddle.spec import load_spec

SPEC = '[experiment]\nname = "a"\n{}\n[env]\nid = "CartPole-v1"\n{}\n[budget]\nenv_steps = 10\n'


def given(**kwargs: Any) -> dict[str, Any]:
    """A spec as a mapping."""
    return {
        "experiment": {"name": "a"},
        "env": {"id": "CartPole-v1", "kwargs": kwargs},
        "budget": {"env_steps": 10},
    }


def cyclic() -> dict[str, Any]:
    """A table that holds itself twice."""
    made: dict[str, Any] = {}
    made["a"] = made["b"] = made
    return made


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (SPEC.format("", "kwargs = {a = " + "[" * 5_000 + "]" * 5_000 + "}"), "in each other too deep"),
        (
            SPEC.format("", "kwargs." + ".".join("a" * 3_000) + " = 1"),
            "env.kwargs: holds tables or lists in each other",
        ),
        (SPEC.format("", "kwargs = {a = " + "{b = " * 200 + "1" + "}" * 201), "env.kwargs: holds tables or lists in"),
        ("[" + ".".join("a" * 3_000) + "]\n", "a.a: holds tables or lists in each other more than 64 deep"),
        (SPEC.format("seed = " + "9" * 5_000, ""), "5000 digits"),
        (SPEC.format("seed = 0x" + "F" * 5_000, ""), "experiment.seed: is a whole number of 20000 bits"),
        (given(a=[{}, {"b": 10**5_000}]), "env.kwargs.a[1].b: is a whole number of 16610 bits"),
        (given(a=cyclic()), "env.kwargs: holds tables or lists in each other more than 64 deep"),
        (given(a="\ud800"), "env.kwargs.a: holds half a character: no text"),
        (given(a={"\ud800": 1}), "env.kwargs.a: has a key of half a character"),
    ],
    ids=range(10),
)
def test_what_nothing_behind_it_can_carry_is_named(spec: str | Mapping[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_spec(spec)
    assert says in str(refused.value)
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("env.kwargs." + ".".join("a" * 3_000) + "=1", "--set  env.kwargs: holds tables or lists in each other"),
        ("experiment.seed=0x" + "F" * 5_000, "--set  experiment.seed: is a whole number of 20000 bits"),
        ("experiment.seed=" + "9" * 5_000, "--set  experiment.seed = '999"),
        ("env.kwargs=" + "[" * 5_000, "--set  env.kwargs = '[[["),
    ],
    ids=range(4),
)
def test_an_override_is_bounded_the_same_way(override: str, says: str) -> None:
    with pytest.raises(SpecError) as refused:
        load_spec(SPEC.format("", ""), overrides=[override])
    assert says in str(refused.value)
    assert len(str(refused.value)) < 3 * MOST_SHOWN


def test_a_long_value_is_cut_in_what_is_said_of_it() -> None:
    with pytest.raises(SpecError) as refused:
        load_spec(SPEC.format("", "").replace('"a"', '"' + "x" * 100_000 + '"'))
    assert "... (100,002 characters): must be 1 to 63 of" in str(refused.value)


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_bytes(b"\xef\xbb\xbf" + SPEC.format("", "").replace("\n", "\r\n").encode())
    assert load_spec(tmp_path / "exp.toml").spec.experiment.name == "a"


@pytest.mark.parametrize("spec", [None, 5, ["a"], b"[experiment]"])
def test_what_no_spec_can_be_is_refused_by_its_type(spec: Any) -> None:
    with pytest.raises(UsageError, match=f"not {type(spec).__name__}"):
        load_spec(spec)
