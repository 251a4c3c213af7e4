"""Claims: reads tickets and claims shards, as far as the quota allows.

It never plays and never releases; a ticket that this worker cannot serve is left to the others.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from heddle.broker import Broker, keys
from heddle.broker.faults import Damaged
from heddle.broker.types import Claim, Ticket
from heddle.clock import Clock
from heddle.errors import BrokerError, Gone, NotFound, SpecError
from heddle.lease import retry_delay_s
from heddle.plane import Home, Plane, open_plane
from heddle.producers.damaged import DamagedExperiments
from heddle.producers.desk import Desk
from heddle.producers.holdings import Holding, Key
from heddle.producers.quota import MOST_PER_LOOK, look_every_s, may_take_above, tickets_at_once, wants_more
from heddle.producers.stage import Fetch, Stage

log = logging.getLogger("heddle.worker")

BLOCK_MS = 1_000
AVOID_FIRST_S, AVOID_LAST_S = 2.0, 60.0
DEFAULT_TTL_MS = 10_000


class Claimer:
    """Takes shards for one worker.

    Args:
        on_claim: told of each shard that was got, after it was written down at the desk.
        entropy: gives that many random bytes (`os.urandom`), for the nonces of claims.
        plane: opens this host's shared memory.
        fetch: of policies, instead of the broker's.
    """

    def __init__(
        self,
        broker: Broker,
        desk: Desk,
        *,
        damaged: DamagedExperiments,
        pool: str,
        worker: str,
        on_claim: Callable[[Claim, Stage], None],
        entropy: Callable[[int], bytes],
        clock: Clock,
        rng: np.random.Generator,
        plane: Callable[[], Plane] = open_plane,
        fetch: Fetch | None = None,
    ) -> None:
        self._broker = broker
        self._desk = desk
        self._damaged = damaged
        self._pool = pool
        self._worker = worker
        self._on_claim = on_claim
        self._entropy = entropy
        self._plane = plane
        self._fetch = fetch
        self._clock = clock
        self._rng = rng
        self.stages: dict[str, Stage] = {}
        self._unfinished: list[tuple[Ticket, str]] = []
        self._avoid: dict[Key, tuple[int, float]] = {}
        self._refused: set[str] = set()
        self._failures = 0
        self.next_look = 0.0

    def look(self) -> None:
        """Claim what the quota allows; blocks for at most a second, and only when nothing is held."""
        now = self._clock.monotonic()
        if now < self.next_look:
            return
        try:
            left = MOST_PER_LOOK
            while left > 0 and (served := self._look_once(left)):
                left -= served
        except (BrokerError, Damaged) as error:  # the pool's own keys may be damaged
            self._failures += 1
            if self._failures == 1:
                log.warning("cannot claim, trying again error=%s", error)
            self.next_look = self._clock.monotonic() + retry_delay_s(self._failures, self._rng.random())
            if not self._desk.holdings():
                self._clock.sleep(self.next_look - self._clock.monotonic())
            return
        self._failures = 0
        held = len(self._desk.holdings())
        pause_s = look_every_s(held, self._desk.quota, ttl_s=self._ttl_ms() / 1000) if held else 0.0
        self.next_look = self._clock.monotonic() + pause_s * (0.75 + 0.5 * self._rng.random())

    def avoid(self, holding: Holding) -> None:
        """Leave that shard's tickets to others for a while: it failed here; twice as long each time in a row."""
        key = holding.key
        failures = (self._avoid.get(key, (0, 0.0))[0] if holding.is_fruitless else 0) + 1
        pause_s = min(AVOID_LAST_S, AVOID_FIRST_S * 2.0 ** min(failures - 1, 30))
        self._avoid[key] = (failures, self._clock.monotonic() + pause_s)

    def forget(self, experiment: str) -> None:
        """Nothing is held of it any more: its spec and policies are read anew when it comes back."""
        stage = self.stages.pop(experiment, None)
        if stage is not None:
            stage.packer.close()

    def close(self) -> None:
        """The worker ends."""
        for experiment in list(self.stages):
            self.forget(experiment)

    def _ttl_ms(self) -> int:
        return min((stage.ttl_ms for stage in self.stages.values()), default=DEFAULT_TTL_MS)

    def _look_once(self, most: int) -> int:
        """Serve a ticket, or `most` at most; how many, 0 when it is not worth looking for another at once."""
        if self._unfinished:
            one = self._unfinished[0]
            self._serve(*one)
            self._finish(one)
            return 1
        held = len(self._desk.holdings())
        count = self._wanted(held, most)
        block_ms = 0 if held else BLOCK_MS
        if count > 1:
            return self._serve_some(
                self._broker.shards.read_tickets(self._pool, self._worker, count=count, block_ms=block_ms)
            )
        read = self._broker.shards.read_ticket(self._pool, self._worker, block_ms=block_ms) if count else None
        if read is None:
            return 0
        self._serve(read)
        return 1

    def _wanted(self, held: int, most: int) -> int:
        """How many tickets to read, 0 for none."""
        quota = self._desk.quota
        if wants_more(held, quota):
            return tickets_at_once(held, quota, most=most)
        seen = self._broker.shards.peek_ticket(self._pool)
        if seen is None or not may_take_above(age_ms=seen.age_ms, urgent=seen.urgent, ttl_ms=self._ttl_ms()):
            return 0
        return tickets_at_once(held, quota, waiting=seen.waiting, most=most)

    def _serve(self, ticket: Ticket, nonce: str = "") -> None:
        """Claim what a ticket is for, unless this worker leaves it alone.

        Args:
            nonce: of a claim of which the answer was lost.
        """
        if self._damaged.shuns(ticket.experiment):
            return
        try:
            if self._may_serve(ticket):
                self._claim(ticket, nonce or self._entropy(8).hex())
        except Damaged as error:
            self._meet(ticket, error)

    def _serve_some(self, tickets: Sequence[Ticket]) -> int:
        """`_serve` for several that were read, in one round trip; how many."""
        asked = self._ask_for(tickets)
        wanted = [(ticket, nonce, self.stages[ticket.experiment].ttl_ms) for ticket, nonce in asked]
        answers = list(zip(asked, self._broker.shards.claim_all(wanted, worker=self._worker), strict=True))
        claims = [answer for _, answer in answers if isinstance(answer, Claim)]
        for claim in claims:  # all before anything else, for the keeper renews what lies on the desk
            self._take(claim)
        settled, failures = [], []
        for one, answer in answers:
            if isinstance(answer, Damaged):
                self._meet(one[0], answer)
            elif isinstance(answer, Exception):
                failures.append(answer)  # it is asked for again, with its nonce
            else:
                self._finish(one)
                settled.append(one[0])
        for claim in claims:
            self._on_claim(claim, self.stages[claim.lease.experiment])
        self._broker.shards.drop_tickets_read(settled)
        if failures:
            raise failures[0]
        return len(tickets)

    def _ask_for(self, tickets: Sequence[Ticket]) -> list[tuple[Ticket, str]]:
        """Those that are not left to others, each with the nonce of its claim; unfinished from now on."""
        asked = []
        for ticket in tickets:
            try:
                if not self._damaged.shuns(ticket.experiment) and self._may_serve(ticket):
                    asked.append((ticket, self._entropy(8).hex()))
                    self._unfinished.append(asked[-1])
            except Damaged as error:
                self._meet(ticket, error)
        return asked

    def _meet(self, ticket: Ticket, error: Damaged) -> None:
        self._unfinished = [one for one in self._unfinished if one[0] != ticket]
        self._damaged.met(ticket.experiment, error)

    def _finish(self, one: tuple[Ticket, str]) -> None:
        """Its claim was answered, or it is left to others."""
        self._unfinished = [other for other in self._unfinished if other != one]

    def _may_serve(self, ticket: Ticket) -> bool:
        """False leaves the ticket: the leader sees that it was read and not claimed, and adds it anew."""
        if self._clock.monotonic() < self._avoid.get((ticket.experiment, ticket.partition, ticket.shard), (0, 0.0))[1]:
            return False
        try:
            return self._stage(ticket.experiment) is not None
        except (NotFound, Gone):
            self._broker.shards.drop_ticket(ticket)
            return False

    def _stage(self, experiment: str) -> Stage | None:
        if experiment not in self.stages:
            stored = self._broker.experiments.spec(experiment)
            if stored.protocol != keys.PROTOCOL:
                self._refuse(experiment, f"it speaks protocol {stored.protocol}, this worker {keys.PROTOCOL}")
                return None
            try:
                home = partial(self._home, experiment)
                fetch = self._fetch or self._broker.policies.fetch
                self.stages[experiment] = Stage(stored, fetch, clock=self._clock, home=home)
            except SpecError as error:
                self._refuse(experiment, f"its spec cannot be read: {error}")
                return None
        return self.stages[experiment]

    def _home(self, experiment: str) -> Home:
        return Home(self._plane(), self._broker.planes.identity(), experiment)

    def _refuse(self, experiment: str, why: str) -> None:
        if experiment not in self._refused:
            self._refused.add(experiment)
            log.error("refusing experiment=%s because %s", experiment, why)
            self._broker.events.log(experiment, "worker", self._worker, "error", f"refused: {why}")

    def _claim(self, ticket: Ticket, nonce: str) -> None:
        stage = self._stage(ticket.experiment)
        if stage is None:
            return
        if (one := (ticket, nonce)) not in self._unfinished:
            self._unfinished.append(one)  # a lost reply is asked for again with the same nonce
        claim = self._broker.shards.claim(ticket, worker=self._worker, nonce=nonce, ttl_ms=stage.ttl_ms)
        self._finish(one)
        if isinstance(claim, Claim):
            self._take(claim)
            self._on_claim(claim, stage)
        self._broker.shards.drop_ticket(ticket)

    def _take(self, claim: Claim) -> None:
        stage = self.stages[claim.lease.experiment]
        holding = self._desk.take(claim, stage.ttl_ms, apart=stage.spec.env.in_children)
        log.info("claimed shard=%s epoch=%d seq=%d", holding.name, claim.lease.epoch, claim.seq)
