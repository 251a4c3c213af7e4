"""A group of experiments on a broker, such as those of one sweep: commands to all of them, and their results.

It never prints, and holds no list: who belongs to it is asked anew each time.
"""

from typing import TYPE_CHECKING

from heddle import markup
from heddle.broker.records import Status
from heddle.errors import Conflict, Gone, HeddleError, NotFound
from heddle.experiment import Experiment
from heddle.states.results import Reached, Result, chosen_metric, results_of
from heddle.states.shown import Statuses

if TYPE_CHECKING:
    from heddle.client import Client


class Group:
    """Every experiment whose spec names this group.

    Attributes:
        name: of the group.
    """

    def __init__(self, client: "Client", name: str) -> None:
        self.client = client
        self.name = name

    def __repr__(self) -> str:
        return f"Group({self.name!r})"

    def _repr_html_(self) -> str:
        """For notebooks: each of them; just its name where nobody can tell."""
        try:
            return markup.facts(f"group {self.name}", "", []) + Statuses(self.statuses())._repr_html_()
        except HeddleError as error:
            return markup.facts(f"group {self.name}", "", [("cannot be asked", error)])

    def statuses(self) -> list[Status]:
        """How each is, oldest first. Raises NotFound when there is none."""
        everything = self.client.broker.experiments.ls()
        found = [status for status in reversed(everything) if status.group == self.name]
        if not found:
            groups = sorted({status.group for status in everything if status.group})
            hint = f"there are: {', '.join(groups)}" if groups else "no experiment is in any"
            raise NotFound(f"no experiment is in a group {self.name!r}; {hint}")
        return found

    def experiments(self, *, active: bool = False) -> list[Experiment]:
        """Each of them, oldest first; with `active` those that are not over. Raises NotFound."""
        return [Experiment(self.client, one.experiment) for one in self.statuses() if not (active and one.ended)]

    def pause(self) -> list[str]:
        """Pause those that are not over; which. Raises NotFound."""
        return self._each("pause")

    def resume(self) -> list[str]:
        """Let those that are not over, or told to stop, go on; which. Raises NotFound."""
        return self._each("resume")

    def stop(self) -> list[str]:
        """Have those that are not over end with a last checkpoint; which. Raises NotFound."""
        return self._each("stop")

    def results(self, metric: str | None = None) -> tuple[str, list[Result]]:
        """What they are compared by, `metric` or their return, and each combination's result. Raises NotFound."""
        found = []
        for status in self.statuses():
            try:
                spec = Experiment(self.client, status.experiment).spec()
                latest = self.client.broker.events.metrics_last(status.experiment)
            except (Gone, NotFound):  # removed since it was listed
                continue
            found.append(Reached.of(status, spec, latest))
        name = metric or chosen_metric(found)
        return name, results_of(found, name)

    def _each(self, command: str) -> list[str]:
        """Give a command to each that can take it; one that ends meanwhile is passed over."""
        told = []
        for experiment in self.experiments(active=True):
            try:
                getattr(experiment, command)()
            except (Conflict, Gone):
                continue
            told.append(experiment.id)
        return told
