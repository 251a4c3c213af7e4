"""The instruments of chaos can fail: each kind of broken promise, planted by hand, is found."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import save_file

from tests.chaos.aof import Tap, TornFile, parse
from tests.chaos.checker import Checker, books
from tests.chaos.history import History
from tests.chaos.ledger_learner import Intervals
from tests.chaos.manifest import Archive, Manifest, read_manifest
from tests.chaos.rows import Row, rows_of

NONCE = 77
STEPS = 4


def observations(first: int, *, env: int = 0, nonce: int = NONCE, length: int = STEPS) -> Any:
    """[1, T+1, 7], as the ledger environment gives them."""
    obs = np.zeros((1, length + 1, 7), np.float32)
    obs[0, :, 0], obs[0, :, 2] = env, nonce
    obs[0, :, 5] = obs[0, :, 6] = first + np.arange(length + 1)
    return obs


def blob(first: int) -> bytes:
    """A batch of one segment."""
    obs = observations(first)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(obs)
    batch = pa.RecordBatch.from_arrays([column, pa.array([STEPS], pa.int32())], names=["obs", "length"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


class Log:
    """Writes what a broker's log would say of experiment e, shard 0."""

    def __init__(self) -> None:
        self.history = History("e")
        self._id = 0

    def say(self, *words: object) -> "Log":
        key = f"heddle:{{e.0}}:{words[1]}"
        command = [str(words[0]).encode(), key.encode()]
        command += [word if isinstance(word, bytes) else str(word).encode() for word in words[2:]]
        self.history.take([[command]])
        return self

    def claim(self, epoch: int, worker: str = "w") -> "Log":
        return self.say("HSET", "shard:0", "state", "leased", "worker", worker, "epoch", epoch, "nonce", f"n{epoch}")

    def free(self) -> "Log":
        return self.say("HSET", "shard:0", "state", "queued")

    def accept(self, epoch: int, seq: int, *, first: int | None = None, steps: int = STEPS) -> "Log":
        self._id += 1
        self.say("SET", f"blob:{seq}", blob((seq - 1) * STEPS if first is None else first))
        fields = {"shard": 0, "epoch": epoch, "nonce": f"n{epoch}", "seq": seq, "kind": "train", "steps": steps}
        words = [word for pair in fields.items() for word in pair]
        return self.say("XADD", "experience", f"{self._id}-0", *words, "blob", f"heddle:{{e.0}}:blob:{seq}")

    def leave(self, number: int) -> "Log":
        return self.say("XDEL", "experience", f"{number}-0")


def manifest(seq: int, runs: list[tuple[int, int]], *, steps: int | None = None, repeats: int = 0) -> Manifest:
    """A checkpoint whose mark stands at batch `seq` of epoch 1 and whose model holds `runs`."""
    return Manifest(
        path=Path("c"),
        seat=1,
        update=seq,
        steps=sum(last - first + 1 for first, last in runs) if steps is None else steps,
        marks={0: (1, "n1", seq, f"{seq}-0")},
        runs={(0, NONCE): runs} if runs else {},
        lives={},
        repeats=repeats,
        problems=(),
    )


def three() -> Log:
    """Three batches, steps 0 to 11."""
    return Log().claim(1).accept(1, 1).accept(1, 2).accept(1, 3)


def found(log: Log, *manifests: Manifest, may_forget: bool = False) -> str:
    """What a checker says of them."""
    checker = Checker(log.history, envs_per_shard=2, may_forget=may_forget)
    for one in manifests:
        checker.check(one)
    return " | ".join(checker.violations)


def test_a_true_history_and_true_checkpoints_give_no_violation() -> None:
    log = three()
    assert found(log, manifest(1, [(0, 3)]), manifest(3, [(0, 11)]), manifest(2, [(0, 7)])) == ""
    assert log.history.violations == []


def test_a_write_of_a_former_owner_is_found() -> None:
    log = Log().claim(1).accept(1, 1).free().claim(2).accept(1, 2)
    assert "zombie write accepted" in log.history.violations[0]
    reaped = Log().claim(1).accept(1, 1).free().accept(1, 2)
    assert "nobody holds it" in reaped.history.violations[0]


