"""`coordinator`, `worker`, `trainer`: one role in one process, given only the address of the broker.

They never start a broker; each ends gently on the first SIGTERM or Ctrl-C and at once on the second.
"""

import contextlib
import faulthandler
import importlib
import logging
import os
from typing import TYPE_CHECKING

import click

from heddle.cli.completion import experiment_names, pool_names
from heddle.cli.json_out import prints_are_logged, relay
from heddle.cli.options import command, find_url, folder_to_fill, redis_option
from heddle.cli.root import set_up_logs
from heddle.subject import this_process_is

if TYPE_CHECKING:
    from heddle.broker import Broker
    from heddle.stop import StopFlag
    from heddle.tracing import Tracing

WORKER_ID_ENV, SUPERVISOR_ENV, PARENT_ENV = "HEDDLE_WORKER_ID", "HEDDLE_SUPERVISOR", "HEDDLE_PARENT_PID"
PROFILE_ENV = "HEDDLE_PROFILE"
"""0: nobody looks what a worker is at, and `heddle profile` has nothing to show of it."""

HOST_EXIT_S = 1.5
"""Told twice, a role with children: they have a second to be gone, and it then sees to what they left."""


def begin_role(*modules: str, exit_s: float | None = None, is_service: bool = True) -> "StopFlag":
    """What every role does first: load its code, logs, and ending when told to or when the one that started it is gone.

    Args:
        modules: what it will need. Until they are loaded there is nothing to save, and nobody listens while a library
            is mapped: a signal ends the process at once.
        exit_s: how long it may take to end once it was told twice.
        is_service: its standard output is no data.

    Raises:
        UsageError, MissingExtra: HEDDLE_TRACE says what nobody can do.
    """
    from heddle.launch.hurry import HURRIED_EXIT_S, exit_when_hurried, unheard
    from heddle.launch.ties import die_with_parent
    from heddle.stop import StopFlag, listen_to_signals
    from heddle.tracing import check_tracing

    set_up_logs(logging.INFO, is_service=is_service)
    check_tracing()
    faulthandler.enable(file=2, all_threads=False)  # the thread that a fatal signal came to, not the many that wait
    with unheard():
        die_with_parent()
        for module in modules:
            importlib.import_module(module)
        stop = StopFlag()
        listen_to_signals(stop)
    exit_when_hurried(stop, HURRIED_EXIT_S if exit_s is None else exit_s)
    return stop


@command("coordinator", example="heddle coordinator --redis-url redis://host:6379/0 --metrics-port 9464")
@click.option(
    "--metrics-port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    envvar="HEDDLE_METRICS_PORT",
    show_envvar=True,
    help="Serve http://HOST:PORT/metrics for Prometheus; 0 for any free port.",
)
@click.option(
    "--metrics-bind",
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    envvar="HEDDLE_METRICS_BIND",
    show_envvar=True,
    help="Where to serve them; anybody who reaches it can read them.",
)
@redis_option
def coordinator(metrics_port: int | None, metrics_bind: str, redis_url: str | None) -> None:
    """Admit experiments, hand out their shards, and give a dead worker's shards to others.

    Several may run: one leads, another takes over within seconds. Who leads serves the metrics of the fleet.
    """
    url = find_url(redis_url)
    stop = begin_role("heddle.coord.coordinator")
    from heddle.coord.coordinator import Coordinator

    coordinating = Coordinator(url, stop=stop)
    this_process_is(coordinator=coordinating.id)
    with contextlib.ExitStack() as stack:
        if metrics_port is not None:
            from heddle.coord.exposition import exposed

            stack.enter_context(exposed(url, coordinating.id, bind=metrics_bind, port=metrics_port))
        code = coordinating.run()
    raise click.exceptions.Exit(code)


