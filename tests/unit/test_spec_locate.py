"""The key locator: positions in TOML text, by line and column from 1."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.spec.locate import KeyPath, locate
from heddle.spec.write import to_toml

TEXT = '''# a comment with [brackets] = "quotes"
top = 1
[env]            # another
id = "x # y"
kwargs = { a = 1, "b c" = { d = [1, 2] }, e.f = 2 }
wrappers = [
  "one",         # first
  { id = "two", kwargs = {} },
]
long = """
[not.a.table]
key = 3 \\""" still
"""
when = 1979-05-27 07:32:00
[trainer.lr]
start = 1
'single' . quoted = 'it''s'
[[rows]]
a = 1
[[rows]]
a = 2
[rows.sub]
b = 3
'''.replace("'it''s'", "'its'")


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        (("top",), (2, 1), (2, 7)),
        (("env",), (3, 2), (3, 2)),
        (("env", "id"), (4, 1), (4, 6)),
        (("env", "kwargs", "a"), (5, 12), (5, 16)),
        (("env", "kwargs", "b c", "d", 1), (5, 37), (5, 37)),
        (("env", "kwargs", "e"), (5, 43), (5, 49)),
        (("env", "kwargs", "e", "f"), (5, 43), (5, 49)),
        (("env", "wrappers", 0), (7, 3), (7, 3)),
        (("env", "wrappers", 1, "id"), (8, 5), (8, 10)),
        (("env", "long"), (10, 1), (10, 8)),
        (("env", "when"), (14, 1), (14, 8)),
        (("trainer",), (15, 2), (15, 2)),
        (("trainer", "lr"), (15, 2), (15, 2)),
        (("trainer", "lr", "start"), (16, 1), (16, 9)),
        (("trainer", "lr", "single", "quoted"), (17, 1), (17, 21)),
        (("rows", 0, "a"), (19, 1), (19, 5)),
        (("rows", 1, "a"), (21, 1), (21, 5)),
        (("rows", 1, "sub", "b"), (23, 1), (23, 5)),
    ],
)
def test_every_key_and_value_is_found_where_it_stands(
    path: KeyPath, key: tuple[int, int], value: tuple[int, int]
) -> None:
    found = locate(TEXT)[path]
    assert (found.line, found.column) == key
    assert (found.value_line, found.value_column) == value


def test_what_stands_in_a_string_is_no_key() -> None:
    assert ("not",) not in locate(TEXT)
    assert set(paths(tomllib.loads(TEXT))) <= set(locate(TEXT))


def paths(value: Any, path: KeyPath = ()) -> list[KeyPath]:
    """The path of every table, key and element in what TOML was read as."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [deeper for key, item in items for deeper in [(*path, key), *paths(item, (*path, key))]]


VALUES = st.recursive(
    st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | st.text(st.characters(codec="utf-8"))
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), st.dictionaries(st.text(max_size=5), VALUES, max_size=3), max_size=3))
def test_whatever_is_written_as_toml_reads_back_and_every_key_of_it_is_found(raw: dict[str, Any]) -> None:
    text = to_toml(raw)
    assert tomllib.loads(text) == raw
    assert set(paths(raw)) <= set(locate(text))
