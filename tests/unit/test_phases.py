"""What workers of a pool spend their time on, between two looks."""

from collections.abc import Mapping

from heddle.broker.presence import WorkerBeat, WorkerInfo
from heddle.coord.phases import BESIDE, PHASES, Phases


def pool(**workers: Mapping[str, int]) -> dict[str, dict[str, WorkerInfo]]:
    infos = {
        name: WorkerInfo(WorkerBeat(name, profile=profile), seen_ms=0, silent_ms=0, alive=True, draining=False)
        for name, profile in workers.items()
    }
    return {"default": infos}


def test_shares_are_those_since_the_look_before_and_a_worker_that_began_anew_counts_from_the_start() -> None:
    phases = Phases()
    first = phases.look(pool(a={"env": 100}, b={"wait": 100}))["default"]
    assert (first["env"], first["wait"], first["encode"]) == (0.5, 0.5, 0.0)
    # When one goes on with other things, and another one of the same name begins anew
    later = phases.look(pool(a={"env": 100, "encode": 6}, b={"env": 2}))["default"]
    assert (later["encode"], later["env"], later["wait"]) == (0.75, 0.25, 0.0)
    # Then nothing new is no reason to say that they do nothing
    assert phases.look(pool(a={"env": 100, "encode": 6}, b={"env": 2}))["default"] == later


def test_names_are_a_fixed_list_whatever_workers_call_things() -> None:
    told = Phases().look(pool(a={"env": 1, "dance": 3, BESIDE: 2}))["default"]
    assert told.keys() == {*PHASES, BESIDE}
    assert (told["other"], told[BESIDE]) == (0.75, 0.5)


def test_a_pool_of_which_nothing_was_heard_has_no_shares() -> None:
    assert Phases().look({"default": {}}) == {"default": {}}
