"""One experiment on a broker, as Python sees it: how it is, what it measures, what it shall do.

It never prints and never starts a process.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from heddle import markup
from heddle.broker.metrics import Metric
from heddle.broker.records import ENDED, Command, Status
from heddle.broker.types import ShardState
from heddle.consumers.patience import Patience
from heddle.errors import Conflict, ExperimentFailed, HeddleError, SpecError, TimedOut
from heddle.spec import ExperimentSpec, spec_from_json
from heddle.states.experiments import Picture
from heddle.states.judgement import Judgement
from heddle.states.look import look_at
from heddle.states.shown import Curve, curve_of, html_of
from heddle.states.story import Story, story_of_experiment, story_of_shard

if TYPE_CHECKING:
    from heddle.client import Client
    from heddle.consumers.tap import Tap

POLL_S = 0.25
JUDGED = ("waiting", "stalled", "degraded")
"""States that nobody writes down: they follow from what is seen."""
BLOCK_MS = 1_000


class Experiment:
    """One experiment on a broker.

    Attributes:
        id: its id.
        created: this call made it; False when it was there.
    """

    def __init__(self, client: "Client", experiment_id: str, *, created: bool = False) -> None:
        self.client = client
        self.id = experiment_id
        self.created = created
        self._experiments = client.broker.experiments

    def __repr__(self) -> str:
        return f"Experiment({self.id!r})"

    def _repr_html_(self) -> str:
        """For notebooks: how it is, what it measured last and its curves; just its id where nobody can tell."""
        try:
            measured = list(self.metrics())
            latest = {name: value for metric in measured for name, value in metric.values.items()}
            curves = [curve_of(self.id, measured, name) for name in ("return", "eval_return")]
            return html_of(self.id, self.state(), latest, curves)
        except HeddleError as error:
            return markup.facts(self.id, "", [("cannot be asked", error)])

    def curve(self, metric: str = "return") -> Curve:
        """One of its metrics over environment steps; a notebook draws it."""
        return curve_of(self.id, self.metrics(), metric)

    def status(self) -> Status:
        """How it is now. Raises Gone."""
        return self._experiments.status(self.id)

    def spec(self) -> ExperimentSpec:
        """What was submitted.

        Raises:
            NotFound: there is no such experiment.
            SpecError: what the broker holds is no spec of this version; its problems name the experiment.
        """
        stored = self._experiments.spec(self.id).json
        try:
            return spec_from_json(stored)
        except SpecError as error:
            hint = f"submitted by another version, or changed by hand; to clear up: heddle rm {self.id}"
            named = [replace(one, file=f"the spec of {self.id}", hint=one.hint or hint) for one in error.problems]
            raise SpecError(named) from error

    def wait(
        self,
        state: str | None = None,
        timeout: float | None = None,
        *,
        on_look: Callable[[Status], None] | None = None,
    ) -> Status:
        """Wait until it is in `state` (None: over, whichever way), at most `timeout` seconds.

        A broker that is away is waited for, too.

        Args:
            on_look: told how it is, at each look.

        Returns:
            How it is then.

        Raises:
            TimedOut: it is not by then.
            ExperimentFailed: it failed, or ended in another state than the one waited for.
            Gone: it was removed.
        """
        clock = self.client.clock
        deadline = None if timeout is None else clock.monotonic() + timeout

        def check() -> None:
            if patience.silent_s and deadline is not None and clock.monotonic() >= deadline:
                raise TimedOut(f"nobody knows how {self.id} is, after {timeout:g} s: the broker does not answer")

        patience = Patience(check=check, clock=clock)
        while True:
            status = patience.call(f"ask how {self.id} is", self.status)
            if on_look is not None:
                on_look(status)
            if status.state == state or (state is None and status.state in ("completed", "stopped")):
                return status
            if state in JUDGED and patience.call(f"ask how {self.id} is", self.state).state == state:
                return status
            if status.ended:
                raise ExperimentFailed(f"{self.id} {status.state}{f': {status.reason}' if status.reason else ''}")
            if deadline is not None and clock.monotonic() >= deadline:
                raise TimedOut(f"{self.id} is {status.state}, not {state or 'over'}, after {timeout:g} s")
            clock.sleep(POLL_S)

    def metrics(self, follow: bool = False, *, after: str = "0") -> Iterator[Metric]:
        """What the trainer has measured, oldest first; with `follow`, also what comes until it is over.

        With `follow` a broker that is away is waited for.
        """
        patience = Patience(clock=self.client.clock)

        def read() -> tuple[bool, list[Metric]]:
            ended = self.status().state in ENDED
            block_ms = BLOCK_MS if follow and not ended else 0
            return ended, self.client.broker.events.metrics_read(self.id, after, block_ms=block_ms)

        while True:
            ended, found = patience.call("read metrics", read) if follow else read()
            for metric in found:
                after = metric.entry_id
                yield metric
            if not found and (ended or not follow):
                return

    def tap(self, name: str) -> "Tap":
        """A reader of its experience of your own: sees every batch from now on that nobody deleted before."""
        from heddle.consumers.tap import Tap
        from heddle.launch.check import see_spaces

        return Tap(self.client.broker, self.id, name, describe=see_spaces)

    def pause(self) -> None:
        """Let it collect nothing until `resume`."""
        self._command("pause")

    def resume(self) -> None:
        """Let it go on. Raises Conflict when it was stopped."""
        self._command("run")

    def stop(self) -> None:
        """Have it end with a last checkpoint; cannot be undone."""
        self._command("stop")

    def remove(self, *, force: bool = False) -> None:
        """Delete everything the broker holds of it. Raises Conflict while it is active, unless forced."""
        self._experiments.remove(self.id, force=force)

    def state(self) -> Judgement:
        """How it really is: running, waiting (for what), stalled, degraded, ..., with its why. Raises Gone."""
        return self.picture().experiment

    def picture(self) -> Picture:
        """How it, its shards, its trainer, the workers of its pool and the coordinator really are. Raises Gone."""
        return look_at(self.client.broker, self.id)[1]

    def why(self, *, count: int = 30) -> Story:
        """How it is, the chain of reasons, and the last things that happened to it. Raises Gone."""
        return story_of_experiment(self.client.broker, self.id, count=count)

    def why_shard(self, shard: int, *, count: int = 30) -> Story:
        """The same of one of its shards, with how its environments failed. Raises NotFound, Gone."""
        return story_of_shard(self.client.broker, self.id, shard, count=count)

    def release_shard(self, shard: int) -> None:
        """Have a quarantined shard played again. Raises Conflict, NotFound, Gone."""
        self.client.broker.shards.lift_quarantine(self.id, 0, shard)
        self.client.tell(self.id, f"released shard={shard} from quarantine")

    def release_quarantined(self) -> list[int]:
        """Have every quarantined shard played again; which they were. Raises Conflict when there is none, Gone."""
        found = [shard.shard for shard in self.shards() if shard.state == "quarantined"]
        if not found:
            raise Conflict(f"no shard of {self.id} is quarantined; see: heddle shards {self.id}")
        for shard in found:
            self.release_shard(shard)
        return found

    def shards(self) -> list[ShardState]:
        """Who plays which shard, and how far it is."""
        return self.client.broker.shards.shards(self.id, 0)

    # ---- inside

    def _command(self, command: Command) -> None:
        """Set a command, and tell who did; no mistake when it is that already."""
        before = self.status().rev
        if self._experiments.set_command(self.id, command).rev != before:
            self.client.tell(self.id, f"command {command}")
