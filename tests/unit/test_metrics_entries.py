"""Entries of the metrics stream: few digits, one row of names, and read number by number."""

import json
import math
from typing import Any

import pytest

from heddle.broker.metrics import MOST_FIELDS, Columns, read_metric, shortened


def written(columns: Columns, values: dict[str, float], update: int = 1) -> dict[str, str]:
    row = columns.fields(update, values)
    return dict(zip(row[::2], row[1::2], strict=True))


def read_back(values: dict[Any, float]) -> dict[str, float]:
    metric, trouble = read_metric("17-0", written(Columns(), values))
    assert trouble == "" and metric.update == 1
    return dict(metric.values)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (0.1 + 0.2, 0.3),
        (-5.9678510297089815e-05, -5.967851e-05),
        (1946.9759060709061, 1946.976),
        (1796082567534.0, 1796082567534.0),
        (1700000000.125, 1700000000.0),
        (float(1 << 53), float(1 << 53)),
        (1.2345678e300, 1.2345678e300),
        (-0.0, 0.0),
    ],
)
def test_a_number_is_kept_to_seven_digits_and_to_the_whole_number_at_least(value: float, kept: float) -> None:
    assert read_back({"loss": value}) == {"loss": kept}
    assert shortened(value) == kept
    assert shortened(kept) == kept


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_could_not_be_measured(value: float) -> None:
    assert math.isnan(read_back({"loss": value})["loss"])


def test_whatever_a_learner_calls_its_numbers_they_are_read_back_by_these_names() -> None:
    names = ["update", "values", "", "a b", "ü", "line\nbreak", "\ud800", '"', "entry_id", "nan"]
    told = {name: float(place) for place, name in enumerate(names)}
    assert read_back(told) == told
    many = {f"n{number}": number / 7 for number in range(3 * MOST_FIELDS)}
    assert read_back(many) == {name: shortened(value) for name, value in many.items()}
    assert len(written(Columns(), many)) == MOST_FIELDS + 2
    assert read_back({}) == {}


def test_updates_that_measure_almost_the_same_share_one_row_of_names() -> None:
    columns, always = Columns(), {f"n{number}": 1.0 for number in range(20)}
    rows = [
        written(columns, always),
        written(columns, always | {"return": 3.0}),
        written(columns, {"eval_return": 5.0}),
        written(columns, {"return": 4.0} | always),
        written(columns, always),
    ]
    assert list(rows[1]) == list(rows[3]) == list(rows[4]) == [*rows[0], "return"]
    assert list(rows[2]) == ["update", "eval_return"]
    metric, _ = read_metric("17-0", rows[4])
    assert metric.values == always


def test_names_that_never_come_back_do_not_make_rows_longer_for_good() -> None:
    columns = Columns()
    for update in range(200):
        row = written(columns, {f"n{number}": 1.0 for number in range(10)} | {f"only in {update}": 1.0}, update)
    assert len(row) <= 16


@pytest.mark.parametrize(
    "fields",
    [
        {"update": "5", "return": "7", "loss": "x"},
        {"update": "5", "loss": "[]", "return": "7", "kl": ""},
        {"update": "5", "return": "7", "values": "{"},
        {"update": "5", "values": '{"return": 7.0, "loss": "x"}'},
        {"update": "5", "values": '{"loss": [], "return": 7}'},
        {"update": "5", "values": '{"loss": 1' + "0" * 400 + ', "return": 7}'},
    ],
)
def test_a_number_that_is_none_is_left_out_and_named_and_the_others_stay(fields: dict[str, str]) -> None:
    metric, trouble = read_metric("17-0", fields)
    assert (metric.update, metric.values) == (5, {"return": 7.0})
    assert trouble.startswith("values" if "{" in fields.get("values", "").replace('{"', "") else "loss")


def test_entries_of_older_versions_are_read() -> None:
    metric, trouble = read_metric("17-3", {"update": "5", "values": json.dumps({"return": 7.5, "kl": None})})
    assert (metric.time_ms, metric.values["return"], trouble) == (17, 7.5, "")
    assert math.isnan(metric.values["kl"])
