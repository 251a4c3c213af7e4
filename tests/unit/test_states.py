"""States as tables: facts and now in, a judgement with its why out; no server, no clock."""

from dataclasses import replace
from typing import Any

import pytest

from heddle.broker.coordinators import Leader
from heddle.broker.experience_types import Amount, Flow
from heddle.broker.pools import WorkerBeat, WorkerInfo
from heddle.broker.records import Status
from heddle.broker.seats import Sitter
from heddle.broker.types import Ctl, ShardState
from heddle.states.experiments import Picture, judge
from heddle.states.facts import Facts, PoolFacts, Sight
from heddle.states.judgement import Judgement
from heddle.states.workers import judge_worker

NOW = 1_000_000_000
TTL = 10_000
EXP = "exp-1a2b"
NONE = Amount()
FLOW = Flow(0, 0, 0, 0, 0, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE)
LONG = 3_600_000


def shard(number: int, state: str = "leased", worker: str = "w1", *, ago: int = LONG, **more: Any) -> ShardState:
    leased = state == "leased"
    one = ShardState(
        shard=number,
        kind="train",
        first_env=number,
        num_envs=1,
        state=state,
        worker=worker if leased else "",
        epoch=1,
        attempts=1,
        seq=5,
        steps=100,
        given=0,
        deaths=0,
        stepping=False,
        parked_bytes=0,
        lease_ms=8_000 if leased else 0,
        last_error="",
        since_ms=NOW - ago,
        accepted_ms=NOW - 500,
        last_worker=worker,
    )
    return replace(one, **more)


def worker(name: str = "w1", *, silent: int = 400, alive: bool = True, died: str = "", **beat: Any) -> WorkerInfo:
    fields: dict[str, Any] = {"state": "playing", "shards": 1, "pid": 12, "host": "box", "ms_per_step": 1.0} | beat
    draining = fields["state"] == "draining"
    return WorkerInfo(WorkerBeat(worker=name, **fields), alive, draining, NOW - silent, silent, died)


def facts(
    *,
    status: dict[str, Any] | None = None,
    ctl: dict[str, Any] | None = None,
    shards: tuple[ShardState, ...] = (shard(0), shard(1)),
    workers: tuple[WorkerInfo, ...] = (worker(),),
    **more: Any,
) -> Facts:
    """A run in which all is well, changed."""
    started: dict[str, Any] = {
        "experiment": EXP,
        "name": "exp",
        "pool": "default",
        "state": "running",
        "reason": "",
        "command": "run",
        "outcome": "",
        "result": {},
        "created_ms": NOW - LONG,
        "started_ms": NOW - LONG,
        "since_ms": NOW - LONG,
        "ended_ms": 0,
        "policy": 7,
        "eval_policy": 0,
        "active": 2,
        "active_eval": 0,
        "rev": 1,
        "resume_from": None,
    }
    told: dict[str, Any] = {
        "command": "run",
        "policy": 7,
        "min_policy": 0,
        "eval_policy": 0,
        "seat_epoch": 5,
        "leader_epoch": 5,
        "active": 2,
        "active_eval": 0,
        "rev": 1,
        "sync": False,
        "max_entries": 100,
        "max_bytes": 1 << 20,
        "outcome": "",
        "reason": "",
        "protocol": 1,
    }
    well: dict[str, Any] = {
        "sight": Sight(NOW, LONG),
        "status": Status(**(started | (status or {}))),
        "ctl": Ctl(**(told | (ctl or {}))),
        "shards": shards,
        "flow": FLOW,
        "ttl_ms": TTL,
        "pool": PoolFacts("default", {one.beat.worker: one for one in workers}, len(workers)),
        "sitter": Sitter("t1", 4_000, NOW - LONG, NOW - 300, 0, "wait", 200),
        "leader": Leader("c1", 5, 2_000, NOW + 2_000),
        "updated_ms": NOW - 700,
        "update_s": 0.2,
    }
    return Facts(**(well | more))


def experiment(**changes: Any) -> Judgement:
    return judge(facts(**changes)).experiment


def lost_seat(ago: int) -> Sitter:
    return Sitter("t1", 0, NOW - LONG, NOW - ago, 0, "wait", 100)


