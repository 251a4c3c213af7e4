"""Stories: how one thing is, and what happened to it, from the log and from what the broker keeps of it.

It never changes anything; a line that nobody could write down is missing here.
"""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from heddle.broker import Broker
from heddle.broker.failure_types import Failure
from heddle.broker.faults import Damaged
from heddle.broker.lines import LOG_ENTRIES, PRINTED, Event
from heddle.errors import NotFound
from heddle.states.bottleneck import Points, find_bottleneck
from heddle.states.experiments import Picture
from heddle.states.facts import Facts
from heddle.states.judgement import Judgement
from heddle.states.look import look_at
from heddle.states.read import PARTITION, sight
from heddle.states.slow import RECENT, SlowShards, slow_of, slow_shards
from heddle.states.workers import judge_worker


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened.

    Attributes:
        time_ms: server ms.
        who: role and id of whoever tells.
        what: one line; level: debug, info, warning or error.
    """

    time_ms: int
    who: str
    what: str
    level: str = "info"


@dataclass(frozen=True, slots=True)
class Story:
    """How a thing is now, and how it came to be so.

    Attributes:
        now_ms: server ms of the look.
        judgement: how it is.
        moments: what happened, oldest first.
        failures: of a shard's environments, newest first.
        time: where the batches of the last updates spent theirs, who the others wait for, and what to do, of a shard
            where it is one of those; "" where that is not known, and where the experiment is not simply running.
    """

    now_ms: int
    judgement: Judgement
    moments: tuple[Moment, ...]
    failures: tuple[Failure, ...] = ()
    time: str = ""

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        told = self.judgement.as_json(self.now_ms)
        timeline, failures = [asdict(moment) for moment in self.moments], [asdict(one) for one in self.failures]
        return {**told, "now_ms": self.now_ms, "timeline": timeline, "failures": failures, "time": self.time}


def story_of_experiment(broker: Broker, experiment: str, *, count: int) -> Story:
    """Why an experiment is as it is. Raises Gone."""
    facts, picture = look_at(broker, experiment)
    players = _players(facts, picture)
    events = [
        event
        for event in _events(broker, experiment)
        if event.experiment == experiment or event.role == "coordinator" or event.worker in players
    ]
    status = facts.status
    marks = [
        (status.created_ms, "submitted"),
        (status.started_ms, "running for the first time"),
        (status.ended_ms, f"over: {status.state}{f', {status.reason}' if status.reason else ''}"),
    ]
    moments = [Moment(time_ms, "broker", what) for time_ms, what in marks if time_ms]
    happened = _newest([*moments, *map(_moment, events)], count)
    return Story(facts.sight.now_ms, picture.experiment, happened, time=_time_of(broker, facts, picture))


def story_of_shard(broker: Broker, experiment: str, shard: int, *, count: int) -> Story:
    """Why a shard is as it is.

    Raises:
        NotFound: the experiment has no such shard.
        Gone: the experiment was removed.
    """
    facts, picture = look_at(broker, experiment)
    state = next((one for one in facts.shards if one.shard == shard), None)
    if state is None:
        raise NotFound(f"{experiment} has no shard {shard}; heddle shards {experiment} shows all")
    names = re.compile(rf"\bshards?[ =](?:\d+,)*{shard}\b")
    events = _events(broker, experiment)
    own = [event for event in events if event.experiment == experiment and names.search(event.message)]
    owners = {event.worker for event in own if event.role == "worker"} | {state.last_worker} - {""}
    others = [event for event in events if event.experiment is None and event.worker in owners]
    failures = broker.shards.failures(experiment, PARTITION, shard)
    moments = [*map(_moment, own), *map(_moment, others), *(_failed(one) for one in failures)]
    told = {epoch for event in own if (epoch := _epoch(event)) is not None and event.message.startswith("claimed")}
    forgotten = set(broker.shards.past_epochs(experiment, PARTITION, shard)) - told
    moments += [
        Moment(epoch, "broker", f"claimed epoch={epoch} by somebody of whom the log tells no more")
        for epoch in forgotten
    ]
    slow = slow_now(broker, facts, picture)
    time = (
        f"{slow.uneven.line}: the others wait for it; {slow.uneven.do.replace('EXP', facts.id)}"
        if slow and shard in slow.players
        else ""
    )
    return Story(facts.sight.now_ms, picture.shards[shard], _newest(moments, count), tuple(failures), time)


def story_of_worker(broker: Broker, worker: str, *, count: int) -> Story:
    """Why a worker is as it is; also one that ended long ago, while the log tells of it. Raises NotFound."""
    seen, info = sight(broker), broker.pools.worker(worker)
    about = re.compile(rf"\bworker[= ]{re.escape(worker)}(?![\w-])")
    events = broker.events.find(
        lambda event: event.role != PRINTED and (event.worker == worker or about.search(event.message) is not None),
        count=count,
        prints=False,
    )
    if info is None and not events:
        raise NotFound(f"nothing is known of a worker {worker!r}; heddle workers ls shows those that are here")
    if info is not None:
        judgement = judge_worker(info, seen, broker.pools.supervisors(info.beat.pool))
    else:
        judgement = Judgement(f"worker {worker}", "gone", "it said goodbye, or was silent for long", since_ms=0)
    return Story(seen.now_ms, judgement, _newest(map(_moment, events), count))


def slow_now(broker: Broker, facts: Facts, picture: Picture) -> SlowShards | None:
    """The shards that the others wait for; None for none, and where the experiment is not simply running."""
    return slow_shards(_recent(broker, facts, picture), facts.shards)


# ---- inside


def _recent(broker: Broker, facts: Facts, picture: Picture) -> Points:
    """The last updates; none where it is not running, or not well: they say nothing of what is wrong now."""
    if picture.experiment.state != "running":
        return []
    try:
        return [(one.update, one.values) for one in broker.events.metrics_recent(facts.id, count=RECENT)]
    except Damaged:  # the coordinator mends it, and tells
        return []


def _time_of(broker: Broker, facts: Facts, picture: Picture) -> str:
    """Where batches spend their time now, in words, with who plays the shards that others wait for."""
    found = find_bottleneck(_recent(broker, facts, picture))
    if found is None:
        return ""
    slow = slow_of(found, facts.shards)
    return f"{found.verdict}{slow.played if slow is not None else ''}; {found.do.replace('EXP', facts.id)}"


def _events(broker: Broker, experiment: str) -> list[Event]:
    """Everything in the log about an experiment or about none, oldest first."""
    return broker.events.find(
        lambda event: event.experiment in (None, experiment) and event.role != PRINTED,
        count=2 * LOG_ENTRIES,
        prints=False,
    )


def _players(facts: Facts, picture: Picture) -> set[str]:
    """Workers that play it or did, or that its pool has."""
    return {shard.last_worker for shard in facts.shards if shard.last_worker} | set(picture.workers)


def _moment(event: Event) -> Moment:
    return Moment(event.time_ms, f"{event.role} {event.worker}".rstrip(), event.message, event.level)


def _failed(failure: Failure) -> Moment:
    where = f"environment {failure.env}" if failure.env >= 0 else "the policy" if failure.doing == "act" else "a shard"
    when = f", episode {failure.episode} step {failure.step}" if failure.episode else ""
    seed = f", seed {failure.seed}" if failure.seed is not None else ""
    version = f", policy version {failure.version}" if failure.version else ""
    what = f"failed in {failure.doing} of {where}{when}{seed}{version}: {failure.what}"
    return Moment(failure.time_ms, f"worker {failure.worker}".rstrip(), what, "error")


def _epoch(event: Event) -> int | None:
    found = re.search(r"\bepoch=(\d+)", event.message)
    return int(found[1]) if found else None


def _newest(moments: Iterable[Moment], count: int) -> tuple[Moment, ...]:
    return tuple(sorted(moments, key=lambda moment: moment.time_ms)[-count:])
