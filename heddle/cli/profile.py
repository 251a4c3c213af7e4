"""`profile EXP`: what the workers and the trainer of a live experiment spend their time on.

It never slows them: it reads twice what they count anyway.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from heddle.cli.options import command, connect, output_option, print_json, redis_option
from heddle.cli.progress import progress
from heddle.cli.tables import print_table, say

if TYPE_CHECKING:
    from heddle.broker.metrics import Metric
    from heddle.broker.pools import WorkerInfo
    from heddle.experiment import Experiment

SHOWN = ("env", "policy", "books", "encode", "snapshot", "weights", "wait", "other")
SENDING = "sending"
LEAST_SAMPLES = 10


@command("profile", example="heddle profile cartpole\nheddle profile cartpole --seconds 30 -o json")
@click.argument("experiment", metavar="EXP")
@click.option("--seconds", type=click.FloatRange(1.0, 3600.0), default=5.0, show_default=True, help="How long to look.")
@output_option
@redis_option
def profile(experiment: str, seconds: float, output: str, redis_url: str | None) -> None:
    """Show what EXP's workers and trainer spend their time on, over the next seconds.

    Of the thread that plays: env is the environments' own code, policy the policy's, books the player's, encode making
    a batch of a segment, weights fetching a policy, wait when nothing may be played. Sending is another thread's,
    beside it. A worker counts for all experiments that it plays. The trainer's are the updates of this experiment.
    """
    with connect(redis_url) as client:
        found = client.experiment(experiment)
        before, last = _workers(found), client.broker.events.metrics_newest(found.id)
        with progress(f"looking at {found.id} for {seconds:g} s"):
            client.clock.sleep(seconds)
        after = _workers(found)
        updates = _updates_after(found, last)
    shares = {name: share_of(before[name], info) for name, info in after.items() if name in before}
    trained = trainer_shares(updates, seconds)
    if output == "json":
        workers = [{"worker": name, **share} for name, share in shares.items() if share is not None]
        print_json({"experiment": found.id, "seconds": seconds, "workers": workers, "trainer": trained})
        return
    rows = [_row(name, share) for name, share in sorted(shares.items()) if share is not None]
    header = ("WORKER", "STEPS/S", *(what.upper() for what in SHOWN), SENDING.upper())
    print_table(header, rows, empty=f"no worker played {found.id} for long enough; look longer with --seconds")
    if trained is None:
        say("trainer: no update in this time")
    else:
        parts = ", ".join(f"{what} {trained[what]:.0%}" for what in ("learning", "waiting", "other"))
        say(f"trainer: {trained['updates']} updates, {parts}")


def share_of(before: "WorkerInfo", after: "WorkerInfo") -> dict[str, Any] | None:
    """Of a worker between two looks: steps a second and shares by phase, 0 to 1; None when too little was counted.

    `sending` is a share of the same time, beside the others, which add up to 1.
    """
    first, second = before.beat, after.beat
    counted = {what: count - first.profile.get(what, 0) for what, count in second.profile.items()}
    sending = counted.pop(SENDING, 0)
    total = sum(counted.values())
    elapsed_s = (after.seen_ms - before.seen_ms) / 1000
    if first.pid != second.pid or total < LEAST_SAMPLES or elapsed_s <= 0:
        return None
    known = {what: counted.pop(what, 0) / total for what in SHOWN}
    known["other"] += sum(counted.values()) / total
    return {"steps_per_second": round((second.steps - first.steps) / elapsed_s, 1), **known, SENDING: sending / total}


def trainer_shares(updates: "Sequence[Metric]", seconds: float) -> dict[str, Any] | None:
    """Of the updates made in that time: how many, and shares of learning, waiting for experience, and all else."""
    if not updates:
        return None
    spent = {
        what: sum(update.values.get(what, 0.0) for update in updates) for what in ("update_seconds", "wait_seconds")
    }
    total = max(seconds, sum(spent.values()))
    learning, waiting = spent["update_seconds"] / total, spent["wait_seconds"] / total
    return {"updates": len(updates), "learning": learning, "waiting": waiting, "other": 1.0 - learning - waiting}


def _row(name: str, share: Mapping[str, float]) -> tuple[str, ...]:
    cells = (f"{share[what]:.0%}" if share[what] else "-" for what in (*SHOWN, SENDING))
    return (name, f"{share['steps_per_second']:,.0f}", *cells)


def _workers(experiment: "Experiment") -> "dict[str, WorkerInfo]":
    """Those that play it, by id."""
    broker = experiment.client.broker
    found = broker.pools.workers(experiment.status().pool)
    return {info.beat.worker: info for info in found if info.alive and experiment.id in info.beat.experiments}


def _updates_after(experiment: "Experiment", last: "Metric | None") -> "list[Metric]":
    after = "0" if last is None else last.entry_id
    return experiment.client.broker.events.metrics_read(experiment.id, after, count=100_000)
