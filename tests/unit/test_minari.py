"""A recording as a Minari dataset: Minari opens it, and holds what was recorded."""

from pathlib import Path

import minari
import numpy as np
import pytest

from heddle.cli.main import run
from heddle.consumers.data.files import workshop
from heddle.consumers.data.joiner import Joiner
from heddle.consumers.data.minari import export, whole_episodes
from heddle.consumers.data.schema import columns_of
from heddle.consumers.data.store import Manifest, Store, read_manifest
from heddle.consumers.tap import TapBatch
from heddle.errors import Conflict, UsageError
from heddle.layout import Layout, Segments, make_layout
from heddle.spaces import Box, DictSpace, Discrete, MultiBinary, MultiDiscrete, Space, TupleSpace, to_json
from tests.unit.test_joiner import LAYOUT, Player

PROVENANCE = {
    "experiment": "e-1",
    "name": "e",
    "env": "E-v0",
    "seed": 1,
    "code": "0",
    "recorded_by": "0",
    "spec": {"trainer": {"learner": "ppo"}},
}


def record(folder: Path, layout: Layout, batches: list[TapBatch]) -> None:
    """A recording of these, all of it in two commits."""
    spaces = {"observation": to_json(layout.observation), "action": to_json(layout.action)}
    store, joiner = Store(folder), Joiner(layout)
    store.begin(Manifest(PROVENANCE, spaces, columns_of(layout), "tap"))
    half = len(batches) // 2
    for some in (batches[:half], batches[half:]):
        store.commit([piece for batch in some for piece in joiner.add(batch)], joiner.news(), joiner.under_way())
    assert store.manifest is not None
    store.manifest.done, store.manifest.state = True, joiner.state
    store.commit(joiner.close(), [], {})
    store.close()


def test_minari_opens_a_recording_with_every_step_and_the_last_observations(tmp_path: Path) -> None:
    player = Player()
    record(tmp_path / "to", LAYOUT, [player.batch() for _ in range(7)])
    assert export(tmp_path / "to", tmp_path / "minari") == (15, 56)
    dataset = minari.MinariDataset(tmp_path / "minari")
    assert (dataset.total_episodes, dataset.total_steps) == (15, 56)
    assert dataset.spec.observation_space.shape == (2,)
    for episode in dataset.iterate_episodes():
        assert episode.observations.shape == (len(episode) + 1, 2)
        assert (episode.actions == episode.observations[:-1, 1].astype(int) % 3).all()
        assert (episode.rewards == 1 + episode.observations[:-1, 1]).all()
        assert episode.terminations[-1] or episode.truncations[-1]
        assert not (episode.terminations[:-1] | episode.truncations[:-1]).any()
        if episode.truncations[-1]:
            assert (np.diff(episode.observations[:, 1]) == 1).all()
        assert len(episode.infos["speed"]) == len(episode) + 1
    assert len(dataset.sample_episodes(3)) == 3


def test_episodes_that_were_cut_can_be_left_out_and_a_folder_is_not_written_over(tmp_path: Path) -> None:
    player = Player((1_000,))
    record(tmp_path / "to", LAYOUT, [player.batch() for _ in range(2)])
    assert export(tmp_path / "to", tmp_path / "none", with_cut=False) == (0, 0)
    with pytest.raises(Conflict, match="there already"):
        export(tmp_path / "to", tmp_path / "none")
    with pytest.raises(UsageError, match="no Minari id"):
        export(tmp_path / "to", tmp_path / "other", dataset_id="a b")


