"""Curves of several runs: which belong together, where they are compared, and how sure their mean is."""

import errno
import fcntl
import json
import math
import os
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from heddle.cli.curve import Curve, Shade, braille, braille_cells, save_picture
from heddle.cli.main import run
from heddle.cli.series import Series, band, check_metric, differences, find, flat, grouped, interval
from heddle.consumers.curve_file import CURVE, SPEC, CurveFile, is_written, read_metrics, read_points
from heddle.errors import NotFound, UsageError


def series(name: str, returns: list[float], *, seed: int = 0, lr: float = 1e-3) -> Series:
    spec = {"experiment.seed": seed, "experiment.name": name, "trainer.lr": lr}
    points = [(i, {"env_steps": 100.0 * i, "wall_seconds": 2.0 * i, "return": y}) for i, y in enumerate(returns)]
    return Series(name, spec, points)


def test_runs_that_differ_in_their_seed_alone_are_one_group_named_by_what_sets_it_apart() -> None:
    runs = [series("a", [1.0], seed=1), series("b", [1.0], seed=2), series("c", [1.0], lr=1e-4)]
    assert [(label, [one.name for one in some]) for label, some in grouped(runs)] == [
        ("lr=0.001", ["a", "b"]),
        ("lr=0.0001", ["c"]),
    ]
    assert differences(runs) == {"trainer.lr": [1e-3, 1e-3, 1e-4]}


def test_the_mean_is_taken_at_equal_steps_where_all_were_measured() -> None:
    coarse = Series("coarse", {}, [(1, {"env_steps": 0.0, "return": 0.0}), (2, {"env_steps": 200.0, "return": 20.0})])
    fine = series("fine", [10.0, 20.0, 30.0, 40.0])
    made = band("both", [coarse, fine], "return", "steps")
    assert made is not None and (made.x[0], made.x[-1]) == (0.0, 200.0)
    assert np.allclose(made.mean, (0.1 * made.x + 10.0 + 0.1 * made.x) / 2)
    assert band("none", [series("n", [math.nan])], "return", "steps") is None


def test_the_interval_is_students_and_none_for_a_single_run() -> None:
    assert math.isnan(interval([3.0]))
    # mean 2, standard deviation 1, three values: t(2) = 4.303, so 4.303 / sqrt(3)
    assert interval([1.0, 2.0, 3.0]) == pytest.approx(2.4843, abs=1e-4)
    # 31 values of standard deviation 1 have t(30) = 2.042, not the normal's 1.96
    many = [math.sqrt(30 / 31) * (1 if i % 2 else -1) for i in range(30)] + [0.0]
    assert interval(many) == pytest.approx(2.042 * math.sqrt(30 / 31) / math.sqrt(31), rel=1e-3)


def test_a_metric_is_drawn_over_the_steps_known_when_it_was_measured() -> None:
    one = Series(
        "x", {}, [(1, {"env_steps": 64.0}), (2, {"eval_return": 5.0}), (3, {"env_steps": 128.0, "return": 1.0})]
    )
    assert one.curve("eval_return", "steps") == ((64.0, 5.0),)
    assert one.curve("return", "updates") == ((3.0, 1.0),)
    with pytest.raises(UsageError, match=r"no metric 'retrun'.*eval_return"):
        check_metric([one], "retrun")


def test_a_schedule_is_one_value() -> None:
    assert flat({"trainer": {"lr": {"start": 0.001, "end": 0.0}, "gamma": 0.9}}) == {
        "trainer.lr": "0.001 to 0",
        "trainer.gamma": 0.9,
    }


# ---- the file beside the checkpoints


def test_the_file_says_what_the_stream_says_after_a_rollback_and_a_death_within_a_line(tmp_path: Path) -> None:
    file = CurveFile(tmp_path / "run-1", '{"a": {"b": 1}}')
    for update in range(1, 5):
        file.add(update, {"return": float(update), "kl": math.nan})
    path = tmp_path / "run-1" / CURVE
    path.write_text(path.read_text() + '{"update": 5, "ret')
    assert [update for update, _ in read_points(path)] == [1, 2, 3, 4]
    file.forget(above=2)
    file.add(3, {"return": 30.0})
    points = read_points(path)
    assert [(update, values["return"]) for update, values in points] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert math.isnan(points[0][1]["kl"])
    assert json.loads((tmp_path / "run-1" / SPEC).read_text()) == {"a": {"b": 1}}


def test_the_file_keeps_the_ids_of_the_stream_whatever_a_learner_calls_its_numbers(tmp_path: Path) -> None:
    file = CurveFile(tmp_path, "{}")
    file.add(1, {"return": 1.0, "entry_id": 7.0, "update": 9.0}, entry="1700-3")
    file.add(2, {"return": 2.0}, entry="1800-0")
    file.forget(above=1)
    (kept,) = read_metrics(tmp_path / CURVE)
    assert (kept.entry_id, kept.time_ms, kept.values["return"]) == ("1700-3", 1700, 1.0)


