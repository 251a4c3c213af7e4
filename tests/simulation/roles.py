"""The roles as simulated processes: each runs the shipped class, from its start to its end.

It never decides when one starts or dies; hosts and faults do.
"""

from collections.abc import Callable
from pathlib import Path

from heddle.broker import Broker
from heddle.consumers.trainer import Trainer
from heddle.coord.coordinator import Coordinator
from heddle.errors import HeddleError
from heddle.producers.worker import Worker
from heddle.stop import StopFlag
from tests.simulation.hub import Hub, Process
from tests.simulation.learn import SimTraining
from tests.simulation.play import Nature

Connect = Callable[[], Broker]
SEAT_TTL_MS = 1_000
DRAIN_S = 2.0
HOME = Path("/simulated")


class Running:
    """One process of a role.

    Attributes:
        stop: its stop flag, once it has one.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self.stop: StopFlag | None = None
        self.worker: Worker | None = None

    def start(self, main: Callable[["Running"], int]) -> None:
        """Run `main` as the process's first thread; when it returns, the process is over."""

        def run() -> None:
            process = self.process
            try:
                process.code = main(self)
            except HeddleError as error:
                process.error, process.code = error, error.exit_code
            process.kill()

        self.process.spawn(run, "main")


def worker_main(connect: Connect, hub: Hub) -> Callable[[Running], int]:
    """What a worker process does."""

    def main(running: Running) -> int:
        process = running.process

        def exit_process(code: int) -> None:
            process.code = code
            process.kill()
            process.check()

        running.stop = StopFlag()
        running.worker = Worker(
            "sim",
            worker_id=process.name,
            stop=running.stop,
            drain_s=DRAIN_S,
            connect=connect,
            exit_process=exit_process,
            entropy=hub.rng.randbytes,
        )
        return running.worker.run()

    return main


def coordinator_main() -> Callable[[Running], int]:
    """What a coordinator process does; `install` gives it its broker."""

    def main(running: Running) -> int:
        running.stop = StopFlag()
        return Coordinator("sim", stop=running.stop, coordinator_id=running.process.name).run()

    return main


def trainer_main(connect: Connect, nature: Nature, experiment: str, *, update_s: float) -> Callable[[Running], int]:
    """What a trainer process does."""

    def main(running: Running) -> int:
        running.stop = StopFlag()
        trainer = Trainer(
            "sim",
            experiment,
            directory=HOME / experiment,
            stop=running.stop,
            train=lambda setting: SimTraining(nature, update_s=update_s),
            ttl_ms=SEAT_TTL_MS,
            broker=connect(),
        )
        return trainer.run()

    return main
