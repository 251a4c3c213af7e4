"""One turn: play one segment of one shard with the right policy and make a parcel of it.

It never chooses the shard and never waits for the broker longer than one call takes.
"""

import logging
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TypeVar

from heddle.broker import Broker
from heddle.broker.types import AppendMeta, Renewal
from heddle.clock import Clock
from heddle.errors import BrokerError, BrokerUnreachable, EnvError, NotFound, SnapshotError
from heddle.layout import Segments
from heddle.producers.ahead import when_played
from heddle.producers.desk import Desk
from heddle.producers.holdings import Facts, Holding, stepping_changes
from heddle.producers.limits import limit_of
from heddle.producers.parcel import Parcel
from heddle.producers.play import Play
from heddle.producers.snapshot_rule import Beginning, Camera, begin
from heddle.producers.stage import Stage
from heddle.producers.user_code import UserCode
from heddle.subject import about

T = TypeVar("T")

log = logging.getLogger("heddle.worker")


class Turns:
    """Plays turns.

    Attributes:
        user_code: what of the user's runs right now, for those who look on.

    Args:
        renewed: told the answers to renewals made on the way.
        ready: says which version of an experiment can be had without waiting, and has a wanted one fetched meanwhile.
    """

    def __init__(
        self,
        broker: Broker,
        desk: Desk,
        *,
        clock: Clock,
        renewed: Callable[[Holding, int, Renewal], None],
        ready: Callable[[str, int], int] = when_played,
    ) -> None:
        self._broker = broker
        self._desk = desk
        self._clock = clock
        self._renewed = renewed
        self._ready = ready
        self.user_code = UserCode(clock)

    def close(self, holding: Holding) -> None:
        """Close the shard's environments, if they were ever made."""
        if holding.player is not None:
            player = holding.player
            limit_s = limit_of(player.spec, player.plan, "close", beside=player.beside)
            with about(holding.subject), self._watching("close", holding, limit_s):
                player.close()

    def play(self, holding: Holding, stage: Stage, facts: Facts) -> Parcel | None:
        """Play one segment; None when there was nothing to record.

        Raises:
            EnvError: environment or policy failed; the shard must be given back.
            NotFound, Gone, BrokerError: the policy cannot be fetched now.
        """
        with about(holding.subject):
            return self._play(holding, stage, facts)

    def _play(self, holding: Holding, stage: Stage, facts: Facts) -> Parcel | None:
        self.user_code.runs_here()
        self.mark_stepping(holding)
        player = self._player(holding, stage)
        began = self._clock.monotonic()
        play = self._evaluate if holding.claim.kind == "eval" else self._train
        parcel = play(holding, stage, player, facts)
        if parcel is not None:
            parcel.meta = replace(parcel.meta, played_ms=round(1000 * (self._clock.monotonic() - began)))
        return parcel

    def _train(self, holding: Holding, stage: Stage, player: Play, facts: Facts) -> Parcel:
        self._watched(player, holding, player.prepare)
        self._have_newest(stage, facts, holding)
        version = stage.version("train")
        if holding.claim.sync and version <= holding.given:  # the broker forgot what it had announced
            raise NotFound(f"policy {version} was given by {holding.name} already, a newer one is awaited")
        stage.packer.lend(player, stage.layout(), facts.plane)
        began = self._clock.monotonic()
        is_same = partial(_is_version, stage, "train", version)
        segments = self._watched(player, holding, lambda: player.play(version), is_same)
        played_s = self._clock.monotonic() - began
        if holding.claim.sync:
            holding.given = version
        parcel = _pack(holding, stage, segments, given=version if holding.claim.sync else 0, plane=facts.plane)
        player.recycle(segments)
        self._snapshot(holding, stage, player, parcel, played_s)
        return parcel

    def _evaluate(self, holding: Holding, stage: Stage, player: Play, facts: Facts) -> Parcel | None:
        version = facts.eval_policy
        self._count_fetch(stage.load_pinned(version, loading=partial(self._watching, "load", holding)))
        if holding.evaluation is None or holding.evaluating != version:  # an older one interests nobody any more
            holding.evaluation, holding.evaluating = stage.evaluation(holding.claim, player), version
        evaluation = holding.evaluation
        is_same = partial(_is_version, stage, "eval", version)
        played = self._watched(player, holding, lambda: next(evaluation, None), is_same)
        if played is None:
            holding.evaluation = None
            return None
        segments, last = played
        if not segments.rows:  # whoever is wanted waits for a game
            return None
        if last:
            holding.given, holding.evaluation = version, None
        return _pack(holding, stage, segments, given=version if last else 0, plane=facts.plane)

    def _watched(
        self, player: Play, holding: Holding, play: Callable[[], T], is_same: Callable[[], bool] = lambda: True
    ) -> T:
        """Have the player play; `is_same` tells whether the policy is still the one that it began with."""
        began = self._clock.monotonic()
        try:
            with self.user_code.playing(player, holding.name, is_same):
                played = play()
        finally:
            self._desk.counters.play_s += self._clock.monotonic() - began
        for told in player.hear():
            self._tell(holding, told)
        return played

    def _player(self, holding: Holding, stage: Stage) -> Play:
        """The shard's environments, made at its first turn."""
        if holding.player is None:
            holding.env, holding.beside = stage.spec.env, stage.stepping != "inline"
            beginning = begin(holding.claim, stage.spec)
            key = beginning.snapshot
            snapshot = None if key is None else self._broker.shards.snapshot(key)
            limit_s = partial(limit_of, stage.spec, stage.plan_of(holding.claim), beside=holding.beside)
            with self._watching("make", holding, limit_s("make")):
                restoring = partial(self._watching, "restore", holding, limit_s("restore"))
                holding.player, trouble = make_player(holding, stage, beginning, snapshot, restoring)
            if trouble:
                self._tell(holding, f"its snapshot {trouble}; it plays fresh episodes")
            holding.camera = Camera(stage.spec, clock=self._clock, known=holding.claim.no_snapshot)
        if holding.evaluation is None:
            holding.player = stage.paced(holding.player)
        return holding.player

    def _snapshot(self, holding: Holding, stage: Stage, player: Play, parcel: Parcel, played_s: float) -> None:
        """Where the shard stands now, behind the segment just played, travels with that segment.

        Why it cannot is told of the first shard with that reason: an experiment may have hundreds of its kind.
        """
        camera = holding.camera
        if camera is None or not camera.is_due(played_s):
            return
        with self._watching("snapshot", holding, limit_of(player.spec, player.plan, "snapshot", beside=player.beside)):
            parcel.snapshot = camera.take(player.standing.pack)
        parcel.no_snapshot = camera.news()
        kind = re.sub(r"\d+", "", parcel.no_snapshot)  # those of other shards have other sizes
        if kind and kind not in stage.not_taken:
            stage.not_taken.add(kind)
            self._tell(holding, f"it cannot be snapshotted: {parcel.no_snapshot}")

    def _tell(self, holding: Holding, what: str) -> None:
        """A line for people, wherever they look."""
        log.warning("shard=%s: %s", holding.name, what)
        lease = holding.lease
        self._broker.events.log(lease.experiment, "worker", lease.worker, "warning", f"shard {lease.shard}: {what}")

    def _watching(self, what: str, holding: Holding, limit_s: float | None = None) -> AbstractContextManager[None]:
        """Within it, one call into user code that must not hang longer than `limit_s`, or else its `step_timeout`."""
        if limit_s is None:
            limit_s = 0.0 if holding.env is None else holding.env.step_timeout
        return self.user_code.calling(what, holding.name, limit_s)

    def _have_newest(self, stage: Stage, facts: Facts, holding: Holding) -> None:
        """Fetch the newest policy; without a barrier a broker that is away is no reason to stand still."""
        wanted = facts.policy
        if not holding.claim.sync and 0 < stage.version("train") < wanted:
            wanted = self._ready(stage.experiment, wanted)
        try:
            self._count_fetch(stage.load_newest(wanted, loading=partial(self._watching, "load", holding)))
        except BrokerUnreachable:
            if holding.claim.sync or stage.version("train") == 0:
                raise
            log.debug("playing on with version=%d, broker is away", stage.version("train"))

    def _count_fetch(self, fetched: bool) -> None:
        self._desk.counters.fetches += int(fetched)

    def mark_stepping(self, holding: Holding) -> None:
        """Tell the broker which shard is to blame should this process die now.

        Only while nothing of the shard was accepted since it was claimed, so about once a claim. With
        the broker away a death cannot be blamed, which is the lesser evil.
        """
        with self._desk.changed:
            is_to_blame = self._desk.is_to_blame(holding)
            changes = stepping_changes(self._desk.holdings(), holding, is_to_blame=is_to_blame)
            self._desk.mark += bool(changes)
            mark = self._desk.mark
            for one, _, _ in changes:
                one.stepping = None  # until it is answered
        for (experiment, p), group in groupby(changes, key=lambda change: change[0].key[:2]):
            some = list(group)
            asked = [(one.lease, wanted) for one, _, wanted in some]
            try:
                renewals = self._broker.shards.renew(experiment, p, asked, ttl_ms=some[0][0].ttl_ms, mark=mark)
            except BrokerError as error:
                log.debug("cannot mark shard=%s as stepped error=%s", holding.name, error)
                self._desk.number_away()  # or it arrives after the keeper's next renewal
                return
            for (one, accepted, wanted), renewal in zip(some, renewals, strict=True):
                one.stepping = wanted
                self._renewed(one, accepted, renewal)


