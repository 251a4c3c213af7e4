"""Ends explained: the same summary at every end, from what the broker and its log hold."""

import json
from pathlib import Path

from heddle.broker import Broker, keys
from heddle.broker.failure_types import Failure
from tests.broker_kit import append, claim_next
from tests.loops.test_cli_broker import Say, broker, quarantined, say
from tests.trainer_kit import submit

__all__ = ["broker", "say"]


def over(broker: Broker, state: str, reason: str, **result: object) -> str:  # noqa: F811
    """An experiment whose environment failed once, whose worker died and whose trainer was replaced."""
    made = submit(broker)
    for trainer in ("t-1", "t-2"):
        epoch = broker.seats.claim_seat(made, trainer)
        assert epoch is not None
        broker.seats.release_seat(made, epoch, how="died")
    claim = claim_next(broker, "w1")
    append(broker, claim.lease, 1)
    failure = Failure("exception", "KeyError: 'x' at env.py:31", "step", env=1, worker="w1", episode=1, step=4, seed=7)
    assert broker.shards.note_failure(made, 0, claim.lease.shard, failure)
    broker.conn.main.hset(keys.shard(made, 0, claim.lease.shard), "error", "KeyError: 'x' at env.py:31")
    broker.shards.release_worker("w1", error="KeyError: 'x' at env.py:31")
    died = "worker w1 ended with signal SIGKILL after 3.0 s; last lines: a | b"
    broker.events.log(None, "supervisor", "s-1", "warning", died)
    broker.events.log(made, "trainer", None, "error", "ended with signal SIGSEGV after 5.0 s")
    broker.events.metrics_add(made, 1, {"return": 12.5, "env_steps": 64.0, "wall_seconds": 4.0, "cpu_seconds": 3.0})
    now = broker.conn.now_ms()
    fields = {"state": state, "reason": reason, "result": json.dumps(result), "ended": now + 1000}
    broker.conn.main.hset(keys.status(made), mapping=fields)  # type: ignore[arg-type]
    broker.conn.main.hset(keys.ctl(made), "command", "stop")
    return made


def test_wait_tells_why_it_ended_what_it_took_and_what_to_do_next(say: Say, broker: Broker) -> None:  # noqa: F811
    made = over(broker, "completed", "used env_steps 64", best="runs/x/best.safetensors", env_steps=64, wall_s=4.0)
    code, out, err = say("wait", made)
    assert code == 0 and out.strip() == f"{made} is completed"
    said = " ".join(err.split())
    for words in (
        "ended completed: used env_steps 64",
        "return 12.5 (last 100 training episodes)",
        "steps 64 in 0:04, 16 steps/s, 3 s of processor time in its trainer",
        "appended 1 = trained 0",
        f"failed shard {made}/0, environment 1, in step, episode 1, step 4, seed 7: KeyError: 'x' at env.py:31",
        "restarts 1 new trainer (killed 1), 1 shard taken from workers that ended",
        "worker w1 ended with signal SIGKILL after 3.0 s",
        "trainer ended with signal SIGSEGV after 5.0 s",
        "checkpoint runs/x/best.safetensors",
        "heddle eval runs/x/best.safetensors --episodes 100",
        f"heddle enqueue --resume {made} --set budget.env_steps=128",
    ):
        assert words in said, words
    assert "last lines" not in said


def test_a_crashed_one_says_which_worker_which_environment_which_line(say: Say, broker: Broker) -> None:  # noqa: F811
    made = over(broker, "failed", "5 of 5 shards are quarantined")
    code, _, err = say("wait", made)
    said = " ".join(err.split())
    assert code == 1
    assert (
        f"shard {made}/0, environment 1, in step, episode 1, step 4, seed 7: KeyError: 'x' at env.py:31 (worker w1)"
        in said
    )
    assert f"next: heddle why {made} heddle shards {made}" in said and "checkpoint none" in said


def test_an_end_without_some_shards_says_which_for_how_long_and_how_to_see_it_again(
    say: Say,
    broker: Broker,  # noqa: F811
) -> None:
    made = quarantined(broker)
    now = broker.conn.now_ms()
    over_at = {"state": "completed", "reason": "used env_steps 64", "started": now - 90_000, "ended": now + 60_000}
    broker.conn.main.hset(keys.status(made), mapping=over_at)  # type: ignore[arg-type]
    broker.conn.main.hset(keys.ctl(made), "command", "stop")
    shards = len(broker.shards.shards(made, 0))
    code, _, err = say("wait", made)
    said = " ".join(err.split())
    assert code == 0
    assert f"quarantined {shards - 1} of {shards} shards were played to the end shard 0 for the last" in said
    assert "s: the arm fell off" in said and f"next: heddle repro {made}/0" in said


def test_what_goes_on_has_no_ending_yet_and_json_stays_one_document(
    say: Say,
    broker: Broker,
    tmp_path: Path,  # noqa: F811
) -> None:
    made = submit(broker)
    broker.conn.main.hset(keys.status(made), "state", "running")
    code, out, err = say("wait", made, "--for", "running")
    assert (code, out.strip(), err) == (0, f"{made} is running", "")
    broker.conn.main.hset(keys.status(made), "state", "stopped")
    code, out, err = say("wait", made, "-o", "json")
    assert json.loads(out)["experiments"][0]["state"] == "stopped" and err == ""
