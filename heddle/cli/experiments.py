"""`ls`, `status`: what the broker knows of experiments, and how they really are.

They never change anything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from heddle.cli.completion import experiment_names
from heddle.cli.options import command, connect, output_option, print_json, redis_option
from heddle.cli.tables import duration, number, print_facts, print_table
from heddle.errors import NotFound, UsageError

if TYPE_CHECKING:
    from heddle.broker.durability import Kept
    from heddle.broker.lines import Event
    from heddle.broker.records import Status
    from heddle.broker.trackers import Tracked
    from heddle.client import Client
    from heddle.experiment import Experiment
    from heddle.states.experiments import Picture
    from heddle.states.facts import Facts
    from heddle.states.judgement import Judgement
    from heddle.states.slow import SlowShards

NOTHING = "no experiments; submit one with: heddle enqueue exp.toml"


@command("ls", example="heddle ls\nheddle ls --group lr -o json")
@click.option("--active", is_flag=True, help="Only those that are not over.")
@click.option("--tag", metavar="WORD", help="Only those whose spec has WORD among experiment.tags.")
@click.option("--group", metavar="NAME", help="Only those of a group, such as a sweep's.")
@output_option
@redis_option
def ls(active: bool, tag: str | None, group: str | None, output: str, redis_url: str | None) -> None:
    """List experiments, newest first, each with how it really is and why."""
    from heddle.broker.durability import why_empty
    from heddle.cli.facts import latest_metrics
    from heddle.states.look import look_at_all

    empty = NOTHING
    with connect(redis_url) as client:
        seen, found = look_at_all(client.broker)
        if not found:
            empty = f"no experiments: {why_empty(client.broker.conn.kept(), client.broker.conn.uptime_ms())}"
        found = [(status, judged) for status, judged in found if not (active and status.ended)]
        found = [one for one in found if group is None or one[0].group == group]
        if tag is not None:
            found = [one for one in found if tag in client.experiment(one[0].experiment).spec().experiment.tags]
        if output == "json":
            print_json({"experiments": [status_as_json(status, judged, seen.now_ms) for status, judged in found]})
            return
        rows = []
        for status, judged in found:
            latest = latest_metrics(client.broker, status.experiment)
            steps = latest.get("env_steps", status.result.get("env_steps"))
            shown = f"{steps:,.0f}" if isinstance(steps, int | float) else "-"
            returned = number(latest.get("return", status.result.get("return")))
            age = duration(seen.now_ms - status.created_ms)
            why = status.reason if status.ended else judged.line(seen.now_ms)
            rows.append((status.experiment, judged.state, status.pool, shown, returned, status.policy, age, why))
    header = ("EXPERIMENT", "STATE", "POOL", "STEPS", "RETURN", "VERSION", "AGE", "WHY")
    print_table(header, rows, empty=empty)


def status_as_json(status: "Status", judged: "Judgement", now_ms: int) -> dict[str, Any]:
    """A status for programs: `state` is how it really is, `phase` what the coordinator wrote down."""
    return {**status.written(), "phase": status.state, **judged.in_short(now_ms)}


@command("status", example="heddle status cartpole\nheddle status\nheddle status cartpole-7f3a2b -o json")
@click.argument("experiment", metavar="[EXP]", required=False, shell_complete=experiment_names)
@output_option
@redis_option
def status(experiment: str | None, output: str, redis_url: str | None) -> None:
    """Show how EXP (a name or an id) really is, and why; without EXP, the only one that is active."""
    with connect(redis_url) as client:
        look = _look(client, client.experiment(experiment or _only_active(client)))
    if output == "json":
        print_json(_for_programs(look))
    else:
        print_facts(_for_people(look))


@dataclass(frozen=True, slots=True)
class _Look:
    """What `status` shows: how an experiment is, its last numbers and events, and what the broker keeps of it.

    Attributes:
        recorded: the recorded experience that it trains on, "" for none.
        origin: `code` and `commit`, as `StoredSpec.origin`; {} where its spec is damaged.
        trackers: those that its metrics are handed on to.
    """

    facts: "Facts"
    picture: "Picture"
    latest: Mapping[str, float]
    slow: "SlowShards | None"
    told: "Sequence[Event]"
    kept: "Kept"
    recorded: str
    origin: Mapping[str, str]
    trackers: "tuple[Tracked, ...]" = ()


def _look(client: "Client", found: "Experiment") -> _Look:
    """Ask the broker for all of it. Raises Gone."""
    from heddle.broker.lines import PRINTED
    from heddle.cli.facts import latest_metrics, recent_metrics
    from heddle.cli.tracked import trackers_of
    from heddle.states.look import look_at
    from heddle.states.slow import RECENT, slow_shards

    broker = client.broker
    facts, picture = look_at(broker, found.id)
    recent = recent_metrics(broker, found.id, count=RECENT) if picture.experiment.state == "running" else []
    return _Look(
        facts=facts,
        picture=picture,
        latest=latest_metrics(broker, found.id),
        slow=slow_shards(recent, facts.shards),
        told=broker.events.find(
            lambda one: one.experiment == found.id and one.level != "debug" and one.role != PRINTED,
            count=5,
            prints=False,
        ),
        kept=broker.conn.kept(),
        recorded=_recorded(found),
        origin=_origin(client, found.id),
        trackers=trackers_of(broker, found.id),
    )


def _for_programs(look: _Look) -> dict[str, Any]:
    from heddle.cli.accounts import accounting
    from heddle.cli.facts import troubles
    from heddle.cli.tracked import as_json
    from heddle.states.stepping import stepping_of

    facts, judged, now_ms = look.facts, look.picture.experiment, look.facts.sight.now_ms
    return {
        **status_as_json(facts.status, judged, now_ms),
        "because": judged.as_json(now_ms)["because"],
        "troubles": troubles(facts.shards, out_of_memory=facts.out_of_memory, blocked=facts.blocked),
        "metrics": look.latest,
        "slow_shards": look.slow.as_json() if look.slow else [],
        "accounting": accounting(facts.flow),
        "mapped": facts.flow.mapped,
        "stepping": stepping_of(facts),
        "trainer": facts.sitter.trainer if facts.sitter.left_ms else None,
        "trackers": [as_json(one, now_ms) for one in look.trackers],
        "durability": look.kept.name,
        "shards": _count_states(look.picture),
        "code": look.origin.get("code", ""),
        "commit": look.origin.get("commit", ""),
    }


def _for_people(look: _Look) -> list[tuple[str, object]]:
    from heddle.cli.accounts import accounting_line
    from heddle.cli.tracked import line_of
    from heddle.states.stepping import stepping_lines

    facts, picture, latest, slow = look.facts, look.picture, look.latest, look.slow
    now, judged, now_ms = facts.status, picture.experiment, facts.sight.now_ms
    why = now.reason if now.ended else judged.line(now_ms)
    return [
        ("experiment", now.experiment),
        ("state", f"{judged.state}{f': {why}' if why else ''}"),
        *(("because", f"{'  ' * (depth - 1)}{shown_reason(one, now_ms)}") for depth, one in judged.chain()),
        ("age", duration((now.ended_ms or now_ms) - now.created_ms)),
        ("pool", now.pool),
        ("group", now.group),
        ("data", f"{look.recorded} (offline)" if look.recorded else ""),
        ("trainer", _trainer(picture, now_ms, is_over=now.ended)),
        *(("trackers" if not place else "", line_of(one, now_ms)) for place, one in enumerate(look.trackers)),
        ("shards", ", ".join(f"{count} {state}" for state, count in _count_states(picture).items())),
        ("version", now.policy),
        ("steps", f"{latest['env_steps']:,.0f}" if "env_steps" in latest else ""),
        *((name, number(latest[name])) for name in ("return", "eval_return", "steps_per_second") if name in latest),
        ("waits", _waits(latest, len(facts.room))),
        ("slow", f"{slow.line}; what to do: heddle why {facts.id}" if slow else ""),
        *(("stepping", told) for told in stepping_lines(facts)),
        ("stream", _stream(facts)),
        ("batches", accounting_line(facts.flow)),
        ("broker", f"{look.kept.name}: {look.kept.promise}"),
        ("code", code_line(look.origin)),
        ("checkpoint", now.result.get("checkpoint", "")),
        ("best", now.result.get("best", "")),
        *(("event", f"{duration(now_ms - event.time_ms):>6} ago  {event.message}") for event in look.told),
    ]


def _only_active(client: "Client") -> str:
    """The one experiment that goes on, else the newest of all that ended. Raises NotFound, UsageError."""
    known = client.experiments()
    active = [one.experiment for one in known if not one.ended]
    if len(active) > 1:
        raise UsageError(f"{len(active)} experiments are active, say which: {', '.join(active[:8])}")
    if not known:
        raise NotFound("there is no experiment; submit one with: heddle enqueue exp.toml")
    return active[0] if active else known[0].experiment


def _recorded(found: "Experiment") -> str:
    """The recorded experience that it trains on; "" for none, and where its spec is damaged."""
    from heddle.broker.faults import Damaged

    try:
        source = found.spec().data
    except Damaged:
        return ""
    return source.path if source is not None else ""


def _origin(client: "Client", experiment: str) -> dict[str, str]:
    from heddle.broker.faults import Damaged

    try:
        return client.broker.experiments.spec(experiment).origin
    except (Damaged, NotFound):
        return {}


def code_line(origin: Mapping[str, str]) -> str:
    """What an experiment was made of, for people; "" where nobody knows."""
    from heddle.origin import shortened

    code, commit = origin.get("code", ""), origin.get("commit", "")
    own = f"own commit {shortened(commit)}" if commit else ""
    return ", ".join(part for part in (f"heddle {code}" if code else "", own) if part)


def _waits(latest: Mapping[str, float], for_room: int) -> str:
    """Who waited for whom before the last update; "" before the first."""
    if not {"wait_seconds", "worker_wait_seconds"} <= latest.keys():
        return ""
    trainer, workers = latest["wait_seconds"], latest["worker_wait_seconds"]
    told = f"last update: trainer {trainer:.2f} s for experience"
    if for_room:  # what batches of the last update tell is older than the stream is deep
        return f"{told}; {for_room} {'shard waits' if for_room == 1 else 'shards wait'} for room now"
    return f"{told}, workers {workers:.2f} s for room or a policy"


def _stream(facts: "Facts") -> str:
    """How full it is and who waits for room; "" of one that is over."""
    if facts.status.ended or not facts.ctl.max_entries:
        return ""
    from heddle.cli.specs import size
    from heddle.states.judgement import ids

    sizes = f"{size(facts.flow.bytes)} of {size(facts.ctl.max_bytes)}"
    waits = f"; shards {ids(sorted(facts.room))} wait for room" if facts.room else ""
    return f"{facts.flow.entries} of {facts.ctl.max_entries} batches, {sizes}{waits}"


def shown_reason(judged: "Judgement", now_ms: int) -> str:
    """One reason, as a line."""
    line = judged.line(now_ms)
    return f"{judged.subject} is {judged.state}{f': {line}' if line else ''}"


def _trainer(picture: "Picture", now_ms: int, *, is_over: bool) -> str:
    judged = picture.trainer
    if judged.state == "absent":
        return "none" if is_over else f"none: {judged.line(now_ms)}"
    line = judged.line(now_ms)
    return f"{judged.subject.removeprefix('trainer ')} {judged.state}{f': {line}' if line else ''}"


def _count_states(picture: "Picture") -> dict[str, int]:
    """How many shards are in each state."""
    states = [judged.state for judged in picture.shards.values()]
    return {state: states.count(state) for state in sorted(set(states))}