QUEUED = (shard(0, "queued", ago=20_000), shard(1, "queued", ago=20_000))
OLD = NOW - 60_000

EXPERIMENTS: list[tuple[str, dict[str, Any], str, str, str]] = [
    # what, facts, state, waits for, words of its line
    ("all is well", {}, "running", "", ""),
    ("over", {"status": {"state": "failed", "reason": "no luck"}}, "failed", "", "no luck"),
    ("submitted", {"status": {"state": "queued"}}, "queued", "", "a coordinator admits it"),
    ("no coordinator ever", {"status": {"state": "queued"}, "leader": None}, "queued", "", "heddle coordinator"),
    ("paused", {"status": {"command": "pause", "state": "paused"}}, "paused", "", "heddle resume"),
    (
        "a full stream",
        {"room": {0: NOW - 4_000, 1: NOW - 2_000}},
        "running",
        "",
        f"its trainer does not keep up: 2 shards wait for room in the stream, since 4 s; see: heddle trace {EXP}",
    ),
    ("stopping", {"status": {"command": "stop", "state": "stopping"}}, "stopping", "", "shards 0, 1"),
    (
        "stopped by its trainer, with batches back whose acks a killed broker forgot",
        {"status": {"command": "stop", "state": "stopping", "outcome": "stopped"}, "flow": replace(FLOW, entries=2)},
        "stopping",
        "",
        "2 batches came back",
    ),
    (
        "stopping without a trainer",
        {"status": {"command": "stop", "state": "stopping"}, "shards": (shard(0, "stopped"),), "sitter": Sitter()},
        "stopping",
        "",
        "heddle trainer",
    ),
    ("no trainer yet", {"sitter": Sitter(), "updated_ms": 0}, "waiting", "trainer", f"heddle trainer {EXP}"),
    (
        "the trainer left",
        {"sitter": Sitter("t1", 0, NOW - LONG, NOW - 9_000, NOW - 9_000)},
        "waiting",
        "trainer",
        "since 9 s",
    ),
    ("seat just expired", {"sitter": lost_seat(5_500), "updated_ms": NOW - 5_600}, "degraded", "", "t1 does not renew"),
    ("seat long expired", {"sitter": lost_seat(12_000), "updated_ms": NOW - 12_100}, "stalled", "", "since 12 s"),
    (
        "an update hangs",
        {"sitter": Sitter("t1", 4_000, NOW - LONG, NOW - 300, 0, "update", 30_000), "updated_ms": NOW - 31_000},
        "stalled",
        "",
        "its update does not come back",
    ),
    (
        "an update is as long as ever",
        {
            "sitter": Sitter("t1", 4_000, NOW - LONG, NOW - 300, 0, "update", 30_000),
            "updated_ms": NOW - 31_000,
            "update_s": 29.0,
        },
        "running",
        "",
        "",
    ),
    (
        "the first update may take a minute",
        {"sitter": Sitter("t1", 4_000, OLD, NOW - 300, 0, "update", 30_000), "updated_ms": 0, "update_s": 0.0},
        "running",
        "",
        "",
    ),
    ("no policy yet", {"status": {"policy": 0}}, "waiting", "policy", "first policy"),
    ("no workers", {"shards": QUEUED, "workers": ()}, "waiting", "workers", "heddle workers start"),
    (
        "no workers, and full",
        {"shards": QUEUED, "out_of_memory": True, "updated_ms": OLD, "sitter": Sitter("t1", 4_000, OLD, NOW)},
        "waiting",
        "room",
        "maxmemory",
    ),
    ("full from the start", {"status": {"policy": 0}, "out_of_memory": True}, "waiting", "room", "raise maxmemory"),
    (
        "its disk is full",
        {"blocked": "cannot write its disk", "updated_ms": OLD, "sitter": Sitter("t1", 4_000, OLD, NOW)},
        "waiting",
        "room",
        "the broker cannot write its disk",
    ),
    (
        "it misses its replicas",
        {"blocked": "misses replicas", "updated_ms": OLD, "sitter": Sitter("t1", 4_000, OLD, NOW)},
        "waiting",
        "room",
        "bring its replicas back",
    ),
    (
        "no room for a policy",
        {"status": {"policy": 0}, "sitter": Sitter("t1", 4_000, NOW - LONG, NOW - 300, 0, "refused", 9_000)},
        "waiting",
        "room",
        "no room for the trainer's policy (maxmemory), since 9 s; raise maxmemory",
    ),
    (
        "no room for a batch",
        {
            "workers": (worker(state="waiting", reason=f"{EXP}/0 waits for room"),),
            "shards": (shard(0, accepted_ms=0, ago=12_000),),
            "updated_ms": NOW - 12_000,
        },
        "waiting",
        "room",
        "none for a single batch",
    ),
    ("full and yet training", {"out_of_memory": True}, "degraded", "", "maxmemory"),
    (
        "its only worker is silent",
        {"workers": (worker(silent=6_000),), "shards": (shard(0), shard(1))},
        "stalled",
        "",
        "shards 0, 1 are stalled",
    ),
    (
        "its only worker is silent with its only shard",
        {"workers": (worker(silent=6_000),), "shards": (shard(0),)},
        "stalled",
        "",
        "shard 0 is stalled",
    ),
    (
        "one of two workers is silent",
        {"workers": (worker(), worker("w2", silent=6_000)), "shards": (shard(0), shard(1, worker="w2"))},
        "degraded",
        "",
        "shard exp-1a2b/1 is stalled",
    ),
    (
        "an environment hangs",
        {"workers": (worker(doing="step", subject=f"{EXP}/1", doing_ms=12_000, still_ms=12_000, limit_ms=60_000),)},
        "stalled",
        "",
        "step",
    ),
    (
        "a shard is quarantined",
        {"shards": (shard(0), shard(1, "quarantined", deaths=3, last_error="the arm fell off"))},
        "degraded",
        "",
        "the arm fell off",
    ),
    ("no leader", {"leader": Leader("c1", 5, 0, NOW - 4_000)}, "degraded", "", "coordinator c1 does not renew"),
    ("the lead changes hands", {"leader": Leader("c1", 5, 0, NOW - 500)}, "running", "", ""),
    (
        "too few workers",
        {"pool": PoolFacts("default", {"w1": worker()}, 3)},
        "degraded",
        "",
        "1 of 3 workers",
    ),
    (
        "nothing explains it",
        {
            "ctl": {"sync": True},
            "shards": (shard(0, given=7, accepted_ms=NOW - 11_000), shard(1, given=7, accepted_ms=NOW - 11_000)),
            "updated_ms": NOW - 11_000,
            "sitter": Sitter("t1", 4_000, NOW - LONG, NOW - 300, 0, "wait", 11_000),
        },
        "stalled",
        "",
        "the trainer waits for experience and its shards wait",
    ),
    (
        "collecting takes long, and moves",
        {"updated_ms": OLD, "sitter": Sitter("t1", 4_000, NOW - LONG, NOW, 0, "wait", 60_000)},
        "running",
        "",
        "",
    ),
]


