"""The Python side of the command line: submit an experiment, wait for it, follow it, read its experience.

It never prints and starts no process but git, for the commit of what is submitted; it finds a broker the way the
commands do.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle.broker import Broker, open_broker
from heddle.broker.durability import lacking
from heddle.broker.records import Status
from heddle.broker.server import find_running, is_running
from heddle.broker.server_folder import has_data
from heddle.clock import Clock, SystemClock
from heddle.consumers.budget import Spent, reached
from heddle.errors import BrokerUnfit, BrokerUnreachable, Conflict, NotFound
from heddle.experiment import Experiment
from heddle.group import Group
from heddle.launch.local_runs import find_run, named_near, run_at, runs_in
from heddle.origin import commit_of, user
from heddle.spec import ExperimentSpec, LoadedSpec, load_spec
from heddle.states.judgement import Judgement
from heddle.states.look import look_at_pool
from heddle.states.shown import Statuses, Workers, html_of_broker
from heddle.states.story import Story, story_of_worker
from heddle.version import __version__

if TYPE_CHECKING:
    from heddle.consumers.session import TrainerSession

URL_ENV = "HEDDLE_REDIS_URL"
FOLDER = Path(".heddle")
"""Where `heddle up` keeps its server, in the directory it was called in."""

RUNS = Path("runs")
"""Where runs leave their checkpoints, in the directory they were started in."""

SpecSource = Mapping[str, Any] | str | Path | ExperimentSpec


def find_url(given: str | None = None) -> str:
    """The broker's address: `given`, else HEDDLE_REDIS_URL, else the server of `heddle up` in this directory.

    Raises:
        BrokerUnreachable: there is none of the three.
    """
    url = known_url(given)
    if not url:
        raise BrokerUnreachable(
            f"no broker is known: pass url=..., set {URL_ENV}, or start one here with `heddle up`{left_here()}"
        )
    return url


def known_url(given: str | None = None) -> str | None:
    """As `find_url`; None when there is none."""
    return given or os.environ.get(URL_ENV) or find_running(FOLDER)


def url_of_run() -> str | None:
    """The server of the one `heddle run` that works in this directory; None for none and for several.

    Whoever looks may take it, and whoever steers: what is submitted there would end with that run.
    """
    working = _working()
    return working[0] if len(working) == 1 else None


def _working() -> list[str]:
    return [url for folder in sorted(FOLDER.glob("run*")) if (url := find_running(folder))]


def left_here() -> str:
    """What was cut short in this directory and how to go on with it; "" for nothing."""
    from heddle.launch.cut_short import cut_short

    left = [f"a `heddle run` works here, look at it with --redis-url {url}" for url in _working()]
    left += [str(run) for run in cut_short(FOLDER, is_running)]
    if has_data(FOLDER):
        left.append("`heddle up` goes on with the experiments that its broker here held")
    if runs := runs_in(RUNS):
        at = runs[0].folder
        left.append(f"what runs left here needs no broker, e.g.: heddle plot {at}, heddle eval {at}")
    return "".join(f"; {one}" for one in left)


def connect(url: str | None = None) -> "Client":
    """A connection to the broker at `find_url(url)`.

    Raises:
        BrokerUnreachable, BrokerUnfit, Denied: one line that says what to do.
    """
    found = find_url(url)
    return Client(open_broker(found, role="client"), found)


def submit(
    spec: SpecSource,
    url: str | None = None,
    *,
    name: str | None = None,
    overrides: Sequence[str] = (),
    resume: str | None = None,
) -> "Experiment":
    """Submit a spec to the broker at `find_url(url)`; see `Client.submit`."""
    return connect(url).submit(spec, name=name, overrides=overrides, resume=resume)


def trainer(
    experiment: "Experiment | str", *, directory: Path | str | None = None, url: str | None = None
) -> "TrainerSession":
    """Be the trainer of an experiment: `with heddle.trainer(exp) as t: for batch in t: ...; t.publish(weights)`.

    Args:
        experiment: one that was submitted, or its name or id.
        directory: its own folder, for checkpoints; None takes runs/<id>.
        url: the broker, when `experiment` is a name.

    Raises:
        NotFound: no such experiment.
        MissingExtra: torch is not installed.
    """
    from heddle.consumers.session import TrainerSession
    from heddle.launch.check import see_spaces
    from heddle.tracing import open_tracing

    if isinstance(experiment, str):
        with connect(url) as client:
            found, at = client.experiment(experiment).id, client.url
    else:
        found, at = experiment.id, experiment.client.url
    home = Path(directory) if directory is not None else RUNS / found
    return TrainerSession(found, directory=home, url=at, describe=see_spaces, tracing=open_tracing("heddle-trainer"))


def load_source(spec: SpecSource, *, overrides: Sequence[str] = (), name: str | None = None) -> LoadedSpec:
    """A spec as given by a user: a mapping, a model, a path, or TOML text (text holds a line break or a "=").

    Raises:
        NotFound, SpecError: as `load_spec`.
    """
    if isinstance(spec, ExperimentSpec):
        return load_spec(spec.model_dump(mode="json", exclude_unset=False), overrides=overrides, name=name)
    if isinstance(spec, str) and "\n" not in spec and "=" not in spec:
        spec = Path(spec)
    return load_spec(spec, overrides=overrides, name=name)


class Client:
    """A broker and what it knows.

    Attributes:
        broker: for everything that is not here.
        url: where it is; may hold a password.
        clock: by which it waits.
    """

    def __init__(self, broker: Broker, url: str, *, clock: Clock | None = None) -> None:
        self.broker = broker
        self.url = url
        self.clock = clock or SystemClock()

    def submit(
        self,
        spec: SpecSource,
        *,
        name: str | None = None,
        overrides: Sequence[str] = (),
        resume: str | None = None,
        spaces: str = "",
        directory: Path = RUNS,
    ) -> "Experiment":
        """Submit a spec: a mapping, a model, a path or TOML text.

        The same spec while its experiment is active gives that experiment (`created` is False).

        Args:
            name: takes the place of experiment.name.
            overrides: "key=value" each.
            resume: name or id of an experiment whose newest checkpoint to start from.
            spaces: JSON of the spaces, when the caller has built an environment; "" lets the first worker see.
            directory: where runs leave their checkpoints here, for a `resume` that the broker does not know.

        Raises:
            NotFound, SpecError: the spec cannot be read, or is wrong; nothing was submitted.
            Conflict: another spec is active under that name.
        """
        loaded = load_source(spec, overrides=overrides, name=name)
        return self.submit_loaded(loaded, resume=resume, spaces=spaces, directory=directory)

    def submit_loaded(
        self,
        loaded: LoadedSpec,
        *,
        resume: str | None = None,
        spaces: str = "",
        directory: Path = RUNS,
        commit: str | None = None,
    ) -> "Experiment":
        """As `submit`, of a spec that is loaded already; `commit` of its code, None looks where this process is.

        Raises:
            BrokerUnfit: the broker keeps less than `limits.durability` asks for.
        """
        if lack := lacking(loaded.spec.limits.durability, self.broker.conn.kept()):
            raise BrokerUnfit(lack)
        before = None if resume is None else self._resumable(resume, loaded.spec, directory)
        submitted = self.broker.experiments.submit(
            loaded.spec.canonical_json(),
            loaded.toml,
            loaded.spec.sha256(),
            loaded.spec.experiment.name,
            suffix=np.random.default_rng(),
            owner=user(),
            spaces=spaces,
            code=__version__,
            commit=commit_of(Path()) if commit is None else commit,
            resume_from=before,
        )
        return Experiment(self, submitted.id, created=submitted.created)

    def experiment(self, name_or_id: str) -> "Experiment":
        """An experiment by id, or the newest of a name. Raises NotFound."""
        return Experiment(self, self.broker.experiments.resolve(name_or_id))

    def group(self, name: str) -> Group:
        """The experiments whose spec names this group, such as those of a sweep."""
        return Group(self, name)

    def experiments(self) -> list[Status]:
        """How every experiment is, newest first."""
        return Statuses(self.broker.experiments.ls())

    def workers(self, pool: str = "default") -> dict[str, Judgement]:
        """How the workers of a pool really are, by id; a notebook shows it as a table."""
        return Workers({info.beat.worker: judged for info, judged in look_at_pool(self.broker, pool)[1]})

    def _repr_html_(self) -> str:
        """For notebooks: the broker, without its password, and what it knows."""
        return html_of_broker(self.broker)

    def why_worker(self, worker: str, *, count: int = 30) -> Story:
        """How a worker is and what happened to it. Raises NotFound."""
        return story_of_worker(self.broker, worker, count=count)

    def tell(self, experiment: str, message: str) -> None:
        """One line for the log of an experiment: what a person did."""
        self.broker.events.log(experiment, "client", user(), "info", message)

    def close(self) -> None:
        """Let the connections go."""
        self.broker.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _resumable(self, resume: str, spec: ExperimentSpec, directory: Path) -> str:
        """The id to resume; one that this broker never knew counts when its checkpoints are in `directory`.

        Raises:
            NotFound: there is no such run, or it left no checkpoint.
            Conflict: it has used up all that `spec` has as its budget.
        """
        try:
            found = self.broker.experiments.resolve(resume)
        except NotFound:
            run = find_run(directory, resume)
            if run is None:
                raise NotFound(self._nothing_to_resume(resume, directory)) from None
            counters = run.facts.get("counters") or {}
            wall_s, updates = float(counters.get("wall_s", 0.0)), int(run.facts.get("update", 0))
            _check_budget(run.id, spec, Spent(int(run.facts.get("env_steps", 0)), wall_s, updates=updates))
            return run.id
        self._check_resumable(found, spec, directory)
        return found

    def _nothing_to_resume(self, resume: str, directory: Path) -> str:
        """What to say of a run that is neither here nor on the broker: what there is at both places."""
        here = named_near(resume, [run.id for run in runs_in(directory)])
        there = named_near(resume, [status.experiment for status in self.experiments()])
        told = [f"{directory}/ has {here}"] if here else [f"{directory}/ has no run with a checkpoint"]
        told += [f"the broker knows {there}"] if there else ["the broker knows none"]
        return f"no run {resume!r} to resume: {', '.join(told)}"

    def _check_resumable(self, before: str, spec: ExperimentSpec, directory: Path) -> None:
        """Refuse what could only end at once or fail. Raises NotFound, Conflict."""
        result = self.broker.experiments.status(before).result
        latest = self.broker.events.metrics_last(before)
        steps = int(result.get("env_steps") or latest.get("env_steps", 0))
        wall_s = float(result.get("wall_s") or latest.get("wall_seconds", 0.0))
        has_some = bool(result["checkpoint"]) if result.get("checkpoint") is not None else steps > 0
        if not has_some and run_at(directory / before) is None:
            raise NotFound(f"{before} left no checkpoint to go on from; start it anew, without --resume")
        _check_budget(before, spec, Spent(steps, wall_s, updates=int(result.get("updates") or 0)))


def _check_budget(before: str, spec: ExperimentSpec, spent: Spent) -> None:
    """Refuse to go on with a run that has used up the budget. Raises Conflict."""
    if why := reached(spec.budget, spent):
        limit, used = ("env_steps", spent.env_steps) if spec.budget.env_steps else ("wall", round(spent.wall_s))
        raise Conflict(
            f"{before} has {why} already, and what a run continues counts, so it would end at once;"
            f" give it more: --set budget.{limit}={2 * used}"
        )
