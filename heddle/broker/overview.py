"""Overview: the whole fleet in a few round trips, however many experiments and workers it has; for dashboards.

It never writes, not even to tidy, so that whoever may only look can use it; and it judges nothing.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from heddle.broker import keys, records, statuses
from heddle.broker.beats import read_beats
from heddle.broker.connection import Connection
from heddle.broker.coordinators import LEADER_FIELDS, Leader, read_leader
from heddle.broker.counts import count
from heddle.broker.events import LAST_ENTRIES
from heddle.broker.experience_types import Flow
from heddle.broker.faults import Damaged, NoNumber
from heddle.broker.lines import STREAMS, Event, Place, ask_after, ask_newest, read_after, read_newest
from heddle.broker.metrics import Metric, metrics_of
from heddle.broker.pointers import read_flow, waiting_since
from heddle.broker.pools import AHEAD_MS, DIED, HOST, PRUNE_MS, SUPERVISOR_PRUNE_MS, WANTS
from heddle.broker.presence import HostReport, PoolInfo, WorkerInfo, read_host, read_pool
from heddle.broker.records import SPEC_FIELDS, Status, entries, read_ctl, read_status, text, texts
from heddle.broker.seats import ENDED_SO, HOW, Sitter, read_sitter
from heddle.broker.streams import after, onward
from heddle.broker.types import Ctl

EVENTS = 200
"""Lines of each stream of the log in one look."""
METRICS = 1_000
"""Updates of one experiment in one look."""


@dataclass(frozen=True, slots=True)
class ServerGlance:
    """The broker's server at one moment.

    Attributes:
        now_ms, uptime_ms: its clock; since when it is up.
        used_bytes, max_bytes: of its memory; 0 for no limit.
        ops_per_second, clients: of late; now.
        read_bytes, written_bytes: over the network since its start.
        aof_enabled: it keeps what it takes on disk.
        version: which server it is.
        leader: the coordinator that leads, or led last.
        experiments: ids, newest first.
        queued: experiments that wait for a coordinator.
        events: new lines of the log, oldest first.
        place: the log after them.
    """

    now_ms: int
    uptime_ms: int
    used_bytes: int
    max_bytes: int
    ops_per_second: int
    clients: int
    read_bytes: int
    written_bytes: int
    aof_enabled: bool
    version: str
    leader: Leader | None
    experiments: tuple[str, ...]
    queued: int
    events: tuple[Event, ...] = ()
    place: Place = Place()

    @property
    def out_of_memory(self) -> bool:
        """It refuses writes that need memory."""
        return 0 < self.max_bytes <= self.used_bytes


@dataclass(frozen=True, slots=True)
class ExperimentGlance:
    """One experiment without its shards.

    Attributes:
        status, ctl, flow, sitter: as elsewhere.
        leased: shards that somebody plays; shards: all of them.
        waiting: shards that wait for room, and since when.
        seats: how often a trainer took the seat; followed: how those ended that another one followed, by `seats.HOW`.
        totals: what became of its shards' ownerships, by name: reaped, vouched, quarantined.
        metrics: updates that are new since the last look, oldest first.
        read_to: the entry after which the next look goes on, whoever wrote it.
    """

    status: Status
    ctl: Ctl
    flow: Flow
    sitter: Sitter
    leased: int
    shards: int
    waiting: Mapping[int, int]
    seats: int = 0
    followed: Mapping[str, int] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()
    read_to: str = "0"


@dataclass(frozen=True, slots=True)
class PoolGlance:
    """One pool without what its workers say.

    Attributes:
        info: its numbers.
        wanted: how many workers it shall have, None when nobody says.
        hosts: what each supervisor that is here says of its host.
        seen: workers by when they were heard of, server ms.
        deaths: workers that supervisors saw end by themselves, by how; a total.
    """

    info: PoolInfo
    wanted: int | None
    hosts: Mapping[str, HostReport | None]
    seen: Mapping[str, int]
    deaths: Mapping[str, int] = field(default_factory=dict)


TOTALS = ("reaped", "vouched", "quarantined")
"""Fields of the flow hash that count what became of ownerships."""


class Overview:
    """Looks at much in one round trip each, on one connection."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def server(self, *, after: Place | None = None, lines: bool = True) -> ServerGlance:
        """The server, who leads, and which experiments there are. One round trip.

        Args:
            after: lines of the log from there on; None for the newest ones.
            lines: read the log; who needs none needs no right to.
        """
        pipe = self._conn.pipeline()
        pipe.time()
        pipe.info()
        pipe.hmget(keys.COORDINATOR, *LEADER_FIELDS)
        pipe.zrange(keys.EXPERIMENTS, 0, -1, desc=True)
        pipe.xlen(keys.QUEUE)
        if lines and after is None:
            ask_newest(pipe, EVENTS)
        elif lines and after is not None:
            ask_after(pipe, after, EVENTS)
        (seconds, micros), info, leader, ids, queued, *log = pipe.execute()
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        events, place = _told(log, after) if lines else ([], after or Place())
        return ServerGlance(
            now_ms=now_ms,
            uptime_ms=1000 * int(info.get("uptime_in_seconds", 0)),
            used_bytes=int(info.get("used_memory", 0)),
            max_bytes=int(info.get("maxmemory", 0)),
            ops_per_second=int(info.get("instantaneous_ops_per_sec", 0)),
            clients=int(info.get("connected_clients", 0)),
            read_bytes=int(info.get("total_net_input_bytes", 0)),
            written_bytes=int(info.get("total_net_output_bytes", 0)),
            aof_enabled=bool(int(info.get("aof_enabled", 0))),
            version=str(self._conn.server),
            leader=read_leader(leader, now_ms),
            experiments=tuple(text(member) for member in ids),
            queued=int(queued),
            events=tuple(events),
            place=place,
        )

    def experiments(self, after: Mapping[str, str | None]) -> dict[str, ExperimentGlance]:
        """Some experiments; those that were removed, or whose keys somebody damaged, are left out. One round trip.

        Args:
            after: by id, the entry of the metrics after which they are new; None for the last `LAST_ENTRIES` updates.
        """
        pipe = self._conn.pipeline()
        for experiment, last in after.items():
            _ask_experiment(pipe, experiment, last)
        replies = pipe.execute(raise_on_error=False) if after else []
        found = {}
        for place, (experiment, last) in enumerate(after.items()):
            some = replies[_ASKED * place : _ASKED * (place + 1)]
            if not _is_damaged(some) and some[1]:
                with suppress(NoNumber):
                    found[experiment] = _glance(experiment, some, last=last)
        return found

    def statuses(self, experiments: Sequence[str]) -> dict[str, Status]:
        """How some experiments are, as it was written down; left out are those as above. One round trip."""
        pipe = self._conn.pipeline()
        for experiment in experiments:
            statuses.ask(pipe, experiment)
        replies = pipe.execute(raise_on_error=False) if experiments else []
        found = {}
        for place, experiment in enumerate(experiments):
            status, ctl, spec = some = replies[3 * place : 3 * place + 3]
            if not _is_damaged(some) and ctl:
                with suppress(NoNumber):
                    found[experiment] = _status(experiment, status, ctl, spec)
        return found

    def oldest_ms(self, experiment: str, p: int = 0) -> int | None:
        """Server ms at which the oldest batch in the stream was accepted; None while there is none."""
        found = entries(self._conn.main.xrange(keys.experience(experiment, p), count=1))
        return records.time_of(found[0][0]) if found else None

    def pools(self, names: Sequence[str], now_ms: int) -> dict[str, PoolGlance]:
        """Some pools. One round trip."""
        pipe = self._conn.pipeline()
        for name in names:
            pipe.hgetall(keys.pool(name))
            pipe.zrangebyscore(keys.pool_supervisors(name), f"({now_ms - SUPERVISOR_PRUNE_MS}", now_ms + AHEAD_MS)
            pipe.zrangebyscore(keys.pool_workers(name), f"({now_ms - PRUNE_MS}", now_ms + AHEAD_MS, withscores=True)
        replies = pipe.execute() if names else []
        found = {}
        for place, name in enumerate(names):
            raw, supervisors, workers = replies[3 * place : 3 * place + 3]
            found[name] = _pool(name, texts(raw), sorted(text(one) for one in supervisors), workers)
        return found

    def workers(
        self, pool: str, seen: Mapping[str, int], now_ms: int, *, numbers: bool = False
    ) -> dict[str, WorkerInfo]:
        """What some workers of a pool said last, as `read_beats` tells."""
        return read_beats(self._conn, pool, seen, now_ms, numbers=numbers)