@pytest.mark.parametrize(
    ("what", "changes", "state", "waits_for", "words"), EXPERIMENTS, ids=[e[0] for e in EXPERIMENTS]
)
def test_an_experiment_is_what_its_facts_say(
    what: str, changes: dict[str, Any], state: str, waits_for: str, words: str
) -> None:
    judged = experiment(**changes)
    line = judged.line(NOW)
    assert (judged.state, judged.waits_for) == (state, waits_for), line
    assert words in line
    assert "\n" not in line
    assert judged.is_green or judged.why, "every state that is not green says why"


SHARDS: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("played", {}, "playing", "", ""),
    ("queued, nobody there", {"shards": QUEUED[:1], "workers": ()}, "waiting", "workers", "has none that works"),
    (
        "queued, and no coordinator",
        {"shards": QUEUED[:1], "leader": Leader("c1", 5, 0, NOW - 9_000)},
        "waiting",
        "workers",
        "heddle coordinator",
    ),
    ("queued for a moment", {"shards": (shard(0, "queued", ago=100),)}, "waiting", "workers", "one takes it"),
    ("paused", {"status": {"command": "pause", "state": "paused"}}, "paused", "", ""),
    ("over", {"status": {"state": "completed"}}, "stopped", "", ""),
    ("quarantined", {"shards": (shard(0, "quarantined", deaths=3),)}, "quarantined", "", f"shards release {EXP}/0"),
    ("full", {"room": {0: NOW - 7_000}}, "waiting", "room", "since 7 s"),
    ("first policy", {"status": {"policy": 0}}, "waiting", "policy", "first policy"),
    ("sync", {"ctl": {"sync": True}, "shards": (shard(0, given=7),)}, "waiting", "policy", "newer than 7"),
    ("evaluation", {"shards": (shard(0, kind="eval"),)}, "waiting", "evaluation", "next evaluation"),
    (
        "its worker can play none",
        {"workers": (worker(state="waiting", reason="waits for room"),)},
        "waiting",
        "room",
        "",
    ),
    ("evaluating", {"status": {"eval_policy": 3}, "shards": (shard(0, kind="eval"),)}, "playing", "", ""),
    ("lease ran out", {"shards": (shard(0, lease_ms=0),)}, "stalled", "", "let its lease run out"),
    ("silent worker", {"workers": (worker(silent=6_000),)}, "stalled", "", "its worker w1 is stalled, since 6 s"),
    (
        "hanging step",
        {"workers": (worker(doing="step", subject=f"{EXP}/0", still_ms=11_000, limit_ms=60_000),)},
        "stalled",
        "",
        "step does not come back, since 11 s; its worker is ended after 60 s (env.step_timeout), and another one",
    ),
    (
        "hanging step in a child",
        {
            "workers": (
                worker(doing="step", subject=f"{EXP}/0", still_ms=11_000, limit_ms=130_000, own_limit_ms=40_000),
            )
        },
        "stalled",
        "",
        "it is given up after 40 s (env.step_timeout): its shard is played anew, and the worker goes on",
    ),
    (
        "hanging set_state",
        {"workers": (worker(doing="restore", subject=f"{EXP}/0", still_ms=11_000, limit_ms=60_000),)},
        "stalled",
        "",
        "restoring the snapshot does not come back, since 11 s; its worker is ended after 60 s (env.reset_timeout)",
    ),
    (
        "its child is slow",
        {"workers": (worker(state="waiting", reason=f"{EXP}/0 waits for its environments"),)},
        "waiting",
        "environments",
        "waits for its environments",
    ),
    (
        "a neighbour's child is slow",
        {"workers": (worker(state="waiting", reason="other-1a2b/3 waits for its environments"),)},
        "waiting",
        "turn",
        "waits for its turn on its worker w1, where other-1a2b/3 waits for its environments",
    ),
    (
        "a neighbour hangs",
        {"workers": (worker(doing="step", subject=f"{EXP}/1", still_ms=11_000, limit_ms=60_000),)},
        "stalled",
        "",
        "its worker w1 is stalled",
    ),
    ("unknown worker, new batches", {"workers": ()}, "playing", "", ""),
    (
        "unknown worker, no batches",
        {"workers": (), "shards": (shard(0, accepted_ms=NOW - 20_000),)},
        "stalled",
        "",
        "neither heartbeat nor batches",
    ),
]


