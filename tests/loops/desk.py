"""What tests of the reader share: a reader with the seat, and a server that goes back to what it knew."""

from collections.abc import Mapping, Sequence
from typing import Any

from heddle.broker import Broker
from heddle.clock import SystemClock
from heddle.consumers.ledger import Ledger
from heddle.consumers.marks import Mark
from heddle.consumers.ordering import Ordering
from heddle.consumers.patience import Patience
from heddle.consumers.reader import Loaded, Reader
from heddle.shard import ShardPlan
from tests.trainer_kit import Fleet


class Desk:
    """A reader with the seat."""

    def __init__(
        self,
        broker: Broker,
        fleet: Fleet,
        *,
        marks: dict[int, Mark] | None = None,
        carried: Mapping[str, tuple[str, str]] | None = None,
        name: str = "t",
        plans: Sequence[ShardPlan] | None = None,
    ) -> None:
        self.experiment = fleet.experiment
        epoch = broker.seats.claim_seat(self.experiment, name, ttl_ms=60_000)
        assert epoch is not None
        self.epoch = epoch
        self.probed: list[Loaded] = []
        self.ledger = Ledger(broker, self.experiment, 0, seat_epoch=epoch, ordering=Ordering(marks), carried=carried)
        self.reader = Reader(
            broker,
            self.experiment,
            0,
            seat_epoch=epoch,
            ledger=self.ledger,
            layout=fleet.setting.layout,
            plans=fleet.setting.plans if plans is None else plans,
            size_cap=1 << 20,
            patience=Patience(),
            clock=SystemClock(),
            probe=self.probed.append,
        )
        self.reader.start()

    def poll(self) -> list[tuple[int, int]]:
        """What comes now, as (shard, seq)."""
        self.loaded = self.reader.poll(block_ms=0)
        return [(item.pointer.shard, item.pointer.seq) for item in self.loaded]

    def train(self) -> None:
        """Settle what came last as trained, and ack it."""
        self.ledger.hold([item.pointer for item in self.loaded], "trained")
        self.ledger.release()
        assert self.ledger.flush()


class Memory:
    """All that a server knows now; `go_back` has it forget what came since, as one does that is killed."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._kept = [(key, raw.dump(key), max(0, raw.pttl(key))) for key in raw.scan_iter("*")]

    def go_back(self) -> None:
        pipe = self._raw.pipeline(transaction=True)
        pipe.flushall()
        for key, value, ttl_ms in self._kept:
            pipe.restore(key, ttl_ms, value)
        pipe.execute()
