"""A fleet of this machine to measure on: the server, coordinator and workers of `heddle run`, and a client beside them.

It never trains: whoever measures reads the experience.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import CLOCK
from heddle.broker.server_setup import Durability
from heddle.client import Client, connect
from heddle.errors import TimedOut
from heddle.experiment import Experiment
from heddle.launch.check import load_and_check
from heddle.launch.local import Local, Setup
from heddle.launch.process import describe_exit
from heddle.stop import StopFlag

PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """See the module.

    Attributes:
        local: the processes; to be stepped often.
        client: of the broker.
    """

    local: Local
    client: Client

    def submit(self, source: Mapping[str, object]) -> Experiment:
        """An experiment of this spec, given as what TOML would give."""
        loaded, checked = load_and_check(dict(source))
        return self.client.submit_loaded(loaded, spaces=checked.spaces_json())

    def until_live(self, workers: int) -> float:
        """Seconds until the heartbeats of so many workers were heard. Raises TimedOut."""
        began = CLOCK.monotonic()
        while (live := sum(info.alive for info in self.client.broker.pools.workers())) < workers:
            if CLOCK.monotonic() - began > PATIENCE_S:
                raise TimedOut(f"{live} of {workers} workers live after {PATIENCE_S:g} s")
            self.let_be(0.05)
        return CLOCK.monotonic() - began

    def let_be(self, seconds: float) -> None:
        """Let it run; a process that ends is a failure of the measurement."""
        until = CLOCK.monotonic() + seconds
        while CLOCK.monotonic() < until:
            self.local.step()
            if self.local.endings:
                ending = self.local.endings[0]
                raise RuntimeError(f"a process ended: {ending.why} ({describe_exit(ending.code)})")
            CLOCK.sleep(0.05)


@contextmanager
def fleet(workers: int, *, durability: Durability | None = None) -> Iterator[Fleet]:
    """Within it a fleet runs in a folder of its own; both are gone afterwards.

    Args:
        durability: of its server; None as `heddle run` has it.
    """
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder:
        setup = Setup(url=None, folder=Path(folder) / "server", workers=workers, durability=durability)
        local = Local(setup, stop=StopFlag())
        try:
            local.start_server()
            local.start_roles()
            with connect(local.url) as client:
                yield Fleet(local, client)
        finally:
            local.end()
