"""Waiting for experiments to be over, or in a state; on a terminal it shows how the one that is waited for is.

It never changes anything.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from heddle.cli.progress import Progress, progress

if TYPE_CHECKING:
    from heddle.broker.records import Status
    from heddle.client import Client


def wait_for_all(
    client: "Client", experiments: Sequence[str], state: str | None = None, timeout: float | None = None
) -> list["Status"]:
    """Wait for each, at most `timeout` seconds in all; those that failed are told once the others are over, too.

    Raises:
        ExperimentFailed, TimedOut, Gone: as `Experiment.wait`, of the first that did.
    """
    from heddle.errors import ExperimentFailed

    deadline = None if timeout is None else client.clock.monotonic() + timeout
    found, failed = [], []
    with progress("waiting:") as shown:
        for number, experiment in enumerate(experiments):
            left = None if deadline is None else max(0.0, deadline - client.clock.monotonic())
            before = f"{number} of {len(experiments)} are through, " if len(experiments) > 1 else ""
            told = _teller(client, experiment, shown, before) if shown.is_shown else None
            try:
                found.append(client.experiment(experiment).wait(state, left, on_look=told))
            except ExperimentFailed as error:
                failed.append(error)
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise ExperimentFailed(f"{failed[0]}{more}")
    return found


def _teller(client: "Client", experiment: str, shown: Progress, before: str) -> Callable[["Status"], None]:
    """Says after each look how the experiment is and how far."""
    from heddle.errors import HeddleError

    try:
        budget = client.broker.experiments.spec(experiment).number("budget", "env_steps", 0.0)
    except HeddleError:
        budget = 0.0

    def tell(status: "Status") -> None:
        try:
            steps = client.broker.experience.flow(experiment, 0).trained.steps
        except HeddleError:  # it is being removed, or the broker is away: what is known is shown
            shown.tell(f"{before}{experiment} is {status.state}")
            return
        of = f" of {budget:,.0f}" if budget else ""
        shown.tell(f"{before}{experiment} is {status.state}, {steps:,}{of} steps trained")

    return tell