def make_player(
    holding: Holding,
    stage: Stage,
    beginning: Beginning,
    snapshot: bytes | None,
    restoring: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[Play, str]:
    """A shard's player as `beginning` says, and why it does not begin at its snapshot though there is one, else "".

    Args:
        restoring: what the snapshot is restored within.

    Raises:
        EnvError: the environment or the policy cannot be made.
    """
    trouble = ""
    if beginning.snapshot is not None:
        try:
            if snapshot is None:
                raise SnapshotError("is not there any more")
            player = stage.resume_player(holding.claim, snapshot, restoring)
            log.info("continuing shard=%s after seq=%d", holding.name, holding.claim.seq)
            return player, ""
        except SnapshotError as error:
            trouble = error.reason
    elif beginning.reason:
        log.info("playing fresh episodes shard=%s because %s", holding.name, beginning.reason)
    return stage.make_player(holding.claim, at_start=beginning.at_start), trouble


def _is_version(stage: Stage, kind: str, version: int) -> bool:
    return stage.version(kind) == version


def _pack(holding: Holding, stage: Stage, segments: Segments, *, given: int, plane: str) -> Parcel:
    """The parcel of one batch.

    Args:
        plane: token of the shared memory that its readers can map.

    Raises:
        EnvError: it is larger than the spec allows.
    """
    packed = stage.packer.pack(stage.layout(), segments, plane, holding.lease.shard)
    blob, cap = packed.blob, stage.spec.limits.batch_bytes
    if len(blob) > cap:
        packed.drop()
        raise EnvError(
            f"a batch of {len(blob)} bytes is above the cap of {cap}",
            key="limits.batch_bytes",
            value=cap,
            hint="raise it, or lower rollout.steps or env.envs_per_shard",
        )
    meta = AppendMeta(
        kind=holding.claim.kind,
        version_min=segments.version_min,
        version_max=segments.version_max,
        segments=segments.rows,
        steps=segments.num_steps,
        bytes=len(blob),
        crc32=packed.crc32,
        given=given,
    )
    return Parcel(lease=holding.lease, blob=blob, meta=meta, ttl_ms=stage.ttl_ms, slot=packed.slot)