@pytest.mark.parametrize(("what", "changes", "state", "waits_for", "words"), SHARDS, ids=[e[0] for e in SHARDS])
def test_a_shard_is_what_its_facts_say(
    what: str, changes: dict[str, Any], state: str, waits_for: str, words: str
) -> None:
    judged = judge(facts(**changes)).shards[0]
    line = judged.line(NOW)
    assert (judged.state, judged.waits_for) == (state, waits_for), line
    assert words in line


@pytest.mark.parametrize(
    ("reason", "is_trainers"),
    [
        (f"{EXP}/0 waits for its environments", False),
        ("other-1a2b/3 waits for its environments", False),
        ("other-1a2b/3 waits for room", False),
        (f"{EXP}/1 waits for room", True),
    ],
)
def test_the_trainer_is_no_cause_of_what_a_shard_waits_for_on_its_worker_unless_it_keeps_that_waiting(
    reason: str, is_trainers: bool
) -> None:
    judged = judge(facts(workers=(worker(state="waiting", reason=reason),)))
    assert judged.shards[0].state == "waiting"
    assert judged.shards[0].because == ((judged.trainer,) if is_trainers else ())


WORKERS: list[tuple[str, WorkerInfo, str, str]] = [
    ("plays", worker(), "alive", ""),
    ("idle", worker(state="idle", shards=0), "waiting", "holds no shard"),
    ("waits", worker(state="waiting", reason="exp/0 waits for room"), "waiting", "waits for room"),
    ("drains", worker(state="draining"), "draining", "asked to end"),
    ("beats late", worker(silent=4_000), "alive", ""),
    ("silent", worker(silent=5_500), "stalled", "pid 12 on box"),
    ("silent for a TTL", worker(silent=10_500), "dead", "its shards go to others"),
    ("silent for a short TTL", worker(silent=2_100, ttl_ms=1_000), "dead", "since 2 s"),
    ("silent for long", worker(silent=20_000, alive=False), "dead", "look at pid 12 on box"),
    ("forgotten by the broker", worker(silent=20_000, alive=False, pid=0, host=""), "dead", "look where it ran"),
    ("buried", worker(died="killed by SIGKILL"), "dead", "killed by SIGKILL"),
    ("hangs", worker(doing="reset", subject="x/1", still_ms=11_000, limit_ms=60_000), "stalled", "reset of x/1"),
    ("slow steps", worker(doing="step", subject="x/1", still_ms=11_000, ms_per_step=5_000.0), "alive", ""),
    ("slow steps before", worker(doing="step", subject="x/1", still_ms=11_000, play_s=50.0, steps=10), "alive", ""),
    ("loop stands", worker(still_ms=11_000), "stalled", "nothing of the user's runs"),
]


