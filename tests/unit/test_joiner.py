"""Joining segments into episodes, and their way through Parquet and back."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest

from heddle.consumers.data.joiner import Joiner
from heddle.consumers.data.joiner_state import State
from heddle.consumers.data.piece import Piece
from heddle.consumers.data.schema import columns_of
from heddle.consumers.data.store import MANIFEST, Manifest, Store, data_files, read_manifest, read_pieces
from heddle.consumers.tap import TapBatch
from heddle.errors import Conflict, DataError
from heddle.layout import Segments, make_layout
from heddle.spaces import Box, Discrete

T = 4
LAYOUT = make_layout(
    Box((2,), "float32"), Discrete(3), steps=T, outputs={"log_prob": ("float32", ())}, info_keys=("speed",)
)


COLUMNS = columns_of(LAYOUT)


class Player:
    """Environments whose observation tells (episode, step), cut into batches as a worker would.

    Episodes of environment e last `lengths[e]` steps and end truncated where e is odd.
    """

    def __init__(self, lengths: tuple[int, ...] = (3, 6)) -> None:
        self.lengths = lengths
        self.at = [(0, 0) for _ in lengths]
        self.seq = 0
        self.entries = 0

    def batch(self, epoch: int = 1, *, shard: int = 0, length: int = T, nonce: str = "n") -> TapBatch:
        segments = Segments.empty(LAYOUT, len(self.lengths))
        arrays, finals = segments.arrays, []
        arrays["length"][:] = length
        arrays["env"][:] = np.arange(len(self.lengths))
        arrays["version"][:] = self.seq
        for env, most in enumerate(self.lengths):
            episode, step = self.at[env]
            for t in range(length):
                arrays["obs"][env, t] = (episode, step)
                arrays["action"][env, t] = step % 3
                arrays["reward"][env, t] = 1 + step
                step += 1
                if step == most:
                    kind = "truncated" if env % 2 else "terminated"
                    arrays[kind][env, t] = True
                    arrays["episode_length"][env, t] = most
                    arrays["episode_return"][env, t] = most
                    if kind == "truncated":
                        finals.append((env, t, {"obs": np.array([episode, step], np.float32)}))
                    episode, step = episode + 1, 0
            arrays["obs"][env, length] = (episode, step)
            self.at[env] = (episode, step)
        segments.set_finals(finals)
        self.seq += 1
        self.entries += 1
        return TapBatch(shard, epoch, self.seq, "train", segments, nonce, f"{1000 + self.entries}-0")

    def restart(self) -> None:
        """A new owner that begins fresh episodes."""
        self.at = [(episode + 1, 0) for episode, _ in self.at]


def told(piece: Piece) -> tuple[Any, ...]:
    return piece.env, piece.steps, piece.begin, piece.end


def check(piece: Piece) -> None:
    """Its steps follow each other, and its last observation is what came after."""
    steps = piece.arrays["obs"][:, 1]
    assert (np.diff(piece.arrays["obs"][:, 0]) == 0).all() and (np.diff(steps) == 1).all()
    assert (piece.arrays["reward"] == 1 + steps).all()
    if piece.end == "terminated":
        assert piece.last is None
    else:
        assert piece.last is not None and piece.last["obs"].tolist() == [piece.arrays["obs"][0, 0], steps[-1] + 1]


def test_episodes_are_whole_across_batches_with_the_true_last_observation() -> None:
    player, joiner = Player(), Joiner(LAYOUT)
    pieces = [piece for _ in range(6) for piece in joiner.add(player.batch())]
    assert [told(piece) for piece in pieces if piece.env == 0] == [(0, 3, "reset", "terminated")] * 8
    assert [told(piece) for piece in pieces if piece.env == 1] == [(1, 6, "reset", "truncated")] * 4
    for piece in pieces:
        check(piece)
    assert sorted(piece.episode for piece in pieces) == list(range(12))
    assert joiner.close() == []


def test_a_batch_that_comes_again_adds_nothing() -> None:
    player, joiner = Player(), Joiner(LAYOUT)
    batches = [player.batch() for _ in range(3)]
    first = [piece for batch in batches for piece in joiner.add(batch)]
    assert first and [piece for batch in batches for piece in joiner.add(batch)] == []
    assert joiner.state.repeated == 3 and joiner.state.missed == 0


def test_what_a_dead_owner_left_is_cut_and_the_next_one_begins_anew() -> None:
    player, joiner = Player((100,)), Joiner(LAYOUT)
    joiner.add(player.batch(epoch=1))
    player.restart()
    (cut,) = joiner.add(player.batch(epoch=2))
    assert told(cut) == (0, 4, "reset", "cut")
    check(cut)
    (rest,) = joiner.close()
    assert told(rest) == (0, 4, "reset", "cut") and rest.epoch == 2
    assert joiner.state.cut == 2


def test_an_owner_that_goes_on_from_a_snapshot_is_seen_by_its_first_observation() -> None:
    player, joiner = Player((100,)), Joiner(LAYOUT)
    joiner.add(player.batch(epoch=1))
    (cut,) = joiner.add(player.batch(epoch=2))
    assert told(cut) == (0, 4, "reset", "cut")
    assert told(joiner.close()[0]) == (0, 4, "continued", "cut")


def test_a_missed_batch_is_counted_and_cuts_and_what_follows_begins_somewhere() -> None:
    player, joiner = Player((6,)), Joiner(LAYOUT)
    joiner.add(player.batch())
    player.batch()
    pieces = joiner.add(player.batch())
    assert [told(piece) for piece in pieces] == [(0, 4, "reset", "cut"), (0, 4, "joined", "truncated")][:1] + [
        (0, 4, "joined", "terminated")
    ]
    assert joiner.state.missed == 1
    assert [told(piece) for piece in joiner.add(player.batch()) + joiner.add(player.batch())] == [
        (0, 6, "reset", "terminated")
    ]


def test_a_recording_that_begins_in_the_middle_says_so() -> None:
    player, joiner = Player((6,)), Joiner(LAYOUT)
    player.batch()
    (piece, *_) = joiner.add(player.batch())
    assert told(piece) == (0, 2, "joined", "terminated") and joiner.state.missed == 1


def test_what_an_owner_gives_after_the_broker_forgot_its_successor_is_recorded_and_cut_off_from_it() -> None:
    # Given owner 1, and owner 5, which goes on from its snapshot; the broker forgets owner 5 and what it gave
    player, joiner = Player((100,)), Joiner(LAYOUT)
    first = player.batch(epoch=1)
    at = list(player.at)
    other = player.batch(epoch=5, nonce="m")
    assert joiner.add(first) == []
    assert [told(piece) for piece in joiner.add(other)] == [(0, 4, "reset", "cut")]
    # When owner 1 wakes, and gives what the broker accepts under the same seq
    player.at, player.seq = at, 1
    again = player.batch(epoch=1)
    assert again.seq == other.seq
    assert [told(piece) for piece in joiner.add(again)] == [(0, 4, "continued", "cut")]
    # Then it is there once, also for a recorder that is started anew, and what is open goes on
    state = State(**json.loads(json.dumps(asdict(joiner.state))))
    joiner = Joiner(LAYOUT, state, joiner.open_pieces())
    assert [joiner.add(one) for one in (first, again, other)] == [[], [], []]
    assert joiner.add(player.batch(epoch=1)) == []
    assert (joiner.state.missed, joiner.state.repeated) == (0, 3)
    assert [told(piece) for piece in joiner.close()] == [(0, 8, "joined", "cut")]


def test_an_owner_that_goes_on_counts_what_was_missed_from_its_own_last_batch() -> None:
    player, joiner = Player((100,)), Joiner(LAYOUT)
    for epoch, nonce in ((1, "n"), (5, "m")):
        joiner.add(player.batch(epoch=epoch, nonce=nonce))
    player.seq = 3  # (1, 2) and (1, 3) were settled before the recorder came to them
    assert [told(piece) for piece in joiner.add(player.batch(epoch=1))] == [(0, 4, "continued", "cut")]
    assert joiner.state.missed == 2
    assert [told(piece) for piece in joiner.close()] == [(0, 4, "joined", "cut")]


def test_the_same_epoch_under_another_nonce_is_another_owner() -> None:
    player, joiner = Player((100,)), Joiner(LAYOUT)
    joiner.add(player.batch(epoch=1))
    player.seq = 0
    joiner.add(player.batch(epoch=1, nonce="m"))
    assert joiner.state.repeated == 0 and joiner.state.missed == 0
    assert sum(piece.steps for piece in joiner.close()) == T


def test_a_later_owner_gives_new_data_also_under_an_id_below_the_last_one() -> None:
    player, joiner = Player((100,)), Joiner(LAYOUT)
    joiner.add(player.batch(epoch=1))
    player.entries = -500  # the broker's clock stepped back
    joiner.add(player.batch(epoch=2, nonce="m"))
    assert joiner.state.repeated == 0


def test_a_replayed_batch_begins_somewhere_and_none_before_it_is_missed() -> None:
    player, joiner = Player((100,)), Joiner(LAYOUT)
    for number in range(2):
        player.seq = 0
        joiner.add(player.batch(epoch=70 + number, shard=-1, nonce=f"1.n.{number + 4}"))
    (rest,) = joiner.close()
    assert (rest.begin, joiner.state.missed, joiner.state.repeated) == ("joined", 0, 0)


def test_a_recording_of_an_older_version_goes_on_with_what_is_new() -> None:
    player, joiner = Player((100,)), Joiner(LAYOUT, State(marks={"0": [1, 2]}))
    for _ in range(3):
        joiner.add(player.batch(epoch=1))
    assert joiner.state.repeated == 2 and joiner.state.missed == 0
    assert joiner.add(player.batch(epoch=1)) == []
    assert joiner.state.seq(0) == 4 and joiner.state.seq(1) == 0


def test_a_very_long_episode_is_given_out_in_pieces_that_follow_each_other() -> None:
    player, joiner = Player((1_000,)), Joiner(LAYOUT, piece_steps=8)
    pieces = [piece for _ in range(10) for piece in joiner.add(player.batch())] + joiner.close()
    assert [piece.end for piece in pieces][:-1] == ["more"] * (len(pieces) - 1) and pieces[-1].end == "cut"
    assert len({piece.episode for piece in pieces}) == 1
    assert [piece.step for piece in pieces] == np.cumsum([0, *(piece.steps for piece in pieces)])[:-1].tolist()
    assert sum(piece.steps for piece in pieces) == 40
    assert [piece.begin for piece in pieces] == ["reset", *[""] * (len(pieces) - 1)]
    for piece in pieces:
        check(piece)


def manifest() -> Manifest:
    return Manifest({"experiment": "e-1", "name": "e"}, {}, columns_of(LAYOUT), "tap")


def test_a_restart_at_any_batch_gives_the_same_recording(tmp_path: Path) -> None:
    """The store is opened anew after every commit; what was not committed comes again."""
    batches = [(player := Player((3, 6, 50))).batch() for _ in range(1)]
    batches += [player.batch() for _ in range(8)]
    for number, batch in enumerate(batches):
        store = Store(tmp_path / "a")
        if store.manifest is None:
            store.begin(manifest())
        assert store.manifest is not None
        joiner = Joiner(LAYOUT, store.manifest.state, store.open_pieces())
        whole = [piece for old in batches[max(0, number - 2) : number] for piece in joiner.add(old)]
        assert whole == []
        whole += joiner.add(batch)
        store.manifest.state = joiner.state
        store.commit(whole, joiner.news(), joiner.under_way())
        store.close()
    found = [
        piece
        for path in data_files(tmp_path / "a", read_manifest(tmp_path / "a"))
        for piece in read_pieces(path, columns_of(LAYOUT))
    ]
    joiner = Joiner(LAYOUT)
    expected = [piece for batch in batches for piece in joiner.add(batch)]
    assert [told(piece) for piece in found] == [told(piece) for piece in expected]
    for one, other in zip(found, expected, strict=True):
        check(one)
        assert (one.episode, one.step) == (other.episode, other.step)
        assert all(one.arrays[name].tobytes() == other.arrays[name].tobytes() for name in other.arrays)
        assert (one.version == other.version).all()


def open_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "open").iterdir()}


def test_a_commit_writes_what_is_new_and_never_again_what_was_under_way(tmp_path: Path) -> None:
    player, joiner, store = Player((40, 6)), Joiner(LAYOUT), Store(tmp_path)
    store.begin(manifest())
    seen: dict[str, bytes] = {}
    for _ in range(8):
        store.commit(joiner.add(player.batch()), joiner.news(), joiner.under_way())
        now = open_files(tmp_path)
        (fresh,) = now.keys() - seen.keys()
        assert all(seen[name] == content for name, content in now.items() if name in seen)
        steps = sum(piece.steps for piece in read_pieces(tmp_path / "open" / fresh, columns_of(LAYOUT)))
        assert steps <= 2 * T
        seen |= now
    assert store.manifest is not None and store.manifest.open_files == sorted(open_files(tmp_path))
    # And when all of it is over, nothing is left there
    while joiner.under_way():
        store.commit(joiner.add(player.batch()), joiner.news(), joiner.under_way())
        assert player.seq < 100
    assert open_files(tmp_path) == {}
    store.close()


def test_no_more_is_held_than_the_bound_whatever_the_episodes_are(tmp_path: Path) -> None:
    player = Player((1_000, 7, 1_000))
    bound = 3 * T * 3 * 40
    joiner = Joiner(LAYOUT, open_bytes=bound)
    pieces: list[Piece] = []
    for _ in range(40):
        pieces += joiner.add(player.batch())
        assert sum(array.nbytes for piece in joiner.open_pieces() for array in piece.arrays.values()) <= bound
    assert any(piece.end == "more" for piece in pieces)
    pieces += joiner.close()
    assert sum(piece.steps for piece in pieces) == 40 * T * 3
    for episode in {piece.episode for piece in pieces}:
        own = [piece for piece in pieces if piece.episode == episode]
        assert [piece.step for piece in own] == np.cumsum([0, *(piece.steps for piece in own)])[:-1].tolist()


def steps_in(folder: Path) -> list[tuple[float, float, int]]:
    pieces = [piece for path in data_files(folder, read_manifest(folder)) for piece in read_pieces(path, COLUMNS)]
    return sorted((float(seen[0]), float(seen[1]), piece.env) for piece in pieces for seen in piece.arrays["obs"])


@pytest.mark.parametrize("restart_every", [1, 3])
def test_pieces_given_out_for_room_and_files_made_one_lose_nothing_over_restarts(
    restart_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heddle.consumers.data.store.MOST_OPEN_FILES", 3)
    player, bound = Player((33, 6, 1_000)), 6 * T * 40
    store, joiner = Store(tmp_path), Joiner(LAYOUT, open_bytes=bound)
    store.begin(manifest())
    for number in range(30):
        whole = joiner.add(player.batch())
        assert store.manifest is not None
        store.manifest.state = joiner.state
        store.commit(whole, joiner.news(), joiner.under_way())
        store.compact()
        assert len(store.manifest.open_files) <= 3
        if number % restart_every == 0:
            store.close()
            store = Store(tmp_path)
            assert store.manifest is not None
            joiner = Joiner(LAYOUT, store.manifest.state, store.open_pieces(), open_bytes=bound)
    store.commit(joiner.close(), [], {})
    store.close()
    assert open_files(tmp_path) == {}
    again, plain = Player((33, 6, 1_000)), Joiner(LAYOUT)
    played = [piece for _ in range(30) for piece in plain.add(again.batch())] + plain.close()
    expected = sorted((float(seen[0]), float(seen[1]), piece.env) for piece in played for seen in piece.arrays["obs"])
    assert steps_in(tmp_path) == expected


def test_a_recording_of_the_format_before_goes_on(tmp_path: Path) -> None:
    player, joiner, store = Player((40, 6)), Joiner(LAYOUT), Store(tmp_path)
    store.begin(manifest())
    whole = joiner.add(player.batch())
    assert store.manifest is not None
    store.manifest.state = joiner.state
    store.commit(whole, joiner.news(), joiner.under_way())
    store.close()
    told = json.loads((tmp_path / MANIFEST).read_text())
    (name,) = told.pop("open_files")
    del told["under_way"]
    (tmp_path / MANIFEST).write_text(json.dumps(told | {"format": "heddle-experience/1", "open_file": name}))
    store = Store(tmp_path)
    assert store.manifest is not None
    joiner = Joiner(LAYOUT, store.manifest.state, store.open_pieces())
    assert {piece.env: piece.steps for piece in joiner.open_pieces()} == {0: T, 1: T}
    store.commit([*joiner.add(player.batch()), *joiner.close()], joiner.news(), joiner.under_way())
    store.close()
    assert len(steps_in(tmp_path)) == 2 * 2 * T


def recorded(folder: Path, *, batches: int = 6) -> Path:
    player, joiner, store = Player(), Joiner(LAYOUT), Store(folder)
    store.begin(manifest())
    for _ in range(2):
        store.commit(
            [p for _ in range(batches // 2) for p in joiner.add(player.batch())], joiner.news(), joiner.under_way()
        )
    store.close()
    return folder


def test_pandas_and_duckdb_open_a_recording_as_it_is(tmp_path: Path) -> None:
    recorded(tmp_path)
    frame = pd.read_parquet(tmp_path / "data")
    assert len(frame) == 48 and frame["obs"].iloc[0].tolist() == [0.0, 0.0]
    assert frame.groupby("episode")["reward"].sum().nunique() == 2
    rows = (
        duckdb.connect()
        .execute(
            f"select end_kind, count(*) from (select \"end\" as end_kind from '{tmp_path}/data/*.parquet') "
            "where end_kind is not null group by end_kind order by end_kind"
        )
        .fetchall()
    )
    assert rows == [("terminated", 8), ("truncated", 4)]
    assert duckdb.connect().execute(f"select max(obs[2]) from '{tmp_path}/data/*.parquet'").fetchall() == [(5.0,)]


def test_what_a_process_that_died_in_a_commit_left_is_removed(tmp_path: Path) -> None:
    recorded(tmp_path)
    before = (tmp_path / MANIFEST).read_bytes()
    for name in ("data/part-00000009.parquet", "open/part-00000009.parquet", "data/.part-00000010.parquet.tmp"):
        (tmp_path / name).write_bytes(b"half")
    Store(tmp_path).close()
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        "part-00000001.parquet",
        "part-00000002.parquet",
    ]
    assert (tmp_path / MANIFEST).read_bytes() == before


def test_one_process_records_into_a_folder_and_what_is_no_recording_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "a")
    with pytest.raises(Conflict, match="another process records"):
        Store(tmp_path / "a")
    store.close()
    with pytest.raises(DataError, match="no recorded experience"):
        read_manifest(tmp_path / "nowhere")
    damaged = read_manifest(recorded(tmp_path / "b")).as_json()
    damaged["state"]["marks"]["0"] = [1, "n"]
    for text in ("{}", json.dumps(damaged)[:-1], json.dumps(damaged)):
        (tmp_path / "a" / MANIFEST).write_text(text)
        with pytest.raises(DataError, match="no manifest"):
            read_manifest(tmp_path / "a")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot write"):
        Store(tmp_path / "file")