def _told(log: Sequence[Any], after: Place | None) -> tuple[list[Event], Place]:
    return read_newest(log) if after is None else read_after(log, after, EVENTS * len(STREAMS))


_ASKED = 9


def _is_damaged(replies: Sequence[Any]) -> bool:
    """True when somebody put something else in the place of a key. Raises whatever else an answer is."""
    for reply in replies:
        if isinstance(reply, Exception) and not isinstance(reply, Damaged):
            raise reply
    return any(isinstance(reply, Damaged) for reply in replies)


def _ask_experiment(pipe: Any, experiment: str, last: str | None) -> None:
    statuses.ask(pipe, experiment)
    pipe.hgetall(keys.flow(experiment, 0))
    pipe.zrange(keys.waiting(experiment, 0), 0, -1, withscores=True)
    pipe.zcard(keys.due(experiment, 0))
    pipe.hgetall(keys.trainer(experiment))
    pipe.pttl(keys.seat(experiment))
    if last is None:
        pipe.xrevrange(keys.metrics(experiment), count=LAST_ENTRIES)
    else:
        pipe.xrange(keys.metrics(experiment), min=after(last), count=METRICS)


def _status(experiment: str, status: Any, ctl: Any, spec: Any) -> Status:
    named = {name: text(value) for name, value in zip(SPEC_FIELDS, spec, strict=True)}
    return read_status(experiment, texts(status), texts(ctl), named)


