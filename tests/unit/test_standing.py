"""A player that stands where another one stood plays on as that one would have, bit for bit."""

import zlib
from typing import Any

import numpy as np
import pytest

from heddle.errors import SnapshotError
from heddle.layout import Segments, make_layout
from heddle.policies import make_policy
from heddle.producers.envs import check_env
from heddle.producers.player import Player
from heddle.producers.snapshot_shard import MAGIC
from heddle.shard import plan_shards
from heddle.spec import ExperimentSpec
from tests.unit.fake_envs import spec_of

BROODING = {"id": "tests.snapshot_zoo:Brooding"}
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "cartpole with its time limit": {"env": {"id": "CartPole-v1"}},
    "cartpole, 300 environments in one shard": {"env": {"num_envs": 300, "envs_per_shard": 300}},
    "chance at every step and a dict": {"env": {"id": "tests.snapshot_zoo:Dice"}, "policy": BROODING},
    "episodes longer than segments": {"env": {"id": "tests.snapshot_zoo:Walk"}, "policy": BROODING},
    "episodes of one step": {"env": {"id": "tests.snapshot_zoo:Walk", "kwargs": {"length": 1}}, "policy": BROODING},
    "get_state and set_state": {"env": {"id": "tests.snapshot_zoo:Robot"}, "policy": BROODING},
    "many layers": {"env": {"id": "tests.snapshot_zoo:layered"}, "policy": BROODING},
    "segments longer than a block of noise": {"rollout": {"steps": 150}, "policy": BROODING},
    "actions of any number": {"env": {"id": "Pendulum-v1"}},
    "an LSTM over episodes that end within segments": {
        "env": {"id": "tests.snapshot_zoo:Walk", "kwargs": {"length": 5}},
        "policy": {"id": "lstm", "hidden": [8], "recurrent_size": 8, "shared": False},
    },
    "in a child": {"env": {"id": "tests.snapshot_zoo:layered", "isolation": "process"}, "policy": BROODING},
}


class Show:
    """Makes players of one spec's first shard."""

    def __init__(self, spec: ExperimentSpec) -> None:
        self.spec = spec
        observation, action = check_env(spec)
        self.policy = make_policy(spec.policy, observation, action, seed=3)
        self.layout = make_layout(
            observation, action, steps=spec.rollout.steps, outputs=self.policy.outputs, state=self.policy.state
        )

    def player(self, **options: Any) -> Player:
        return Player(plan_shards(self.spec)[0], self.spec, self.policy, self.layout, **options)

    def play(self, player: Player, batches: int) -> list[dict[str, Any]]:
        return [_kept(player.play(1)) for _ in range(batches)]


def _kept(segments: Segments) -> dict[str, Any]:
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in segments.arrays.items()}


def _show(name: str) -> Show:
    return Show(spec_of(**{"env": {}, **CASES[name]}))


@pytest.mark.parametrize("name", CASES)
def test_a_new_player_at_every_batch_gives_the_same_experience_as_one_for_all(name: str) -> None:
    # Given one player for all batches
    show, batches = _show(name), 3 if "300" in name or "child" in name else 9
    first = show.player()
    alone = show.play(first, batches)
    first.close()
    # When every batch is played by a new one, which stands where the one before stood
    handed_over, snapshot = [], None
    for _ in range(batches):
        player = show.player(first_episode=77)
        if snapshot is None:
            player = show.player()
        else:
            player.standing.resume(snapshot)
        handed_over += show.play(player, 1)
        snapshot = player.standing.pack()
        player.close()
    # Then nobody can tell
    for batch, (one, other) in enumerate(zip(alone, handed_over, strict=True)):
        assert one == other, f"batch {batch}"


@pytest.mark.parametrize("name", ["chance at every step and a dict", "many layers", "episodes longer than segments"])
def test_segments_that_were_cut_short_before_a_change_of_owner_give_the_same_steps(name: str) -> None:
    # Given the steps that one player plays in full segments
    show = _show(name)
    alone = _steps(_batches(show.player(), show, 3 * 4))
    # When now and then a segment is cut and the shard changes hands there, as in a drain
    player, batches, played = show.player(), [], 0
    while played < 3 * 4:
        if played % 3 == 0:
            player.cut()
        batches += _batches(player, show, 0)
        played += int(batches[-1].arrays["length"][0])
        snapshot = player.standing.pack()
        player = show.player(first_episode=99)
        player.standing.resume(snapshot)
    # Then the steps are the same
    assert [step[:12] for step in _steps(batches)] == [step[:12] for step in alone]