def test_a_gap_a_repeat_and_a_falling_epoch_are_found() -> None:
    assert "after seq 1" in Log().claim(1).accept(1, 1).accept(1, 3).history.violations[0]
    assert "after seq 1" in Log().claim(1).accept(1, 1).accept(1, 1).history.violations[0]
    assert "was claimed under epoch 1 after 2" in Log().claim(2).free().claim(1).history.violations[0]
    assert "while w held it" in Log().claim(1).claim(2, "other").history.violations[0]


def test_a_batch_without_bytes_or_with_other_steps_is_found() -> None:
    log = Log().claim(1).accept(1, 1)
    assert log.history.violations == []
    assert "says 5 steps" in Log().claim(1).accept(1, 1, steps=5).history.violations[0]
    fields = ["shard", 0, "epoch", 1, "nonce", "n1", "seq", 2, "kind", "train", "steps", 4, "blob", "nowhere"]
    assert "without its blob" in log.say("XADD", "experience", "9-0", *fields).history.violations[0]


def test_a_life_that_does_not_go_on_is_found() -> None:
    log = Log()
    log.history = History("e", continuous=True)
    assert log.claim(1).accept(1, 1).accept(1, 2).history.violations == []
    log.accept(1, 3, first=4)
    assert "begins at life 4 of environment 0, expected 8" in log.history.violations[0]


def test_a_policy_of_a_lost_seat_is_found() -> None:
    log = Log().say("HSET", "ctl", "seat_epoch", 5).say("HSET", "policy:1", "seat", 5)
    assert log.history.violations == []
    log.say("HSET", "ctl", "seat_epoch", 6).say("HSET", "policy:2", "seat", 5)
    assert "published under seat 5, 6 held it" in log.history.violations[0]
    log.say("HSET", "policy:1", "seat", 6)
    assert "policy 1 was published after 2" in log.history.violations[1]


def test_steps_trained_twice_are_found() -> None:
    assert "trained twice" in found(three(), manifest(3, [(0, 11)], repeats=4))
    seen = Intervals()
    assert seen.add(Row(0, NONCE, 0, 4, 0))
    assert seen.add(Row(0, NONCE, 4, 4, 4))
    assert not seen.add(Row(0, NONCE, 7, 4, 7))
    assert seen.repeats == 4
    again = Intervals.of(seen.table())
    assert again.runs == seen.runs == {(0, NONCE): [[0, 7, 0]]}


def test_steps_beyond_the_mark_are_found() -> None:
    assert "4 steps beyond its mark" in found(three(), manifest(2, [(0, 11)]))
    assert found(three(), manifest(2, [(0, 11)]), may_forget=True) == ""


def test_a_missing_batch_needs_a_counted_reason() -> None:
    log = three().leave(1).leave(2).leave(3)
    checker = Checker(log.history, envs_per_shard=2)
    checker.check(manifest(3, [(0, 3), (8, 11)]))
    assert checker.violations == []
    checker.settle({"dead_steps": 4})
    assert checker.violations == []
    checker.settle({"dead_steps": 0})
    assert "4 accepted steps are in no model" in checker.violations[0]


def test_half_a_batch_in_the_model_is_found() -> None:
    log = Log().claim(1).accept(1, 1)
    log.history.batches[0].rows.append(Row(1, 5, 0, 4, 0))
    assert "only a part of shard 0 seq 1" in found(log, manifest(1, [(0, 3)]))


def test_a_checkpoint_that_lost_what_an_earlier_one_had_is_found() -> None:
    assert "lost steps" in found(three(), manifest(2, [(0, 7)]), manifest(3, [(4, 11)]))


def test_a_counter_that_is_not_the_model_s_is_found() -> None:
    assert "its counter says 9 steps, its model holds 12" in found(three(), manifest(3, [(0, 11)], steps=9))


def test_an_ack_before_the_checkpoint_is_found() -> None:
    log = three().leave(1).leave(2)
    checker = Checker(log.history, envs_per_shard=2)
    checker.note([manifest(1, [(0, 3)])], log.history.left)
    checker.check(manifest(2, [(0, 7)]))
    assert checker.violations == ["shard 0 seq 2 was acked before a checkpoint held it"]


def test_what_is_left_in_the_stream_or_behind_the_marks_is_found() -> None:
    log = three().leave(1).leave(2)
    checker = Checker(log.history, envs_per_shard=2)
    checker.check(manifest(1, [(0, 3)]))
    checker.settle({})
    assert checker.violations[0] == "shard 0 seq 3 is still in the stream"
    assert "4 accepted steps are in no model (['0/1/2'])" in checker.violations[1]