@pytest.mark.parametrize(("what", "info", "state", "words"), WORKERS, ids=[e[0] for e in WORKERS])
def test_a_worker_is_what_its_heartbeat_says(what: str, info: WorkerInfo, state: str, words: str) -> None:
    judged = judge(facts(workers=(info,))).workers["w1"]
    assert judged.state == state, judged
    assert words in judged.line(NOW)
    assert judged.is_green or judged.why


@pytest.mark.parametrize(
    ("what", "info", "supervisors", "do"),
    [
        (
            "replaced",
            worker(died="SIGKILL", supervisor="s1"),
            ("s1", "s2"),
            "its supervisor keeps the pool at its size",
        ),
        ("asked to end", worker(died="SIGKILL", supervisor="s1", state="draining"), ("s1",), ""),
        ("killed with all", worker(died="SIGKILL", supervisor="s1"), ("s2",), "its supervisor is gone as well"),
        ("started alone", worker(died="SIGKILL"), ("s1",), ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nobody_is_said_to_replace_a_dead_worker_unless_its_supervisor_is_here(
    what: str, info: WorkerInfo, supervisors: tuple[str, ...], do: str
) -> None:
    assert judge_worker(info, Sight(NOW, LONG), supervisors).do == do


@pytest.mark.parametrize("seen_for_ms", [0, 1_000, 4_900])
def test_after_the_broker_was_away_a_silent_worker_is_unknown_and_not_dead(seen_for_ms: int) -> None:
    picture = judge(facts(workers=(worker(silent=60_000),), sight=Sight(NOW, seen_for_ms)))
    assert picture.workers["w1"].state == "unknown"


def test_after_the_broker_was_away_nobody_is_blamed_before_he_could_be_heard_of() -> None:
    back = Sight(NOW, 1_500)
    away: dict[str, Any] = {
        "sitter": lost_seat(20_000),
        "leader": Leader("c1", 5, 0, NOW - 18_000),
        "shards": (shard(0, lease_ms=0), shard(1, lease_ms=0)),
        "workers": (worker(silent=20_000),),
        "updated_ms": NOW - 20_000,
    }
    picture = judge(facts(**away, sight=back))
    everybody = (
        picture.experiment,
        picture.trainer,
        picture.leader,
        *picture.shards.values(),
        *picture.workers.values(),
    )
    assert {one.state for one in everybody} == {"unknown"}
    later = judge(facts(**away, sight=Sight(NOW, TTL + 1_000)))
    assert (later.experiment.state, later.trainer.state, later.shards[0].state) == ("stalled", "absent", "stalled")


@pytest.mark.parametrize("is_leased", [False, True])
def test_a_shard_that_fails_again_and_again_is_named_with_its_failure_before_who_waits(is_leased: bool) -> None:
    """It is queued for a moment, and claimed again for another; the others of a barrier wait for it."""
    failed: dict[str, Any] = {"failures": 8, "last_error": "KeyError: 'x' at slow.py:20"}
    failed |= {"state": "leased" if is_leased else "queued", "failed_seq": 5, "since_ms": NOW - 300}
    done = (replace(shard(0), given=7), replace(shard(1), given=7))
    picture = judge(facts(ctl={"sync": True}, shards=(*done, replace(shard(2), **failed))))
    line = picture.experiment.line(NOW)
    assert "shard 2 failed 8 times in a row: KeyError: 'x' at slow.py:20" in line
    assert "mend that" in line and "within seconds" not in line
    assert picture.experiment.state == ("degraded" if is_leased else "waiting")
    assert is_leased or "failed 8 times in a row" in picture.shards[2].why
    # When a batch of it was accepted since, then that is over
    over = replace(shard(2), **failed | {"seq": 6})
    assert "KeyError" not in judge(facts(ctl={"sync": True}, shards=(*done, over))).experiment.line(NOW)


def test_a_trainer_that_does_not_renew_its_seat_is_replaced_by_its_host() -> None:
    told = judge(facts(sitter=lost_seat(12_000), updated_ms=NOW - 12_100)).trainer.do
    assert "`heddle up`" in told and "replace" in told and f"heddle trainer {EXP}" in told


def test_the_chain_of_reasons_goes_down_to_who_is_to_blame() -> None:
    hung = worker(doing="step", subject=f"{EXP}/1", still_ms=12_000, limit_ms=60_000)
    chain = [(depth, reason.subject, reason.state) for depth, reason in experiment(workers=(hung,)).chain()]
    assert (1, f"shard {EXP}/0", "stalled") in chain
    assert (2, "worker w1", "stalled") in chain
    assert len({subject for _, subject, _ in chain}) == len(chain), "nothing is told twice"


def test_a_judgement_as_json_keeps_reasons_and_spans() -> None:
    judged = experiment(sitter=lost_seat(12_000), updated_ms=NOW - 12_100).as_json(NOW)
    assert judged["state"] == "stalled" and judged["for_s"] == 12.0
    assert judged["because"][0]["subject"] == "trainer t1"


def test_the_same_facts_give_the_same_picture() -> None:
    one: Picture = judge(facts())
    assert one == judge(facts())


def test_a_pool_whose_workers_end_one_after_the_other_tells_how_and_names_the_last_ones_only() -> None:
    how = "it ended with signal SIGSEGV at myenv.py:23, while it stepped exp-1a2b/1"
    died = tuple(worker(f"w{n}", silent=1_000 * n, alive=False, died=how, supervisor="s1") for n in range(1, 9))
    known = facts(shards=QUEUED, workers=died)
    picture = judge(replace(known, pool=replace(known.pool, supervisors=("s1",))))
    assert picture.experiment.waits_for == "workers"
    assert f"pool default has no live worker; of the last one its supervisor says that {how}" in picture.experiment.why
    assert "heddle logs --level warning" in picture.experiment.do
    assert [one.subject for one in picture.experiment.because[1:]] == ["worker w1", "worker w2", "worker w3"]
    (shard_zero, *_) = picture.shards.values()
    assert "heddle logs" in shard_zero.do
    assert len(shard_zero.because) == 3


@pytest.mark.parametrize(
    ("judged", "shown"),
    [
        (Judgement("worker w1", "waiting", "waits", waits_for="policy"), "waiting: policy"),
        (Judgement("worker w1", "alive"), "alive"),
    ],
)
def test_what_a_waiting_one_waits_for_stands_beside_its_state(judged: Judgement, shown: str) -> None:
    assert judged.shown == shown
