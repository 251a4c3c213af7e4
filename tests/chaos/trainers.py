"""What tests of dying trainers share: workers that give, a learner that hangs, and what must have become of each batch.

It never starts or ends a trainer.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from heddle.broker.experience_types import Flow
from tests.helpers import eventually
from tests.trainer_kit import Fleet, saved, seen_in

Batch = tuple[int, int]
"""Shard and seq."""


def give_all(fleet: Fleet, version: int) -> dict[Batch, int]:
    """One batch of every shard, and by which version each was played."""
    for shard in fleet.claims:
        fleet.give(shard, version)
    return {(shard, fleet.seqs[shard]): version for shard in fleet.claims}


def hang(hooks: Path, where: str) -> None:
    (hooks / f"in-{where}").unlink(missing_ok=True)
    (hooks / f"hang-{where}").touch()


def hangs(hooks: Path, where: str) -> None:
    eventually((hooks / f"in-{where}").exists, timeout_s=30.0, what=f"the trainer hangs in {where}")


def go_on(hooks: Path) -> None:
    for hook in hooks.glob("hang-*"):
        hook.unlink()


def check_each_once(fleet: Fleet, home: Path, *, unsaved: AbstractSet[Batch] = frozenset(), killed: int = 0) -> None:
    """What was accepted was trained, once, in order; and that is what the counters say.

    Args:
        unsaved: played by weights that no checkpoint holds, see `lost_with`: these, and nothing else, are stale.
        killed: trainers that were killed at no known moment: between an ack and the removal of what was acked, maybe.
    """
    eventually(lambda: fleet.flow().entries == 0, timeout_s=20.0, what="everything is settled")
    seen = seen_in(saved(home))
    assert len(seen) == len(set(seen))
    assert set(fleet.gave) - set(seen) == unsaved and set(seen) <= set(fleet.gave)
    for shard in fleet.claims:
        given = [seq for at, seq in fleet.gave if at == shard and (at, seq) not in unsaved]
        assert [seq for at, seq in seen if at == shard] == given
    flow = fleet.flow()
    assert (flow.trained.batches, flow.stale.batches) == (len(seen), len(unsaved))
    fleet.check_balance()
    _check_plane(fleet, flow, killed)


def _check_plane(fleet: Fleet, flow: Flow, killed: int) -> None:
    """Batches lay where the experiment has them, and no file of one outlives it."""
    if fleet.home is None:
        assert flow.mapped == 0
        return
    assert flow.mapped > 0
    assert flow.mapped >= flow.appended.batches - len(fleet.claims), "but for some while a trainer came"
    home, most = fleet.home, killed * len(fleet.claims)
    eventually(lambda: len(home.names()) <= most, what="settled batches are gone")


def lost_with(fleet: Fleet, home: Path, versions: Mapping[Batch, int]) -> set[Batch]:
    """Of a trainer that died just now: what was played by versions that it had published and not saved.

    Nobody has these weights any more. Its successor goes on from those of the checkpoint, so that these are stale.
    """
    held = saved(home)
    assert held is not None
    seen = set(seen_in(held))
    return {batch for batch in fleet.gave if batch not in seen and versions[batch] != held.policy_version}


def version_after(fleet: Fleet, version: int) -> int:
    """A higher version than `version`, once it is there; a resumed trainer takes a process start."""
    return eventually(
        lambda: (found := fleet.broker.policies.latest(fleet.experiment)) > version and found,
        timeout_s=60.0,
        what=f"a policy above {version}",
    )