def test_an_export_that_fails_leaves_nothing_and_what_a_dead_one_left_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "to", LAYOUT, [Player().batch() for _ in range(3)])
    (tmp_path / ".minari.partial" / "0").mkdir(parents=True)
    (tmp_path / ".minari.partial" / "0" / "part-0.parquet").write_text("of a process that was killed")
    with monkeypatch.context() as broken:
        broken.setattr("heddle.consumers.data.minari._episode_metadata", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            export(tmp_path / "to", tmp_path / "minari")
    assert [path.name for path in tmp_path.iterdir()] == ["to"]
    number, _ = export(tmp_path / "to", tmp_path / "minari")
    assert minari.MinariDataset(tmp_path / "minari").total_episodes == number
    assert sorted(path.name for path in tmp_path.iterdir()) == ["minari", "to"]


def test_two_exports_to_one_place_do_not_mix(tmp_path: Path) -> None:
    record(tmp_path / "to", LAYOUT, [Player().batch()])
    with workshop(tmp_path / "minari") as made, pytest.raises(Conflict, match="another process makes"):
        (made / "file").touch()
        export(tmp_path / "to", tmp_path / "minari")
    assert (tmp_path / "minari" / "file").exists()


SPACES: list[tuple[Space, Space]] = [
    (Box((2, 3), "uint8", 0, 255), Box((2,), "float32", -1.0, 1.0)),
    (Discrete(5, 2), Discrete(3, 1)),
    (MultiBinary((3,)), MultiDiscrete((2, 3))),
    (DictSpace({"a": Box((1,), "float64"), "b": TupleSpace((Discrete(2), Box((2,), "int16")))}), Discrete(2)),
]


@pytest.mark.parametrize(("observation", "action"), SPACES)
def test_spaces_arrive_in_minari_as_they_are(observation: Space, action: Space, tmp_path: Path) -> None:
    layout = make_layout(observation, action, steps=4, outputs={})
    segments = Segments.empty(layout, 1)
    segments.arrays["length"][:] = 4
    for leaf in layout.observation_leaves:
        if isinstance(leaf.space, Discrete):
            segments.arrays[leaf.name][:] = leaf.space.start
    segments.arrays["terminated"][0, 3] = True
    record(tmp_path / "to", layout, [TapBatch(0, 1, 1, "train", segments, "n", "1-0")])
    export(tmp_path / "to", tmp_path / "minari")
    (episode,) = minari.MinariDataset(tmp_path / "minari").iterate_episodes()
    dataset = minari.MinariDataset(tmp_path / "minari")
    assert len(episode) == 4
    first = episode.actions[0] if not isinstance(episode.actions, dict | tuple) else None
    assert first is None or dataset.spec.action_space.contains(np.asarray(first) if np.ndim(first) else first)


def test_show_tells_what_a_folder_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "to", LAYOUT, [Player().batch()])
    assert run(["data", "show", str(tmp_path / "to")]) == 0
    out = capsys.readouterr().out
    assert "1 whole episodes, 2 cut, 8 steps" in out and "E-v0, seed 1" in out and "float32[2]" in out
    assert run(["data", "to-minari", str(tmp_path / "to"), "--to", str(tmp_path / "m")]) == 0
    assert "3 episodes, 8 steps" in capsys.readouterr().out
    assert run(["data", "show", str(tmp_path / "nothing")]) == 1


def test_a_minari_dataset_becomes_a_recording_with_the_same_steps(tmp_path: Path) -> None:
    player = Player()
    record(tmp_path / "to", LAYOUT, [player.batch() for _ in range(7)])
    export(tmp_path / "to", tmp_path / "minari")
    assert run(["data", "from-minari", str(tmp_path / "minari"), "--to", str(tmp_path / "back")]) == 0
    manifest = read_manifest(tmp_path / "back")
    assert (manifest.episodes + manifest.state.cut, manifest.steps, manifest.done) == (15, 56, True)
    original = whole_episodes(tmp_path / "to", read_manifest(tmp_path / "to"))
    for (found,), pieces in zip(whole_episodes(tmp_path / "back", manifest), original, strict=True):
        for name in ("obs", "action", "reward", "terminated"):
            assert found.arrays[name].tobytes() == pieces[0].arrays[name].tobytes()
        if found.last is not None:
            assert pieces[0].last is not None and found.last["obs"].tolist() == pieces[0].last["obs"].tolist()
    again = ["data", "from-minari", str(tmp_path / "minari"), "--to", str(tmp_path / "back")]
    assert run(again) == 8
    assert run(["data", "from-minari", str(tmp_path / "nothing"), "--to", str(tmp_path / "x")]) == 4
    # And what was made from a dataset becomes a dataset again
    assert export(tmp_path / "back", tmp_path / "twice") == (15, 56)
    assert minari.MinariDataset(tmp_path / "twice").total_steps == 56