def test_books_that_do_not_add_up_are_found() -> None:
    log = three()
    right = {"appended": 3, "appended_steps": 12, "trained": 1, "trained_steps": 4, "entries": 2, "steps": 8}
    assert books(right, log.history, entries=2) == []
    assert "appended 3 != settled 2 + 2" in books({**right, "trained": 2}, log.history, entries=2)[0]
    assert "the stream holds 1" in books(right, log.history, entries=1)[0]
    assert "the log shows 3" in books({**right, "appended": 4, "trained": 2}, log.history, entries=2)[0]


def test_rows_that_are_torn_or_have_other_rewards_are_found() -> None:
    obs = observations(5)
    assert rows_of(obs, np.array([[5, 6, 7, 8]]), np.array([4])) == ([Row(0, NONCE, 5, 4, 5)], [])
    assert "rewards are of other steps" in rows_of(obs, np.array([[5, 6, 7, 9]]), np.array([4]))[1][0]
    obs[0, 2, 5] += 1
    assert "do not follow" in rows_of(obs, None, np.array([4]))[1][0]


def test_a_segment_that_continues_a_former_owner_s_gives_two_rows() -> None:
    obs = observations(5)
    obs[0, 1:, 2], obs[0, 1:, 5] = NONCE + 1, 1 + np.arange(4)
    assert rows_of(obs, None, np.array([4])) == ([Row(0, NONCE, 5, 1, 5), Row(0, NONCE + 1, 1, 3, 6)], [])
    obs[0, 1:, 5] += 1
    assert "do not follow" in rows_of(obs, None, np.array([4]))[1][0]


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Path]:
    """A checkpoint file of the ledger learner."""
    about = {"env_steps": 4, "marks": {"0/3": [1, "n", 2, "3-0"]}, "learner_meta": {"repeats": 0, "problems": []}}
    path = tmp_path / f"checkpoint-{7:020d}-{5:012d}.safetensors"
    table = np.array([[0, NONCE, 0, 3, 0]], np.int64)
    save_file({"learner/intervals": table}, path, metadata={"manifest": json.dumps(about)})
    yield path


def test_a_checkpoint_is_read_and_a_torn_one_is_found(saved: Path) -> None:
    read = read_manifest(saved)
    assert (read.seat, read.update, read.marks, read.runs) == (7, 5, {3: (1, "n", 2, "3-0")}, {(0, NONCE): [(0, 3)]})
    archive = Archive(saved.parent, saved.parent / "kept")
    assert len(archive.poll()) == 1
    torn = saved.with_name(saved.name.replace("5.", "6."))
    torn.write_bytes(saved.read_bytes()[:-7])
    assert archive.poll() == []
    assert "not a whole checkpoint" in archive.torn[0]


def test_a_checkpoint_that_was_pruned_before_it_was_looked_at_leaves_a_newer_one_known(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = saved.with_name(saved.name.replace("5.", "6."))
    link = os.link

    def overtaken(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        saved.rename(newer)
        link(source, target)

    monkeypatch.setattr(os, "link", overtaken)
    assert [manifest.update for manifest in Archive(saved.parent, saved.parent / "kept").poll()] == [6]


def test_the_tap_gives_whole_transactions_and_forgets_a_torn_end(tmp_path: Path) -> None:
    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    path = folder / "appendonly.aof.1.incr.aof"
    one, multi, done = b"*2\r\n$3\r\nDEL\r\n$1\r\na\r\n", b"*1\r\n$5\r\nMULTI\r\n", b"*1\r\n$4\r\nEXEC\r\n"
    path.write_bytes(b"#TS:12\r\n" + one + multi + one)
    tap = Tap(tmp_path)
    assert tap.poll() == [[[b"DEL", b"a"]]]
    with path.open("ab") as file:
        file.write(done + one[:9])
    assert tap.poll() == [[[b"DEL", b"a"]]]
    assert tap.resume() == 9
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 9)
        file.seek(0, 2)
        file.write(one)
    assert tap.poll() == [[[b"DEL", b"a"]]]
    (folder / "appendonly.aof.2.incr.aof").write_bytes(one + one)
    assert len(tap.poll()) == 2
    with pytest.raises(TornFile):
        parse(b"+OK\r\n")