def _glance(experiment: str, replies: Sequence[Any], *, last: str | None) -> ExperimentGlance:
    status, ctl, spec, flow, waiting, leased, trainer, seat_ms, metrics = replies
    fields, counters, sat = texts(ctl), texts(flow), texts(trainer)
    page = list(metrics) if last is not None else metrics[::-1]
    measured = metrics_of(keys.metrics(experiment), page)
    return ExperimentGlance(
        status=_status(experiment, status, ctl, spec),
        ctl=read_ctl(fields),
        flow=read_flow(counters, len(waiting)),
        sitter=read_sitter(sat, int(seat_ms)),
        leased=int(leased),
        shards=count(fields.get("shards")),
        waiting=waiting_since(waiting),
        seats=count(sat.get("seats")),
        followed={how: count(sat.get(f"{ENDED_SO}{how}")) for how in HOW},
        totals={name: count(counters.get(name)) for name in TOTALS},
        metrics=tuple(one for one in measured if one.entry_id != last),
        read_to=onward(last or "0", [text(entry_id) for entry_id, _ in page]),
    )


def _pool(name: str, fields: Mapping[str, str], supervisors: Sequence[str], workers: Any) -> PoolGlance:
    info = read_pool(name, fields)
    wants = [count(fields.get(f"{WANTS}{one}")) for one in supervisors]
    wanted = info.desired if info.desired is not None else sum(wants) if wants else None
    return PoolGlance(
        info=info,
        wanted=wanted,
        hosts={one: read_host(fields.get(f"{HOST}{one}", "")) for one in supervisors},
        seen={text(worker): records.moment(seen_ms) for worker, seen_ms in workers},
        deaths={field.removeprefix(DIED): count(number) for field, number in fields.items() if field.startswith(DIED)},
    )
