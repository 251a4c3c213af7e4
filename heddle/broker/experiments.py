"""Experiments: submit one, find it, tell it what to do, see how it is, end it, remove it.

This module never decides what an experiment should do next: the coordinator and the trainer do.
All time is the server's, and a call that a crash cut short may be repeated.
"""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from heddle.broker import census, keys, queue, removal, statuses, submission
from heddle.broker.connection import Connection
from heddle.broker.durability import why_empty
from heddle.broker.faults import NoNumber
from heddle.broker.records import (
    Command,
    Outcome,
    QueueEntry,
    State,
    Status,
    StoredSpec,
    Submitted,
    dump_json,
    read_ctl,
    read_spec,
    text,
    texts,
)
from heddle.broker.refusals import check_leader, check_seat, gone, seat_lost
from heddle.broker.types import Ctl
from heddle.errors import BrokerAmiss, Conflict, NotFound


class Experiments:
    """Every call about whole experiments, on one connection."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    # ---- submit and find

    def submit(
        self,
        spec_json: str,
        toml: str,
        sha256: str,
        name: str,
        *,
        suffix: str | np.random.Generator,
        owner: str = "",
        spaces: str = "",
        code: str = "",
        commit: str = "",
        resume_from: str | None = None,
    ) -> Submitted:
        """Make an experiment of a spec and queue it.

        The same spec while its experiment is active returns that one's id, created = False, and queues it again
        where its entry is lost. After it ended, or was told to stop, it is a new run.

        Args:
            spec_json: resolved spec; toml: its source text, kept for people; sha256: digest of the resolved spec.
            name: experiment name, a slug; the id is name-suffix.
            suffix: the id's end, 4 to 6 hex characters, or the generator to draw it from.
            owner, spaces, code, commit: who submits; JSON of the spaces; version of Heddle; commit of their own code.
            resume_from: id of the experiment whose newest checkpoint to start from.

        Raises:
            Conflict: another spec is active under that name; the message tells its id and the ways on.
            BrokerFull: nothing was submitted.
        """
        end = suffix if isinstance(suffix, str) else submission.new_suffix(suffix)
        made = submission.Submission(
            name=name,
            toml=toml,
            json=spec_json,
            sha256=sha256,
            owner=owner,
            spaces=spaces,
            code=code,
            commit=commit,
            resume_from=resume_from,
        )
        return submission.submit(self._conn, made, end)

    def check_name(self, name: str, sha256: str) -> None:
        """Whether a spec of that digest could be submitted under `name` now. Raises Conflict."""
        submission.check_name(self._conn, name, sha256)

    def resolve(self, name_or_id: str) -> str:
        """The id of an experiment given by id, or by name: the newest run of that name.

        Raises:
            NotFound: there is none; the message names those that come close.
        """
        main = self._conn.main
        pipe = self._conn.pipeline()
        pipe.exists(keys.spec(name_or_id))
        pipe.zscore(keys.EXPERIMENTS, name_or_id)
        pipe.hget(keys.name(name_or_id), "id")
        exists, listed, held = pipe.execute()
        if exists or listed is not None:
            return name_or_id
        if held is not None and main.exists(keys.spec(text(held))):
            return text(held)
        ids = [text(member) for member in main.zrange(keys.EXPERIMENTS, 0, -1, desc=True)]
        for found in ids:
            if found.rpartition("-")[0] == name_or_id:
                return found
        near = difflib.get_close_matches(name_or_id, ids, n=3)
        hint = "heddle ls shows them all" if ids else why_empty(self._conn.kept(), self._conn.uptime_ms())
        hint = f"did you mean {', '.join(near)}?" if near else hint
        raise NotFound(f"no experiment {name_or_id!r}; {hint}")

    def ls(self) -> list[Status]:
        """Every experiment, newest first, but for one that dissolved before it was submitted whole.

        One whose keys somebody damaged is among them as failed, and hides no other.
        """
        main = self._conn.main
        ids = [text(member) for member in main.zrange(keys.EXPERIMENTS, 0, -1, desc=True)]
        pipe = self._conn.pipeline()
        for experiment in ids:
            statuses.ask(pipe, experiment)
        replies = pipe.execute(raise_on_error=False) if ids else []
        found = [statuses.read(experiment, replies[3 * place : 3 * place + 3]) for place, experiment in enumerate(ids)]
        return [status for status in found if status is not None]

    def unlisted(self, going_on: Collection[str]) -> list[str]:
        """List again what somebody took from the list of all experiments, or put something else in place of; which.

        Args:
            going_on: ids that should be listed. Where nothing is listed at all, every key is looked at as well.
        """
        try:
            listed = {text(member) for member in self._conn.main.zrange(keys.EXPERIMENTS, 0, -1)}
        except BrokerAmiss:
            self._conn.main.unlink(keys.EXPERIMENTS)  # nothing is in it that the experiments' own keys do not tell
            listed = set()
        wanted = set(going_on) - listed
        if not listed:
            wanted |= census.submitted(self._conn)
        return [one for one in sorted(wanted) if submission.list_again(self._conn, one)]

    # ---- read

    def spec(self, experiment: str) -> StoredSpec:
        """The spec as submitted. Raises NotFound."""
        fields = texts(self._conn.main.hgetall(keys.spec(experiment)))
        if "json" not in fields:
            raise NotFound(f"no experiment {experiment!r}; heddle ls shows them all")
        return read_spec(experiment, fields)

    def ctl(self, experiment: str, p: int = 0) -> Ctl:
        """What every role reads first. Raises Gone."""
        fields = texts(self._conn.main.hgetall(keys.ctl(experiment, p)))
        if not fields:
            raise gone(experiment)
        return read_ctl(fields)

    def status(self, experiment: str) -> Status:
        """How it is. Raises Gone."""
        pipe = self._conn.pipeline()
        statuses.ask(pipe, experiment)
        status = statuses.read(experiment, pipe.execute(raise_on_error=False))
        if status is None:
            raise gone(experiment)
        return status

    # ---- write

    def set_command(
        self,
        experiment: str,
        command: Command,
        *,
        rev: int | None = None,
        seat_epoch: int | None = None,
        leader_epoch: int | None = None,
    ) -> Ctl:
        """Tell it to run, pause or stop; the command it has already is no mistake.

        Args:
            rev: the rev the caller decided on; None for whatever it is.
            seat_epoch: of a trainer that decides this, and may only while it holds the seat.
            leader_epoch: of a coordinator that decides this, and may only while no other leads.

        Raises:
            Conflict: rev has moved on, or it was told to stop (for good), or it is over.
            SeatLost, LeaderLost: the caller's epoch is over; the command is what it was.
            Gone: it was removed.
        """
        seen, seat, leader = ("" if number is None else number for number in (rev, seat_epoch, leader_epoch))
        args = [command, seen, keys.news(experiment), seat, leader]
        reply = self._conn.script("set_command", [keys.ctl(experiment), keys.status(experiment)], args)
        answer, now, current, state = (text(item) for item in reply)
        if answer == "GONE":
            raise gone(experiment)
        if answer == "FENCED" and seat_epoch is not None:
            raise seat_lost(experiment, seat_epoch)
        if answer == "FENCED":
            check_leader(experiment, answer)
        if answer == "CONFLICT":
            raise Conflict(f"{experiment} changed meanwhile: its command is {current} at rev {now}; look and try again")
        go_on = f"continue it in a new run: heddle enqueue --resume {experiment}"
        if answer == "STOPPED":
            raise Conflict(f"{experiment} is stopping, which cannot be undone; {go_on}")
        if answer == "ENDED" and command != "stop":
            raise Conflict(f"{experiment} is {state}; {go_on}")
        try:
            return self.ctl(experiment)
        except NoNumber:  # it was told, whatever else is damaged there
            return read_ctl({"command": current, "rev": now})

    def set_status(
        self,
        experiment: str,
        state: State,
        *,
        leader_epoch: int,
        reason: str = "",
        result: Mapping[str, Any] | None = None,
        decided_on: tuple[str, int] | None = None,
    ) -> State:
        """Write its state, as the leader; completed, stopped and failed also set command stop.

        Args:
            decided_on: of a stopped one's end: the outcome its trainer told, "" for none, and batches in flight. Where
                that, or the stop, holds no more, or somebody holds a shard or the seat, nothing is written.

        Returns:
            The state it has now: the final one it had already, where there was one.

        Raises:
            LeaderLost: another coordinator leads.
            Gone: it was removed.
        """
        left = "" if result is None else dump_json(result)
        args = [leader_epoch, state, reason, left, keys.news(experiment), *(decided_on or ("", ""))]
        args.append(keys.shard(experiment, 0, 0).removesuffix("0"))
        own = [keys.ctl(experiment), keys.status(experiment), keys.flow(experiment, 0)]
        reply = self._conn.script("set_status", [*own, keys.due(experiment, 0), keys.seat(experiment)], args)
        check_leader(experiment, text(reply[0]))
        return text(reply[1])  # type: ignore[return-value]

    def set_active(self, experiment: str, *, leader_epoch: int, active: int, active_eval: int) -> None:
        """Write how many train and eval shards count, as the leader. Raises LeaderLost, Gone."""
        args = [leader_epoch, active, active_eval]
        check_leader(experiment, text(self._conn.script("set_active", [keys.ctl(experiment)], args)))

    def finish(
        self, experiment: str, seat_epoch: int, outcome: Outcome, reason: str, result: Mapping[str, Any]
    ) -> Outcome:
        """End it, as the holder of its seat: command stop, outcome, reason and result. The first outcome stays.

        Returns:
            The outcome it has now.

        Raises:
            SeatLost: another trainer holds the seat.
            Gone: it was removed.
        """
        args = [seat_epoch, outcome, reason, dump_json(result), keys.news(experiment)]
        reply = self._conn.script("finish", [keys.ctl(experiment), keys.status(experiment)], args)
        check_seat(experiment, seat_epoch, text(reply[0]))
        return text(reply[1])  # type: ignore[return-value]

    def remove(self, experiment: str, *, force: bool = False) -> None:
        """Remove every key of it; again is no mistake.

        Raises:
            Conflict: it is running, paused or stopping, and `force` is not set.
        """
        removal.remove(self._conn, experiment, force=force)

    # ---- the queue, for the leader

    def queue_read(self, consumer: str, *, block_ms: int = 0, count: int = 16) -> list[QueueEntry]:
        """The next submitted experiments, also those that a vanished coordinator had read 3 s ago or earlier.

        Args:
            consumer: id of the coordinator.
            block_ms: how long to wait for a new one; 0 for not at all.
        """
        return queue.read(self._conn, consumer, block_ms=block_ms, count=count)

    def queue_ack(self, entry: QueueEntry) -> None:
        """Take an entry that was admitted, or refused for good, out of the queue; again is no mistake."""
        queue.ack(self._conn, entry.entry_id)

    def queue_waiting(self) -> list[QueueEntry]:
        """Every entry in the queue, read or not, oldest first."""
        return queue.waiting(self._conn)

    def queue_tidy(self) -> int:
        """Delete the group's consumers of coordinators that are gone; how many."""
        return queue.tidy(self._conn)
