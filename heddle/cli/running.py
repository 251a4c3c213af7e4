"""What `run` and `demo` share: everything local for one spec, shown while it goes, and its result.

It never decides how a run heals; `heddle.launch` does.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from heddle.broker import open_broker
from heddle.broker.server import find_running, is_running
from heddle.cli.accounts import accounting, accounting_line, adds_up
from heddle.cli.audience import Audience
from heddle.cli.earlier import keep_what_goes_on, say_others
from heddle.cli.ending import asked
from heddle.cli.facts import FactsReader, shown_state
from heddle.cli.follow import Screen
from heddle.cli.heard import hear_warnings
from heddle.cli.outcome import Outcome, Result
from heddle.cli.tables import print_facts
from heddle.cli.tracked import see_through
from heddle.client import FOLDER, Client, connect
from heddle.consumers.curve_file import ENDED
from heddle.errors import FolderTaken, Gone, HeddleError
from heddle.launch.checked import Checked
from heddle.launch.children import Role
from heddle.launch.cut_short import CutShort, folder_for, remembered, remembers
from heddle.launch.giving_up import counting
from heddle.launch.host import cores
from heddle.launch.local import LAUNCHER_SIGNALS, Local, Setup
from heddle.launch.session import Session, trainer_role
from heddle.launch.speaking import Speaking
from heddle.launch.trackers import add_trackers
from heddle.spec import LoadedSpec
from heddle.stop import StopFlag, listen_to_signals

STEP_S = 0.05


@dataclass(frozen=True, slots=True)
class Order:
    """What to run.

    Attributes:
        loaded, checked: the spec, tried out or not.
        url: the broker; None takes that of `heddle up` in this folder, else starts one.
        workers: processes; None = one a core, no more than shards.
        directory: each experiment's checkpoints go into a folder of its id in here.
        private: take no server but one of our own.
        resume: experiment whose newest checkpoint to start from.
        log_dir: one log file a process; None keeps the last lines only.
        to_stderr: show it on standard error; the output is for the result.
        title: above the live view.
        command: goes on with it when everything was killed; "" when nothing does.
    """

    loaded: LoadedSpec
    checked: Checked | None
    url: str | None
    workers: int | None
    directory: Path
    private: bool = False
    to_stderr: bool = False
    resume: str | None = None
    log_dir: Path | None = None
    title: str = "heddle run"
    command: str = ""


@dataclass(frozen=True, slots=True)
class _Watch:
    """The experiment, as the facts reader sees it."""

    _reader: FactsReader

    @property
    def outcome(self) -> str:
        return self._reader.status.outcome if self._reader.status is not None else ""

    @property
    def ended(self) -> bool:
        return self._reader.ended

    def look(self) -> None:
        self._reader.read_now()


@dataclass(frozen=True, slots=True)
class Running:
    """A run that goes on."""

    session: Session
    reader: FactsReader
    local: Local


def run_here(order: Order, audience: Audience, *, each_step: Callable[[Running], None] | None = None) -> Outcome:
    """Run `order` from start to end and show it; ends every process it started. Raises HeddleError: it cannot start.

    Args:
        audience: of its lasting output; when it leaves, that is a wish to end gently.
        each_step: called often.
    """
    stop = StopFlag()
    listen_to_signals(stop, LAUNCHER_SIGNALS)
    audience.tells(partial(stop.drain, arms=False))
    result = Result()
    with (
        result.kept(),
        _services(order, stop) as (local, client),
        _begun(order, local, client, stop) as (running, trackers),
    ):
        session, reader = running.session, running.reader
        with (
            _remembered(order, local, reader.experiment),
            Screen(reader, title=order.title, to_stderr=order.to_stderr).open() as screen,
        ):
            while not session.over():
                session.step()
                if each_step is not None:
                    each_step(running)
                screen.update()
                audience.look()
                stop.wait_now(STEP_S)
            _last_look(session, reader)
            local.settled = stop.now or reader.ended or (order.directory / reader.experiment / ENDED).is_file()
            result.begin(_outcome(order, session, reader))
            result.add(untracked=see_through(running, screen, trackers, client))
        if not stop.now and (ending := asked(client, reader.experiment)) is not None:
            result.add(failures=ending.failures, restarts=(*result.outcome.restarts, *ending.restarts))
    return result.outcome


@contextlib.contextmanager
def _begun(order: Order, local: Local, client: Client, stop: StopFlag) -> Iterator[tuple[Running, Role | None]]:
    """The experiment submitted, its trainer started and whoever looks on; and who feeds its trackers, if any."""
    spec = order.loaded.spec
    spaces = order.checked.spaces_json() if order.checked else ""
    experiment = client.submit_loaded(order.loaded, resume=order.resume, spaces=spaces, directory=order.directory)
    steps, pool = spec.budget.env_steps, spec.experiment.pool
    reader = FactsReader(local.url, experiment.id, budget_steps=steps, pool=pool, starts_roles=True)
    speaking = Speaking(partial(open_broker, local.url, role="launcher"))
    role = trainer_role(
        experiment.id,
        url=local.url,
        directory=order.directory,
        log_file=local.log_file("trainer"),
        on_line=partial(speaking.hear, "trainer", {"experiment": experiment.id}),
    )
    if not experiment.created:
        reader.say(f"going on with {experiment.id}, which was not over")
    local.add(role)
    trackers = add_trackers(local, spec.track, experiment.id, order.directory)
    given_up = counting(client.broker, experiment.id, order.directory)
    session = Session(local, role, _Watch(reader), experiment.stop, stop, reader.say, given_up=given_up)
    reader.start()
    heard = hear_warnings(reader.say)
    try:
        yield Running(session, reader, local), trackers
    finally:
        logging.getLogger(heard.logger).removeHandler(heard)
        reader.stop()
        speaking.stop()


@contextlib.contextmanager
def _services(order: Order, stop: StopFlag) -> Iterator[tuple[Local, Client]]:
    """Server, coordinator and workers while inside, and a client."""
    url = None if order.private else order.url or find_running(FOLDER)
    if url:
        connect(url).close()  # a broker that was named and cannot be used is an error at once
    local = _with_server(order, url, stop)
    try:
        local.start_roles()
        _say_where(order, local)
        say_others(local.setup.folder, to_stderr=order.to_stderr)
        with connect(local.url) as client:
            if local.server is not None:
                sha256 = order.loaded.spec.sha256()
                keep_what_goes_on(client, local.setup.folder, sha256, to_stderr=order.to_stderr)
            yield local, client
    finally:
        local.end()


def _with_server(order: Order, url: str | None, stop: StopFlag) -> Local:
    """The services, with their server started: in the next folder where another run was quicker to take the first."""
    spec = order.loaded.spec
    taken: set[Path] = set()
    while True:
        setup = Setup(
            url=url,
            folder=folder_for(FOLDER, spec.sha256(), lambda folder: folder in taken or is_running(folder)),
            workers=order.workers if order.workers is not None else _default_workers(order),
            pool=spec.experiment.pool,
            durability="strict" if spec.limits.durability == "strict" else "fast",
            log_dir=order.log_dir,
        )
        local, goes_on = Local(setup, stop=stop), remembers(setup.folder)
        try:
            local.start_server()
        except FolderTaken:  # it looked free, for the other one's server was not up yet
            if goes_on and remembers(setup.folder):  # elsewhere it would begin anew; nothing may be left to go on with
                raise
            taken.add(setup.folder)
        else:
            return local


def _default_workers(order: Order) -> int:
    """One a core, but no more than there are shards: none for a run that is offline."""
    from heddle.shard import plan_shards

    return min(cores(), len(plan_shards(order.loaded.spec)))


def _say_where(order: Order, local: Local) -> None:
    own, which = local.server, "the one given" if order.url else "that of `heddle up` in this folder"
    adds = f"this terminal adds a coordinator, workers to pool {local.setup.pool} and a trainer"
    where = f"{own.settings.binary}; look inside with: {own.redis_cli}" if own else f"{which}; {adds}"
    print_facts([("broker", where)], to_stderr=order.to_stderr)


@contextlib.contextmanager
def _remembered(order: Order, local: Local, experiment: str) -> Iterator[None]:
    """So that a run whose every process is killed, the server too, goes on by the same command."""
    if local.server is None or not order.command:
        yield
        return
    folder, directory = local.server.settings.folder, order.directory / experiment
    with remembered(CutShort(folder, experiment, order.loaded.spec.sha256(), order.command, directory)):
        yield


def _last_look(session: Session, reader: FactsReader) -> None:
    if session.stop.now:
        return
    with contextlib.suppress(HeddleError):
        reader.read_now()


def _outcome(order: Order, session: Session, reader: FactsReader) -> Outcome:
    status, flow = reader.status, reader.flow
    state = shown_state(status) if status is not None else "queued"
    reason = status.reason if status is not None else ""
    if session.failure:
        state, reason = "failed", session.failure
    elif session.stop.draining:
        state, reason = "interrupted", "Ctrl-C" if session.stop.reason == "SIGINT" else session.stop.reason
    elif reader.gone:
        raise Gone(f"{reader.experiment} was removed while it ran, or the broker lost what it held")
    return Outcome(
        experiment=reader.experiment,
        state=state,
        reason=reason,
        facts=reader.facts(),
        result=dict(status.result) if status is not None else {},
        accounting=accounting(flow) if flow is not None else {},
        line=accounting_line(flow) if flow is not None else "the broker could not be asked",
        adds_up=flow is not None and adds_up(flow),
        restarts=tuple(ending.why for ending in session.restarts),
        directory=order.directory / reader.experiment,
        troubles=tuple(reader.troubles),
        hurried=session.stop.now,
    )