@command("worker", example="heddle worker --pool default --redis-url redis://host:6379/0")
@click.option("--pool", default="default", show_default=True, shell_complete=pool_names, help="The pool it joins.")
@redis_option
def worker(pool: str, redis_url: str | None) -> None:
    """Play shards until told to end: one worker process. `heddle workers start -n N` keeps N of them running."""
    from heddle.launch.forker import fork_on_demand
    from heddle.launch.process import use_one_thread

    use_one_thread()
    url = find_url(redis_url)
    fork_on_demand()
    stop = begin_role("heddle.producers.worker")
    from heddle.broker import open_broker
    from heddle.producers.host_weights import weights_of_this_host
    from heddle.producers.worker import Worker

    is_heard = SUPERVISOR_ENV in os.environ
    name, sampled = os.environ.get(WORKER_ID_ENV) or None, os.environ.get(PROFILE_ENV, "") != "0"
    with traces("heddle-worker") as tracing, weights_of_this_host() as sharing:

        def connect() -> "Broker":
            return sharing(open_broker(url, role="worker"))

        working = Worker(
            url,
            pool,
            worker_id=name,
            stop=stop,
            connect=connect,
            is_sampled=sampled,
            is_ahead=True,
            tracing=tracing,
        )
        this_process_is(worker=working.id, pool=pool)
        with _marked() if is_heard else _heard(url, "worker", working.id, by_another=False), prints_are_logged():
            code = working.run()
    raise click.exceptions.Exit(code)


@command("trainer", example="heddle trainer cartpole-7f3a\nheddle trainer            # every experiment that needs one")
@click.argument("experiment", metavar="[EXP]", required=False, shell_complete=experiment_names)
@click.option(
    "--dir", "directory", metavar="DIR", default="runs", show_default=True, help="Where checkpoints go, in DIR/EXP."
)
@click.option("--most", metavar="N", type=click.IntRange(1), help="Train at most N experiments at once (without EXP).")
@redis_option
def trainer(experiment: str | None, directory: str, most: int | None, redis_url: str | None) -> None:
    """Train EXP; without EXP, train every active experiment that has no trainer, each in a process of its own."""
    url = find_url(redis_url)
    need_torch("heddle trainer")
    folder = folder_to_fill(directory, "--dir")
    is_heard = PARENT_ENV in os.environ
    if experiment is None:
        stop = begin_role("heddle.launch.trainers", exit_s=HOST_EXIT_S)
        from heddle.launch.trainers import TrainerHost

        with relay() as passed:
            on_line = passed.pass_on if passed else None
            code = TrainerHost(url, directory=folder, most=most, stop=stop, on_line=on_line).run()
        raise click.exceptions.Exit(code)
    stop = begin_role("heddle.consumers.trainer", "heddle.consumers.learners", "heddle.launch.check")
    from heddle.broker import open_broker
    from heddle.consumers.trainer import Trainer

    broker = open_broker(url, role="trainer")
    try:
        found = broker.experiments.resolve(experiment)
    finally:
        broker.close()
    from heddle.launch.check import see_spaces

    home = folder / found
    with traces("heddle-trainer") as tracing:
        this_process_is(experiment=found)
        with _heard(url, "trainer", "trainer", by_another=is_heard), prints_are_logged():
            code = Trainer(url, found, stop=stop, directory=home, describe=see_spaces, tracing=tracing).run()
    raise click.exceptions.Exit(code)


def _heard(url: str, role: str, who: str, *, by_another: bool) -> "contextlib.AbstractContextManager[None]":
    """Have what user code prints heard; nothing where whoever started this process does that."""
    if by_another:
        return contextlib.nullcontext()
    from heddle.cli.prints import prints_are_heard

    return prints_are_heard(url, role, who)


def _marked() -> "contextlib.AbstractContextManager[None]":
    from heddle.cli.prints import prints_are_marked

    return prints_are_marked()


def traces(service: str) -> "contextlib.AbstractContextManager[Tracing | None]":
    """What takes this process's spans while inside, where HEDDLE_TRACE asks for it. Raises UsageError, MissingExtra."""
    from heddle.tracing import open_tracing

    return open_tracing(service) or contextlib.nullcontext()


def need_torch(what: str) -> None:
    """Raise MissingExtra unless torch is installed; loads nothing."""
    import importlib.util

    from heddle.errors import MissingExtra

    if importlib.util.find_spec("torch") is None:
        raise MissingExtra(what, "torch")
