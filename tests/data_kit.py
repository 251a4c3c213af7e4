"""Recordings for tests, made without a fleet: episodes of CartPole that a simple controller played."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from heddle.consumers.data.piece import Piece
from heddle.consumers.data.schema import columns_of
from heddle.consumers.data.store import Manifest, Store
from heddle.layout import make_layout
from heddle.spaces import Box, Discrete, to_json

FARTHEST, STEEPEST = float(np.float32(4.8)), float(np.float32(24 * np.pi / 180))
OBSERVATION = Box((4,), "float32", (-FARTHEST, -np.inf, -STEEPEST, -np.inf), (FARTHEST, np.inf, STEEPEST, np.inf))
ACTION = Discrete(2, 0)


def controller(observation: Any) -> int:
    """Keeps the pole up for 500 steps from nearly every start."""
    _, speed, angle, turning = observation
    return int(angle + 0.4 * turning + 0.02 * speed > 0)


def record_cartpole(folder: Path, *, episodes: int, files: int = 2, seed: int = 0, good: bool = True) -> Manifest:
    """A recording of that controller, or of one that does the opposite, in so many files."""
    layout = make_layout(OBSERVATION, ACTION, steps=1, outputs={})
    store = Store(folder)
    spaces = {"observation": to_json(OBSERVATION), "action": to_json(ACTION)}
    if store.manifest is None:
        provenance = {"experiment": "e-1", "name": "e", "env": "CartPole-v1", "seed": seed, "code": "", "spec": {}}
        store.begin(Manifest(provenance, spaces, columns_of(layout), "tap"))
    manifest = store.manifest
    assert manifest is not None
    env = gymnasium.make("CartPole-v1")
    numbers = [int(number) for part in np.array_split(np.arange(episodes), files) for number in [-1, *part]][1:]
    pieces: list[Piece] = []
    for number in [*numbers, -1]:
        if number < 0:
            store.commit(pieces, [], {})
            pieces = []
            continue
        pieces.append(_play(env, manifest.state.episode, seed + number, good=good))
        manifest.state.episode += 1
    env.close()
    store.close()
    return manifest


def _play(env: Any, episode: int, seed: int, *, good: bool) -> Piece:
    rows: dict[str, list[Any]] = {name: [] for name in ("obs", "action", "reward", "terminated", "truncated")}
    observation, _ = env.reset(seed=seed)
    over = False
    while not over:
        action = controller(observation) if good else 1 - controller(observation)
        following, reward, terminated, truncated, _ = env.step(action)
        for name, value in zip(rows, (observation, action, reward, terminated, truncated), strict=True):
            rows[name].append(value)
        observation, over = following, terminated or truncated
    dtypes = {"obs": "float32", "action": "int64", "reward": "float32", "terminated": "bool", "truncated": "bool"}
    arrays = {name: np.array(values, dtypes[name]) for name, values in rows.items()}
    steps = len(arrays["reward"])
    arrays["episode_return"] = np.full(steps, np.nan)
    arrays["episode_length"] = np.zeros(steps, np.int32)
    end = "terminated" if terminated else "truncated"
    last = None if terminated else {"obs": np.array(observation, np.float32)}
    version = np.ones(steps, np.int64)
    return Piece(episode, 0, 0, 1, 0, 0, "train", "reset", end, steps, arrays, version, last)
