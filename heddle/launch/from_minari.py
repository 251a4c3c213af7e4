"""A Minari dataset as a recording, so that a spec can train from it.

It needs Minari, downloads nothing and leaves the dataset as it is. Actions become what a policy would have chosen:
those of Discrete and MultiDiscrete spaces counted from 0.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heddle.consumers.data.piece import Piece
from heddle.consumers.data.schema import columns_of
from heddle.consumers.data.store import Manifest, Store
from heddle.errors import Conflict, DataError, EnvError, MissingExtra, NotFound
from heddle.layout import Layout, make_layout
from heddle.producers.envs_spaces import describe, describe_action
from heddle.spaces import Discrete, Leaf, MultiDiscrete, to_json
from heddle.version import __version__

COMMIT_STEPS = 100_000


Tell = Callable[[int, int], None]


def import_minari(source: str, folder: Path, *, tell: Tell = lambda _done, _of: None) -> Manifest:
    """Write the Minari dataset `source`, a folder or the id of one that is on this machine, as a recording.

    Args:
        tell: told how many episodes are read, and how many there are, again and again.

    Raises:
        MissingExtra: Minari is not installed.
        NotFound: there is no such dataset here.
        Conflict: `folder` holds a recording already.
        DataError: its spaces are none that Heddle knows, or an episode does not hold together.
    """
    dataset = _open(source)
    try:
        observation = describe(dataset.observation_space)
        action = describe_action(dataset.action_space)
    except EnvError as error:
        raise DataError(f"{source}: {error.problems[0].reason}") from error
    layout = make_layout(observation, action, steps=1, outputs={})
    spec = getattr(dataset.spec, "env_spec", None)
    name = str(dataset.spec.dataset_id)
    provenance: dict[str, Any] = {
        "experiment": name,
        "name": name,
        "env": getattr(spec, "id", name),
        "seed": 0,
        "code": "",
        "spec": {},
    }
    store = Store(folder)
    try:
        if store.manifest is not None:
            raise Conflict(f"{folder} holds a recording already; give another folder with --to")
        spaces = {"observation": to_json(observation), "action": to_json(action)}
        store.begin(Manifest({**provenance, "recorded_by": __version__}, spaces, columns_of(layout), tap=""))
        return _fill(store, layout, dataset, tell)
    finally:
        store.close()


def _open(source: str) -> Any:
    try:
        import minari
    except ImportError as error:
        raise MissingExtra("reading a Minari dataset", "data") from error
    try:
        return minari.MinariDataset(source) if Path(source).is_dir() else minari.load_dataset(source)
    except (FileNotFoundError, ValueError, ImportError) as error:
        raise NotFound(f"cannot open the Minari dataset {source}: {' '.join(str(error).split())}") from error


def _fill(store: Store, layout: Layout, dataset: Any, tell: Tell) -> Manifest:
    manifest = store.manifest
    assert manifest is not None
    pieces: list[Piece] = []
    for piece in _pieces(layout, dataset, manifest.state.episode):
        pieces.append(piece)
        manifest.state.episode += 1
        manifest.state.cut += piece.end == "cut"
        tell(manifest.state.episode, int(dataset.total_episodes))
        if sum(one.steps for one in pieces) >= COMMIT_STEPS:
            store.commit(pieces, [], {})
            pieces = []
    manifest.done = True
    store.commit(pieces, [], {})
    return manifest


def _pieces(layout: Layout, dataset: Any, first: int) -> Iterator[Piece]:
    """Each episode that has steps, as a piece."""
    for number, episode in enumerate((one for one in dataset.iterate_episodes() if len(one)), start=first):
        steps = len(episode)
        terminated, truncated = np.asarray(episode.terminations, bool), np.asarray(episode.truncations, bool)
        arrays: dict[str, NDArray[Any]] = {
            "reward": np.asarray(episode.rewards, np.float32),
            "terminated": terminated,
            "truncated": truncated,
            "episode_return": np.full(steps, np.nan),
            "episode_length": np.zeros(steps, np.int32),
        }
        last: dict[str, NDArray[Any]] = {}
        for leaf in layout.observation_leaves:
            seen = _shaped(leaf, episode.observations, leaf.space.dtype, steps + 1, number)
            arrays[leaf.name], last[leaf.name] = seen[:-1], seen[-1]
        for leaf in layout.action_leaves:
            chosen = _shaped(leaf, episode.actions, leaf.chosen_dtype, steps, number)
            arrays[leaf.name] = _counted_from_0(leaf, chosen)
        end = "terminated" if terminated[-1] else "truncated" if truncated[-1] else "cut"
        kept = None if end == "terminated" else last
        yield Piece(number, 0, 0, 1, 0, 0, "train", "reset", end, steps, arrays, np.zeros(steps, np.int64), kept)


def _shaped(leaf: Leaf, values: Any, dtype: str, rows: int, number: int) -> NDArray[Any]:
    found = np.asarray(leaf.pick(values))
    wanted = (rows, *leaf.space.shape)
    if found.size != int(np.prod(wanted)):
        raise DataError(f"episode {number} has {leaf.name} of shape {list(found.shape)}, expected {list(wanted)}")
    return found.reshape(wanted).astype(dtype)


def _counted_from_0(leaf: Leaf, chosen: NDArray[Any]) -> NDArray[Any]:
    if isinstance(leaf.space, Discrete):
        return chosen - leaf.space.start
    if isinstance(leaf.space, MultiDiscrete):
        return chosen - leaf.space.starts()
    return chosen
