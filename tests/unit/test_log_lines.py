"""Log lines: for people as ever, or JSON with what each is about under names of its own."""

import json
import logging
import sys

import pytest

from heddle import subject
from heddle.cli.log_lines import FORMAT_ENV, fields_of, formatter
from heddle.errors import UsageError


def record(message: str, *args: object, **more: object) -> logging.LogRecord:
    return logging.LogRecord("heddle.worker", logging.WARNING, "x.py", 1, message, args, more.get("exc_info"))  # type: ignore[arg-type]


def test_a_line_in_json_binds_experiment_worker_shard_and_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT_ENV, "json")
    monkeypatch.setattr(subject, "_process", {})
    subject.this_process_is(worker="host-1w1-aa")
    line = formatter().format(record("claimed shard=%s epoch=%d\nseq=3", "pole-1a2b/7", 17))
    assert "\n" not in line
    told = json.loads(line)
    assert told.pop("time").endswith("+00:00")
    assert told == {
        "level": "warning",
        "logger": "heddle.worker",
        "message": "claimed shard=pole-1a2b/7 epoch=17\nseq=3",
        "worker": "host-1w1-aa",
        "experiment": "pole-1a2b",
        "shard": 7,
        "epoch": 17,
        "seq": 3,
    }


def test_what_is_said_while_a_shard_is_played_is_about_that_shard_and_its_own_words_go_in_front(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(FORMAT_ENV, "json")
    with subject.about({"experiment": "pole-1a2b", "shard": 7, "epoch": 17}):
        inside = json.loads(formatter().format(record("steps environments in threads")))
        other = json.loads(formatter().format(record("lost shard=8 epoch=18")))
    outside = json.loads(formatter().format(record("waits")))
    assert (inside["experiment"], inside["shard"], inside["epoch"]) == ("pole-1a2b", 7, 17)
    assert (other["experiment"], other["shard"], other["epoch"]) == ("pole-1a2b", 8, 18)
    assert not {"experiment", "shard", "epoch"} & outside.keys()


def test_of_an_error_the_traceback_is_in_the_same_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT_ENV, "json")
    try:
        raise KeyError("x")
    except KeyError:
        line = formatter().format(record("failed", exc_info=sys.exc_info()))
    assert json.loads(line)["traceback"].endswith("KeyError: 'x'")


def test_what_a_line_is_about_is_read_from_its_own_words() -> None:
    assert fields_of("freed shard=1 epoch=9 of worker=w-2, for it ended; subshard=4 shards=5") == {
        "shard": 1,
        "epoch": 9,
        "worker": "w-2",
    }
    assert fields_of("ended experiment=e-1 outcome=completed") == {"experiment": "e-1"}


def test_another_word_is_refused_and_none_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FORMAT_ENV, raising=False)
    assert formatter().format(record("hello")).endswith("WARNING heddle.worker hello")
    monkeypatch.setenv(FORMAT_ENV, "xml")
    with pytest.raises(UsageError, match="HEDDLE_LOG is 'xml'; say text or json"):
        formatter()
