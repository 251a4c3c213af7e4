"""Shards: create and show them, and take them from dead owners; with the calls of tickets and leases, `broker.shards`.

This module never decides whether a worker is dead: lease keys do, or whoever started the worker.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from heddle.broker import keys, numbers
from heddle.broker.claiming import HEALTHY_BATCHES
from heddle.broker.counts import count as number_of
from heddle.broker.counts import whole
from heddle.broker.failures import Failures
from heddle.broker.faults import Damaged
from heddle.broker.leases import Leases, shard_keys
from heddle.broker.pointers import indices, is_index, waiting_since
from heddle.broker.records import integer, moment, text, texts
from heddle.broker.refusals import check_leader, gone
from heddle.broker.shard_states import read_shard
from heddle.broker.types import Reaped, ShardState
from heddle.errors import Conflict, Gone, NotFound
from heddle.shard import ShardPlan

log = logging.getLogger("heddle.broker")

BATCH = 500
"""Shards per script call or round trip."""
FIRST_DUE = 32
"""Leases that a leader keeps an eye on: many more cost time in each of its rounds."""


class Shards(Leases, Failures):
    """Every call about shards, on one connection."""

    # ---- for the leader

    def create(self, experiment: str, p: int, plans: Sequence[ShardPlan], *, leader_epoch: int) -> int:
        """Create shards as planned, queued and without tickets; those that exist are not touched.

        Returns:
            How many were created.

        Raises:
            LeaderLost: another coordinator leads.
            Gone: the experiment was removed.
        """
        created = 0
        for start in range(0, len(plans), BATCH):
            some = plans[start : start + BATCH]
            own = [keys.ctl(experiment, p), keys.queued(experiment, p)]
            own += [keys.shard(experiment, p, plan.index) for plan in some]
            args: list[str | int] = [leader_epoch]
            for plan in some:
                args += [plan.index, plan.kind, plan.first_env, plan.num_envs]
            reply = self._conn.script("create_shards", own, args)
            check_leader(experiment, text(reply[0]))
            created += integer(reply[1])
        return created

    def next_due_ms(self, experiment: str, p: int) -> int | None:
        """Server time at which the first lease is over unless it is renewed; None when none is held."""
        return min(self.first_due(experiment, p, count=1).values(), default=None)

    def first_due(self, experiment: str, p: int, *, count: int = FIRST_DUE) -> dict[str, int]:
        """The same of the leases that are over first, by shard; what somebody wrote there by hand is among them."""
        found: Any = self._conn.main.zrange(keys.due(experiment, p), 0, count - 1, withscores=True)
        return {text(shard): moment(due_ms) for shard, due_ms in found}

    def reap(
        self,
        experiment: str,
        p: int,
        *,
        leader_epoch: int,
        limit: int = BATCH,
        barren_deaths: int | None = None,
        asked_ms: int | None = None,
        within_ms: int = 1_000,
    ) -> list[Reaped]:
        """Take shards whose leases are over from their owners, and issue urgent tickets for those that are queued.

        Args:
            limit: at most so many; ask again when that many came.
            asked_ms, within_ms: server time of the caller's judgement that owners could have renewed, None for now; a
                reap that the server executes later than this after it takes nothing.
            barren_deaths: deaths in a row without a batch that quarantine; None for what the experiment says.

        Raises:
            LeaderLost: another coordinator leads.
            Gone: the experiment was removed.
        """
        asked_ms = self._conn.now_ms() if asked_ms is None else asked_ms
        over: Any = self._conn.main.zrangebyscore(keys.due(experiment, p), "-inf", asked_ms, start=0, num=limit)
        shards = indices(over)
        if junk := [member for member in over if not is_index(member)]:  # by somebody's hand: due for ever
            self._conn.main.zrem(keys.due(experiment, p), *junk)
        limits = "" if barren_deaths is None else barren_deaths
        reaped = self._reap(experiment, p, shards, [leader_epoch, "", limits], asked=(asked_ms, within_ms))
        self._issue(experiment, p, [found.shard for found in reaped if found.state == "queued"], urgent=True)
        return reaped

    def shards(
        self,
        experiment: str,
        p: int,
        *,
        heard: Callable[[int], object] | None = None,
        odd: Callable[[int], object] | None = None,
    ) -> list[ShardState]:
        """Every shard by index. Raises Gone.

        Args:
            odd: told each shard of which a number was read as nothing, for somebody's hand has made it none.
            heard: told the server's time on the way, every `BATCH` shards: so many take seconds.
        """
        count, command = self._conn.main.hmget(keys.ctl(experiment, p), "shards", "command")
        if command is None:
            raise gone(experiment)
        found = []
        for start in range(0, integer(count), BATCH):
            some = range(start, min(start + BATCH, integer(count)))
            pipe = self._conn.pipeline()
            for shard in some:
                pipe.hgetall(keys.shard(experiment, p, shard))
                pipe.pttl(keys.lease(experiment, p, shard))
            if is_timed := heard is not None and start > 0:
                pipe.time()
            replies = pipe.execute()
            if heard is not None and is_timed:
                seconds, micros = replies.pop()
                heard(int(seconds) * 1000 + int(micros) // 1000)
            for i, shard in enumerate(some):
                if fields := texts(replies[2 * i]):
                    found.append(read_shard(shard, fields, int(replies[2 * i + 1])))
                    if odd is not None and numbers.is_odd(fields):
                        odd(shard)
        return found

    def past_epochs(self, experiment: str, p: int, shard: int) -> list[int]:
        """Epochs of the last owners of a shard before this one, newest first; each is the server ms of its claim."""
        previous = text(self._conn.main.hget(keys.shard(experiment, p, shard), "previous"))
        return [epoch for owner in previous.split() if (epoch := number_of(owner.partition(":")[0]))]

    def waiting(self, experiment: str, p: int) -> dict[int, int]:
        """Shards that wait for room in the stream, and the server ms since when."""
        found: Any = self._conn.main.zrange(keys.waiting(experiment, p), 0, -1, withscores=True)
        return waiting_since(found)

    def drop_snapshots(self, experiment: str, p: int, *, leader_epoch: int) -> bool:
        """Drop the snapshots of an ended experiment's next `BATCH` shards, as the leader; again is no mistake.

        Returns:
            Whether some are left; False also for an experiment that has not ended, which keeps its own.

        Raises:
            LeaderLost: another coordinator leads.
            Gone: the experiment was removed.
        """
        shards, left_from = self._conn.main.hmget(keys.ctl(experiment, p), "shards", "snapshots_from")
        if left_from is None:
            return False
        if shards is not None and whole(shards) is None:  # by somebody's hand: the script takes it for none, too
            log.info("leaves snapshots to rm experiment=%s because its shards are %r", experiment, text(shards)[:40])
        first = number_of(left_from)
        own = [keys.ctl(experiment, p), keys.status(experiment)]
        own += [keys.shard(experiment, p, shard) for shard in range(first, min(first + BATCH, number_of(shards)))]
        reply = self._conn.script("snapshots_drop", own, [leader_epoch, first])
        check_leader(experiment, text(reply[0]))
        return text(reply[0]) == "OK" and integer(reply[1]) == 1

    # ---- for people

    def lift_quarantine(self, experiment: str, p: int, shard: int) -> None:
        """Have a quarantined shard played again: queued, its deaths forgotten; works when the memory is full.

        Raises:
            Conflict: it is not quarantined, or the experiment is over or stopping; the message tells the way on.
            NotFound: there is no such shard.
            Gone: the experiment was removed.
        """
        own = [keys.ctl(experiment, p), keys.status(experiment), keys.shard(experiment, p, shard)]
        reply = self._conn.script("quarantine_lift", [*own, keys.queued(experiment, p)], [shard])
        answer, now = text(reply[0]), text(reply[1])
        if answer == "GONE":
            raise gone(experiment)
        if answer == "NONE":
            raise NotFound(f"{experiment} has no shard {shard}; heddle shards {experiment} shows all")
        if answer == "ENDED":
            raise Conflict(
                f"{experiment} is {now}, so no shard of it is played any more; "
                f"continue it in a new run: heddle enqueue exp.toml --resume {experiment}"
            )
        if answer == "NOT":
            raise Conflict(
                f"shard {shard} of {experiment} is not quarantined, it is {now}; see: heddle shards {experiment}"
            )
        self._issue(experiment, p, [shard], urgent=False)

    # ---- for supervisors

    def release_worker(
        self, worker: str, *, error: str | None = None, crashed: bool = False, in_children: str | None = None
    ) -> list[Reaped]:
        """Free every shard of a worker that is dead for certain, at once, with urgent tickets.

        A barren death counts as when a lease runs out. Only the parent of the process may call this.

        Args:
            error: what to say of its death.
            in_children: what to say of it where environments run in children; None for the same.
            crashed: its process brought that upon itself: it is a failure of the only shard that it held, then.
        """
        held: dict[str, list[int]] = {}
        for member in self._conn.main.zrange(keys.EXPERIMENTS, 0, -1):
            try:
                held[text(member)] = self._held_by(text(member), 0, worker)
            except (Gone, Damaged) as trouble:  # of that experiment alone
                log.info("freed nothing of experiment=%s error=%s", text(member), trouble)
        is_sole = sum(map(len, held.values())) == 1
        crash = (HEALTHY_BATCHES, int(is_sole)) if crashed else ("", "")
        freed: list[Reaped] = []
        said = (error, in_children or error)
        for experiment, mine in held.items():
            try:
                freed += self._release_all(experiment, 0, worker, mine, said, crash)
            except (Gone, Damaged) as trouble:
                log.info("freed nothing of experiment=%s error=%s", experiment, trouble)
        return freed

    # ---- inside

    def _held_by(self, experiment: str, p: int, worker: str) -> list[int]:
        leased = indices(self._conn.main.zrange(keys.due(experiment, p), 0, -1))
        return self._played_by(experiment, p, leased, worker)

    def _release_all(
        self,
        experiment: str,
        p: int,
        worker: str,
        mine: Sequence[int],
        said: tuple[str | None, str | None],
        crash: tuple[int | str, int | str],
    ) -> list[Reaped]:
        reaped = self._reap(experiment, p, mine, ["", worker, ""], said, asked=("", "", *crash))
        self._issue(experiment, p, [found.shard for found in reaped if found.state == "queued"], urgent=True)
        return reaped

    def _played_by(self, experiment: str, p: int, shards: Sequence[int], worker: str) -> list[int]:
        pipe = self._conn.pipeline()
        for shard in shards:
            pipe.hget(keys.shard(experiment, p, shard), "worker")
        owners = pipe.execute() if shards else []
        return [shard for shard, owner in zip(shards, owners, strict=True) if text(owner) == worker]

    def _reap(
        self,
        experiment: str,
        p: int,
        shards: Sequence[int],
        args: Sequence[str | int],
        said: tuple[str | None, str | None] = (None, None),
        *,
        asked: Sequence[str | int],
    ) -> list[Reaped]:
        if not shards:
            return []
        inline, apart = (one or "its worker died while stepping it, before its first batch" for one in said)
        asked = [*asked, "", ""][:4]
        pipe = self._conn.pipeline()
        for shard in shards:
            pipe.script("reap", shard_keys(experiment, p, shard), [shard, *args, inline, *asked, apart])
        reaped = []
        for shard, reply in zip(shards, pipe.execute(), strict=True):
            answer = [text(item) for item in reply]
            check_leader(experiment, answer[0])
            if answer[0] == "OK":
                stepping, is_apart = (said == "1" for said in answer[5:7])
                owner = (answer[2], number_of(answer[3]))
                reaped.append(Reaped(shard, *owner, answer[1], answer[4], experiment, p, stepping, is_apart))
        return reaped