def test_after_a_rollback_the_new_file_is_written_to_also_where_the_old_one_keeps_a_name(tmp_path: Path) -> None:
    # Given a file system as NFS is: what is replaced while it is open has a name still
    file = CurveFile(tmp_path, "{}")
    file.add(1, {"return": 1.0}, entry="1-0")
    file.add(2, {"return": 1.0}, entry="2-0")
    os.link(tmp_path / CURVE, tmp_path / ".nfs0001")
    # When what it says is rolled back, and measured anew
    file.forget(above=1)
    file.add(2, {"return": -1.0}, entry="3-0")
    # Then
    assert [one.entry_id for one in read_metrics(tmp_path / CURVE)] == ["1-0", "3-0"]


def test_a_run_that_goes_on_is_seen_where_only_who_may_write_gets_an_exclusive_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def as_nfs(file: IO[bytes], how: int) -> None:
        if how & fcntl.LOCK_EX and fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "not open for writing")
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", as_nfs)
    file = CurveFile(tmp_path, "{}")
    file.add(1, {"return": 1.0}, entry="1-0")
    assert is_written(tmp_path)
    file.close()
    assert not is_written(tmp_path)


def test_trouble_with_the_file_is_told_once_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "home").write_text("a file where the folder should be")
    file = CurveFile(tmp_path / "home", "{}")
    file.add(1, {"return": 1.0})
    file.add(2, {"return": 1.0})
    file.forget(above=0)
    assert [record.message.startswith("cannot keep the curve") for record in caplog.records] == [True]


def test_a_run_is_found_by_folder_by_id_and_by_name_without_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cart-aaaaaa", "cart-bbbbbb"):
        CurveFile(Path("runs") / name, "{}").add(1, {"return": 1.0})
    assert find("runs/cart-aaaaaa", None).name == find("cart-aaaaaa", None).name == "cart-aaaaaa"
    assert find("cart", None).name in ("cart-aaaaaa", "cart-bbbbbb")
    with pytest.raises(NotFound, match="no experiment 'other'"):
        find("other", None)


# ---- drawing


def test_two_curves_share_a_field_and_each_cell_knows_whose_it_is() -> None:
    curves = [Curve("low", ((0.0, 0.0), (10.0, 0.0))), Curve("high", ((0.0, 4.0), (10.0, 4.0)))]
    cells = braille_cells(curves, width=10, height=4)
    owners = {owner for line in cells for owner, _ in line}
    assert owners == {-1, 0, 1}
    assert braille(curves, width=10, height=4) == ["".join(text for _, text in line) for line in cells]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "html"])
def test_every_kind_of_picture_is_written_whole(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "deep" / f"curve.{suffix}"
    curve = Curve("a <b>", tuple((float(x), float(x * x)) for x in range(20)))
    shade = Shade((0.0, 19.0), (0.0, 300.0), (1.0, 361.0))
    save_picture(path, [curve], title="a <b>", x_label="steps", y_label="return", shades=[shade])
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "html": b"<!doctype html>"}[suffix]
    data = path.read_bytes()
    assert data.startswith(start)
    if suffix == "html":
        assert b"<title>a &lt;b&gt;</title>" in data and data.count(b"</svg>") == 1 and b"http-equiv" not in data


def test_compare_prints_the_final_table_and_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, lr, level in (("a-000001", 1e-3, 10.0), ("a-000002", 1e-3, 20.0), ("b-000003", 1e-4, 3.0)):
        file = CurveFile(Path("runs") / name, json.dumps({"trainer": {"lr": lr}, "experiment": {"seed": int(level)}}))
        for update in range(1, 4):
            file.add(update, {"env_steps": 10.0 * update, "wall_seconds": float(update), "return": level})
    folders = [str(path) for path in sorted(Path("runs").iterdir())]
    assert run(["compare", *folders, "--to", "c.png"]) == 0
    out = capsys.readouterr().out
    assert "lr=0.001" in out and "2     15 ± 63.5" in out and "trainer.lr" in out and "wrote c.png" in out
    assert "95 % interval of the mean over 2 runs -48.5 to 78.5" in out and "one run, so without an interval" in out
    assert run(["compare", *folders, "--to", "c.html"]) == 0
    capsys.readouterr()
    page = Path("c.html").read_text(encoding="utf-8")
    assert page.count("<table>") == 2 and "trainer.lr" in page and "15 ± 63.5" in page and "SETTING" in page
    assert run(["compare", *folders, "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [len(group["runs"]) for group in told["groups"]] == [2, 1] and list(told["differences"]) == ["trainer.lr"]
    assert run(["plot", *folders, "--to", "c.gif"]) == 2
