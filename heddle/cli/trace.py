"""`trace EXP`: where the batches of an experiment spend their time, and who the others wait for.

It needs no collector: it reads what every update measured, from the broker or the run's folder, and changes nothing.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from heddle.cli.completion import experiment_names
from heddle.cli.options import command, connect, output_option, print_json, redis_option
from heddle.cli.tables import duration, print_table, say
from heddle.errors import BrokerUnreachable, Gone, NotFound

if TYPE_CHECKING:
    from heddle.cli.series import Series
    from heddle.client import Client
    from heddle.states.bottleneck import Bottleneck, Slow

BAR = 20


@command(
    "trace",
    example="heddle trace cartpole\nheddle trace cartpole --slowest 3\nheddle trace runs/cartpole-7f3a2b -o json",
)
@click.argument("experiment", metavar="EXP", shell_complete=experiment_names)
@click.option(
    "--slowest",
    metavar="[N]",
    type=click.IntRange(0),
    is_flag=False,
    flag_value=5,
    default=0,
    help="Also the N slowest batches (5), and where each of them was.",
)
@click.option(
    "--last", metavar="N", type=click.IntRange(1), default=200, show_default=True, help="Of the last N updates."
)
@output_option
@redis_option
def trace(experiment: str, slowest: int, last: int, output: str, redis_url: str | None) -> None:
    """Show where EXP's batches spend their time, from their first step to the first use of what they taught.

    EXP is a name or id that the broker knows, or the folder of a run. Who the others wait for is said in words.
    """
    from heddle.states.bottleneck import find_bottleneck

    series, now = _read(experiment, redis_url)
    found = find_bottleneck(series.points[-last:])
    if output == "json":
        print_json({"experiment": series.name, **_as_json(found, slowest), "now": now}, ids=[series.name])
        return
    if found is None:
        _tell_nothing(series, now)
        return
    _draw(series.name, found)
    if slowest:
        click.echo()
        _draw_slowest(found.slowest[:slowest])
    click.echo()
    say(f"{found.verdict}; {found.do.replace('EXP', series.name)}")
    if now is not None:
        say(_shown(now))


def _read(experiment: str, redis_url: str | None) -> "tuple[Series, dict[str, Any] | None]":
    """What was measured, and how things are now (None of one that is over, or where only its folder is left)."""
    from heddle.cli.series import find

    try:
        client = connect(redis_url)
    except BrokerUnreachable:
        if redis_url is not None:
            raise
        return find(experiment, None), None
    with client:
        series = find(experiment, client)
        return series, _now(client, series.name)


def _now(client: "Client", experiment: str) -> dict[str, Any] | None:
    from heddle.states.look import look_at

    try:
        facts, picture = look_at(client.broker, client.experiment(experiment).id)
        if facts.status.ended:
            return None
        oldest_ms = client.broker.overview.oldest_ms(facts.id)
    except (Gone, NotFound):
        return None
    now_ms, judged = facts.sight.now_ms, picture.experiment
    return {
        **judged.in_short(now_ms),
        "line": "" if judged.is_green else judged.line(now_ms),
        "in_flight_batches": facts.flow.entries,
        "oldest_s": round((now_ms - oldest_ms) / 1000, 1) if oldest_ms else None,
        "shards_waiting": facts.flow.waiting,
        "trainer": facts.sitter.doing if picture.trainer.state != "absent" else "absent",
        "trained_s_ago": round((now_ms - facts.updated_ms) / 1000, 1) if facts.updated_ms else None,
    }


def _shown(now: dict[str, Any]) -> str:
    """How things are now, in one line."""
    parts = [f"{now['in_flight_batches']} batches in the stream"]
    if now["oldest_s"] is not None:
        parts[0] += f", the oldest for {duration(1000 * now['oldest_s'])}"
    if now["shards_waiting"]:
        parts.append(f"{now['shards_waiting']} shards wait for room")
    if now["trained_s_ago"] is not None:
        parts.append(f"last update {duration(1000 * now['trained_s_ago'])} ago")
    parts.append(f"trainer: {now['trainer'] or 'none'}")
    state = f"{now['state']}: {now['line']}" if now["line"] else now["state"]
    return f"now {state} ({', '.join(parts)})"


def _draw(name: str, found: "Bottleneck") -> None:
    from heddle.states.bottleneck import STAGES

    click.echo(f"{name}: a batch takes {found.total:.2f} s (mean over {found.updates} updates)\n")
    rows = [
        (stage.name, f"{stage.seconds:.3f}", f"{stage.share:.0%}", "█" * round(BAR * stage.share), STAGES[stage.name])
        for stage in found.stages
    ]
    print_table(("STAGE", "SECONDS", "SHARE", "", "WHAT"), rows, empty="")


def _draw_slowest(slowest: "Sequence[Slow]") -> None:
    from heddle.states.bottleneck import OF_A_BATCH

    names = (*OF_A_BATCH, "update")
    rows = [
        (one.update, f"{one.shard}/{one.epoch}/{one.seq}", f"{one.total:.3f}")
        + tuple(f"{one.seconds[name]:.3f}" if name in one.seconds else "-" for name in names)
        + (one.most_in,)
        for one in slowest
    ]
    header = ("UPDATE", "SHARD/EPOCH/SEQ", "SECONDS", *(name.upper() for name in names), "MOST IN")
    print_table(header, rows, empty="")


def _tell_nothing(series: "Series", now: dict[str, Any] | None) -> None:
    why = "there was no update yet" if not series.points else "an older version ran it, which did not measure that"
    say(f"nothing is known of where batches of {series.name} spend their time: {why}")
    if now is not None:
        say(_shown(now))


def _as_json(found: "Bottleneck | None", slowest: int) -> dict[str, Any]:
    if found is None:
        names = ("updates", "seconds", "stages", "learning", "waiting", "bottleneck", "verdict", "do", "slowest")
        return dict.fromkeys(names) | {"updates": 0, "stages": [], "slowest": []}
    return {
        "updates": found.updates,
        "seconds": found.total,
        "stages": [{"stage": one.name, "seconds": one.seconds, "share": one.share} for one in found.stages],
        "learning": found.learning,
        "waiting": found.waiting,
        "bottleneck": found.who,
        "verdict": found.verdict,
        "do": found.do,
        "slowest": [asdict(one) | {"total": one.total, "most_in": one.most_in} for one in found.slowest[:slowest]],
    }