def _batches(player: Player, show: Show, steps: int) -> list[Segments]:
    """Full segments with at least so many steps, at least one."""
    return [player.play(1) for _ in range(max(1, steps // show.layout.steps))]


def _steps(batches: list[Segments]) -> list[list[bytes]]:
    """Of each environment what every step holds."""
    names = ("obs", "obs.roll", "obs.count", "action", "reward", "out.value", "out.log_prob", "episode_length")
    found: list[list[bytes]] = [[] for _ in range(batches[0].rows)]
    for batch in batches:
        for env, length in enumerate(batch.arrays["length"]):
            for step in range(length):
                parts = [batch.arrays[name][env, step].tobytes() for name in names if name in batch.arrays]
                found[env].append(b"".join(parts))
    return found


def test_a_policy_that_acts_for_two_shards_in_turn_keeps_their_states_apart() -> None:
    show = _show("episodes longer than segments")
    alone = show.play(show.player(), 4)
    one, other = show.player(), show.player(first_episode=5)
    in_turn = []
    for _ in range(4):
        in_turn += show.play(one, 1)
        show.play(other, 1)
    assert in_turn == alone


def test_a_snapshot_is_of_the_moment_it_is_taken_whatever_is_played_after() -> None:
    show = _show("many layers")
    player = show.player()
    show.play(player, 2)
    snapshot = player.standing.pack()
    expected = show.play(player, 3)
    again = show.player()
    again.standing.resume(snapshot)
    assert show.play(again, 3) == expected


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"experiment": {"seed": 6}}, "is of shard 0"),
        ({"env": {"num_envs": 8, "envs_per_shard": 4}}, "is of shard 0"),
        ({"policy": {"hidden": [8]}}, "is of shard 0"),
    ],
)
def test_a_snapshot_of_another_spec_is_refused(changed: dict[str, Any], said: str) -> None:
    first = Show(spec_of())
    player = first.player()
    first.play(player, 1)
    with pytest.raises(SnapshotError, match=said):
        Show(spec_of(**changed)).player().standing.resume(player.standing.pack())


def test_a_snapshot_of_another_root_of_chance_is_refused() -> None:
    show = Show(spec_of())
    player = show.player()
    show.play(player, 1)
    with pytest.raises(SnapshotError, match="seed 5"):
        show.player(seed=123).standing.resume(player.standing.pack())


def test_damaged_bytes_are_refused_and_never_do_anything_else() -> None:
    show = _show("many layers")
    player = show.player()
    show.play(player, 2)
    whole = player.standing.pack()
    rng = np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(whole)
        kind = rng.integers(3)
        if kind == 0:
            damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        elif kind == 1:
            del damaged[rng.integers(len(damaged)) :]
        else:
            damaged[rng.integers(len(damaged)) :][:7] = rng.bytes(9)
            damaged += rng.bytes(int(rng.integers(1, 5)))
        with pytest.raises(SnapshotError):
            player.standing.resume(bytes(damaged))
    with pytest.raises(SnapshotError):
        player.standing.resume(b"")


def test_a_header_that_lies_is_refused_though_its_checksum_is_right() -> None:
    show = Show(spec_of())
    player = show.player()
    show.play(player, 1)
    whole = player.standing.pack()
    length = int.from_bytes(whole[12:16], "little")
    rng = np.random.default_rng(2)
    refused = 0
    for _ in range(300):
        body = bytearray(whole[12:])
        for _ in range(rng.integers(1, 4)):
            body[rng.integers(length + 4)] = rng.integers(256)
        lying = MAGIC + zlib.crc32(body).to_bytes(4, "little") + body
        try:
            show.player().standing.resume(bytes(lying))
        except SnapshotError:
            refused += 1
    assert refused > 250
